"""Where configurations that have not collapsed yet may do so, judged by those that have.

Two readings of the collapses in a sweep are averaged by their evidence. They may be accidents of single configurations,
which say nothing of the others (each has one with probability `ACCIDENT`, anywhere in its data). Or the sweep has a
cause in common that moves with n: then ln of the compute at the peak is a + b log2 n + noise, a flat, b normal
(`SLOPE`), and a configuration without a collapse is censored at the end of its data. No sweep without a collapse is
said to have one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from isocompute_jax.fit.curves.posterior import log_normal, log_sum
from isocompute_jax.fit.results import Configuration

ACCIDENT = 0.2
"""Probability that a configuration has a collapse of its own within its data."""
COMMON = 0.8
"""Probability beforehand that the collapses of a sweep have a cause in common: mostly the recipe is at fault."""
SLOPE = (0.35, 0.5)
"""Mean and standard deviation of the change of ln compute at the peak over a factor of two in n.

A cause that takes so many optimizer steps moves the peak by ln 2, for a step costs twice as much, and one that takes so
many rollouts by 0.
"""
SCATTER = 0.5
"""Of ln compute at the peak about its trend in n."""
DROP = (0.2, 0.9)
"""Share of what was learned that a collapse takes in the end, uniform."""
DECAY = 2.0
"""Of that share (peak / C)^DECAY is still to come at C."""

_BEYOND = np.log(1e4)  # the peak's trend is sought from the first data to so far beyond the last
_GRID = (160, 25)


@dataclasses.dataclass(frozen=True, eq=False)
class Collapses:
    """S joint draws for K configurations."""

    peak: np.ndarray  # [S, K] ln of the compute at the peak, infinite where there is no collapse
    drop: np.ndarray  # [S, K] share of what was learned that is lost in the end

    def kept(self, compute: float) -> np.ndarray:
        """[S, K] share of what was learned that is left at `compute`."""
        past = np.maximum(np.log(compute) - self.peak, 0.0)
        return 1.0 - self.drop * (1.0 - np.exp(-DECAY * past))


def collapses(
    configurations: Sequence[Configuration],
    peaks: Sequence[float],
    ends: Sequence[float],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Collapses | None:
    """Draws of where each configuration collapses; None where none has, or n is unknown.

    Args:
      configurations: [K].
      peaks: [K] compute of the peak; NaN for a configuration that has not collapsed.
      ends: [K] compute of the last evaluation; NaN for a configuration without data.
      draws: S.
      rng: random numbers.
    """
    fell = np.isfinite(peaks)
    seen = np.isfinite(ends) | fell
    sizes = np.array([c.group_size for c in configurations], float)
    if not fell.any() or not sizes.all():
        return None
    with np.errstate(invalid="ignore"):
        at, x = np.log(np.where(fell, peaks, ends)), np.log2(sizes) - np.log2(sizes).mean()
    first, last = float(np.nanmin(at[seen])), float(np.nanmax(at[seen]))
    starts = np.linspace(first, last + _BEYOND, _GRID[0])
    slopes = SLOPE[0] + SLOPE[1] * np.linspace(-3.0, 3.0, _GRID[1])
    trend = starts[:, None, None] + slopes[:, None] * x
    fits = np.where(fell, log_normal(at, trend, SCATTER), log_ndtr((trend - at) / SCATTER))[..., seen].sum(axis=-1)
    prior = log_normal(slopes, *SLOPE)
    log_weight = (fits + prior - log_sum(prior) - np.log(len(starts))).ravel()
    common = float(log_sum(log_weight)) + np.log(COMMON)
    missed = np.count_nonzero(seen & ~fell)
    accident = (
        np.log(1 - COMMON) + fell.sum() * np.log(ACCIDENT / max(last - first, 1.0)) + missed * np.log1p(-ACCIDENT)
    )
    share = 1.0 / (1.0 + np.exp(accident - common))

    weight = np.exp(log_weight - log_sum(log_weight))
    means = trend.reshape(-1, len(x))[rng.choice(len(weight), draws, p=weight / weight.sum())]
    reached = np.where(np.isfinite(at), at, -np.inf)  # a peak that was not seen lies above
    survived = ndtr((reached - means) / SCATTER)
    level = survived + (1.0 - survived) * rng.random(means.shape)
    peak = means + SCATTER * ndtri(np.clip(level, 1e-12, 1 - 1e-12))
    peak = np.where(rng.random((draws, 1)) < share, np.maximum(peak, reached), np.inf)
    return Collapses(np.where(fell, at, peak), rng.uniform(*DROP, size=means.shape))
