"""Convergence laws of one variable, L(x) = E + A x^-alpha, with x the parameters N, the tokens D or the compute C.

Kaplan et al. 2020 (arXiv 2001.08361) fitted L(N) to models trained until they converged, L(D) to large models and L(C)
to the best loss at each compute, without E; Henighan et al. 2020 (arXiv 2010.14701) added it. The pre-training law of
`chinchilla` is one surface whose sections they are: it expects the exponents alpha, beta and
alpha beta / (alpha + beta).

The fit is that law's Huber fit of ln L with the second term absent. Intervals are 95% percentiles of fits to
new noise around the fit: so few points cannot be drawn again as they are. Points count as independent, which the rows
of one run (`--points=all`) are not, and those of the envelope were picked because they are low.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from isocompute_jax.fit.frontier.bootstrap import percentile_interval
from isocompute_jax.fit.results import Estimate, Status
from isocompute_jax.laws.chinchilla import (
    FLOPS_PER_PARAMETER_TOKEN,
    ChinchillaFit,
    design_doubts,
    fit_chinchilla,
    law_estimates,
    unknown,
)
from isocompute_jax.laws.solver import Minimum, fit_one, refit_one

Variable = Literal["N", "D", "C"]
VARIABLES: dict[Variable, str] = {
    "N": "at the largest D of each N",
    "D": "at the largest N",
    "C": "on the lower envelope",
}
"""Variable -> the points that its law is fitted to."""

SAME = 0.02
"""Values that differ by less than this share are one: steps round tokens differently."""
NUM_PARAMETERS = 3
FEWEST_VALUES = NUM_PARAMETERS + 1
"""Values of x that a fit needs; one more for a largest that is held out."""
MOST_APART = 2.0
"""Largest D of two model sizes that differ by more than this factor are pointed out: L(N) then has both in it."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ConvergenceFit:
    """A convergence law of one variable, L(x) = E + A x^-alpha, and what it says about its largest x."""

    variable: Variable
    e: Estimate  # irreducible loss E: of unlimited x, the rest being as it is
    a: Estimate
    alpha: Estimate  # exponent
    num_points: int  # P, points that were fitted
    r2: float = math.nan  # share of the variation of ln L that is explained
    chinchilla_alpha: float = (
        math.nan
    )  # the exponent that the pre-training law expects; NaN where it does not identify it
    held_out_x: float = math.nan  # the largest x
    held_out_loss: float = math.nan  # mean loss measured there
    forecast: Estimate  # of that loss from the smaller x; its interval is that of a measurement
    chinchilla_forecast: float = (
        math.nan
    )  # the same by the pre-training law, fitted without points at or beyond the largest x
    status: Status  # `failed`: the numbers are NaN
    message: str  # empty, or what is wrong
    x: np.ndarray  # [P] rising
    loss: np.ndarray  # [P]
    chinchilla_loss: np.ndarray  # [P] the pre-training law's loss at these points; NaN without one

    @property
    def where(self) -> str:
        """The points that it is fitted to, in words."""
        return VARIABLES[self.variable]

    @property
    def inside(self) -> bool:
        """Whether the interval of the forecast holds what was measured."""
        return self.forecast.low <= self.held_out_loss <= self.forecast.high

    def predicted(self, x: np.ndarray | float) -> np.ndarray:
        """L of the fit at x."""
        return self.e.value + self.a.value * np.asarray(x, np.float64) ** -self.alpha.value


def fit_convergence(
    model_params: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    *,
    variable: Variable,
    law: ChinchillaFit | None,
    resamples: int,
    seed: int,
) -> ConvergenceFit:
    """Fits one law, and predicts the loss at the largest x from the smaller ones.

    Args:
      model_params: [P] parameters N.
      tokens: [P] training tokens D.
      loss: [P]; points that lack N, D or a loss above 0 are left out.
      variable: `N`, at the largest D of each N; `D`, at the largest N; `C` = 6 N D, on the lower envelope: points below
        which no point of less or equal compute lies.
      law: the pre-training law fitted to all points, to compare with; None without. The prediction beside that of the
        single variable comes from a fit of its own, without points at or beyond the largest x.
      resamples: bootstrap repetitions; 0 for no intervals.
      seed: of the bootstrap.
    """
    n, d, y = (np.asarray(a, np.float64) for a in (model_params, tokens, loss))
    keep = np.isfinite(n) & np.isfinite(d) & np.isfinite(y) & (n > 0) & (d > 0) & (y > 0)
    n, d, y = n[keep], d[keep], y[keep]
    every_x = {"N": n, "D": d, "C": FLOPS_PER_PARAMETER_TOKEN * n * d}[variable]
    rows, remark = _select(n, d, y, every_x, variable)
    x, measured = every_x[rows], y[rows]
    values = _distinct(x)
    if values < FEWEST_VALUES:
        message = f"too few values of {variable} ({values}; {FEWEST_VALUES} are needed)"
        return ConvergenceFit(
            variable=variable, **dict.fromkeys(("e", "a", "alpha", "forecast"), unknown(message)), num_points=len(x),
            status="failed", message=message, x=x, loss=measured, chinchilla_loss=np.full_like(x, np.nan),
        )  # fmt: skip
    rng = np.random.default_rng([seed, list(VARIABLES).index(variable)])
    best, replicates, _ = _fit(x, measured, resamples, rng)
    estimates = law_estimates(
        ("e", "a", "alpha"), best.parameters, replicates, terms={"a": ("alpha", x.min())}, lowest_loss=measured.min(),
        notes={}, doubts={},
    )  # fmt: skip
    largest = x >= x.max() * (1 - SAME)
    at = float(x[largest].mean())
    forecast = unknown("too few values of x to hold the largest out")
    if values > FEWEST_VALUES:
        forecast = _forecast(*_fit(x[~largest], measured[~largest], resamples, rng), at, rng)
    notes = [remark, *(estimate.note for estimate in estimates.values())]
    notes += [] if best.converged else ["the search did not converge"]
    message = "; ".join(note for note in dict.fromkeys(notes) if note)
    left = np.log(measured) - np.log(_loss(best.parameters, x))
    total = np.log(measured) - np.log(measured).mean()
    return ConvergenceFit(
        variable=variable,
        **estimates,
        num_points=len(x),
        r2=float(1 - left @ left / (total @ total)) if total.any() else math.nan,
        chinchilla_alpha=_expected_exponent(law, variable),
        held_out_x=at,
        held_out_loss=float(measured[largest].mean()),
        forecast=forecast,
        chinchilla_forecast=_chinchilla_forecast((n, d, y), every_x < x[largest].min() * (1 - SAME), rows[largest]),
        status="warning" if message else "ok",
        message=message,
        x=x,
        loss=measured,
        chinchilla_loss=law.loss(n[rows], d[rows]) if law and law.status != "failed" else np.full_like(x, np.nan),
    )


