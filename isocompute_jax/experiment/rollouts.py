"""From problems to requests, and from completions to rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import Sampler, SampleRequest, SamplingParams
from isocompute_jax.tasks import Prompts, Tokenizer, grade


def make_requests(
    problems: Sequence[Problem], prompts: Prompts, config: SamplingConfig, *, group_size: int, seed: int, step: int
) -> list[SampleRequest]:
    """One request per problem."""
    params = SamplingParams(config.temperature, config.top_p, config.max_tokens)
    stop = prompts.tokenizer.eos_ids
    return [
        SampleRequest(problem.id, prompt, group_size, seed, step, stop, params)
        for problem, prompt in zip(problems, prompts.encode(problems), strict=True)
    ]


def sample(sampler: Sampler, requests: Sequence[SampleRequest], *, lane: str, version: int) -> list[RolloutGroup]:
    """Samples in a lane of its own and waits; ungraded groups in the order of the requests, however they arrive.

    Raises:
      RunError: the sampler has failed, or used other weights than `version`.
    """
    sampler.submit(requests, lane=lane)
    groups = {group.problem_id: group for group in sampler.completed(lane=lane)}
    lost = [request.problem_id for request in requests if request.problem_id not in groups]
    if lost:
        raise RunError(f"the sampler lost {len(lost)} groups, that of problem {lost[0]!r} first")
    ordered = [groups[request.problem_id] for request in requests]
    check_versions(ordered, oldest=version, newest=version)
    return ordered


def check_versions(groups: Iterable[RolloutGroup], *, oldest: int, newest: int) -> None:
    """Raises RunError unless every token was drawn under weights between `oldest` and `newest`."""
    for group in groups:
        for completion in group.completions:
            first, last = int(completion.policy_versions.min()), int(completion.policy_versions.max())
            if first < oldest or last > newest:
                raise RunError(
                    f"problem {group.problem_id!r} was sampled under weights {first} to {last}, where {oldest} to "
                    f"{newest} were asked for: does another run push its weights to the same servers?"
                )


def graded(groups: Iterable[RolloutGroup], problems: Mapping[str, Problem], tokenizer: Tokenizer) -> list[RolloutGroup]:
    """Every group with its rewards; `problems` are those that were asked for, and perhaps others, by id."""
    return [grade(group, problems[group.problem_id], tokenizer.decode) for group in groups]


def by_id(problems: Iterable[Problem]) -> dict[str, Problem]:
    """Problems as `graded` takes them."""
    return {problem.id: problem for problem in problems}
