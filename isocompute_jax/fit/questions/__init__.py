"""What can be asked of a sweep beside how to spend a budget: does the answer depend on the problems, the model, or B?

Each question compares draws of the engine's model: `by_part` lays parts of a sweep beside each other that differ in
their problems or in their base model, `by_batch` the B_problem of one part. A sweep whose runs cannot tell has no
answer to a question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns
from isocompute_jax.fit.engine import SweepModel
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions.answers import QuestionResult
from isocompute_jax.fit.questions.by_batch import by_batch
from isocompute_jax.fit.questions.by_part import by_model, by_set, of_one_model

LEAST_EVALUATIONS = 3
"""Runs of fewer have no curve."""

__all__ = ["QuestionResult", "ask", "by_batch", "by_model", "by_set", "of_one_model"]


def ask(
    groups: Sequence[ConfigurationRuns], options: AnalysisOptions, *, models: Mapping[str, SweepModel] | None = None
) -> tuple[QuestionResult, ...]:
    """Asks every question; those that the runs cannot answer, as ones without curves, are left out.

    Args:
      groups: the configurations of the sweep with their runs, of fixed n.
      options: of the analysis.
      models: metric -> the engine's model of these groups, where there is one already.

    Raises:
      InputError: a file that has another evaluation set is damaged.
    """
    runs = [run for group in groups for run in group.runs]
    if max((np.count_nonzero(run.compute > 0) for run in runs), default=0) < LEAST_EVALUATIONS:
        return ()
    models = models or {}
    return (*by_set(groups, options), *by_model(groups, options), *by_batch(groups, options, models=models))
