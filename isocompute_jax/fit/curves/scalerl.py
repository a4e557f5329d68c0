"""Comparisons in the manner of ScaleRL (arXiv 2510.13786): steepness under a common asymptote, and its own grid fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import HILL
from isocompute_jax.fit.curves.padding import prepare
from isocompute_jax.fit.curves.solver import fit_rising
from isocompute_jax.fit.results import CurveFit
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


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Hill curves under one asymptote.

    Attributes:
      asymptote: the common A, the mean over curves (of those whose A is identified, when there are any).
      fits: [K] curves fitted with it.
      log_compute: per curve, ln C of the points that have a log F.
      log_f: per curve, ln F with F = C_mid^B / ((A - R0) / (R - R0) - 1): a line of slope B where the law holds.
    """

    asymptote: float
    fits: tuple[CurveFit, ...]
    log_compute: tuple[np.ndarray, ...]
    log_f: tuple[np.ndarray, ...]


def compare_steepness(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    fits: Sequence[CurveFit],
    *,
    use: Sequence[np.ndarray],
    options: FitOptions,
) -> Comparison | None:
    """Fixes A to its average over the curves, refits, and gives each curve's B with its interval.

    None unless at least two Hill curves were fitted, with A free.
    """
    known = [fit for fit in fits if fit.status != "failed" and fit.form == "hill"]
    sure = [fit.asymptote for fit in known if fit.identified.get("asymptote")]
    if len(known) < 2 or {"A", "asymptote"} & set(options.fix):
        return None
    common = float(np.mean(sure or [fit.asymptote for fit in known]))
    fixed = {name: value for name, value in options.fix.items() if name not in ("A", "asymptote")}
    bounds = {name: ends for name, ends in options.bounds.items() if name not in ("A", "asymptote")}
    own = dataclasses.replace(options, fix={**fixed, "A": common}, bounds=bounds)
    again = fit_curves(compute, reward, use=use, options=own)
    lines = [_log_f(fit, c[u], r[u]) for fit, c, r, u in zip(again, compute, reward, use, strict=True)]
    return Comparison(common, tuple(again), *map(tuple, zip(*lines, strict=True)))


def _log_f(fit: CurveFit, compute: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln C and ln F of the points between floor and asymptote."""
    if fit.status == "failed":
        return np.empty(0), np.empty(0)
    floor, asymptote, midpoint, steepness = fit.params.values()
    inside = (compute > 0) & (reward > floor) & (reward < asymptote)
    odds = (reward[inside] - floor) / (asymptote - reward[inside])
    return np.log(compute[inside]), steepness * math.log(midpoint) + np.log(odds)


@dataclasses.dataclass(frozen=True)
class GridFit:
    """The best cell of the grid procedure; `at_edge` when A or C_mid is the first or last of its axis."""

    asymptote: float
    midpoint: float
    steepness: float
    floor: float
    sse: float
    at_edge: bool


def grid_fit(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    *,
    use: Sequence[np.ndarray],
    grid: Grid,
    options: FitOptions,
) -> list[GridFit]:
    """ScaleRL's published procedure: A and C_mid on a grid, B (and R0) fitted in every cell, the least squares kept.

    Midpoints go from a quarter of the curve's range (in log C) before its first evaluation to half of it after its end.
    """
    own = dataclasses.replace(options, form="hill", loss="squares", fix={}, bounds={}, intervals=False)
    prepared = prepare(compute, reward, [np.asarray(u, float) for u in use], options=own)
    asymptotes = grid.values()
    results = []
    for k in range(len(compute)):
        reach = math.log(prepared.windows[k][1] / prepared.windows[k][0]) or 1.0
        midpoints = np.arange(-0.25 * reach, 1.5 * reach, GRID_STEP)
        cells = np.array(np.meshgrid(asymptotes, midpoints, indexing="ij")).reshape(2, -1)
        many = uncertainty.pin(prepared.problem, np.full(cells.shape[1], k), np.ones(cells.shape[1], int), cells[0])
        many = uncertainty.pin(many, np.arange(cells.shape[1]), np.full(cells.shape[1], 2), cells[1])
        start = np.stack([cells[1], np.zeros(cells.shape[1])], axis=-1)[:, None]
        found = fit_rising(many, share=HILL.share, starts=start)
        best = int(np.argmin(found.sse))
        i, j = divmod(best, len(midpoints))
        params = HILL.values(found.low[best], found.high[best], found.theta[best], prepared.reference[k])
        edge = (i in (0, len(asymptotes) - 1) and len(asymptotes) > 1) or j in (0, len(midpoints) - 1)
        results.append(GridFit(**params, sse=float(found.sse[best]), at_edge=edge))
    return results
