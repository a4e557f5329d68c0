"""The budgets that a reader may choose from: over the data and some way beyond."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.results import CurveFit

GRID_BUDGETS = 48
BEYOND_DATA = 4.0
"""The grid reaches so many times the largest compute of the data, or the largest budget that was asked for."""


def data_end(fits: Sequence[CurveFit]) -> float:
    """The largest compute that a curve was fitted to."""
    return max(fit.window[1] for fit in fits if fit.status != "failed")


def budget_grid(fits: Sequence[CurveFit], asked: Sequence[float]) -> list[float]:
    """Budgets even in log C and rounded to two figures, with the ends of the data and those that were asked for."""
    first, last = min(fit.window[0] for fit in fits if fit.status != "failed"), data_end(fits)
    low, high = min([first, *asked]), max([BEYOND_DATA * last, *asked])
    even = [float(f"{compute:.2g}") for compute in np.geomspace(low, high, GRID_BUDGETS)]
    return sorted({first, last, high, *asked, *(budget for budget in even if first < budget < high)})
