"""Gradient noise, averaged over a run's measurements, and the batch sizes that follow from it.

A measurement is the columns `noise/gradient2`, `noise/between` and `noise/within` of a line of metrics.jsonl, |G|^2,
tr S_b and tr S_w (`learner.noise`), and the same with `adam_`. Each is unbiased and noisy, and can be negative, so that
a ratio of two of one step means little, and a mean of such ratios nothing. Numerators and denominators are averaged
apart, with weights that fall with the age of a measurement; then they are divided.

All is a pure function of logged lines, and what it carries from one to the next is plain data, as JSON has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

PREFIX = "noise/"
METRICS = ("", "adam_")
ESTIMATES = ("gradient2", "between", "within")

Averages = Mapping[str, float]
"""Of each column, less its `noise/`, the sum with weights; and of each metric its `weight`, their sum."""


def averaged(before: Averages, line: Mapping[str, Any], *, memory: float) -> dict[str, float]:
    """The averages with one more line of metrics.jsonl; unchanged by a line without a measurement.

    Args:
      before: of the lines before it; an empty mapping at first.
      line: a line, or its columns.
      memory: measurements that an average is over, above 1: each weighs 1 - 1 / memory times as much as the next.
    """
    after = dict(before)
    for metric in METRICS:
        names = [metric + estimate for estimate in ESTIMATES]
        if any(line.get(PREFIX + name) is None for name in names):
            continue
        added = {f"{metric}weight": 1.0} | {name: float(line[PREFIX + name]) for name in names}
        after |= {name: (1 - 1 / memory) * before.get(name, 0.0) + value for name, value in added.items()}
    return after


def mean_of(averages: Averages, estimate: str, *, adam: bool = False) -> float:
    """The average of `gradient2`, `between` or `within`; NaN before the first measurement."""
    metric = METRICS[adam]
    weight = averages.get(f"{metric}weight", 0.0)
    return averages[metric + estimate] / weight if weight else math.nan


def critical_group_size(averages: Averages, *, adam: bool = False) -> float:
    """n at which a problem's rollouts add as much noise as the choice of problems: tr S_w / tr S_b.

    Below it more rollouts of a problem are worth about as much as more problems; far above it they are worth nothing.
    Infinite where problems do not differ, by what is known; NaN before the first measurement.
    """
    return _ratio(mean_of(averages, "within", adam=adam), mean_of(averages, "between", adam=adam))


def critical_problems(averages: Averages, group_size: float, *, adam: bool = False) -> float:
    """P at which the noise of a step is as large as its gradient: (tr S_b + tr S_w / n) / |G|^2.

    It is the critical batch size of McCandlish et al. (arXiv 1812.06162), in problems of n rollouts: with as many a
    step makes half of the progress that a step without noise would. Infinite where no gradient is seen above the
    noise; NaN before the first measurement.
    """
    between, within = (mean_of(averages, name, adam=adam) for name in ("between", "within"))
    # Where problems seem to differ by less than nothing they do not.
    return _ratio(max(between, 0.0) + within / group_size, mean_of(averages, "gradient2", adam=adam))


def _ratio(above: float, below: float) -> float:
    if math.isnan(above) or math.isnan(below):
        return math.nan
    return above / below if below > 0 else math.inf
