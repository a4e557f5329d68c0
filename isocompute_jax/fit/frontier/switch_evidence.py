"""How well a switch is borne out: its bootstrap interval, the leads on both sides of it, and each seed alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.frontier.bootstrap import Bootstrap, SwitchInterval, switch_interval
from isocompute_jax.fit.frontier.ties import lead
from isocompute_jax.fit.frontier_results import SURE, Lead, SeedAgreement, SeedBudget, SwitchResult, SwitchRow
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.results import Configuration, Switch

LEAD_ERRORS = 2.0
"""A lead counts as beyond seed noise above so many standard errors."""


def switch_rows(found: MetricAnalysis, switches: Sequence[Switch] | None = None) -> tuple[SwitchRow, ...]:
    """Switches by the names of their configurations: those of the metric's frontier, or the ones given."""
    configurations = [curve.configuration for curve in found.curves]
    return tuple(_row(s, configurations) for s in (found.frontier.switches if switches is None else switches))


def _row(switch: Switch, configurations: Sequence[Configuration]) -> SwitchRow:
    left, entered = configurations[switch.from_index], configurations[switch.to_index]
    return SwitchRow(
        compute=switch.compute,
        from_group_size=left.group_size,
        to_group_size=entered.group_size,
        from_problems_per_batch=left.problems_per_batch,
        to_problems_per_batch=entered.problems_per_batch,
        from_run=left.name,
        to_run=entered.name,
        reward=switch.reward,
        epochs=switch.epochs,
        cause=switch.cause,
    )


def switch_results(
    main: MetricAnalysis, by_seed: Mapping[int, MetricAnalysis], resampled: Bootstrap | None
) -> tuple[SwitchResult, ...]:
    """The switches of the frontier with their evidence.

    Args:
      main: of the metric.
      by_seed: of each seed alone.
      resampled: replicates of the frontier; None without.
    """
    alone = {str(seed): switch_rows(found) for seed, found in by_seed.items()}
    rows = zip(switch_rows(main), main.frontier.switches, strict=True)
    return tuple(_evidence(main, row, switch, alone, resampled) for row, switch in rows)


def _evidence(
    main: MetricAnalysis,
    row: SwitchRow,
    switch: Switch,
    alone: Mapping[str, Sequence[SwitchRow]],
    resampled: Bootstrap | None,
) -> SwitchResult:
    """How well the interval, the evaluations and the seeds bear one switch out."""
    sides = switch.from_index, switch.to_index
    told = resampled is not None and all(resampled.tells(main.fits[i], i) for i in sides)
    interval = switch_interval(resampled, switch) if resampled is not None and told else None
    before, after = _leads(main, switch)
    noise = any(math.isfinite(budget.seed_sd) for budget in main.budgets)
    beyond = all(side.difference > LEAD_ERRORS * side.stderr for side in (before, after))
    by_seed = {
        seed: next((s.compute for s in rows if (s.from_run, s.to_run) == (row.from_run, row.to_run)), None)
        for seed, rows in alone.items()
    }
    ends = interval.interval95 if interval else None
    per_unit = row.epochs / row.compute if main.rollouts is None else math.nan  # epochs are proportional to rollouts
    in_epochs = ends is not None and math.isfinite(per_unit * ends[0])
    return SwitchResult(
        row=row,
        interval95=ends,
        share=interval.share if interval else None,
        lead_before=before,
        lead_after=after,
        beyond_noise=beyond if noise else None,
        by_seed=by_seed,
        established=_established(interval, by_seed),
        epoch_interval95=(ends[0] * per_unit, ends[1] * per_unit) if ends and in_epochs else None,
        epochs_by_seed=tuple(c * per_unit for c in by_seed.values() if c is not None and math.isfinite(per_unit)),
    )


def _established(interval: SwitchInterval | None, by_seed: Mapping[str, float | None]) -> bool | None:
    """Whether nearly all replicates and every seed alone have a switch; None where either cannot be told."""
    if (by_seed and None in by_seed.values()) or (interval is not None and interval.share < SURE):
        return False
    return True if by_seed and interval is not None else None


def _leads(main: MetricAnalysis, switch: Switch) -> tuple[Lead, Lead]:
    """Of the old configuration over the budgets before a switch, and of the new one over those after it."""
    computes = np.array([budget.compute for budget in main.budgets])
    before = computes[(computes >= switch.span[0]) & (computes <= switch.compute)]
    after = computes[(computes >= switch.compute) & (computes <= switch.span[1])]
    return (
        Lead(*lead(main.sound, switch.from_index, switch.to_index, compute=before)),
        Lead(*lead(main.sound, switch.to_index, switch.from_index, compute=after)),
    )


def seed_agreement(by_seed: Mapping[int, MetricAnalysis]) -> SeedAgreement:
    """Which configuration has the best evaluation at each budget of all seeds, and each seed's fitted switches."""
    best: dict[float, dict[str, Configuration]] = {}
    for seed, found in by_seed.items():
        for budget in found.budgets:
            best.setdefault(budget.compute, {})[str(seed)] = found.curves[budget.best].configuration
    rows = []
    for compute, leaders in sorted(best.items()):
        if len(leaders) < len(by_seed):  # where one seed was evaluated alone nothing can agree
            continue
        sizes = {seed: leader.group_size for seed, leader in leaders.items()}
        names = {seed: leader.name for seed, leader in leaders.items()}
        rows.append(SeedBudget(compute, names, sizes, unanimous=len(set(sizes.values())) == 1))
    switches = {str(seed): switch_rows(found) for seed, found in by_seed.items()}
    return SeedAgreement(tuple(by_seed), tuple(rows), switches)
