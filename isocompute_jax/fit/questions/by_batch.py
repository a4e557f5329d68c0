"""Does B_problem matter at equal n and equal compute?

The IsoCompute Playbook (arXiv 2603.12151) claims that it matters little at fixed n. Its effect and that of n are
measured alike, in each draw of the engine's model: at a budget, the variance of rewards over B_problem among the
configurations with one n, averaged over n; and the variance over n at one B_problem, averaged over B_problem. Both are
averaged over budgets; an effect is the square root, a standard deviation in units of reward. Of many draws of the true
rewards the spread has no noise of evaluations in it; what is not known of them widens the interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns
from isocompute_jax.fit.engine import SweepModel, fit_sweep
from isocompute_jax.fit.frontier.answers import CERTAIN, MATERIAL, interval
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions.answers import (
    DRAWS,
    QuestionResult,
    alike_else,
    common_budgets,
    line,
    stopped,
)

FIELDS = ("group_size", "problems_per_batch")


def by_batch(
    groups: Sequence[ConfigurationRuns],
    options: AnalysisOptions,
    *,
    models: Mapping[str, SweepModel] | None = None,
) -> Iterator[QuestionResult]:
    """Asks each part of a sweep that has several B_problem at one n.

    The verdict is `no matter` where 95% of the draws have all B_problem of each n within 0.01 of the range at the last
    budget, `matters` where two of them are further apart in 95% of the draws, and `open` else.

    Args:
      groups: the configurations with their runs.
      options: of the analysis.
      models: metric -> the engine's model of these groups, where there is one already.
    """
    several = [(part, own) for part, own in _parts(groups) if _lines(groups, own, "group_size")]
    if not several:
        return
    model = (models or {}).get(options.metric)
    model = model or fit_sweep(groups, options.metric, reward_range=options.read.reward_range)
    if model is None:
        return
    for part, own in several:
        lines = _lines(groups, own, "group_size")
        compute = common_budgets([[groups[i] for i in each] for each in lines.values()])
        if len(compute):
            rewards = stopped(model.curves(compute, draws=DRAWS).mean)
            yield _answer(groups, part, own, lines, compute, rewards, MATERIAL * options.width)


def _answer(
    groups: Sequence[ConfigurationRuns], part: str, own: Sequence[int], lines: Mapping[int, list[int]],
    compute: np.ndarray, rewards: np.ndarray, little: float,
) -> QuestionResult:  # fmt: skip
    """The answer of one part, by the rewards [K, S, P] of all configurations at each budget."""
    over_batch = spread(rewards, list(lines.values()))
    numbers: dict[str, Any] = {"compute": float(compute[-1]), **_effect("problems_per_batch", over_batch)}
    series = [line("problems_per_batch", "sd", compute, over_batch)]
    columns = _lines(groups, own, "problems_per_batch")
    if columns:
        over_size = spread(rewards, list(columns.values()))
        larger = _pooled(over_size) > _pooled(over_batch)
        numbers |= {**_effect("group_size", over_size), "group_size_larger": float(larger.mean())}
        series.insert(0, line("group_size", "sd", compute, over_size))
    last = rewards[:, :, -1]
    apart = {n: last[each].max(axis=0) - last[each].min(axis=0) for n, each in lines.items()}
    alike = float(np.mean(np.max(list(apart.values()), axis=0) <= little))
    pair, far = _furthest(last, lines, little)
    verdict = "no matter" if alike >= CERTAIN else "matters" if far >= CERTAIN else "open"
    first, second = (groups[i].configuration for i in pair)
    difference = last[pair[1]] - last[pair[0]]
    numbers |= {
        "alike": alike,
        "apart": far,
        "at_group_size": first.group_size,
        "between": (first.problems_per_batch, second.problems_per_batch),
        "difference": float(difference.mean()),
        "difference_95": interval(difference),
    }
    rows, names = _rows(groups, lines, last)
    return QuestionResult("by_batch", part, verdict, numbers, ("group_size", *names), tuple(rows), tuple(series))


def _parts(groups: Sequence[ConfigurationRuns]) -> list[tuple[str, list[int]]]:
    """The parts that are alike but for n and B_problem, and for a rate that follows from these."""
    found = alike_else(groups, *FIELDS, "learning_rate")
    pairs = [[tuple(getattr(groups[i].configuration, field) for field in FIELDS) for i in own] for _, own in found]
    return found if all(len(set(each)) == len(each) for each in pairs) else alike_else(groups, *FIELDS)


def _lines(groups: Sequence[ConfigurationRuns], own: Sequence[int], field: str) -> dict[int, list[int]]:
    """Known value of one of n and B_problem, rising -> the configurations that have it, where they are two or more."""
    found: dict[int, list[int]] = {}
    for i in own:
        if groups[i].configuration.rollouts_per_step:
            found.setdefault(getattr(groups[i].configuration, field), []).append(i)
    return {value: each for value, each in sorted(found.items()) if len(each) > 1}


def spread(rewards: np.ndarray, lines: Sequence[Sequence[int]]) -> np.ndarray:
    """[S, P] standard deviation of rewards [K, S, P] over the configurations of a line, pooled over lines."""
    return np.sqrt(np.mean([rewards[line].var(axis=0, ddof=1) for line in lines], axis=0))


def _pooled(effect: np.ndarray) -> np.ndarray:
    """[S] effect over all budgets, by the effect [S, P] at each."""
    return np.sqrt((effect**2).mean(axis=1))


def _effect(field: str, effect: np.ndarray) -> dict[str, Any]:
    """The mean of an effect over all budgets, and its interval."""
    pooled = _pooled(effect)
    return {f"sd_over_{field}": float(pooled.mean()), f"sd_over_{field}_95": interval(pooled)}


def _furthest(last: np.ndarray, lines: Mapping[int, list[int]], little: float) -> tuple[tuple[int, int], float]:
    """The two configurations of one n that are most surely apart, and the share of the draws that have them so.

    The one with the higher reward is the second.
    """
    pairs = [pair for each in lines.values() for pair in itertools.permutations(each, 2)]
    apart = [float(np.mean(last[j] - last[i] > little)) for i, j in pairs]
    first = max(range(len(pairs)), key=lambda at: (apart[at], (last[pairs[at][1]] - last[pairs[at][0]]).mean()))
    return pairs[first], apart[first]


def _rows(
    groups: Sequence[ConfigurationRuns], lines: Mapping[int, list[int]], last: np.ndarray
) -> tuple[list[dict[str, Any]], list[str]]:
    """Each n with its reward at each B_problem at the last budget, and the names of those columns."""
    rows, batches = [], set()
    for n, each in lines.items():
        row: dict[str, Any] = {"group_size": n}
        for i in each:
            batch = groups[i].configuration.problems_per_batch
            batches.add(batch)
            row |= {f"B={batch}": float(last[i].mean()), f"B={batch}_95": interval(last[i])}
        rows.append(row)
    return rows, [f"B={batch}" for batch in sorted(batches)]
