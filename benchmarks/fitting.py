"""`python -m benchmarks.fitting`: speed and accuracy of the curve fits, on one core, with SciPy side by side.

    python -m benchmarks.fitting                          # about two minutes
    python -m benchmarks.fitting --sizes=1000 --scipy=100

Hill curves of random parameters with independent noise. SciPy's side is a loop of `curve_fit` (trust region
reflective) with the same bounds, an analytic Jacobian, the starts that our own grid chose for each curve, the same
tolerances of step and decrease, and the same most steps; the best of the starts is kept. SciPy's third test of
convergence, of the gradient, is switched off: we have none. Ratios are of CPU seconds, which other work on the machine
disturbs least.

The least sum of squares is sought apart from both: on a dense grid of (C_mid, B) over the whole box, with the best
floor and asymptote of each cell, and polished from the lowest local minima of the grid.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.ndimage
import scipy.optimize
from absl import flags

from benchmarks.shared import peak_mib, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit import FitOptions, fit_curves
from isocompute_jax.fit.curves.fit_options import prepare
from isocompute_jax.fit.curves.forms import HILL, hill
from isocompute_jax.fit.curves.solver import DECREASE_TOLERANCE, MAX_STEPS, STEP_TOLERANCE, grid_starts

SIZES = flags.DEFINE_list("sizes", ["1000", "10000", "100000"], "Numbers of curves to fit; the first is compared.")
POINTS = flags.DEFINE_integer("points", 20, "Evaluations per curve.", lower_bound=5)
NOISE = flags.DEFINE_float("noise", 0.01, "Standard deviation of an evaluation.")
SCIPY = flags.DEFINE_integer("scipy", 0, "Curves that SciPy is timed on, from the first; 0: all that are compared.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the curves.")

FIRST, LAST = 1e3, 1e6
"""Compute of the first and last evaluation."""
CELLS = (160, 80)
"""Dense grid of (ln C_mid, ln B)."""
POLISHED = 3
CLOSE, TINY = 1e-3, 1e-12
"""A sum of squares this share, or this much, above the least one is as good."""


def make_curves(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Compute [P] and rewards [K, P]."""
    compute = np.geomspace(FIRST, LAST, POINTS.value)
    floor, asymptote = rng.uniform(0.0, 0.2, (count, 1)), rng.uniform(0.4, 0.95, (count, 1))
    midpoint, steepness = 10 ** rng.uniform(3.5, 6.0, (count, 1)), rng.uniform(0.5, 2.5, (count, 1))
    noise = rng.normal(0.0, NOISE.value, (count, len(compute)))
    return compute, hill(compute, floor, asymptote, midpoint, steepness) + noise  # pyright: ignore[reportArgumentType]


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def model(x: np.ndarray, floor: float, gain: float, middle: float, log_steepness: float) -> np.ndarray:
    """Hill in x = ln C, with the gain as a share of what is possible, so that a box keeps floor <= asymptote <= 1."""
    return floor + gain * (1 - floor) / (1 + np.exp(np.exp(log_steepness) * (middle - x)))


def slopes(x: np.ndarray, floor: float, gain: float, middle: float, log_steepness: float) -> np.ndarray:
    """[P, 4] derivative of `model`."""
    steepness = np.exp(log_steepness)
    share = 1 / (1 + np.exp(steepness * (middle - x)))
    bend = gain * (1 - floor) * share * (1 - share) * steepness
    return np.column_stack([1 - gain * share, (1 - floor) * share, -bend, bend * (x - middle)])


def box() -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the arguments of `model`: ours."""
    lower, upper = HILL.box(np.log(LAST / FIRST))
    return np.array([0, 0, lower[0] + np.log(FIRST), lower[1]]), np.array([1, 1, upper[0] + np.log(FIRST), upper[1]])


def levels(share: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best floor and gain, 0 <= floor <= floor + gain <= 1, for every row of `share` [G, P], and their errors [G]."""
    rest = 1 - share
    middle = share - share.mean(axis=1, keepdims=True)
    rise = middle @ y / np.maximum(np.sum(middle**2, axis=1), 1e-300)
    floor = y.mean() - rise * share.mean(axis=1)
    at_zero = np.clip(share @ y / np.sum(share**2, axis=1), 0, 1)
    at_one = np.clip(np.sum(rest * (y - share), axis=1) / np.maximum(np.sum(rest**2, axis=1), 1e-300), 0, 1)
    flat = np.full_like(rise, np.clip(y.mean(), 0, 1))
    floors = np.stack([floor, np.zeros_like(rise), at_one, flat])
    gains = np.stack([rise, at_zero, 1 - at_one, np.zeros_like(rise)])
    inside = (floors >= 0) & (gains >= 0) & (floors + gains <= 1 + 1e-15)
    errors = np.sum((floors[..., None] + gains[..., None] * share - y) ** 2, axis=-1)
    best = np.argmin(np.where(inside, errors, np.inf), axis=0), np.arange(len(share))
    return floors[best], gains[best], errors[best]


