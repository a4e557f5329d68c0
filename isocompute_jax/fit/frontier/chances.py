"""Which runs of an unfinished sweep can still matter, by the draws of its model (`--stop_hopeless` of sweeps).

A draw counts for a configuration where it is the best at any budget between where its run is and where it would end,
every configuration stopped as the answer for that budget says. What a run has shown stays in the fit, whether it goes
on or not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import group_runs
from isocompute_jax.fit.engine import fit_sweep
from isocompute_jax.fit.frontier.answers import DrawnSweep, answer
from isocompute_jax.fit.frontier.optimal import leaders
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import RunCurve, read_curves

POINTS = 48
"""Computes from the first step of all to the end, even in log C, at which a run may stop."""
LEAST_EVALUATIONS = 5
"""Trained evaluations of a run, at least, before anything is said of it: fewer do not tell how noisy they are."""
LEAST_SHARE = 0.25
"""Share of the compute at which runs end that a run has spent, at least, before anything is said of it.

Where small groups lead early and fall later, larger ones that lead at the end have hardly risen by then, and no curve
that has not fallen yet foresees a fall (BENCHMARKS.md, "Early stopping").
"""


@dataclasses.dataclass(frozen=True)
class Chance:
    """Of one run that has not come to the end."""

    run: str  # its name
    configuration: str  # as the report names it
    compute: float  # where it is
    chance: float  # that its configuration is the best at any budget beyond that


def chances_of_leading(curves: Any, options: AnalysisOptions, *, end: float) -> list[Chance]:
    """The chance of every run that is judged (`is_judged`); none where one configuration stands alone.

    Args:
      curves: run directories or a table, as for `read_curves`.
      options: how they are read.
      end: compute at which every run would end; where they differ, the longest.

    Raises:
      InputError: no usable run.
    """
    groups, _ = group_runs(read_curves(curves, options.read)[0])
    if len(groups) < 2 or not any(is_judged(run, end=end) for group in groups for run in group.runs):
        return []
    model = fit_sweep(groups, options.metric, reward_range=options.read.reward_range)
    if model is None:
        return []
    known = model.observations
    compute = np.geomspace(min(known.unit, end), end, POINTS)
    sweep = DrawnSweep(
        configurations=model.configurations,
        draws=model.curves(compute),
        ends=known.ends,
        steps_at=np.full(len(groups), np.nan),
        width=options.width,
        seeds=known.seeds,
        agree=True,
    )
    answers = [found for at in compute if (found := answer(sweep, float(at))) is not None]
    best = leaders(sweep, answers)  # [A, S]
    budgets = np.array([each.budget for each in answers])
    return [
        Chance(run.run, group.configuration.name, reached, float((best[budgets >= reached] == k).any(axis=0).mean()))
        for k, group in enumerate(groups)
        for run in group.runs
        if is_judged(run, end=end) and (reached := float(run.compute.max()))
    ]


def is_judged(run: RunCurve, *, end: float) -> bool:
    """Whether a run has come far enough, not to the end, and has been evaluated often enough."""
    reached = LEAST_SHARE * end <= float(run.compute.max()) < end
    return reached and int(np.count_nonzero(run.compute > 0)) >= LEAST_EVALUATIONS
