"""Runs whose n changes, beside the best fixed n at the compute where they end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.special

from isocompute_jax.fit.configurations import ConfigurationRuns
from isocompute_jax.fit.engine import SweepModel
from isocompute_jax.fit.results import ScheduleResult


def beside_fixed(scheduled: Sequence[ConfigurationRuns], model: SweepModel, metric: str) -> tuple[ScheduleResult, ...]:
    """Compares the mean of each schedule's seeds, where the shortest ends, with the best fixed n there."""
    return tuple(each for each in (_beside(group, model, metric) for group in scheduled) if each is not None)


def _beside(group: ConfigurationRuns, model: SweepModel, metric: str) -> ScheduleResult | None:
    points = []
    for run in group.runs:
        values = run.columns.get(metric, np.array([np.nan]))
        known = np.isfinite(values) & (run.compute > 0) if len(values) == len(run.compute) else np.zeros(0, bool)
        if known.any():
            points.append((run.compute[known], values[known]))
    if not points:
        return None
    end = min(float(compute[-1]) for compute, _ in points)
    ends = np.array([np.interp(np.log(end), np.log(compute), reward) for compute, reward in points])
    grid = np.geomspace(min(model.observations.unit, end), end, 24)
    draws = model.curves(grid)
    expected = draws.mean.mean(axis=1)
    reached = model.observations.ends >= 0.9 * end
    if not reached.any():
        return None
    k, place = np.unravel_index(np.where(reached[:, None], expected, -np.inf).argmax(), expected.shape)
    # Few seeds say little of their own spread, so that of all runs of the sweep counts as three seeds more.
    own, prior = len(ends) - 1, 3.0
    squares = ((ends - ends.mean()) ** 2).sum() + prior * (model.seed_sd**2 + model.noise_sd**2)
    error = np.sqrt(squares / (own + prior) / len(ends))
    half = float(scipy.special.stdtrit(own + prior, 0.975)) * error
    fixed = draws.mean[k, :, place]
    difference = float(ends.mean() - fixed.mean())
    wide = float(np.hypot(half, 1.96 * fixed.std()))
    return ScheduleResult(
        schedule=group.configuration.name,
        seeds=tuple(run.facts.seed for run in group.runs),
        compute=end,
        reward=float(ends.mean()),
        interval95=(float(ends.mean() - half), float(ends.mean() + half)),
        best_fixed=model.configurations[k],
        difference=difference,
        difference95=(difference - wide, difference + wide),
        points=tuple(points),
    )
