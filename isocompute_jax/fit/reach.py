"""Which runs of an unfinished sweep can still matter: the chance that their configuration leads in what is left.

All curves are drawn together (`frontier.forecast`), inside the data and beyond them; a draw counts for a run where its
configuration has the highest reward at any compute between where the run is and where it would end. What the run has
already shown stays in the fit, whether it goes on or not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.forecast import Forecast
from isocompute_jax.fit.read import read_curves
from isocompute_jax.fit.stages import Stages

POINTS = 32
"""Computes at which the leader of each draw is looked for, evenly in log C."""

LEAST_EVALUATIONS = 5
"""Trained evaluations of a run, at least, before anything is said of it: fewer do not tell how noisy they are."""


@dataclasses.dataclass(frozen=True)
class Chance:
    """Of one run that has not come to the end.

    Attributes:
      run: its name.
      configuration: as the report names it.
      compute: where it is.
      chance: that its configuration leads anywhere beyond that.
    """

    run: str
    configuration: str
    compute: float
    chance: float


def chances_of_leading(curves: Any, options: AnalysisOptions, *, end: float) -> list[Chance]:
    """The chance of every run that has not come to the end and has been evaluated often enough.

    Args:
      curves: run directories or a table, as for `read_curves`.
      options: how they are read and fitted.
      end: compute at which every run would end.

    Returns:
      One for each of these runs; none where nothing tells the noise yet, or there is one configuration alone.

    Raises:
      InputError: no usable run.
    """
    groups, _ = group_runs(read_curves(curves, options.read)[0])
    stages = Stages(options, groups)
    found = stages.metric(options.metric, intervals=True, profiles=False)
    forecast = stages.forecast(found)
    if forecast is None or np.count_nonzero(forecast.members) < 2:
        return []
    runs = {group.configuration.name: group.runs for group in groups}
    chances = []
    for number, curve in enumerate(found.curves):
        for run in runs[curve.configuration.name]:
            reached = float(run.compute.max())
            if reached >= end or np.count_nonzero(run.compute > 0) < LEAST_EVALUATIONS:
                continue
            chance = chance_of_leading(forecast, number, start=reached, end=end)
            chances.append(Chance(run.run, curve.configuration.name, reached, chance))
    return chances


def chance_of_leading(forecast: Forecast, number: int, *, start: float, end: float) -> float:
    """Share of the draws in which a configuration has the highest reward anywhere from `start` to `end`."""
    if not forecast.members[number]:
        return 1.0
    leads = np.zeros(len(forecast.form), bool)
    for compute in np.geomspace(start, end, POINTS):
        rewards = forecast.rewards(float(compute))
        leads |= rewards[:, number] >= np.nanmax(rewards, axis=1)
    return float(leads.mean())
