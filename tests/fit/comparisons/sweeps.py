"""Runs in memory, as `SweepResult.runs` has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.comparisons.comparison import ComparisonResult
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.figures.series import draw_comparison
from isocompute_jax.fit.report.figures.style import in_style, save_figure
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.run_files import RunFacts


def run(
    group_size: int,
    batch: int,
    compute: Sequence[float] | np.ndarray,
    rewards: Mapping[str, Sequence[float] | np.ndarray],
    *,
    seed: int = 0,
    size: int = 1000,
    **identity: object,
) -> RunCurve:
    """A run of a table: its facts are its identity, with what else is given."""
    facts = RunFacts(group_size, batch, 0, size, 0, seed)
    own = {"group_size": group_size, "problems_per_batch": batch, "problem_set_size": size, **identity}
    columns = {name: np.asarray(values, float) for name, values in rewards.items()}
    name = f"n{group_size}-b{batch}-d{size}-s{seed}"
    return RunCurve(name, "memory", "", facts, own, True, np.asarray(compute, float), columns)


def drawn(result: SweepResult, found: ComparisonResult, folder) -> str:
    """The SVG of a comparison."""
    with in_style():
        figure = draw_comparison(dataclasses.replace(result, comparisons=(found,)), found)
        assert figure is not None
        return save_figure(figure, folder / "picture.svg").read_text()
