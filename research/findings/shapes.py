"""Which shape n*(M) has at a fixed number of rollouts per step: a sigmoid, or a straight line in log M.

n* is read off a grid that ends at a smallest and a largest n, so both shapes have two free parameters, and the sigmoid
lies between those two n:

    line       log2 n* = a + b x,    x = log2 M
    sigmoid    log2 n* = lo + (hi - lo) / (1 + exp(-k (x - m)))

Their AICc is that of Gaussian residuals whose variance is at least 1/12 of a squared grid step: no n between two that
were run can lead, and closer than that nothing is told. Neighbouring budgets are no independent evidence, so AICc alone
settles nothing: n* of each draw of the fitter's model is fitted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

SOME_AICC = 2.0
"""AICc of two shapes that differ by less are alike."""
SURE = 0.95
"""Share of the draws that have to agree."""
SLOPES = (0.05, 50.0)
"""Bounds of k, per octave of M."""
GRID = (121, 31)
"""Midpoints and slopes that are tried; midpoints up to one range of the data beyond them."""
ROUNDS = 4
"""Times that the grid is made finer."""


def sigmoid_ahead(steps: np.ndarray, group_size: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """[R] AICc of the line less that of the sigmoid through n*(M), `group_size` [R, P]: above 0 the sigmoid is better.

    Raises:
      ValueError: fewer than five budgets, which is what an AICc of three parameters needs, or one n alone.
    """
    octaves = np.log2(sorted(set(sizes)))
    if len(steps) < 5 or len(octaves) < 2:
        raise ValueError(f"{len(steps)} budgets and {len(octaves)} group sizes: 5 and 2 are the least")
    x, y = np.log2(steps), np.log2(group_size)
    least = float(np.diff(octaves).min()) ** 2 / 12.0
    return _aicc(_line(x, y), len(x), least) - _aicc(_sigmoid(x, y, octaves), len(x), least)


def told(ahead: float, share: float) -> Literal["better", "worse", "open"]:
    """What the sigmoid is: open unless AICc differs by more than 2 and 95% of the draws have the same order.

    Args:
      ahead: of n* of the mean (`sigmoid_ahead`).
      share: of the draws in which it is above 0.
    """
    if ahead > SOME_AICC and share >= SURE:
        return "better"
    return "worse" if ahead < -SOME_AICC and 1.0 - share >= SURE else "open"


def _aicc(squares: np.ndarray, points: int, least: float) -> np.ndarray:
    """[R] of two parameters and a variance that is at least `least`."""
    variance = np.maximum(squares / points, least)
    return points * np.log(2 * np.pi * variance) + squares / variance + 2 * 3 + 2 * 3 * 4 / (points - 4)


def _line(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[R] sums of squares about the line of least squares."""
    design = np.stack([np.ones_like(x), x], axis=1)
    found = np.linalg.lstsq(design, y.T, rcond=None)[0].T
    return ((y - found @ design.T) ** 2).sum(axis=1)


def _sigmoid(x: np.ndarray, y: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    """[R] least sums of squares about a sigmoid: the best of a grid, made finer about it."""
    span = float(np.ptp(x))
    middles, slopes = np.linspace(x[0] - span, x[-1] + span, GRID[0]), np.log(np.geomspace(*SLOPES, GRID[1]))
    tried = np.stack(np.meshgrid(middles, slopes, indexing="ij"), axis=-1).reshape(-1, 2)
    curves = _curves(tried, x, octaves)
    squares = (curves**2).sum(axis=1) - 2 * y @ curves.T + (y**2).sum(axis=1, keepdims=True)
    best, width = tried[squares.argmin(axis=1)], np.array([middles[1] - middles[0], slopes[1] - slopes[0]])
    around = np.stack(np.meshgrid(*[np.linspace(-1, 1, 9)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    for _ in range(ROUNDS):
        near = best[:, None] + around * width  # [R, 81, 2]
        near[..., 1] = np.clip(near[..., 1], *np.log(SLOPES))
        squares = ((_curves(near, x, octaves) - y[:, None]) ** 2).sum(axis=-1)
        best, width = near[np.arange(len(y)), squares.argmin(axis=1)], width / 4
    return squares.min(axis=1)


def _curves(places: np.ndarray, x: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    """[..., P] sigmoids of `places` [..., 2], which are m and the logarithm of k."""
    z = np.exp(places[..., 1:]) * (x - places[..., :1])
    return octaves[0] + np.ptp(octaves) * 0.5 * (1.0 + np.tanh(z / 2))
