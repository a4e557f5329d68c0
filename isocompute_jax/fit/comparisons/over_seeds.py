"""The seeds of a configuration side by side, and means over them with their intervals."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.seeds import Curve, merge_close, read_off
from isocompute_jax.fit.curves.uncertainty import CONFIDENCE


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95% interval (Student); the ends are NaN with one seed.

    Attributes:
      mean: over the seeds.
      low: lower end.
      high: upper end.
      seeds: how many there are.
    """

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        """`0.412 (0.396 to 0.431)`."""
        return f"{self.mean:z.3f}" + (f" ({self.low:z.3f} to {self.high:z.3f})" if self.seeds > 1 else "")

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below 0; 0 where it does not, or there is none."""
        return int(self.low > 0) - int(self.high < 0)


def over_seeds(values: np.ndarray) -> Estimate:
    """The mean of one number of each seed, `values` [S]."""
    count = len(values)
    mean = float(np.mean(values))
    if count < 2:
        return Estimate(mean, float("nan"), float("nan"), count)
    half = float(scipy.special.stdtrit(count - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(count))
    return Estimate(mean, mean - half, mean + half, count)


def aligned(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Each seed at the same computes: compute [E] and reward [S, E], the base model's (compute 0) if all seeds have it.

    Pooled seeds are read off at every compute that all of them cover, linear in log C between their evaluations.
    """
    if not curve.pooled:
        return curve.compute, curve.per_seed
    seeds = [curve.of_seed(i) for i in range(len(curve.seeds))]
    trained = [compute[compute > 0] for compute, _ in seeds]
    if not all(len(compute) for compute in trained):
        return np.empty(0), np.empty((len(seeds), 0))
    low, high = max(c[0] for c in trained), min(c[-1] for c in trained)
    grid = merge_close(np.concatenate([c[(c >= low) & (c <= high)] for c in trained]))
    values = np.array([read_off(compute, reward, grid) for compute, reward in seeds])
    if all(compute[0] == 0 for compute, _ in seeds):
        base = np.array([[reward[0]] for _, reward in seeds])
        grid, values = np.append(0.0, grid), np.concatenate([base, values], axis=1)
    return grid, values