def fit_scipy(x: np.ndarray, rewards: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """[K] least sums of squares of `curve_fit` from `starts` [K, S, 2] of (ln C_mid, ln B)."""
    lower, upper = box()
    found = np.full(len(rewards), np.inf)
    for k, y in enumerate(rewards):
        for middle, log_steepness in starts[k]:
            share = 1 / (1 + np.exp(np.exp(log_steepness) * (middle - x)))
            floor, gain, _ = (float(a[0]) for a in levels(share[None], y))
            start = np.clip([floor, gain / max(1 - floor, 1e-300), middle, log_steepness], lower, upper)
            try:
                at, *_ = scipy.optimize.curve_fit(
                    model, x, y, p0=start, bounds=(lower, upper), method="trf", jac=slopes,
                    xtol=STEP_TOLERANCE, ftol=DECREASE_TOLERANCE, gtol=None, max_nfev=MAX_STEPS,
                )  # fmt: skip
            except RuntimeError:  # the most steps are used up; another start has to do
                continue
            found[k] = min(found[k], np.sum((model(x, *at) - y) ** 2))
    return found


def least_squares(x: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """[K] least sums of squares, by the dense grid and a polish."""
    lower, upper = box()
    axes = [np.linspace(lower[2 + i], upper[2 + i], cells) for i, cells in enumerate(CELLS)]
    middle, log_steepness = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    shares = 1 / (1 + np.exp(np.exp(log_steepness)[:, None] * (middle[:, None] - x)))
    best = np.empty(len(rewards))
    for k, y in enumerate(rewards):
        floor, gain, errors = levels(shares, y)
        around = scipy.ndimage.minimum_filter(errors.reshape(CELLS), size=3, mode="nearest").ravel()
        minima = np.flatnonzero(errors <= around)
        best[k] = errors.min()
        for cell in minima[np.argsort(errors[minima])[:POLISHED]]:
            start = [floor[cell], gain[cell] / max(1 - floor[cell], 1e-300), middle[cell], log_steepness[cell]]
            polished = scipy.optimize.least_squares(
                lambda p, y=y: model(x, *p) - y, np.clip(start, lower, upper), jac=lambda p: slopes(x, *p),  # pyright: ignore[reportArgumentType]
                bounds=(lower, upper), xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=1000,
            )  # fmt: skip
            best[k] = min(best[k], 2 * polished.cost)
    return best


def share_found(sse: np.ndarray, least: np.ndarray) -> str:
    """The share of sums of squares that are as good as the least, with the count."""
    good = sse <= np.maximum(least * (1 + CLOSE), least + TINY)
    return f"{good.mean():.2%} ({np.count_nonzero(good):,} of {len(good):,})"


def main() -> None:
    """Flags -> tables."""
    core = min(os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) > 1:  # started again: threads that the imports began would not be pinned
        os.sched_setaffinity(0, {core})
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.fitting", *sys.argv[1:]])
    rng = np.random.default_rng(SEED.value)
    point, full = FitOptions(intervals=False), FitOptions()
    sizes = [int(size) for size in SIZES.value]
    compute, rewards = make_curves(sizes[0], rng)
    _, compile_s, _ = timed(lambda: fit_curves([compute], [rewards[0]], options=point))

    print_head(("curves", "CPU s", "wall s", "CPU us per curve", "peak MiB"), left=())
    first: tuple[Any, float, float] = ([], 0.0, 0.0)
    for size in sizes:
        x, y = (compute, rewards) if size == sizes[0] else make_curves(size, rng)
        fits, cpu, wall = timed(lambda x=x, y=y: fit_curves([x] * len(y), list(y), options=point))
        first = (fits, cpu, wall) if size == sizes[0] else first
        print_row(f"{size:,}", f"{cpu:.2f}", f"{wall:.2f}", f"{1e6 * cpu / size:,.0f}", f"{peak_mib():,.0f}")
        del fits

    ours = np.array([fit.sse for fit in first[0]])
    count = SCIPY.value or sizes[0]
    problem, _, _ = prepare([compute] * count, list(rewards[:count]), [np.ones(len(compute))] * count, options=point)
    starts = grid_starts(problem, form=HILL)
    starts = starts + np.array([np.log(FIRST), 0.0])
    theirs, their_s, their_wall = timed(lambda: fit_scipy(np.log(compute), rewards[:count], starts))
    fit_curves([compute], [rewards[0]], options=full)
    _, interval_s, interval_wall = timed(lambda: fit_curves([compute] * sizes[0], list(rewards), options=full))
    least = least_squares(np.log(compute), rewards)
    head = ("curves", "CPU s", "wall s", "CPU us per curve", "ratio", "within 0.1% of the least")
    print()
    print_head((f"{POINTS.value} points", *head))
    for name, curves, cpu, wall, good in (
        (f"ours (and {compile_s:.1f} s to compile)", sizes[0], *first[1:], share_found(ours, least)),
        ("SciPy curve_fit", count, their_s, their_wall, share_found(theirs, least[:count])),
        ("ours with 95% profile intervals", sizes[0], interval_s, interval_wall, ""),
    ):
        each = cpu / curves
        ratio = f"{each / (first[1] / sizes[0]):.0f}"
        print_row(name, f"{curves:,}", f"{cpu:.2f}", f"{wall:.2f}", f"{1e6 * each:,.0f}", ratio, good)


if __name__ == "__main__":
    app.run(main)
