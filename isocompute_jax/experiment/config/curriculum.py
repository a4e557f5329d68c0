"""What is drawn next, how often, and what is done without."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError

Order = Literal["shuffled", "easy_to_hard", "hard_to_easy"]
RetireFor = Literal["run", "epoch"]
Weighting = Literal["fixed", "adaptive"]


@described
@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """Which problems a run draws; docs/curriculum.md says what each choice costs in C."""

    dynamic_sampling: bool = option(
        False,
        "Draws further problems within a step until problems_per_batch of them have rewards that differ (DAPO, arXiv "
        "2503.14476); the others are paid for and not trained on. A run then ends when its compute is spent, not after "
        "a number of steps.",
    )
    max_sampled_batches: float = option(
        10.0,
        "Problems that a step of dynamic sampling may draw, in multiples of problems_per_batch; what it has by then is "
        "trained on.",
        low=1,
    )
    retire_rate: float = option(
        0.0,
        "Problems whose rollouts of this run were correct at least so often are no longer drawn "
        "(no-positive-resampling; ScaleRL, arXiv 2510.13786: 0.9); 0 retires none.",
        low=0,
        high=1,
    )
    retire_attempts: int = option(1, "Rollouts of a problem before it can be retired.", low=1)
    retire_for: RetireFor = option(
        "run", "How long a problem is retired: run, for good (ScaleRL); epoch, it sits out every other epoch."
    )
    order: Order = option(
        "shuffled",
        "Order of problems within an epoch: shuffled; easy_to_hard or hard_to_easy, by `rate_column`, shuffled among "
        "equals.",
    )
    rate_column: str = option("avg@16", "Measured rate of the problem set, from curation, that says how hard it is.")
    pools: tuple[float, ...] = option(
        (),
        "Rates that cut the problems into pools of difficulty, ascending: (0.1, 0.5) makes three, each with its upper "
        "end. Problems of a pool are equals for `order`; without pools those of one rate are.",
        low=0,
        high=1,
    )
    stages: tuple[float, ...] = option(
        (),
        "Shares of max_compute, one for each pool in `order`, that sum to 1: the run trains on one pool after the "
        "other, epochs of it each. Empty: every epoch has all pools.",
        low=0,
        high=1,
    )
    train_sets: dict[str, str] = option(
        default_factory=dict,
        help="Name -> problem set file, in place of `train_set`: a mixture. Problems are then called NAME/ID.",
    )
    weighting: Weighting = option(
        "fixed",
        "Shares of the sets in a mixture: fixed, `weights`; adaptive, in proportion to the mean of p (1 - p) over the "
        "problems of each that were drawn last, p being their rate of success (see curriculum/mixtures.py).",
    )
    weights: dict[str, float] = option(
        default_factory=dict, help="Name -> weight of each of `train_sets`; empty: their numbers of problems."
    )

    @property
    def varies(self) -> bool:
        """Whether draws may be of other sizes than problems_per_batch."""
        return self.dynamic_sampling or self.retire_rate > 0

    def __post_init__(self) -> None:
        check(self)
        where = type(self).__name__
        if list(self.pools) != sorted(set(self.pools)):
            raise InputError(f"{where}.pools = {self.pools}: give ascending rates")
        if self.stages and len(self.stages) != len(self.pools) + 1:
            raise InputError(
                f"{where}.stages has {len(self.stages)} shares for {len(self.pools) + 1} pools: give one for each "
                f"(`pools` are the rates between them)"
            )
        if self.stages and (abs(sum(self.stages) - 1) > 1e-9 or min(self.stages) <= 0):
            raise InputError(f"{where}.stages = {self.stages}: shares must be above 0 and sum to 1")
        if (self.pools or self.stages) and self.order == "shuffled":
            raise InputError(f"{where}.pools need an order: set {where}.order to easy_to_hard or hard_to_easy")
        if self.weights and set(self.weights) != set(self.train_sets):
            raise InputError(
                f"{where}.weights names {sorted(self.weights)}, {where}.train_sets {sorted(self.train_sets)}: name the "
                "same sets, or give no weights"
            )
        if self.weights and not all(weight > 0 for weight in self.weights.values()):
            raise InputError(f"{where}.weights = {self.weights}: each must be above 0; leave a set out to skip it")
        if self.weights and self.weighting == "adaptive":
            raise InputError(f"{where}.weights are not used by {where}.weighting = 'adaptive': give one of them")
        if len(self.train_sets) == 1 or "" in self.train_sets:
            raise InputError(f"{where}.train_sets = {self.train_sets}: name two sets or more; one is config.train_set")
