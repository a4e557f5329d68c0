"""The whole analysis in one call: learning curves in, frozen results out, nothing written."""

from __future__ import annotations

import os
from typing import Any

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.questions import with_comparisons
from isocompute_jax.fit.read import memory_table
from isocompute_jax.fit.sweep_results import SweepResult


def analyze(curves: Any, options: AnalysisOptions | None = None, *, compare: bool = True) -> SweepResult:
    """Finds which group size is best at which compute, as `python -m isocompute_jax.fit` does.

    Args:
      curves: a pandas data frame, an Arrow table, any other table that speaks Arrow's protocol, or a mapping from names
        to columns, in the long or wide form that --runs takes, with the same names of columns; or one path or several,
        as for --runs.
      options: those of the command, each a field; None for its defaults. Those of reading (`metric`, `columns`, ...)
        stand in `options.read`, those of fitting in `options.fit`.
      compare: ask the questions beside the frontier too, which fits parts of the sweep again.

    Returns:
      The results: `str(result)` is what the command prints with `--tables`, `result.recommendations` how to spend each
      of `options.budgets`, `result.comparisons` the answers to further questions, `result.to_table()` a table and
      `result.plot()` a figure. Findings about the input are in `result.warnings`.

    Raises:
      InputError: nothing could be read or fitted, or a finding under `options.read.strict`.
    """
    result = analyse_runs(_sources(curves), options or AnalysisOptions())
    return with_comparisons(result) if compare else result


def _sources(curves: Any) -> Any:
    """Paths as texts, or a table in memory."""
    if isinstance(curves, str | os.PathLike):
        return [os.fspath(curves)]
    if isinstance(curves, list | tuple) and all(isinstance(path, str | os.PathLike) for path in curves):
        return [os.fspath(path) for path in curves]
    return memory_table(curves)
