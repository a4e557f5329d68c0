"""What a run's schedule is read from or predicted by, when the run begins."""

from __future__ import annotations

import dataclasses
import logging

from isocompute_jax.allocation.schedule import Breakpoints, from_leaders, optimal_group_sizes
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import Inputs
from isocompute_jax.experiment.problem_stream import rates_of
from isocompute_jax.records.errors import Field, InputError
from isocompute_jax.records.identity import identity

LOG = logging.getLogger(__name__)

FIELD = Field("group_size", "config.schedule.")
CANDIDATES = (4, 8, 16, 32, 64, 128, 256)
"""Group sizes that theory compares: those of the sweeps that its constants were calibrated on."""


def settled(config: RunConfig, inputs: Inputs) -> RunConfig:
    """The run with breakpoints for what its schedule leaves open, logged.

    Raises:
      InputError: the file that is named is no frontier of these problems, or theory has nothing to say of the run.
    """
    if not config.schedule.is_open:
        return config
    text = config.schedule.group_size
    if text == "theory":
        found = predicted(config, inputs)
    else:
        found = optimal_group_sizes(text.partition(":")[2], FIELD, problem_set_size=len(inputs.problems))
    LOG.info("config.schedule.group_size = %s: n is %s", text, found.text)
    return dataclasses.replace(config, schedule=config.schedule.settled(found)).begun()


def predicted(config: RunConfig, inputs: Inputs) -> Breakpoints[int]:
    """n*(C) that theory predicts from the measured rates of the problems.

    Raises:
      InputError: they were not measured, or theory has nothing to say of such a run.
    """
    from isocompute_jax.theory import MEASURED, forecast, question_about, smoothed  # SciPy's statistics, for this alone

    first = config.evaluation.first(config.max_compute)
    asked = None
    if first < config.max_compute:
        asked = question_about({**identity(config), "evaluation.k": config.evaluation.k}, CANDIDATES, first)
    if asked is None:
        raise InputError(
            FIELD,
            " = 'theory': it knows runs without KL and entropy terms, with a rate that is constant, or grows with B or "
            "its square root; give breakpoints, or auto",
        )
    column = config.curriculum.rate_column
    measured, found = rates_of(inputs.problems, column), MEASURED.match(column)
    if found is not None:
        samples = int(found[1])
        measured = smoothed((measured * samples).round().astype(int), samples)
    curves = forecast(measured, dataclasses.replace(asked, problem_set_size=len(inputs.problems)))
    return from_leaders([(float(compute), int(n)) for compute, n in zip(curves.compute, curves.best, strict=True)])
