"""Profile curves of the asymptote: how much worse the fit becomes as A is moved away from its estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import solve
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.padding import prepare
from isocompute_jax.fit.results import CurveFit

VALUES = 41
REACH = 2.5
"""Profiles are drawn over so many half intervals on either side of the estimate, inside the bounds of A."""

_ASYMPTOTE = 1  # its place among the coordinates (low, high, *theta)


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """`asymptote` [V] and Student's `t` [V] of holding A there; its 95% interval is where |t| is below `critical`."""

    asymptote: np.ndarray
    t: np.ndarray
    critical: float

    @property
    def scaled(self) -> np.ndarray:
        """[V] t in units of its 95% limit."""
        return self.t / self.critical


def profile_asymptotes(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    fits: Sequence[CurveFit],
    *,
    use: Sequence[np.ndarray],
    errors: Sequence[np.ndarray] | None,
    options: FitOptions,
) -> list[Profile | None]:
    """One profile for each fit; None where A is fixed or has no interval.

    Args:
      compute: per curve [P_i].
      reward: per curve [P_i].
      fits: of these curves, with intervals.
      use: per curve [P_i] bool, the points that were fitted.
      errors: per curve [P_i] standard errors that weighed them; None for equal weights.
      options: of the fits.
    """
    found: list[Profile | None] = [None] * len(fits)
    wanted = [i for i, fit in enumerate(fits) if fit.search is not None and _width(fit) > 0]
    if not wanted:
        return found
    weights = [use[i] / (1.0 if errors is None else errors[i] ** 2) for i in wanted]
    prepared = prepare([compute[i] for i in wanted], [reward[i] for i in wanted], weights, options=options)
    problem, solved = solve(prepared, options)
    share = FORMS[options.form].share
    noise = uncertainty.noise(problem, solved, share=share, width=options.width)
    lower, upper = (bounds[:, _ASYMPTOTE] for bounds in uncertainty.box(problem))
    low, high = np.array([fits[i].interval95["asymptote"] for i in wanted]).T
    at = solved.high
    values = np.linspace(
        np.maximum(at - REACH * (at - low), np.maximum(lower, solved.low)), np.minimum(at + REACH * (high - at), upper),
        VALUES, axis=1,
    )  # fmt: skip
    index = np.stack([np.repeat(np.arange(len(wanted)), VALUES), np.full(values.size, _ASYMPTOTE)], axis=1)
    score = uncertainty.profile(noise, index, values.ravel(), share=share).reshape(values.shape)
    for row, i in enumerate(wanted):
        found[i] = Profile(values[row], score[row], float(uncertainty.critical(noise.freedom[row])))
    return found


def _width(fit: CurveFit) -> float:
    low, high = fit.interval95.get("asymptote", (0.0, 0.0))
    return high - low
