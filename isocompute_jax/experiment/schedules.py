"""What a run's schedule is read from or predicted by, when the run begins."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib

from isocompute_jax.allocation.schedule import Breakpoints, from_leaders, optimal_group_sizes
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import Inputs, load_problems
from isocompute_jax.experiment.memory import check_batches
from isocompute_jax.experiment.problem_stream import rates_of
from isocompute_jax.experiment.samplers import device_of
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import Field, InputError
from isocompute_jax.records.identity import identity

LOG = logging.getLogger(__name__)

FIELD = Field("group_size", "config.schedule.")
CANDIDATES = (4, 8, 16, 32, 64, 128, 256)
"""Group sizes that theory compares: those of the sweeps that its constants were calibrated on."""


def settled(config: RunConfig, inputs: Inputs) -> RunConfig:
    """The run with breakpoints for what its schedule leaves open, logged.

    Raises:
      InputError: the file that is named is no fit of these problems, or theory has nothing to say of the run.
    """
    starts = {*config.sizes.group_size.starts, *config.sizes.problems_per_batch.starts}
    late = [start for start in sorted(starts) if start >= config.max_compute]
    if late and not config.schedule.source:  # what was read or predicted may go on beyond
        LOG.warning("config.schedule changes at %d rollouts: the run ends before, at config.max_compute", late[0])
    warmup, steps = config.optimizer.warmup_steps, config.num_steps
    if warmup > steps:
        LOG.warning(
            "config.optimizer.warmup_steps = %d, and the run has %d steps: its learning rate ends at %.2g of its peak",
            *(warmup, steps, steps / warmup),
        )
    if not config.schedule.is_open:
        return config
    text = config.schedule.group_size
    if text == "theory":
        found = predicted(config, inputs)
    else:
        path = text.partition(":")[2]
        found = optimal_group_sizes(path, FIELD, problem_set_size=len(inputs.problems))
        check_problems(path, config, inputs)
    LOG.info("config.schedule.group_size = %s: n is %s", text, found.text)
    config = dataclasses.replace(config, schedule=config.schedule.settled(found)).begun()
    check_batches(config, inputs.model_config, inputs.mesh, device_of(inputs.mesh))
    return config


def check_problems(path: str, config: RunConfig, inputs: Inputs) -> None:
    """Holds a fit's runs to the problems of this one, as far as their directories and problem sets are still there.

    Raises:
      InputError: they trained on others.
    """
    runs = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["inputs"]
    logs = (run.get("source") or run.get("path") for run in runs)  # `path` in files of schema 2
    directories = {pathlib.Path(log).parent for log in logs if log}
    ours = {problem.prompt for problem in inputs.problems}
    for train_set, size in sorted(filter(None, set(map(_trained_on, directories)))):
        try:
            theirs = load_problems(train_set, size, grader_name=config.reward.name_for)
        except InputError:  # what cannot be read says nothing
            continue
        if {problem.prompt for problem in theirs} != ours:
            raise InputError(
                FIELD,
                f": {path} is of runs on the problems of {train_set}, and this run has others: n*(C) depends on them; "
                "fit a sweep on these problems",
            )


def _trained_on(directory: pathlib.Path) -> tuple[str, int] | None:
    """The problem set of a run, and how many of it it took; None where that is not to be read, or a mixture."""
    try:
        fields = json.loads((directory / run_files.CONFIG).read_text(encoding="utf-8"))["config"]
        return (fields["train_set"], int(fields["problem_set_size"])) if fields["train_set"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def predicted(config: RunConfig, inputs: Inputs) -> Breakpoints[int]:
    """n*(C) that theory predicts from the measured rates of the problems.

    Raises:
      InputError: they were not measured, or theory has nothing to say of such a run.
    """
    from isocompute_jax.theory import MEASURED, forecast, question_about, smoothed  # SciPy's statistics, for this alone

    # Below a step of the smallest n there is nothing to compare.
    first = max(config.evaluation.first(config.max_compute), CANDIDATES[0] * config.problems_per_batch)
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
