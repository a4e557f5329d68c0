"""The part of a sweep's results that is about the frontier: leaders, switches with their evidence, ties, slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

from isocompute_jax.fit.plain_data import INLINE, INTERNAL
from isocompute_jax.fit.results import AllocationFit, Configuration, LawStatus

SURE = 0.95
"""A leader is sure where at least this share of the replicates has it."""

Epochs = Literal["near one", "later", "earlier", "mixed"]
Course = Literal["rises", "level", "mixed"]


class OfConfiguration:
    """A record of one configuration, which is called by its name."""

    configuration: Configuration

    @property
    def run(self) -> str:
        """What tables and legends call it."""
        return self.configuration.name

    @property
    def group_size(self) -> int:
        """Its n; 0 when unknown."""
        return self.configuration.group_size

    @property
    def problems_per_batch(self) -> int:
        """Its B_problem; 0 when unknown."""
        return self.configuration.problems_per_batch


@dataclasses.dataclass(frozen=True)
class Lead:
    """How far one configuration is ahead of another by the evaluations, and the standard error of that."""

    difference: float
    stderr: float


@dataclasses.dataclass(frozen=True)
class SwitchRow:
    """Where the frontier passes from one configuration to another (see `results.Switch`)."""

    compute: float
    from_group_size: int
    to_group_size: int
    from_problems_per_batch: int
    to_problems_per_batch: int
    from_run: str
    to_run: str
    reward: float
    epochs: float
    cause: Literal["crossing", "range"]


@dataclasses.dataclass(frozen=True)
class SwitchResult:
    """A switch of the frontier and how well it is borne out.

    Attributes:
      row: the switch.
      interval95: where 95% of the replicates that have it have it; None without a bootstrap, NaN where few have it.
      share: of the replicates that have it; None without a bootstrap.
      lead_before: of the old configuration, over the budgets before the switch.
      lead_after: of the new one, over those after it.
      beyond_noise: whether both leads exceed two standard errors; None where there is no noise estimate.
      by_seed: seed -> where that seed alone has it; None where it has not.
      established: in nearly all replicates (`SURE`), and in every seed alone; None where either cannot be told.
      epoch_interval95: the interval in epochs; None where epochs are not proportional to compute.
      epochs_by_seed: the epochs of each seed that has it, likewise.
    """

    row: SwitchRow = dataclasses.field(metadata=INLINE)
    interval95: tuple[float, float] | None
    share: float | None
    lead_before: Lead
    lead_after: Lead
    beyond_noise: bool | None
    by_seed: Mapping[str, float | None]
    established: bool | None
    epoch_interval95: tuple[float, float] | None = dataclasses.field(metadata=INTERNAL)
    epochs_by_seed: tuple[float, ...] = dataclasses.field(metadata=INTERNAL)

    @property
    def seen(self) -> list[float]:
        """Where the seeds that have it alone have it."""
        return [compute for compute in self.by_seed.values() if compute is not None]

    @property
    def in_every_seed(self) -> bool | None:
        """Whether every seed alone has it; None with fewer than two."""
        return len(self.seen) == len(self.by_seed) if self.by_seed else None


@dataclasses.dataclass(frozen=True)
class SegmentResult(OfConfiguration):
    """A stretch of compute on which one configuration is the best."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class FrontierPoint(OfConfiguration):
    """Who leads at an evaluated budget, with which number of steps and at which fitted reward."""

    compute: float
    configuration: Configuration = dataclasses.field(metadata=INLINE)
    num_steps: float | None
    reward: float


