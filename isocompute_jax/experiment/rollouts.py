"""From problems to requests, and from completions to rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import Sampler, SampleRequest, SamplingParams
from isocompute_jax.tasks import Prompts


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


def sample(
    sampler: Sampler,
    requests: Sequence[SampleRequest],
    *,
    lane: str,
    version: int,
    grade: Callable[[Iterable[RolloutGroup]], Iterable[RolloutGroup]] = iter,
) -> list[RolloutGroup]:
    """Samples in a lane of its own and waits; groups in the order of the requests, however they arrive.

    Args:
      sampler: draws them.
      requests: what is asked for.
      lane: nobody else reads it.
      version: of the weights that draw.
      grade: from the groups as they arrive to what is kept of them; by default they stay ungraded.

    Raises:
      RunError: the sampler has failed, or used other weights than `version`.
    """
    sampler.submit(requests, lane=lane)
    groups = {group.problem_id: group for group in grade(sampler.completed(lane=lane))}
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


def by_id(problems: Iterable[Problem]) -> dict[str, Problem]:
    """Problems as `tasks.graded` takes them."""
    return {problem.id: problem for problem in problems}
