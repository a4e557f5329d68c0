"""ScaleRL's procedures (arXiv 2510.13786): a grid fit, and steepness under a common asymptote."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, prepare
from isocompute_jax.fit.curves.fitting import CurveFit, fit_curves
from isocompute_jax.fit.curves.forms import HILL
from isocompute_jax.fit.curves.solver import fit_rising
from isocompute_jax.records.errors import InputError

GRID_STEP = 0.05
"""Spacing of the grid procedure's midpoints in ln C (the paper does not print its own)."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Asymptotes of ScaleRL's grid procedure: `start` to `stop` by `step`, ends included (0.450..0.800 by 0.005)."""

    start: float
    stop: float
    step: float

    def __post_init__(self) -> None:
        if not (self.step > 0 and self.start <= self.stop and math.isfinite(self.stop - self.start)):
            raise InputError(f"--grid={self.start:g}:{self.stop:g}:{self.step:g} must be start:stop:step, step above 0")
        if (self.stop - self.start) / self.step > 10_000:
            raise InputError(f"--grid={self.start:g}:{self.stop:g}:{self.step:g} has more than 10,000 asymptotes")

    def values(self) -> np.ndarray:
        """The asymptotes."""
        return self.start + self.step * np.arange(math.floor((self.stop - self.start) / self.step + 1e-9) + 1)


def grid_fit(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    use: Sequence[np.ndarray],
    grid: Grid,
    options: FitOptions,
) -> list[CurveFit]:
    """ScaleRL's published procedure: A and C_mid on a grid, B (and R0) fitted in every cell, the least squares kept.

    Midpoints go from a quarter of the curve's range (in log C) before its first evaluation to half of it after its end.

    Returns:
      The best cells, without intervals; `at_bound` names A or C_mid where it is the first or last of its axis.
    """
    own = dataclasses.replace(options, form="hill", loss="squares", fix={}, bounds={}, intervals=False)
    problem, windows, _ = prepare(compute, reward, [np.asarray(u, float) for u in use], options=own)
    asymptotes = grid.values()
    results = []
    for k, (first, last) in enumerate(windows):
        reach = math.log(last / first) or 1.0
        midpoints = np.arange(-0.25 * reach, 1.5 * reach, GRID_STEP)
        cells = np.array(np.meshgrid(asymptotes, midpoints, indexing="ij")).reshape(2, -1)
        count = cells.shape[1]
        many = uncertainty.pin(problem, np.full(count, k), np.ones(count, int), cells[0])
        many = uncertainty.pin(many, np.arange(count), np.full(count, 2), cells[1])
        at, sse, _ = fit_rising(many, form=HILL, starts=np.stack([cells[1], np.zeros(count)], axis=-1)[:, None])
        best = int(np.argmin(sse))
        i, j = divmod(best, len(midpoints))
        edges = ("asymptote",) if len(asymptotes) > 1 and i in (0, len(asymptotes) - 1) else ()
        edges += ("midpoint",) if j in (0, len(midpoints) - 1) else ()
        params, window = HILL.values(at[best], float(first)), (float(first), float(last))
        found = CurveFit("hill", params, window, at_bound=edges, sse=float(sse[best]))
        results.append(dataclasses.replace(found, status="warning", doubts=("at a bound",)) if edges else found)
    return results


def compare_steepness(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    fits: Sequence[CurveFit],
    *,
    options: FitOptions,
    use: Sequence[np.ndarray] | None = None,
    seeds: Sequence[np.ndarray] | None = None,
) -> list[CurveFit] | None:
    """Fixes A to its average over the curves (of those whose A is identified, when there are any), and fits again.

    The curves that come back differ in B and C_mid alone, each with its interval. None unless at least two Hill curves
    were fitted, with A free.
    """
    known = [fit for fit in fits if fit.status != "failed" and fit.form == "hill"]
    sure = [fit.asymptote for fit in known if fit.identified.get("asymptote")]
    if len(known) < 2 or {"A", "asymptote"} & set(options.fix):
        return None
    common = float(np.mean(sure or [fit.asymptote for fit in known]))
    bounds = {name: ends for name, ends in options.bounds.items() if name not in ("A", "asymptote")}
    own = dataclasses.replace(options, fix={**options.fix, "A": common}, bounds=bounds)
    return fit_curves(compute, reward, use=use, seeds=seeds, options=own)
