"""What a study takes before it starts: rollouts of its curation, runs of each slice, their device-hours."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.study.presets import Preset
from isocompute_jax.study.report_sections import question_of
from isocompute_jax.study.stages import open_study, planned_runs
from isocompute_jax.sweeps import books, estimate
from isocompute_jax.sweeps.executor import check_directories, open_state
from isocompute_jax.sweeps.status import print_plan
from isocompute_jax.tasks import ProblemFile
from isocompute_jax.theory import forecast, read_pass_rates
from isocompute_jax.theory.forecast import EMBEDDED, Filed, write_forecast


def print_study(preset: Preset, root: pathlib.Path, topology: str) -> None:
    """Prints it; a directory that holds another study is refused.

    Raises:
      InputError: the directory, or a config, is at fault.
    """
    if root.exists():
        open_study(preset, root)
    count = preset.num_problems
    if preset.problems:
        count = sum(1 for _ in ProblemFile(preset.problems, grader_name=preset.run.reward.name_for))
    samples = preset.curation.samples
    say(f"Curation: {count:,} problems x {samples} samples = {count * samples:,} rollouts\n")
    found: dict[str, estimate.DeviceHours | None] = {}
    spent = 0.0
    for part in preset.slices:
        runs, directory = planned_runs(preset, part, root), root / "runs" / part.name
        check_directories(runs, directory)
        own: dict[str, estimate.DeviceHours | None] = dict.fromkeys(run.name for run in runs)
        if preset.base is None:
            own = estimate.estimates(runs, directory, topology)
        hours = {name: estimate.as_text(each) for name, each in own.items()}
        say(f"Slice {part.name}: {part.question}")
        print_plan(open_state(runs, directory), hours if preset.base is None else None)
        found |= {f"{part.name}/{name}": each for name, each in own.items()}
        spent += books.spent_device_hours(directory, list(hours))
    if preset.base is None:
        say(f"All slices: {estimate.summary(found, spent, None)}; the curation is not in it")


def write_forecasts(
    preset: Preset, root: pathlib.Path, folder: pathlib.Path, only: Sequence[str]
) -> list[pathlib.Path]:
    """What theory expects of slices that need not have been run, to `folder`/NAME.json; their problem sets are there.

    Args:
      preset: of the study.
      root: its directory, with the curated problem sets.
      folder: existing directory.
      only: names of slices; all that theory has something to say of if empty.

    Raises:
      InputError: theory has nothing to say of a slice that was named.
    """
    written = []
    for part in preset.slices:
        planned = planned_runs(preset, part, root)
        question = question_of(planned) if not only or part.name in only else None
        if question is None and part.name in only:
            raise InputError(f"--only={part.name}: theory knows runs that differ in n and the seed alone")
        if question is not None:
            rates = read_pass_rates(planned[0].config.train_set)
            question = dataclasses.replace(question, problem_set_size=question.problem_set_size or len(rates))
            found = forecast(rates, question)
            written.append(folder / f"{part.name}.json")
            write_forecast(written[-1], Filed(question, EMBEDDED, found))
    return written
