"""What a run measures beside training: evaluations, and agreement of sampler and learner."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """When and how a run is evaluated."""

    sets: dict[str, str] = option(
        default_factory=dict,
        help="Name -> problem set file; evaluated before the first step, at log-spaced compute and at the end.",
    )
    samples: int = option(8, "Completions per problem.", low=1)
    k: int = option(4, "k of avg@k, best@k and worst@k; at most `samples`.", low=1)
    points: int = option(15, "Evaluations between `first_compute` and the end, both included.", low=1)
    first_compute: int = option(2048, "Rollouts at the first evaluation after training began.", low=1)
    max_problems: int = option(0, "Evaluate at most so many problems of each set, the first ones; 0 for all.", low=0)
    solved_at: float = option(
        1.0, "A completion solves its problem if its reward is at least this; avg@k counts those that do.", later=True
    )

    def __post_init__(self) -> None:
        check(self)


@described
@dataclasses.dataclass(frozen=True)
class AgreementConfig:
    """When the sampler's log-probabilities are compared with the learner's, and what they may differ by.

    A run that samples from a service checks at every start and after every `every` updates, on the same prompts each
    time: a prefix cache that outlived its weights shows only on a prompt that was there before. In one process sampler
    and learner share their arrays, and `logprob_difference` stands in every line of metrics.jsonl; there is no check.
    """

    every: int = option(50, "Updates between two checks; 0 for none at all.", low=0)
    warn: float = option(0.02, "Mean absolute difference, in nats per token, above which the run warns.")
    stop: float = option(0.2, "The same, above which the run ends.")
    problems: int = option(16, "Training problems that are sampled (the first ones).", low=1)
    samples: int = option(4, "Completions of each.", low=1)

    def __post_init__(self) -> None:
        check(self)
