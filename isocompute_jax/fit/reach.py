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
from isocompute_jax.fit.read import RunCurve, read_curves
from isocompute_jax.fit.stages import Stages

POINTS = 32
"""Computes at which the leader of each draw is looked for, evenly in log C."""

LEAST_EVALUATIONS = 5
"""Trained evaluations of a run, at least, before anything is said of it: fewer do not tell how noisy they are."""

LEAST_SHARE = 0.25
"""Share of the compute at which runs end that a run has spent, at least, before anything is said of it.

Where small groups lead early and fall later, larger ones that lead at the end have hardly risen by then, and a fit of
curves of which none has fallen foresees no fall: without this all 60 wrong stops of 220 on the recorded sweeps lay in
the first eighth, with it 5 of 170 are wrong. The quarter was chosen on these same sweeps (BENCHMARKS.md, "Early
stopping").
"""


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
    """The chance of every run that is judged (`is_judged`).

    Args:
      curves: run directories or a table, as for `read_curves`.
      options: how they are read and fitted.
      end: compute at which every run would end; where they differ, the longest.

    Returns:
      One for each of these runs; none where nothing tells the noise yet, or there is one configuration alone.

    Raises:
      InputError: no usable run.
    """
    groups, _ = group_runs(read_curves(curves, options.read)[0])
    if not any(is_judged(run, end=end) for group in groups for run in group.runs):
        return []
    stages = Stages(options, groups)
    found = stages.metric(options.metric, intervals=True, profiles=False)
    forecast = stages.forecast(found)
    if forecast is None or np.count_nonzero(forecast.members) < 2:
        return []
    runs = {group.configuration.name: group.runs for group in groups}
    chances = []
    for number, curve in enumerate(found.curves):
        for run in runs[curve.configuration.name]:
            if is_judged(run, end=end):
                reached = float(run.compute.max())
                chance = chance_of_leading(forecast, number, start=reached, end=end)
                chances.append(Chance(run.run, curve.configuration.name, reached, chance))
    return chances


def is_judged(run: RunCurve, *, end: float) -> bool:
    """Whether a run has come far enough, not to the end, and has been evaluated often enough."""
    reached = LEAST_SHARE * end <= float(run.compute.max()) < end
    return reached and int(np.count_nonzero(run.compute > 0)) >= LEAST_EVALUATIONS


def chance_of_leading(forecast: Forecast, number: int, *, start: float, end: float) -> float:
    """Share of the draws in which a configuration has the highest reward anywhere from `start` to `end`."""
    if not forecast.members[number]:
        return 1.0
    leads = np.zeros(len(forecast.form), bool)
    for compute in np.geomspace(start, end, POINTS):
        rewards = forecast.rewards(float(compute))
        leads |= rewards[:, number] >= np.nanmax(rewards, axis=1)
    return float(leads.mean())
