"""From problems to requests, and from completions to rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import SampleRequest, SamplingParams
from isocompute_jax.tasks import Tokenizer, grade


def make_requests(
    problems: Sequence[Problem], tokenizer: Tokenizer, config: SamplingConfig, *, group_size: int, seed: int, step: int
) -> list[SampleRequest]:
    """One request per problem."""
    params = SamplingParams(config.temperature, config.top_p, config.max_tokens)
    prompts = tokenizer.encode_batch([problem.prompt for problem in problems])
    return [
        SampleRequest(problem, prompt, group_size, seed, step, params)
        for problem, prompt in zip(problems, prompts, strict=True)
    ]


def graded(groups: Iterable[RolloutGroup], tokenizer: Tokenizer) -> list[RolloutGroup]:
    """Every group with its rewards."""
    return [grade(group, tokenizer.decode) for group in groups]
