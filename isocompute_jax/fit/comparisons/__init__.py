"""What can be asked of a sweep beside its frontier; each question is a function, and a section where the data allow it.

A module has one question: a function that takes runs or a `SweepResult` and returns numbers, and `section`, which
puts them into words, a table and a picture for the report, or returns nothing where the sweep cannot answer.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from isocompute_jax.fit.comparisons import held_out_section
from isocompute_jax.fit.report.sections import Section
from isocompute_jax.fit.sweep_results import SweepResult

QUESTIONS: tuple[Callable[[SweepResult, pathlib.Path], list[Section]], ...] = (held_out_section.section,)
"""In the order of the report: (result, directory for pictures) -> sections."""


def sections(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """Those that the data of a sweep allow.

    Args:
      result: of the analysis.
      figures: existing directory that pictures are written to.
    """
    return [section for question in QUESTIONS for section in question(result, figures)]
