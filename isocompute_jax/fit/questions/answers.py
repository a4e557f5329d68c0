"""What a question is answered with, and the reductions of draws that several questions share.

Draws of the mean reward of many runs are [K, S, P]: configuration, draw, budget. At a budget each configuration is
stopped where its expected reward is highest, so that a fall after that costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns

Question = Literal["by_set", "by_model", "by_batch"]

DRAWS = 400
BUDGETS = 16
"""Budgets at which parts of a sweep are compared, even in log C."""
PERCENTILES = (2.5, 97.5)


@dataclasses.dataclass(frozen=True, eq=False)
class QuestionResult:
    """The answer to one question, of the whole sweep or of one part of it."""

    question: Question
    part: str  # what tells this part of the sweep from its others, `name = value`; empty for the only one
    verdict: str  # the answer in a word, of those that the question's function lists
    numbers: Mapping[str, Any]  # what is said of the whole
    columns: tuple[str, ...]  # keys of the rows that a page shows, in order
    rows: tuple[Mapping[str, Any], ...]  # a key with `_95` at its end is the interval of the one without
    series: tuple[Mapping[str, Any], ...]  # to draw: name, panel, compute [P], value [P], and low and high [P]
    notes: tuple[str, ...] = ()  # sentences on what was left out


def stopped(mean: np.ndarray) -> np.ndarray:
    """[K, S, P] draws at each configuration's best stop up to each budget, by draws [K, S, P] at the budgets."""
    expected = mean.mean(axis=1)  # [K, P]
    best = np.maximum.accumulate(expected, axis=1)
    at = np.maximum.accumulate(np.where(expected >= best, np.arange(mean.shape[2]), 0), axis=1)
    return np.take_along_axis(mean, at[:, None, :], axis=2)


def size_ends(draws: np.ndarray) -> tuple[float, float]:
    """The interval of 95% of the draws [S] of a number that takes the values of a grid: its ends are of the grid."""
    low, high = np.percentile(draws, PERCENTILES, method="nearest")
    return float(low), float(high)


def common_budgets(parts: Sequence[Sequence[ConfigurationRuns]]) -> np.ndarray:
    """[P] budgets that every part of a sweep has been run up to; none where their computes do not overlap.

    A part begins where the first of its runs was first evaluated, and ends where the furthest of them was last.
    """
    spans = []
    for groups in parts:
        trained = [run.compute[run.compute > 0] for group in groups for run in group.runs]
        trained = [compute for compute in trained if len(compute)]
        if not trained:
            return np.empty(0)
        spans.append((min(each[0] for each in trained), max(each[-1] for each in trained)))
    low, high = max(low for low, _ in spans), min(high for _, high in spans)
    if not low < high:
        return np.empty(0)
    grid = np.geomspace(low, high, BUDGETS)
    grid[[0, -1]] = low, high  # rounding would put the ends outside of the data
    return grid


def line(name: str, panel: str, compute: np.ndarray, draws: np.ndarray, value: np.ndarray | None = None) -> dict:
    """A series of draws [S, P]: their mean, or `value`, and the band of 95% of them."""
    low, high = np.percentile(draws, PERCENTILES, axis=0, method="linear" if value is None else "nearest")
    mean = draws.mean(axis=0) if value is None else value
    return {"name": name, "panel": panel, "compute": compute, "value": mean, "low": low, "high": high}


def alike_else(groups: Sequence[ConfigurationRuns], *free: str) -> list[tuple[str, list[int]]]:
    """The parts of a sweep whose configurations differ in the `free` fields alone, as numbers of configurations.

    What two configurations differ in explains a difference between their rewards only where the rest is equal: a
    smaller B_problem that was run on fewer problems says nothing about B_problem.

    Returns:
      Each part with what tells it from the others, `problem_set_size = 64`; that of the only part is empty.
    """
    shared: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number, group in enumerate(groups):
        its = group.configuration
        own = {"problem_set_size": its.problem_set_size, "learning_rate": its.learning_rate}
        fields = dict(its.settings) | own
        kept = {name: str(value) for name, value in fields.items() if name.rsplit(".", 1)[-1] not in free}
        shared.setdefault(tuple(sorted(kept.items())), []).append(number)
    settings = [dict(key) for key in shared]
    names = sorted({name for setting in settings for name in setting})
    differing = [name for name in names if len({setting.get(name) for setting in settings}) > 1]
    labels = [", ".join(f"{name.rsplit('.', 1)[-1]} = {each[name]}" for name in differing if name in each)
              for each in settings]  # fmt: skip
    return list(zip(labels, shared.values(), strict=True))
