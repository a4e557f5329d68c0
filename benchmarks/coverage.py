"""`python -m benchmarks.coverage`: how often the fitter's 95% intervals hold the truth, and A counts as unknown.

    python -m benchmarks.coverage --replicates=400
    python -m benchmarks.coverage --asymptote=0.55 --floor=0.05 --steepness=0.8 --points=20

Hill curves with known parameters, evaluated at points spaced evenly in log C from C_mid / 50 to a multiple of C_mid,
with independent or AR(1) noise. Every share comes with its Monte-Carlo standard error. The true standard error of A is
the Cramer-Rao bound under the noise that was in fact drawn; no estimate without bias has a smaller one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from absl import flags

from benchmarks.families import autocorrelated
from benchmarks.shared import numbers, percent, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit import CurveFit, fit_curves
from isocompute_jax.fit.curves.forms import hill

REPLICATES = flags.DEFINE_integer("replicates", 400, "Simulated curves per line of the table.", lower_bound=1)
POINTS = flags.DEFINE_integer("points", 30, "Evaluations per curve.", lower_bound=2)
ASYMPTOTE = flags.DEFINE_float("asymptote", 0.7, "True A.")
FLOOR = flags.DEFINE_float("floor", 0.1, "True R0.")
STEEPNESS = flags.DEFINE_float("steepness", 1.2, "True B.")
NOISE = flags.DEFINE_list("noise", ["0.002", "0.005", "0.015"], "Standard deviations of an evaluation.")
CORRELATION = flags.DEFINE_list("correlation", ["0", "0.5"], "Correlations of neighbouring evaluations, rho.")
REACH = flags.DEFINE_list("reach", ["0.8", "2", "4", "16"], "Compute of the last evaluation, in units of C_mid.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the noise.")

MIDPOINT = 1e5
"""True C_mid: the fit is indifferent to the unit of compute."""
FIRST = 1 / 50
"""Compute of the first evaluation, in units of C_mid."""
BATCH = 800

HEAD = (
    *("noise", "rho", "data end at", "covers A", "covers C_mid", "covers B", "half width of A", "true s.e. of A"),
    *("sd of A", "A not identified"),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One line of the table: `noise` in units of reward, `reach` in units of C_mid."""

    noise: float
    correlation: float
    reach: float


@dataclasses.dataclass(frozen=True)
class Truth:
    """The parameters that the curves are drawn with, in the order of `hill`."""

    floor: float
    asymptote: float
    midpoint: float
    steepness: float


def simulate(cell: Cell, truth: Truth, *, replicates: int, points: int, rng: np.random.Generator):
    """Compute [P] and rewards [R, P] with stationary noise."""
    compute = np.geomspace(FIRST, cell.reach, points) * truth.midpoint
    noise = cell.noise * autocorrelated(rng.standard_normal((replicates, points)), cell.correlation)
    return compute, hill(compute, **dataclasses.asdict(truth)) + noise


def true_standard_error(cell: Cell, truth: Truth, compute: np.ndarray) -> float:
    """Cramer-Rao bound on the standard deviation of A, all four parameters unknown and the noise known."""
    x = np.log(compute / truth.midpoint)
    share = 1 / (1 + np.exp(-truth.steepness * x))
    gain = (truth.asymptote - truth.floor) * share * (1 - share)
    slopes = np.column_stack([1 - share, share, -gain * truth.steepness, gain * x])
    lag = np.abs(np.subtract.outer(np.arange(len(x)), np.arange(len(x))))
    covariance = cell.noise**2 * cell.correlation**lag
    return float(np.sqrt(np.linalg.inv(slopes.T @ np.linalg.solve(covariance, slopes))[1, 1]))


def line(cell: Cell, truth: Truth, compute: np.ndarray, fits: Sequence[CurveFit]) -> tuple[str, ...]:
    """The cells of `HEAD`."""

    def covered(name: str) -> str:
        ends = np.array([fit.interval95[name] for fit in fits])
        value = getattr(truth, name)
        return percent((ends[:, 0] <= value) & (value <= ends[:, 1]))

    ends = np.array([fit.interval95["asymptote"] for fit in fits])
    cells = (
        f"{cell.noise:g}",
        f"{cell.correlation:g}",
        f"{cell.reach:g} C_mid",
        *(covered(name) for name in ("asymptote", "midpoint", "steepness")),
        f"{np.median(ends[:, 1] - ends[:, 0]) / 2:.4f}",
        f"{true_standard_error(cell, truth, compute):.4f}",
        f"{np.std([fit.asymptote for fit in fits]):.4f}",
        percent(np.array([not fit.identified["asymptote"] for fit in fits])),
    )
    return cells


def main() -> None:
    """Flags -> table."""
    cells = [Cell(*values) for values in itertools.product(*map(numbers, (NOISE, CORRELATION, REACH)))]
    truth = Truth(FLOOR.value, ASYMPTOTE.value, MIDPOINT, STEEPNESS.value)
    rng = np.random.default_rng(SEED.value)
    print_head(HEAD, left=())
    for cell in cells:
        compute, rewards = simulate(cell, truth, replicates=REPLICATES.value, points=POINTS.value, rng=rng)
        fits: list[CurveFit] = []
        for start in range(0, len(rewards), BATCH):
            part = rewards[start : start + BATCH]
            fits += fit_curves([compute] * len(part), list(part))
        print_row(*line(cell, truth, compute, fits))


if __name__ == "__main__":
    app.run(main)
