"""What a run measures beside training: evaluations, and agreement of sampler and learner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.options import check, described, option

SAMPLES, POINTS, FIRST_COMPUTE = 8, 15, 2048
"""What is left open comes to, in runs that are long enough."""
FEW_EVALUATIONS = 6
"""Where `share` allows fewer with `SAMPLES`, problems are sampled k times each."""
LEAST_EVALUATIONS = 4
"""Where it allows fewer even so, fewer problems are evaluated."""


@described
@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """When and how a run is evaluated; what is left open is settled once the sets are read, and by `config.json`."""

    sets: dict[str, str] = option(
        default_factory=dict,
        help="Name -> problem set file; evaluated before the first step, at log-spaced compute and at the end.",
    )
    samples: int = option(0, "Completions per problem; 0: 8, or k where `share` is little.", low=0)
    k: int = option(4, "k of avg@k, best@k and worst@k; at most `samples`.", low=1)
    points: int = option(
        0,
        "Evaluations between `first_compute` and the end, both included; 0: 15, or as many as `share` allows, 3 at "
        "least.",
        low=0,
    )
    first_compute: int = option(
        0,
        "Rollouts at the first evaluation after training began; 0: 2048, or, where `points` is 0, a sixteenth of "
        "max_compute if that is less.",
        low=0,
    )
    max_problems: int = option(
        0,
        "Evaluate at most so many problems of each set, the first ones; 0 for all, or for as many as `share` allows "
        "where `samples` or `points` is 0.",
        low=0,
    )
    solved_at: float = option(
        1.0, "A completion solves its problem if its reward is at least this; avg@k counts those that do.", later=True
    )
    share: float = option(
        0.25,
        "Rollouts of all evaluations over max_compute, at most, where `samples` or `points` is 0; 0 for no bound.",
        low=0,
        identity=False,
        later=True,
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_open(self) -> bool:
        """Whether how often, or of how many samples, is left to `settled`."""
        return not (self.samples and self.points)

    def first(self, max_compute: int) -> int:
        """Rollouts at the first evaluation after training began."""
        latest = FIRST_COMPUTE if self.points else max(max_compute // 16, 1)
        return self.first_compute or min(FIRST_COMPUTE, latest)

    def as_recorded(self, recorded: Mapping[str, Any]) -> EvaluationConfig:
        """With what is left open as the config.json of a run has it, settled or by the defaults of its release."""
        names = ("samples", "points", "first_compute", *(("max_problems",) if self.is_open else ()))
        return dataclasses.replace(self, **{name: recorded.get(name, 0) for name in names if not getattr(self, name)})

    def settled(self, set_sizes: Sequence[int], max_compute: int) -> EvaluationConfig:
        """With numbers for all that is left open, so that evaluations draw at most `share` of `max_compute` rollouts.

        First there are fewer evaluations, then fewer samples of each problem, then fewer problems, of which one of each
        set is left. What is given stays as it is.

        Args:
          set_sizes: problems of each set.
          max_compute: C.
        """
        given = dataclasses.replace(self, first_compute=self.first(max_compute))
        if not self.is_open:
            return given
        budget = self.share * max_compute if self.share else math.inf

        def drawn(samples: int, most: int) -> int:
            """Rollouts of one evaluation, of up to `most` problems of each set."""
            return samples * sum(min(size, most or size) for size in set_sizes)

        def times(samples: int) -> float:
            """How many of them the budget allows."""
            return budget / max(drawn(samples, self.max_problems), 1)

        wanted = max(self.points, 2) + 1 if self.points else FEW_EVALUATIONS
        samples = self.samples or max(SAMPLES, self.k)
        if not self.samples and times(samples) < wanted:
            samples = self.k
        points = self.points or int(min(max(times(samples), LEAST_EVALUATIONS), POINTS + 1)) - 1
        evaluations, most = max(points, 2) + 1, self.max_problems
        if set_sizes and not most and times(samples) < evaluations:
            fitting = (m for m in range(max(set_sizes), 0, -1) if drawn(samples, m) * evaluations <= budget)
            most = next(fitting, 1)
        return dataclasses.replace(given, samples=samples, points=points, max_problems=most)


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
