"""How well a switch is borne out: its bootstrap interval, the leads on both sides of it, and each seed alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.frontier.bootstrap import Bootstrap, percentile_interval
from isocompute_jax.fit.frontier.standings import lead
from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.fit.results import SURE, Configuration, Switch
from isocompute_jax.fit.stages import MetricAnalysis

LEAD_ERRORS = 2.0
"""A lead counts as beyond seed noise above so many standard errors."""

LEAST_REPLICATES = 0.1
"""A switch has an interval where at least this share of the replicates has it."""


@dataclasses.dataclass(frozen=True)
class Lead:
    """How far one configuration is ahead of another by the evaluations, and the standard error of that."""

    difference: float
    stderr: float


@dataclasses.dataclass(frozen=True)
class SwitchResult(Switch):
    """A switch of the frontier and how well it is borne out."""

    interval95: tuple[float, float] | None  # of the replicates that have it; None without a bootstrap, NaN if few do
    share: float | None  # of the replicates that have it; None without a bootstrap
    lead_before: Lead  # of the old configuration, over the budgets before the switch
    lead_after: Lead  # of the new one, over those after it
    beyond_noise: bool | None  # both leads exceed two standard errors; None where there is no noise estimate
    by_seed: Mapping[str, float | None]  # seed -> where that seed alone has it; None where it has not
    established: bool | None  # in nearly all replicates (`SURE`) and every seed alone; None where either is unknown
    epoch_interval95: tuple[float, float] | None = dataclasses.field(metadata=INTERNAL)  # the interval in epochs; None
    epochs_by_seed: tuple[float, ...] = dataclasses.field(metadata=INTERNAL)  # where epochs do not follow compute

    @property
    def seen(self) -> list[float]:
        """Where the seeds that have it alone have it."""
        return [compute for compute in self.by_seed.values() if compute is not None]

    @property
    def in_every_seed(self) -> bool | None:
        """Whether every seed alone has it; None with fewer than two."""
        return len(self.seen) == len(self.by_seed) if self.by_seed else None


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
    switches: Mapping[str, tuple[Switch, ...]]

    @property
    def num_unanimous(self) -> int:
        """Budgets at which every seed names the same n."""
        return sum(row.unanimous for row in self.budgets)


def switch_results(
    main: MetricAnalysis, by_seed: Mapping[int, MetricAnalysis], resampled: Bootstrap | None
) -> tuple[SwitchResult, ...]:
    """The switches of the frontier with their evidence.

    Args:
      main: of the metric.
      by_seed: of each seed alone.
      resampled: replicates of the frontier; None without.
    """
    alone = {str(seed): found.frontier.switches for seed, found in by_seed.items()}
    return tuple(_evidence(main, switch, alone, resampled) for switch in main.frontier.switches)


def _evidence(
    main: MetricAnalysis, switch: Switch, alone: Mapping[str, Sequence[Switch]], resampled: Bootstrap | None
) -> SwitchResult:
    """How well the interval, the evaluations and the seeds bear one switch out."""
    ends = share = None
    sides = (main.configurations.index(each) for each in (switch.before, switch.after))
    if resampled is not None and all(resampled.tells(main.fits[i], i) for i in sides):
        ends, share = switch_interval(resampled, switch)
    leads = before, after = _leads(main, switch)
    noise = any(math.isfinite(budget.seed_sd) for budget in main.budgets)
    beyond = all(side.difference > LEAD_ERRORS * side.stderr for side in leads)
    pair = switch.before, switch.after
    by_seed = {
        seed: next((each.compute for each in switches if (each.before, each.after) == pair), None)
        for seed, switches in alone.items()
    }
    per_unit = switch.epochs / switch.compute if main.rollouts is None else math.nan  # proportional to rollouts alone
    in_epochs = ends is not None and math.isfinite(per_unit * ends[0])
    return SwitchResult(
        **vars(switch),
        interval95=ends,
        share=share,
        lead_before=before,
        lead_after=after,
        beyond_noise=beyond if noise else None,
        by_seed=by_seed,
        established=_established(share, by_seed),
        epoch_interval95=(ends[0] * per_unit, ends[1] * per_unit) if ends and in_epochs else None,
        epochs_by_seed=tuple(c * per_unit for c in by_seed.values() if c is not None and math.isfinite(per_unit)),
    )


def switch_interval(found: Bootstrap, switch: Switch) -> tuple[tuple[float, float], float]:
    """95% interval of the compute of a switch, and the share of the replicates that have it.

    Of several like it in a replicate the nearest in log C counts. NaN ends when fewer than `LEAST_REPLICATES` have it,
    or where they do not hold it (`percentile_interval`).
    """
    pair = found.configurations.index(switch.before), found.configurations.index(switch.after)
    places = []
    for leader, rewards in zip(found.leader, found.lead, strict=True):
        at = np.flatnonzero((leader[:-1] == pair[0]) & (leader[1:] == pair[1]))
        if len(at):
            computes = [_between(found.compute, rewards[pair, i : i + 2], i) for i in at.tolist()]
            places.append(min(computes, key=lambda compute: abs(math.log(compute / switch.compute))))
    share = len(places) / found.replicates
    if share < LEAST_REPLICATES:
        return (math.nan, math.nan), share
    step = float(found.compute[1] / found.compute[0]) - 1.0  # of the grid: a replicate's switch is known to less
    return percentile_interval(np.array(places), switch.compute, rounding=step), share


def _between(grid: np.ndarray, lead: np.ndarray, i: int) -> float:
    """The crossing of two curves `lead` [2, 2] between grid points i and i + 1, linear in log C; else half-way."""
    gap = lead[1] - lead[0]
    share = 0.5 if not np.isfinite(gap).all() or gap[1] == gap[0] else -gap[0] / (gap[1] - gap[0])
    return float(grid[i] * (grid[i + 1] / grid[i]) ** share)


def _established(share: float | None, by_seed: Mapping[str, float | None]) -> bool | None:
    """Whether nearly all replicates and every seed alone have a switch; None where either cannot be told."""
    if (by_seed and None in by_seed.values()) or (share is not None and share < SURE):
        return False
    return True if by_seed and share is not None else None


def _leads(main: MetricAnalysis, switch: Switch) -> tuple[Lead, Lead]:
    """Of the old configuration over the budgets before a switch, and of the new one over those after it."""
    computes = np.array([budget.compute for budget in main.budgets])
    before = computes[(computes >= switch.span[0]) & (computes <= switch.compute)]
    after = computes[(computes >= switch.compute) & (computes <= switch.span[1])]
    return (
        Lead(*lead(main.sound, switch.before, switch.after, compute=before)),
        Lead(*lead(main.sound, switch.after, switch.before, compute=after)),
    )


def seed_agreement(by_seed: Mapping[int, MetricAnalysis]) -> SeedAgreement:
    """Which configuration has the best evaluation at each budget of all seeds, and each seed's fitted switches."""
    best: dict[float, dict[str, Configuration]] = {}
    for seed, found in by_seed.items():
        for budget in found.budgets:
            best.setdefault(budget.compute, {})[str(seed)] = budget.best
    rows = []
    for compute, leaders in sorted(best.items()):
        if len(leaders) < len(by_seed):  # where one seed was evaluated alone nothing can agree
            continue
        sizes = {seed: leader.group_size for seed, leader in leaders.items()}
        names = {seed: leader.name for seed, leader in leaders.items()}
        rows.append(SeedBudget(compute, names, sizes, unanimous=len(set(sizes.values())) == 1))
    switches = {str(seed): found.frontier.switches for seed, found in by_seed.items()}
    return SeedAgreement(tuple(by_seed), tuple(rows), switches)
