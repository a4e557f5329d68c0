"""Simulated sweeps of the shapes that published curves have: a third draw, on which no constant of the fit was chosen.

    python -m benchmarks.prediction --families=sigmoid,shifted,late,stretched,relaxed --studies=16

    sigmoid    R0 + (A - R0) / (1 + (C_mid / C)^B)                ScaleRL, arXiv 2510.13786
    shifted    A - (A - R0) (1 + C / C0)^-a                       a power law that saturates, begun at the base model
    late       A - (A - R0) exp(-C / T), of which a share is      over-trained runs
               lost beyond a peak, which comes later with n
    stretched  A - (A - R0) exp(-(C / T)^b)                       relaxation with many time scales
    relaxed    as `stretched` in optimizer steps, A alike         the mean path does not depend on n, arXiv 2606.30789

Over a factor of two in n, A changes by a trend of either sign, mostly a rise (IsoCompute, arXiv 2603.12151), and a part
of its own; the compute that an n needs grows as a power of n. Seeds differ in A, beside the noise of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.families import LAST, Study, autocorrelated

FAMILIES = ("sigmoid", "shifted", "late", "stretched", "relaxed")

TREND = (-0.02, 0.05)
"""Of A over a factor of two in n."""
OWN = 0.008
"""Standard deviation of what each n adds to it."""
DELAY = (0.1, 0.9)
"""The compute that an n needs grows as n to such a power."""
BETWEEN_SEEDS = 0.008
"""Standard deviation of A between seeds."""

Curve = Callable[[np.ndarray], np.ndarray]


def simulate(family: str, number: int, *, noise: float = 0.01) -> Study:
    """Study `number` of a family: 4 to 6 values of n, 2 to 5 seeds, data over 1.2 to 2.6 decades."""
    rng = np.random.default_rng([2026, FAMILIES.index(family), number])
    count, seeds = int(rng.integers(4, 7)), int(rng.integers(2, 6))
    sizes = 2 ** np.arange(int(rng.integers(2, 11 - count + 1)), 13)[:count]
    compute = np.geomspace(LAST / 10 ** rng.uniform(1.2, 2.6), LAST, int(rng.integers(8, 32)))
    compute = np.concatenate([[0.0], compute])
    floor, high, shape = _shape(family, sizes, rng)
    apart = BETWEEN_SEEDS * rng.normal(size=(count, seeds))
    truth = _truth(floor, high, shape)
    per_seed = np.stack([_truth(floor, high + of_seed, shape)(compute) for of_seed in apart.T], axis=1)
    correlation = float(rng.choice([0.0, 0.4]))
    errors = noise * autocorrelated(rng.normal(size=per_seed.shape), correlation)
    errors[..., 0] = errors[:1, :, 0]  # the base model's evaluation is the same for all n
    return Study(family, sizes, compute, np.clip(per_seed + errors, 0.0, 1.0), correlation, noise, truth)


def _shape(family: str, sizes: np.ndarray, rng: np.random.Generator) -> tuple[float, np.ndarray, Curve]:
    """The floor, A of each n [K], and the share of A less the floor that each has at C: [A] -> [K, A]."""
    octaves = np.log2(sizes / sizes[0])
    floor = rng.uniform(0.0, 0.35)
    trend = 0.0 if family == "relaxed" else rng.uniform(*TREND)
    high = rng.uniform(floor + 0.2, 0.8) + trend * (octaves - octaves.mean()) + OWN * rng.normal(size=len(sizes))
    power = 1.0 if family == "relaxed" else rng.uniform(*DELAY)
    scale = 10 ** rng.uniform(4.3, 5.9) * 2.0 ** (power * (octaves - octaves.mean()))
    scale = (scale * np.exp(rng.normal(0, 0.1, len(sizes))))[:, None]
    steepness = rng.uniform(0.7, 2.0)
    exponent, beta = rng.uniform(0.3, 1.0), rng.uniform(0.4, 1.1)
    peak = (10 ** rng.uniform(5.3, 6.8) * 2.0 ** (rng.uniform(0.1, 0.8) * (octaves - octaves.mean())))[:, None]
    drop = rng.uniform(0.2, 0.8)

    def share(compute: np.ndarray) -> np.ndarray:
        c = np.asarray(compute, float)[None]
        if family == "sigmoid":
            with np.errstate(divide="ignore"):
                return 1 / (1 + (scale / c) ** steepness)
        if family == "shifted":
            return 1 - (1 + c / scale) ** -exponent
        if family == "late":
            return (1 - np.exp(-c / scale)) * (1 - drop * (1 - np.exp(-np.maximum(c / peak - 1, 0.0))))
        return 1 - np.exp(-((c / scale) ** beta))

    return floor, np.clip(high, floor + 0.05, 0.95), share


def _truth(floor: float, high: np.ndarray, share: Curve) -> Curve:
    return lambda compute: floor + (high - floor)[:, None] * share(compute)
