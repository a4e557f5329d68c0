"""`python -m benchmarks.coverage`: how often intervals of `fit_curves` hold the truth, and what is called flat.

    python -m benchmarks.coverage --replicates=400          # about four minutes on one core

Hill curves with known parameters, evaluated at points even in log C with AR(1) noise, by one or several seeds that
differ in their level, in their asymptote, or along the run. Three intervals of A are compared on the same curves:

    pooled    profile likelihood of all evaluations as those of one run, without `seeds`
    sandwich  +- t_{S-1} standard errors by the seeds' own scores, about the fit with a level for each seed
    shipped   `fit_curves(..., seeds=...)`: profile likelihood within the runs, and between them the spread of levels

The last table is of flat curves: how many are said to rise, and to have an identified asymptote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.special
from absl import flags

from benchmarks.families import autocorrelated
from benchmarks.shared import percent, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.curves.fitting import CurveFit, fit_curves
from isocompute_jax.fit.curves.forms import HILL, hill

REPLICATES = flags.DEFINE_integer("replicates", 400, "Simulated curves per line of the tables.", lower_bound=1)
POINTS = flags.DEFINE_integer("points", 20, "Evaluations per seed.", lower_bound=5)
NOISE = flags.DEFINE_float("noise", 0.01, "Standard deviation of an evaluation.")
CORRELATION = flags.DEFINE_float("correlation", 0.3, "Of the noise of neighbouring evaluations.")
SPREAD = flags.DEFINE_float("spread", 0.015, "Standard deviation of what seeds differ in.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the simulation.")

FIRST, LAST = 1e3, 1e6
FLOOR, ASYMPTOTE, MIDPOINT, STEEPNESS = 0.1, 0.7, 2e4, 1.2
BATCH = 200

Reward = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""True rewards of a seed [P] at compute [P]."""


def _curve(compute: np.ndarray, asymptote: float = ASYMPTOTE) -> np.ndarray:
    return hill(compute, FLOOR, asymptote, MIDPOINT, STEEPNESS)


def _misfit(compute: np.ndarray) -> np.ndarray:
    """Two rises, which no Hill curve follows."""
    return FLOOR + 0.3 / (1 + (5e3 / compute) ** 2) + 0.3 / (1 + (2e5 / compute) ** 3)


SEEDS: dict[str, Reward] = {
    "nothing": lambda c, rng: _curve(c),
    "level": lambda c, rng: _curve(c) + SPREAD.value * rng.normal(),
    "asymptote": lambda c, rng: _curve(c, ASYMPTOTE + SPREAD.value * rng.normal()),
    "along the run": lambda c, rng: _curve(c) + SPREAD.value * np.cumsum(rng.normal(size=len(c))) / np.sqrt(len(c) / 2),
    "level, one crashed": lambda c, rng: _curve(c) + SPREAD.value * rng.normal(),
    "level, form misfits": lambda c, rng: _misfit(c) + SPREAD.value * rng.normal(),
}
"""What seeds differ in."""


def simulate(name: str, seeds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute, rewards and labels of one curve's evaluations, seed by seed."""
    grid = np.geomspace(FIRST, LAST, POINTS.value)
    parts = []
    for seed in range(seeds):
        compute = grid[: POINTS.value // 3] if "crashed" in name and seed == 0 and seeds > 1 else grid
        noise = autocorrelated(rng.standard_normal((1, len(compute))), CORRELATION.value)[0]
        reward = SEEDS[name](compute, rng) + NOISE.value * noise
        parts.append((compute, reward, np.full(len(compute), seed)))
    compute, reward, label = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return compute, reward, label


def sandwich(fit: CurveFit, compute: np.ndarray, reward: np.ndarray, label: np.ndarray) -> tuple[float, float]:
    """The interval of A by the seeds' scores: bread (sum of outer products) bread S / (S - 1)."""
    theta = np.log([fit.params["midpoint"], fit.params["steepness"]])
    share, slopes = HILL.share(theta, np.log(compute))
    rise = fit.asymptote - fit.params["floor"]
    design = np.column_stack([1 - share, share, rise * slopes])
    bread = np.linalg.pinv(design.T @ design)
    left = reward - fit.reward(compute)
    scores = np.array([design[label == s].T @ left[label == s] for s in np.unique(label)])
    count = len(scores)
    spread = scores - scores.mean(axis=0)
    variance = (bread @ spread.T @ spread @ bread)[1, 1] * count / (count - 1)
    half = float(scipy.special.stdtrit(count - 1, 0.975) * np.sqrt(variance))
    return fit.asymptote - half, fit.asymptote + half


def fitted(curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], *, seeds: bool) -> list[CurveFit]:
    """`fit_curves`, so many curves at a time."""
    fits = []
    for start in range(0, len(curves), BATCH):
        compute, reward, label = zip(*curves[start : start + BATCH], strict=True)
        fits += fit_curves(compute, reward, seeds=label if seeds else None)
    return fits


def print_coverage(name: str, seeds: int, rng: np.random.Generator) -> None:
    """A line of the first table."""
    curves = [simulate(name, seeds, rng) for _ in range(REPLICATES.value)]
    truth = ASYMPTOTE
    if "misfits" in name:  # the curve that is fitted to everything without noise
        grid = np.geomspace(FIRST, LAST, POINTS.value)
        truth = fit_curves([grid], [_misfit(grid)])[0].asymptote
    pooled, shipped = fitted(curves, seeds=False), fitted(curves, seeds=True)
    methods = {
        "pooled": [fit.interval95["asymptote"] for fit in pooled],
        "shipped": [fit.interval95["asymptote"] for fit in shipped],
    }
    if seeds > 1:
        methods["sandwich"] = [sandwich(fit, *curve) for fit, curve in zip(shipped, curves, strict=True)]
    cells = []
    for method in ("pooled", "sandwich", "shipped"):
        low, high = np.array(methods.get(method, [(np.nan, np.nan)])).T
        held = percent((low <= truth) & (truth <= high)) if method in methods else ""
        cells += [held, f"{np.median(high - low) / 2:.3f}"]
    known = [np.array([fit.identified["asymptote"] for fit in fits]) for fits in (pooled, shipped)]
    print_row(name, seeds, *cells, *map(percent, known))


def print_flat(name: str, rewards: np.ndarray) -> None:
    """A line of the second table."""
    compute = np.geomspace(FIRST, LAST, rewards.shape[1])
    fits = fit_curves([compute] * len(rewards), list(rewards))
    rises = np.array(["flat" not in fit.doubts for fit in fits])
    print_row(name, percent(rises), percent(np.array([fit.identified["asymptote"] for fit in fits])))


def main() -> None:
    """Flags -> tables."""
    rng = np.random.default_rng(SEED.value)
    columns = [f"{method}, {what}" for method in ("pooled", "sandwich", "shipped") for what in ("holds A", "half")]
    print_head(["seeds differ in", "seeds", *columns, "A identified, pooled", "shipped"])
    for seeds in (1, 2, 4):
        for name in SEEDS if seeds > 1 else ("nothing",):
            print_coverage(name, seeds, rng)
    print_head(["flat curves", "said to rise", "A identified"])
    shape = (REPLICATES.value, POINTS.value)
    for rho in (0.0, 0.5):
        print_flat(f"Gaussian, rho = {rho}", 0.4 + NOISE.value * autocorrelated(rng.standard_normal(shape), rho))
    for samples, rate in ((1024, 0.009), (8, 0.05), (8, 0.5)):
        print_flat(f"k of {samples} at {rate}", rng.binomial(samples, rate, shape) / samples)


if __name__ == "__main__":
    app.run(main)
