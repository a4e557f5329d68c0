"""Simulated sweeps whose truth is known: families of learning curves over n, to be asked beyond the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

FAMILIES = ("hill", "exponential", "logistic", "power", "collapse", "crossing", "midpoints")
"""Hill; exponential saturation; logistic; power law with saturation; Hill that falls after a peak; Hill whose
asymptotes cross; Hill whose midpoints scatter around their trend in n."""

RAGGED = ("equal steps", "unequal ends", "late starts")
"""Families whose n do not share their budgets: every n trained for the same number of steps (every other study with a
truth that steps alone decide, so that the smallest n is the best at every budget); ends that differ by up to a factor
of 16; first evaluations that differ as much, every other study with the base model's evaluation in the runs of one n
alone. Their curves are Hill's or exponential ones."""

LAST = 1e6
"""Compute at which the data end, of the n that goes furthest."""

PROBLEMS_PER_BATCH = 32

Draw = Literal["development", "test"]
"""Constants of the method were chosen on `development`; figures are quoted from `test`, of other seeds and
ranges."""


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Ranges that a study is drawn from; exponents are powers of ten."""

    floor: tuple[float, float]
    asymptote: tuple[float, float]
    rise: tuple[float, float]
    midpoint: tuple[float, float]
    growth: tuple[float, float]
    steepness: tuple[float, float]
    points: tuple[int, int]
    span: tuple[float, float]


RANGES: dict[Draw, Ranges] = {
    "development": Ranges(
        (0.05, 0.3), (0.5, 0.8), (0.02, 0.15), (4.5, 5.8), (0.3, 1.7), (0.8, 1.8), (15, 41), (1.5, 2.5)
    ),
    "test": Ranges((0.0, 0.4), (0.45, 0.85), (0.0, 0.2), (4.2, 6.0), (0.0, 2.0), (0.6, 2.2), (12, 60), (1.2, 3.0)),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A simulated sweep."""

    family: str  # of its curves
    group_sizes: np.ndarray  # [K]
    compute: np.ndarray  # [E], 0 first
    per_seed: np.ndarray  # [K, S, E] measured rewards; NaN where an n was not evaluated
    correlation: float  # of neighbouring evaluations' noise
    noise: float  # its standard deviation
    truth: Callable[[np.ndarray], np.ndarray]  # compute [A] -> rewards [K, A]

    def with_seeds(self, count: int) -> Study:
        """The same with at most so many seeds."""
        return dataclasses.replace(self, per_seed=self.per_seed[:, :count])

    def measure(self, index: int, compute: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Rewards of one more run of a configuration at `compute` [E]."""
        errors = autocorrelated(rng.normal(size=len(compute)), self.correlation)
        return np.clip(self.truth(compute)[index] + self.noise * errors, 0.0, 1.0)

    def table(self, metric: str) -> dict[str, np.ndarray]:
        """The long table that `analyze` takes, `metric` the name of the rewards' column."""
        count, seeds, evaluations = self.per_seed.shape
        found = {
            "group_size": np.repeat(self.group_sizes, seeds * evaluations),
            "problems_per_batch": np.full(self.per_seed.size, PROBLEMS_PER_BATCH),
            "seed": np.tile(np.repeat(np.arange(seeds), evaluations), count),
            "compute": np.tile(self.compute, count * seeds),
            metric: self.per_seed.ravel(),
        }
        return {name: column[np.isfinite(found[metric])] for name, column in found.items()}

    def named(self, run: str) -> int:
        """Number of the configuration `n = 64`."""
        return int(np.flatnonzero(self.group_sizes == int(run.removeprefix("n = ")))[0])


def simulate(family: str, draw: Draw, number: int, *, noise: float = 0.01) -> Study:
    """Study `number` of a family: 4 to 6 values of n from 4 to 1,024, 2 to 5 seeds, white or AR(1) noise."""
    if family in RAGGED:
        return _ragged(family, draw, number, noise)
    ranges = RANGES[draw]
    rng = np.random.default_rng([sorted(RANGES).index(draw), FAMILIES.index(family), number])
    count = int(rng.integers(4, 7))
    start = int(rng.integers(2, 11 - count + 1))
    truth = _truth(family, ranges, count, rng)
    evaluations = int(rng.integers(*ranges.points))
    compute = np.concatenate([[0.0], np.geomspace(LAST / 10 ** rng.uniform(*ranges.span), LAST, evaluations)])
    seeds, correlation = int(rng.integers(2, 6)), float(rng.choice([0.0, 0.5]))
    errors = autocorrelated(rng.normal(size=(count, seeds, len(compute))), correlation)
    errors[..., 0] = errors[:1, :, 0]  # the base model's evaluation is the same for all n
    measured = np.clip(truth(compute)[:, None] + noise * errors, 0.0, 1.0)
    return Study(family, 2 ** np.arange(start, start + count), compute, measured, correlation, noise, truth)


def _ragged(family: str, draw: Draw, number: int, noise: float) -> Study:
    """A study of one of `RAGGED`: each n has evaluations of its own, even in log C."""
    ranges = RANGES[draw]
    rng = np.random.default_rng([sorted(RANGES).index(draw), len(FAMILIES) + RAGGED.index(family), number])
    count, seeds = int(rng.integers(4, 7)), int(rng.integers(2, 6))
    sizes = 2 ** np.arange(int(rng.integers(2, 11 - count + 1)), 13)[:count]
    by_steps = family == "equal steps" and number % 2 == 0
    truth = _truth(("hill", "exponential")[number // 2 % 2], ranges, count, rng, by_steps=by_steps)
    ends, span = np.full(count, LAST), np.full(count, 10 ** rng.uniform(*ranges.span))
    if family == "equal steps":
        ends = LAST * sizes / sizes[-1]
    elif family == "unequal ends":
        ends = LAST / 2 ** rng.uniform(0, 4, count)
        ends[rng.integers(count)] = LAST
    else:
        span = np.maximum(span / 2 ** rng.uniform(0, 4, count), 2.0)
    evaluations = int(rng.integers(*ranges.points))
    own = np.geomspace(ends / span, ends, evaluations, axis=1)
    compute = np.unique(np.concatenate([[0.0], own.ravel()]))
    correlation = float(rng.choice([0.0, 0.5]))
    measured = np.full((count, seeds, len(compute)), np.nan)
    base = noise * rng.normal(size=seeds)
    for k in range(count):
        places = np.searchsorted(compute, own[k])
        errors = autocorrelated(rng.normal(size=(seeds, evaluations)), correlation)
        measured[k][:, places] = truth(own[k])[k] + noise * errors
        if k == 0 or not (family == "late starts" and number % 2):
            measured[k][:, 0] = truth(compute[:1])[k] + base
    return Study(family, sizes, compute, np.clip(measured, 0.0, 1.0), correlation, noise, truth)


def autocorrelated(white: np.ndarray, correlation: float) -> np.ndarray:
    """Stationary AR(1) noise of variance 1 along the last axis, from white noise."""
    found = white.copy()
    for t in range(1, white.shape[-1]):
        found[..., t] = correlation * found[..., t - 1] + np.sqrt(1 - correlation**2) * white[..., t]
    return found


def _truth(
    family: str, ranges: Ranges, count: int, rng: np.random.Generator, *, by_steps: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """The curves of a family; `by_steps`: all alike in steps, of which an n twice as large makes half as many."""
    along = np.linspace(-1.0, 1.0, count)
    floor = rng.uniform(*ranges.floor)
    midpoint = 10 ** rng.uniform(*ranges.midpoint) * np.exp(rng.uniform(*ranges.growth) * along)
    high = rng.uniform(*ranges.asymptote) + rng.uniform(*ranges.rise) * along
    steepness = np.clip(rng.uniform(*ranges.steepness) * np.exp(rng.normal(0, 0.08, count)), 0.5, 3.0)
    if family == "crossing":
        high = rng.uniform(*ranges.asymptote) + rng.uniform(-0.12, 0.12, count)
    if family == "midpoints":
        midpoint = midpoint * np.exp(rng.normal(0, 0.4, count))
    if by_steps:
        midpoint = midpoint[count // 2] * 2.0 ** (np.arange(count) - count // 2)
        high, steepness = np.full(count, high.mean()), np.full(count, steepness.mean())
    high = np.clip(high, floor + 0.1, 0.97)
    peak, drop = 10 ** rng.uniform(5, 7) * np.exp(rng.uniform(0, 2) * along), rng.uniform(0.2, 0.8)
    middle, top, rise = midpoint[:, None], high[:, None], steepness[:, None]

    def truth(compute: np.ndarray) -> np.ndarray:
        c = np.asarray(compute, float)[None]
        if family == "exponential":
            return top - (top - floor) * np.exp(-np.log(2) * c / middle)
        if family == "logistic":
            share, base = 1 / (1 + np.exp(-3 * (c / middle - 1))), 1 / (1 + np.exp(3))
            return floor + (top - floor) * (share - base) / (1 - base)
        if family == "power":
            return top - (top - floor) * (1 + c / middle) ** (-0.6 * rise)
        with np.errstate(divide="ignore"):
            found = floor + (top - floor) / (1 + (middle / c) ** rise)
            if family == "collapse":
                found = found - (found - floor) * drop / (1 + (peak[:, None] / c) ** 4)
        return found

    return truth
