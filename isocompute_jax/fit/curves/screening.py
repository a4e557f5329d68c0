"""Which evaluations of a curve are fitted: record-breaking ones, or those up to a peak after which the reward falls.

A monotone form cannot follow a fall. Of every stretch of at least `LEAST_BEFORE` neighbouring evaluations and every
ending of at least `LEAST_LATE` the means are compared:

    T = max (mean of the stretch - mean of the ending) / (s sqrt(1/w + 1/l)),

where w and l count evaluations and s is the noise of one, from second differences (a curve's slope cancels in them),
of which the few that a jump makes are left out. Rewards of few samples lie on a lattice (k of 8), where neighbours are
often equal: s is never smaller than a share of the lattice's step. `LIMIT` is passed by at most 2% of flat curves, with
Gaussian noise or binomial rewards of any rate, as tests/fit/curves/test_screening.py measures.
"""

from __future__ import annotations

import functools

import numpy as np

EDGE_TOLERANCE = 1e-8
"""A reward this share of a bin below a bin's edge belongs above it: 0.3 / 0.1 floors to 2 in binary."""

LEAST_BEFORE, LEAST_LATE = 3, 2
LEAST_POINTS = 10
"""Curves with fewer evaluations are not tested."""
LIMIT = 8.5
STEP_SHARE = 0.35
"""Least noise on a lattice, in steps: that of k of 8 at a rate of 1 or 2%."""

_SAME = 1e-9  # rewards and sums of squares that differ by a smaller share are equal


def record_breaking(reward: np.ndarray, *, bin_width: float = 0.0) -> np.ndarray:
    """[P] bool: the points of a run that count (arXiv 2603.12151).

    A point counts when its reward exceeds every earlier one or, with a bin width, when its bin lies above every earlier
    bin.

    Args:
      reward: [P] in order of compute.
      bin_width: width of a bin, in units of reward; 0 for none.
    """
    level = np.asarray(reward, dtype=np.float64)
    if bin_width > 0:
        level = np.floor(level / bin_width + EDGE_TOLERANCE)
    highest_before = np.concatenate([[-np.inf], np.maximum.accumulate(level)[:-1]])
    return level > highest_before[: len(level)]


def peak_window(compute: np.ndarray, reward: np.ndarray) -> tuple[float, float] | None:
    """First compute and that of the peak of a curve that falls after it, as a window to fit; None without a fall.

    Args:
      compute: [E] increasing; the base model's evaluation at 0 is left out.
      reward: [E] of one run, or a mean of seeds.
    """
    trained = np.asarray(compute) > 0
    compute, reward = np.asarray(compute, float)[trained], np.asarray(reward, float)[trained]
    if len(reward) < LEAST_POINTS or not _lead(reward) > LIMIT * _noise(reward):
        return None
    up, down = _rising_errors(reward), _rising_errors(reward[::-1])[::-1]
    error = up[:-1] + down[1:]  # of the least-squares unimodal curve with its peak at each evaluation
    peak = int(np.flatnonzero(error <= error.min() + _SAME * (up[-1] + _SAME))[-1])
    return float(compute[0]), float(compute[peak])


def _lead(reward: np.ndarray) -> float:
    """T if the noise of an evaluation were 1; 0 where it is no larger than rounding."""
    count = len(reward)
    sums = np.concatenate([[0.0], np.cumsum(reward)])
    highest = 0.0
    for late in _lengths(LEAST_LATE, count - LEAST_BEFORE):
        ending = (sums[-1] - sums[-1 - late]) / late
        for width in _lengths(LEAST_BEFORE, count - late):
            means = (sums[width : count - late + 1] - sums[: count - late + 1 - width]) / width
            highest = max(highest, float(means.max() - ending) / np.sqrt(1 / width + 1 / late))
    return highest if highest > _SAME * float(np.abs(reward).max()) else 0.0


def _noise(reward: np.ndarray) -> float:
    """Standard deviation of an evaluation: by second differences, whose variance is 3/2 of it, or by the lattice."""
    second = np.sort(np.abs(reward[1:-1] - (reward[:-2] + reward[2:]) / 2))
    kept = second[: len(second) - (3 if len(reward) >= 16 else 2)]
    gaps = np.diff(np.sort(reward))
    apart = gaps[gaps > _SAME * float(np.abs(reward).max())]
    repeats = len(gaps) - len(apart) >= len(reward) / 4
    step = float(apart.min()) if repeats and len(apart) else 0.0
    return max(float(np.sqrt(np.mean(kept**2) / 1.5)), STEP_SHARE * step)


@functools.cache
def _lengths(least: int, most: int) -> tuple[int, ...]:
    """Lengths of stretches that are tried: each about a quarter longer than the one before."""
    found = [least]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, round(found[-1] * 1.25))))
    return tuple(found) if least <= most else ()


def _rising_errors(reward: np.ndarray) -> np.ndarray:
    """[E] sum of squares of the isotonic regression of each first part of a curve (pool adjacent violators)."""
    blocks: list[tuple[float, float, float]] = []  # count, mean, sum of squares about it
    total, errors = 0.0, []
    for value in reward.tolist():
        count, mean, error = 1.0, value, 0.0
        while blocks and blocks[-1][1] >= mean:
            other, level, spread = blocks.pop()
            total -= spread
            error += spread + (level - mean) ** 2 * count * other / (count + other)
            mean = (count * mean + other * level) / (count + other)
            count += other
        blocks.append((count, mean, error))
        total += error
        errors.append(total)
    return np.array(errors)
