"""What of a mean curve can be fitted at all: not what comes after a collapse, and not what stands alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.falls import Fall, find_fall, spoken
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.outliers import find_outliers
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.results import CurveFit

Falls = Literal["end", "keep"]
Outliers = Literal["name", "keep"]


@dataclasses.dataclass(frozen=True, eq=False)
class Screening:
    """What one mean curve leaves to be fitted.

    Attributes:
      fall: its collapse; None without.
      outlier: [E] bool, evaluations that stand alone.
      kept: [E] bool, the others up to the peak.
    """

    fall: Fall | None
    outlier: np.ndarray
    kept: np.ndarray

    def note(self, fit: CurveFit, curve: Curve) -> CurveFit:
        """The fit with what was found, and a warning that names it."""
        reasons = [fit.message, *self.reasons(curve)]
        if len(reasons) == 1 or fit.status == "failed":
            return fit
        outliers = tuple(curve.compute[self.outlier].tolist())
        return dataclasses.replace(
            fit,
            status="warning",
            message="; ".join(filter(None, reasons)),
            window=(min(fit.window[0], *outliers), max(fit.window[1], *outliers)) if outliers else fit.window,
            fall=self.fall,
            outliers=outliers,
        )

    def reasons(self, curve: Curve) -> list[str]:
        """What was found, in words."""
        found = []
        if self.fall is not None:
            found.append(f"{self.fall.text()}, so it ends at its peak")
        if self.outlier.any():
            rows = zip(curve.compute[self.outlier], curve.reward[self.outlier], strict=True)
            each = ", ".join(f"{reward:.3g} at {spoken(compute)}" for compute, reward in rows)
            found.append(f"left out, far from the curve through all others: {each}")
        return found


def screen(
    curves: Sequence[Curve],
    *,
    errors: Sequence[np.ndarray] | None,
    options: FitOptions,
    falls: Falls,
    outliers: Outliers,
) -> tuple[Screening, ...]:
    """Looks for collapses, then for outliers before them.

    Args:
      curves: K mean curves.
      errors: [K] of [E] standard errors of their rewards; None for equal weights.
      options: of the fits.
      falls: `end` a curve at its peak, or `keep` what comes after.
      outliers: `name` them and leave them out, or `keep` them. Huber's loss keeps them too: it is their other remedy.
    """
    found = [_fall(curve, options) if falls == "end" else None for curve in curves]
    rising = [c.compute <= (np.inf if fall is None else fall.compute) for c, fall in zip(curves, found, strict=True)]
    alone = [np.zeros(len(curve.compute), bool) for curve in curves]
    if outliers == "name" and options.loss == "squares":
        compute, reward = ([values[mask] for values, mask in zip(rows, rising, strict=True)]
                           for rows in ([c.compute for c in curves], [c.reward for c in curves]))  # fmt: skip
        weights = None if errors is None else [e[mask] for e, mask in zip(errors, rising, strict=True)]
        marked = find_outliers(compute, reward, standard_error=weights, options=options)
        for row, mask, outlier in zip(alone, rising, marked, strict=True):
            row[mask] = outlier
    rows = zip(found, alone, rising, strict=True)
    return tuple(Screening(fall, outlier, mask & ~outlier) for fall, outlier, mask in rows)


def _fall(curve: Curve, options: FitOptions) -> Fall | None:
    """The collapse of a curve inside the window of the fits."""
    low, high = options.window or (0.0, np.inf)
    inside = curve.only((curve.compute >= low) & (curve.compute <= high))
    per_seed = None if inside.pooled else inside.per_seed
    return find_fall(inside.compute, inside.reward, reward_range=options.reward_range, per_seed=per_seed)