@dataclasses.dataclass(frozen=True)
class FrontierBudget(OfConfiguration):
    """A point of the main frontier, with its smoothed n*, the n of 95% of replicates, and the share that agree."""

    point: FrontierPoint = dataclasses.field(metadata=INLINE)
    smoothed_group_size: float | None
    interval95: tuple[float, float] | None
    leader_share: float | None

    @property
    def configuration(self) -> Configuration:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Who leads."""
        return self.point.configuration

    @property
    def compute(self) -> float:
        """The budget."""
        return self.point.compute


@dataclasses.dataclass(frozen=True)
class BatchCourse:
    """How the best number of steps moves along the frontier, where it does so in one direction."""

    first: float
    last: float
    growth: float
    compute_growth: float


@dataclasses.dataclass(frozen=True)
class FrontierResult:
    """The frontier of the metric."""

    metric: str
    switches: tuple[SwitchResult, ...]
    segments: tuple[SegmentResult, ...]
    budgets: tuple[FrontierBudget, ...]

    @property
    def crossings(self) -> list[SwitchResult]:
        """The switches at which two curves cross."""
        return [switch for switch in self.switches if switch.row.cause == "crossing"]

    @property
    def num_established(self) -> int | None:
        """How many crossings are established; None where nothing tells."""
        told = [switch.established for switch in self.crossings if switch.established is not None]
        return sum(told) if told else None

    @property
    def shares(self) -> tuple[float, float] | None:
        """Least and largest share of replicates that have a crossing; None without."""
        found = [switch.share for switch in self.crossings if switch.share is not None]
        return (min(found), max(found)) if found else None

    @property
    def leader_shares(self) -> list[float]:
        """Share of replicates that agree on the leader, at the budgets where there is one."""
        return [row.leader_share for row in self.budgets if row.leader_share is not None]

    @property
    def num_sure(self) -> int:
        """Budgets whose leader is the same in nearly all replicates."""
        return sum(share >= SURE for share in self.leader_shares)

    @property
    def steps(self) -> BatchCourse | None:
        """How the number of steps moves; None where it is unknown, or goes up and down, or stays."""
        values = [row.point.num_steps or 0.0 for row in self.budgets]
        ordered = values in (sorted(values), sorted(values, reverse=True))
        if not values or not all(values) or values[0] == values[-1] or not ordered:
            return None
        spread = self.budgets[-1].compute / self.budgets[0].compute
        return BatchCourse(values[0], values[-1], values[-1] / values[0], spread)

    @property
    def with_epochs(self) -> list[SwitchResult]:
        """The crossings whose number of epochs is known."""
        return [switch for switch in self.crossings if np.isfinite(switch.row.epochs)]

    @property
    def epochs(self) -> Epochs:
        """Where the crossings lie against one epoch."""
        values = [switch.row.epochs for switch in self.with_epochs]
        if all(0.5 <= value <= 2 for value in values):
            return "near one"
        return "later" if min(values) > 2 else "earlier" if max(values) < 0.5 else "mixed"


@dataclasses.dataclass(frozen=True)
class LawParameters:
    """Parameters of the sigmoid (see `results.AllocationFit`)."""

    span: float
    slope: float
    midpoint: float
    floor: float


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationLaw:
    """The sigmoid law of n*(C), or of n*(M)."""

    axis: Literal["compute", "steps"]
    law: LawParameters
    saturation: float
    interval95: Mapping[str, tuple[float, float]]
    status: LawStatus
    message: str
    fit: AllocationFit = dataclasses.field(metadata=INTERNAL)

    @classmethod
    def of(cls, fit: AllocationFit) -> AllocationLaw:
        """The record of a fit."""
        law = LawParameters(fit.span, fit.slope, fit.midpoint, fit.floor)
        return cls(fit.axis, law, fit.saturation, fit.interval95, fit.status, fit.message, fit)


@dataclasses.dataclass(frozen=True, eq=False)
class SliceResult:
    """The frontier of the configurations that share B_problem, or B (see `stages.FrontierSlice`)."""

    kind: Literal["problems_per_batch", "rollouts_per_step"]
    value: int
    runs: tuple[str, ...]
    budgets: tuple[FrontierPoint, ...]
    switches: tuple[SwitchRow, ...]
    allocation: AllocationLaw

    @property
    def course(self) -> Course:
        """How n* moves over the budgets."""
        sizes = [row.group_size for row in self.budgets]
        if len(set(sizes)) == 1:
            return "level"
        return "rises" if sizes[-1] > sizes[0] and sizes == sorted(sizes) else "mixed"


@dataclasses.dataclass(frozen=True)
class BestN:
    """The best configuration at a budget by the evaluations, and those that cannot be told from it."""

    compute: float
    best_run: str
    best_group_size: int
    tied_runs: tuple[str, ...]
    tied_group_sizes: tuple[int, ...]
    compared: int
    reward: float
    seed_sd: float

    @property
    def rivals(self) -> list[str]:
        """Those tied with the best."""
        return [run for run in self.tied_runs if run != self.best_run]


@dataclasses.dataclass(frozen=True)
class TiesResult:
    """Leads and ties by the evaluations alone."""

    rule: str
    seeds: int
    noise_estimate: bool
    budgets: tuple[BestN, ...]

    @property
    def compared(self) -> list[BestN]:
        """The budgets at which several configurations were evaluated."""
        return [row for row in self.budgets if row.compared > 1]


@dataclasses.dataclass(frozen=True)
class SeedBudget:
    """seed -> who has the best evaluation at a budget, and whether all seeds name the same n."""

    compute: float
    best_run: Mapping[str, str]
    best_group_size: Mapping[str, int]
    unanimous: bool


@dataclasses.dataclass(frozen=True)
class SeedAgreement:
    """Each seed alone: its leaders and its switches."""

    seeds: tuple[int, ...]
    budgets: tuple[SeedBudget, ...]
    switches: Mapping[str, tuple[SwitchRow, ...]]

    @property
    def num_unanimous(self) -> int:
        """Budgets at which every seed names the same n."""
        return sum(row.unanimous for row in self.budgets)


@dataclasses.dataclass(frozen=True)
class TargetBudget:
    """Who leads in a target at a budget: by the evaluations, and on its fitted frontier."""

    best: BestN = dataclasses.field(metadata=INLINE)
    frontier_group_size: int | None
    frontier_run: str | None


@dataclasses.dataclass(frozen=True)
class TargetResult:
    """One target: avg@k, best@k, worst@k, or another column."""

    budgets: tuple[TargetBudget, ...]
    switches: tuple[SwitchRow, ...]

    @property
    def compared(self) -> list[TargetBudget]:
        """The budgets at which several configurations were evaluated."""
        return [row for row in self.budgets if row.best.compared > 1]


def wants_larger_n(one: BestN, other: BestN) -> bool | None:
    """Whether `one` asks for a larger n than `other`; None where the same n serves both within noise."""
    if set(one.tied_group_sizes) & set(other.tied_group_sizes):
        return None
    return one.best_group_size >= other.best_group_size