def _select(
    n: np.ndarray, d: np.ndarray, loss: np.ndarray, x: np.ndarray, variable: Variable
) -> tuple[np.ndarray, str]:
    """Numbers of the points that the law of a variable is fitted to, in order of x, and what is to be known of them."""
    remark = ""
    if variable == "N":
        ends = np.array([d[n == size].max() for size in n])
        rows = d >= ends * (1 - SAME)
        if ends.size and ends.max() > MOST_APART * ends.min():
            remark = f"the largest D of a model size goes from {ends.min():.3g} to {ends.max():.3g} tokens"
    elif variable == "D":
        rows = n == n.max(initial=0.0)
    else:
        budget = np.empty(len(x), int)
        order = np.argsort(x, kind="stable")
        budget[order] = np.concatenate([[0], np.cumsum(np.diff(np.log(x[order])) > SAME)])[: len(x)]
        order = np.lexsort((loss, budget))
        before = np.minimum.accumulate(np.concatenate([[np.inf], loss[order]]))[:-1]
        rows = np.zeros(len(x), bool)
        rows[order[loss[order] < before]] = True
    return np.flatnonzero(rows)[np.argsort(x[rows], kind="stable")], remark


def _distinct(x: np.ndarray) -> int:
    """Values that differ by more than `SAME`; x rises."""
    return int(len(x) > 0) + int(np.count_nonzero(np.diff(np.log(x)) > SAME))


def _loss(parameters: np.ndarray, x: np.ndarray | float) -> np.ndarray:
    """E + A x^-alpha of [..., 3]."""
    e, a, alpha = np.moveaxis(parameters, -1, 0)
    return e + a * np.asarray(x, np.float64) ** -alpha


def _fit(
    x: np.ndarray, loss: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[Minimum, np.ndarray, np.ndarray]:
    """The fit, its replicates [R, 3] with new noise around it, and the size of the noise [R] of ln L in each.

    Its variance is that of the residuals of ln L for the degrees of freedom that are left, and as uncertain.
    """
    best = fit_one(x, loss)
    fitted = _loss(best.parameters, x)
    residuals = np.log(loss) - np.log(fitted)
    freedom = max(len(residuals) - NUM_PARAMETERS, 1)
    noise = np.sqrt(residuals @ residuals / rng.chisquare(freedom, resamples))
    drawn = fitted * np.exp(noise[:, None] * rng.normal(size=(resamples, len(residuals))))
    replicates = refit_one(x, drawn, best.parameters) if resamples else np.empty((0, NUM_PARAMETERS))
    return best, replicates, noise


def _forecast(best: Minimum, replicates: np.ndarray, noise: np.ndarray, x: float, rng: np.random.Generator) -> Estimate:
    """The loss at x, with the interval of a measurement there: of the curve and of its noise."""
    value = float(_loss(best.parameters, x))
    if not len(replicates):
        return Estimate(value, np.nan, np.nan, True, "")
    noisy = _loss(replicates, x) * np.exp(noise * rng.normal(size=len(noise)))
    return Estimate(value, *percentile_interval(noisy, value), True, "")


def _expected_exponent(law: ChinchillaFit | None, variable: Variable) -> float:
    """That of the pre-training law along the same points; NaN where it is not identified."""
    if law is None:
        return math.nan
    needed = {"N": (law.alpha,), "D": (law.beta,), "C": (law.alpha, law.beta)}[variable]
    if not all(estimate.identified for estimate in needed):
        return math.nan
    alpha, beta = law.alpha.value, law.beta.value
    return {"N": alpha, "D": beta, "C": alpha * beta / (alpha + beta)}[variable]


def _chinchilla_forecast(
    points: tuple[np.ndarray, np.ndarray, np.ndarray], before: np.ndarray, largest: np.ndarray
) -> float:
    """Mean loss at the points numbered `largest` of (N, D, loss) by the pre-training law fitted to those `before` them.

    NaN where that fit fails.
    """
    n, d, loss = (column[before] for column in points)
    law = fit_chinchilla(n, d, loss, method="huber", group=None, resamples=0, seed=0)
    if law.status == "failed" or design_doubts(n, d):
        return math.nan
    return float(law.loss(points[0][largest], points[1][largest]).mean())
