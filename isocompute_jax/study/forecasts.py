"""What theory expects of a study's slices before they are run, on disk, so that nobody can have looked."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from isocompute_jax.records.errors import InputError
from isocompute_jax.study.presets import Preset
from isocompute_jax.study.report_sections import question_of
from isocompute_jax.study.stages import planned_runs
from isocompute_jax.theory import forecast, read_pass_rates
from isocompute_jax.theory.forecast import EMBEDDED
from isocompute_jax.theory.forecast_files import Filed, write_forecast


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
