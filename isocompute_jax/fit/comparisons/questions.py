"""Every question that is asked of a sweep beside its frontier, in the order of the report."""

from __future__ import annotations

import dataclasses

from isocompute_jax.fit.comparisons.base_models import compare_base_models
from isocompute_jax.fit.comparisons.batch_effect import compare_batches, compare_stability
from isocompute_jax.fit.comparisons.courses import batch_targets, best_batches, compare_shapes, data_sizes
from isocompute_jax.fit.comparisons.held_out import compare_held_out
from isocompute_jax.fit.comparisons.problems import (
    alike,
    compare_gradients,
    compare_problems,
    compare_uniformity,
    solve_trajectories,
)
from isocompute_jax.fit.comparisons.schedules import compare_schedules
from isocompute_jax.fit.comparisons.sets import compare_sets, compare_training
from isocompute_jax.fit.sweep_results import SweepResult


def with_comparisons(result: SweepResult) -> SweepResult:
    """The result with the answers that its data allow; files of run directories are read for some of them.

    Raises:
      InputError: a file of a run directory, or its counts of solved problems, are damaged.
    """
    if result.only_scheduled:
        return dataclasses.replace(result, comparisons=tuple(compare_schedules(result)))
    counts = alike(solve_trajectories(result.runs, eval_set=result.options.read.eval_set))
    answers = (
        *compare_schedules(result),
        *compare_held_out(result),
        *compare_training(result),
        *compare_problems(result, counts),
        *compare_uniformity(result, counts),
        *compare_gradients(result),
        *compare_batches(result),
        *compare_stability(result),
        *best_batches(result),
        *batch_targets(result),
        *data_sizes(result),
        *compare_shapes(result),
        *compare_sets(result),
        *compare_base_models(result),
    )
    return dataclasses.replace(result, comparisons=answers)
