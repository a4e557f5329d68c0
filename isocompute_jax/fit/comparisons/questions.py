"""Every question that a report asks, in order."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from isocompute_jax.fit.comparisons import (
    base_models,
    batch_effect,
    batch_targets,
    best_batches,
    cross_sets,
    data_sizes,
    gradient_cosines,
    held_out_section,
    stable_batches,
    steps_law,
    train_test,
    trajectories,
    uniformity_section,
)
from isocompute_jax.fit.report.sections import Section
from isocompute_jax.fit.sweep_results import SweepResult

QUESTIONS: tuple[Callable[[SweepResult, pathlib.Path], list[Section]], ...] = (
    held_out_section.section,
    train_test.section,
    trajectories.section,
    uniformity_section.section,
    gradient_cosines.section,
    batch_effect.section,
    stable_batches.section,
    best_batches.section,
    batch_targets.section,
    data_sizes.section,
    steps_law.section,
    cross_sets.section,
    base_models.section,
)
"""(result, directory for pictures) -> sections."""


def sections(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """Those that the data of a sweep allow.

    Args:
      result: of the analysis.
      figures: existing directory that pictures are written to.
    """
    return [section for question in QUESTIONS for section in question(result, figures)]
