"""Curves that collapse: where the late evaluations lie clearly below an earlier stretch, the curve ends at its peak.

A monotone form cannot follow a fall, and a rule that keeps record-breaking evaluations throws it away unseen. So each
mean curve is tested first. Of every stretch of at least `LEAST_BEFORE` neighbouring evaluations and every ending of at
least `LEAST_LATE` the means are compared:

    T = max (mean of the stretch - mean of the ending) / (s sqrt(1/w + 1/l)),

where w and l count evaluations and s is the scale of the noise: from second differences (a curve's slope cancels in
them), and, of a mean of seeds, from their spread, which tells more (correlation does not hide in it). Both are taken by
their median, so that neither the fall nor a few outliers enter. Evaluations far from all of their neighbours are first
replaced by the median of these. A curve that only rises has a smaller T than one that is flat, so T of flat curves
under AR(1) noise of `CORRELATION` gives the limits that a healthy curve exceeds with a probability of at most
`ERROR_RATE`. Under weaker correlation, and where the curve rises, the error is rarer (table in docs/method.md).

The peak is then the turn of the least-squares unimodal curve (isotonic regression up to it, antitonic after it), or
where the evaluations after it leave its level by more than twice the noise.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import scipy.special

LEAST_BEFORE = 3
LEAST_LATE = 2
LEAST_POINTS = 6
"""Curves with fewer evaluations are not tested."""

MOST_POINTS = 64
"""More evaluations are averaged into so many bins of neighbours for the test."""

ERROR_RATE = 0.01
"""Probability that a curve that only rises is said to fall, at most, under noise of `CORRELATION` or less."""

CORRELATION = 0.5

LIMIT = 10.5
"""99% point of T for flat curves of 6 to 64 evaluations under that correlation (7.8 to 10.4 by simulation)."""

SPREAD_LIMIT = 7.5
"""Of T by the spread of 2 to 5 seeds: with it, either T is beyond its limit in at most 1.1% (simulated likewise)."""

_OUTLIER = 8.0  # typical distances to the nearest neighbour
_SAME_LEVEL = 2.0  # standard deviations of the noise
_SAME = 1e-9  # sums of squares that differ by a smaller share are equal
_LEAST_NOISE = 1e-6  # in units of the reward range: noise-free curves do not fall by rounding


@dataclasses.dataclass(frozen=True)
class Fall:
    """The collapse of a curve."""

    compute: float  # of the peak, the last evaluation before the fall
    reward: float  # level of the peak (the mean of the stretch that the isotonic regression ends with)
    last_compute: float  # of the last evaluation
    last_reward: float  # mean over seeds there

    def text(self) -> str:
        """`falls after its peak, from 0.715 at 130,000 to 0.105 at 1,000,000`."""
        return (
            f"falls after its peak, from {self.reward:.3g} at {spoken(self.compute)} "
            f"to {self.last_reward:.3g} at {spoken(self.last_compute)}"
        )


def spoken(compute: float) -> str:
    """A compute in three figures and no power of ten: `467,000`."""
    return f"{float(f'{compute:.3g}'):,.12g}"


def find_fall(
    compute: np.ndarray,
    reward: np.ndarray,
    *,
    reward_range: tuple[float, float],
    per_seed: np.ndarray | None = None,
) -> Fall | None:
    """Whether a mean curve collapses after a peak; one-sided test at `ERROR_RATE`.

    Args:
      compute: [E] increasing; the base model's evaluation at 0 is left out.
      reward: [E].
      reward_range: its bounds; only their distance matters.
      per_seed: [S, E] the rewards that were averaged; None where each point is of one seed.
    """
    trained = compute > 0
    compute, reward = compute[trained], reward[trained]
    if len(reward) < LEAST_POINTS:
        return None
    clean = without_spikes(reward)
    seeds = None if per_seed is None else _binned(per_seed[:, trained])[None]
    least_noise = _LEAST_NOISE * (reward_range[1] - reward_range[0])
    if not exceeds(_binned(clean)[None], seeds, least_noise=least_noise)[0]:
        return None
    peak = _turn(clean)
    level = _rising_levels(clean[: peak + 1])
    noise = float(_noise(clean[None])[0])
    while peak + 1 < len(clean) and clean[peak + 1] >= level - _SAME_LEVEL * noise:
        peak += 1  # a plateau is highest at random
    if peak + LEAST_LATE >= len(reward):
        return None
    level = _rising_levels(clean[: peak + 1])
    return Fall(float(compute[peak]), level, float(compute[-1]), float(reward[-1]))


def exceeds(reward: np.ndarray, per_seed: np.ndarray | None, *, least_noise: float) -> np.ndarray:
    """[N] whether T of each of N curves [N, E] is beyond its limit, by either scale of the noise.

    Args:
      reward: without outliers.
      per_seed: [N, S, E] the seeds of each; None or one alone tell no spread.
      least_noise: the noise is never taken as smaller.
    """
    lead = _lead(reward)
    found = lead > LIMIT * np.maximum(_noise(reward), least_noise)
    if per_seed is not None and per_seed.shape[1] > 1:
        found |= lead > SPREAD_LIMIT * np.maximum(_noise_of_seeds(per_seed), least_noise)
    return found


def _lead(reward: np.ndarray) -> np.ndarray:
    """[N] how far the ending lies below the best stretch before it, if the noise of an evaluation were 1."""
    count = reward.shape[1]
    sums = np.concatenate([np.zeros((len(reward), 1)), np.cumsum(reward, axis=1)], axis=1)
    highest = np.full(len(reward), -np.inf)
    for late in _lengths(LEAST_LATE, count - LEAST_BEFORE):
        ending = (sums[:, -1] - sums[:, -1 - late]) / late
        for width in _lengths(LEAST_BEFORE, count - late):
            means = (sums[:, width : count - late + 1] - sums[:, : count - late + 1 - width]) / width
            highest = np.maximum(highest, (means.max(axis=1) - ending) / np.sqrt(1 / width + 1 / late))
    return highest


def _noise_of_seeds(per_seed: np.ndarray) -> np.ndarray:
    """[N] standard deviation of the mean of S seeds [N, S, E], by the median of their variances (chi-square, S - 1)."""
    seeds = per_seed.shape[1]
    typical = float(scipy.special.chdtri(seeds - 1, 0.5)) / (seeds - 1)
    return np.sqrt(np.median(per_seed.var(axis=1, ddof=1), axis=1) / typical / seeds)


def _noise(reward: np.ndarray) -> np.ndarray:
    """[N] standard deviation by the median of second differences, whose variance is 3/2 of that of white noise."""
    second = reward[:, 1:-1] - (reward[:, :-2] + reward[:, 2:]) / 2
    return np.median(np.abs(second), axis=1) * 1.4826 / np.sqrt(1.5)


@functools.cache
def _lengths(least: int, most: int) -> tuple[int, ...]:
    """Lengths of stretches that are tried: each about a quarter longer than the one before."""
    found = [least]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, round(found[-1] * 1.25))))
    return tuple(found) if least <= most else ()


def without_spikes(reward: np.ndarray) -> np.ndarray:
    """[E] with evaluations that are far from all of two neighbours on either side replaced by the median of these."""
    if len(reward) < 5:
        return reward
    padded = np.concatenate([[np.nan] * 2, reward, [np.nan] * 2])
    around = np.stack([padded[i : i + len(reward)] for i in (0, 1, 3, 4)])
    nearest = np.nanmin(np.abs(around - reward), axis=0)
    alone = nearest > _OUTLIER * max(1.4826 * float(np.median(nearest)), 1e-300)
    return np.where(alone, np.nanmedian(around, axis=0), reward)


def _binned(reward: np.ndarray) -> np.ndarray:
    """[..., E] -> at most `MOST_POINTS` means of neighbouring evaluations."""
    if reward.shape[-1] <= MOST_POINTS:
        return reward
    return np.stack([part.mean(axis=-1) for part in np.array_split(reward, MOST_POINTS, axis=-1)], axis=-1)


def _turn(reward: np.ndarray) -> int:
    """Last evaluation of the rise in the least-squares unimodal curve."""
    up, down = _rising_errors(reward), _rising_errors(reward[::-1])[::-1]
    error = up[:-1] + down[1:]
    return int(np.flatnonzero(error <= error.min() + _SAME * (up[-1] + _SAME))[-1])  # a peak may count on either side


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


def _rising_levels(reward: np.ndarray) -> float:
    """The last level of the isotonic regression: the highest mean of an ending."""
    endings = np.cumsum(reward[::-1]) / np.arange(1, len(reward) + 1)
    return float(endings.max())
