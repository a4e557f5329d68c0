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
from typing import Literal, NamedTuple

import numpy as np

from isocompute_jax.fit.intervals import PERCENTILES, Estimate, holding, percentile_interval
from isocompute_jax.fit.laws.chinchilla import (
    FLOPS_PER_PARAMETER_TOKEN,
    VANISHING,
    ChinchillaFit,
    design_doubts,
    fit_chinchilla,
)
from isocompute_jax.fit.laws.solvers import HIGHEST_EXPONENT, LOWEST_EXPONENT, fit_one, refit_one
from isocompute_jax.fit.results import Status

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


@dataclasses.dataclass(frozen=True, eq=False)
class ConvergenceFit:
    """A convergence law of one variable, L(x) = E + A x^-alpha, and what it says about its largest x."""

    variable: Variable
    e: Estimate  # irreducible loss E: of unlimited x, the rest being as it is
    a: Estimate
    alpha: Estimate  # exponent
    num_points: int  # P, points that were fitted
    r2: float  # share of the variation of ln L that is explained
    chinchilla_alpha: float  # the exponent that the pre-training law expects; NaN where it does not identify it
    held_out_x: float  # the largest x
    held_out_loss: float  # mean loss measured there
    forecast: Estimate  # of that loss from the smaller x; its interval is that of a measurement
    chinchilla_forecast: float  # the same by the pre-training law, fitted without points at or beyond the largest x
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


class _Selected(NamedTuple):
    """[P] x, N, D and loss of the points of one law, in order of x; and what is to be known about them."""

    x: np.ndarray
    model_params: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    remark: str

    def keep(self, rows: np.ndarray) -> _Selected:
        return _Selected(*(values[rows] for values in self[:4]), remark=self.remark)


class _Law(NamedTuple):
    """A fit and its bootstrap.

    `parameters` [3] are E, A and alpha, `replicates` [R, 3] likewise, `noise` [R] is what the points of a replicate
    were given (of ln L), and `residuals` [P] are those of ln L.
    """

    parameters: np.ndarray
    replicates: np.ndarray
    noise: np.ndarray
    converged: bool
    residuals: np.ndarray

    def loss(self, x: float) -> np.ndarray:
        """[1 + R] of the fit and of its replicates."""
        return _loss(np.vstack([self.parameters, self.replicates]), x)


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
    chosen = _select(n, d, y, variable)
    values = _distinct(chosen.x)
    if values < FEWEST_VALUES:
        return _failed(variable, chosen, f"too few values of {variable} ({values}; {FEWEST_VALUES} are needed)")
    rng = np.random.default_rng([seed, list(VARIABLES).index(variable)])
    fitted = _fit(chosen, resamples, rng)
    estimates = _estimates(fitted, chosen)
    notes = dict.fromkeys([chosen.remark, *(estimate.note for estimate in estimates.values())])
    notes |= {} if fitted.converged else {"the search did not converge": None}
    largest = chosen.x >= chosen.x.max() * (1 - SAME)
    forecast = Estimate(np.nan, np.nan, np.nan, False, "too few values of x to hold the largest out")
    if values > FEWEST_VALUES:
        forecast = _forecast(_fit(chosen.keep(~largest), resamples, rng), float(chosen.x[largest].mean()), rng)
    message = "; ".join(note for note in notes if note)
    total = np.log(chosen.loss) - np.log(chosen.loss).mean()
    return ConvergenceFit(
        variable=variable,
        **estimates,
        num_points=len(chosen.x),
        r2=float(1 - fitted.residuals @ fitted.residuals / (total @ total)) if total.any() else float("nan"),
        chinchilla_alpha=_expected_exponent(law, variable),
        held_out_x=float(chosen.x[largest].mean()),
        held_out_loss=float(chosen.loss[largest].mean()),
        forecast=forecast,
        chinchilla_forecast=_chinchilla_forecast(n, d, y, chosen.keep(largest), variable),
        status="warning" if message else "ok",
        message=message,
        x=chosen.x,
        loss=chosen.loss,
        chinchilla_loss=_chinchilla_loss(law, chosen),
    )


def _select(n: np.ndarray, d: np.ndarray, loss: np.ndarray, variable: Variable) -> _Selected:
    remark = ""
    if variable == "N":
        x, ends = n, np.array([d[n == size].max() for size in n])
        rows = d >= ends * (1 - SAME)
        if ends.size and ends.max() > MOST_APART * ends.min():
            remark = f"the largest D of a model size goes from {ends.min():.3g} to {ends.max():.3g} tokens"
    elif variable == "D":
        x, rows = d, n == n.max(initial=0.0)
    else:
        x = FLOPS_PER_PARAMETER_TOKEN * n * d
        budget = np.empty(len(x), int)
        order = np.argsort(x, kind="stable")
        budget[order] = np.concatenate([[0], np.cumsum(np.diff(np.log(x[order])) > SAME)])[: len(x)]
        order = np.lexsort((loss, budget))
        before = np.minimum.accumulate(np.concatenate([[np.inf], loss[order]]))[:-1]
        rows = np.zeros(len(x), bool)
        rows[order[loss[order] < before]] = True
    order = np.flatnonzero(rows)[np.argsort(x[rows], kind="stable")]
    return _Selected(x[order], n[order], d[order], loss[order], remark)


def _distinct(x: np.ndarray) -> int:
    """Values that differ by more than `SAME`; x rises."""
    return int(len(x) > 0) + int(np.count_nonzero(np.diff(np.log(x)) > SAME))


def _loss(parameters: np.ndarray, x: np.ndarray | float) -> np.ndarray:
    """E + A x^-alpha of [..., 3]."""
    e, a, alpha = np.moveaxis(parameters, -1, 0)
    return e + a * np.asarray(x, np.float64) ** -alpha


def _fit(points: _Selected, resamples: int, rng: np.random.Generator) -> _Law:
    """The fit, and its replicates with new noise around it.

    Its variance is that of the residuals of ln L for the degrees of freedom that are left, and as uncertain.
    """
    best = fit_one(points.x, points.loss)
    fitted = _loss(best.parameters, points.x)
    residuals = np.log(points.loss) - np.log(fitted)
    freedom = max(len(residuals) - NUM_PARAMETERS, 1)
    noise = np.sqrt(residuals @ residuals / rng.chisquare(freedom, resamples))
    drawn = fitted * np.exp(noise[:, None] * rng.normal(size=(resamples, len(residuals))))
    replicates = refit_one(points.x, drawn, best) if resamples else np.empty((0, NUM_PARAMETERS))
    return _Law(best.parameters, replicates, noise, best.converged, residuals)


def _estimates(law: _Law, points: _Selected) -> dict[str, Estimate]:
    """The fields e, a and alpha."""
    draws = law.replicates if len(law.replicates) else law.parameters[None]
    bounds = np.percentile(draws, PERCENTILES, axis=0).T
    notes = dict.fromkeys(("e", "a", "alpha"), "")
    least = VANISHING * points.loss.min()
    if bounds[0, 0] <= least:
        notes["e"] = "E is not told from 0"
    term = np.percentile(draws[:, 1] * points.x.min() ** -draws[:, 2], PERCENTILES[0])
    if term <= least:
        notes |= dict.fromkeys(("a", "alpha"), "the term of A is not told from 0")
    elif bounds[2, 0] <= LOWEST_EXPONENT * 1.01 or bounds[2, 1] >= HIGHEST_EXPONENT * 0.99:
        notes |= dict.fromkeys(("a", "alpha"), "alpha reaches the end of its range")
    if not len(law.replicates):
        bounds = np.full_like(bounds, np.nan)
    return {
        name: Estimate(float(value), *holding(low, high, value), not note, note)
        for (name, note), value, (low, high) in zip(notes.items(), law.parameters, bounds, strict=True)
    }


def _forecast(law: _Law, x: float, rng: np.random.Generator) -> Estimate:
    """The loss at x, with the interval of a measurement there: of the curve and of its noise."""
    value, *draws = law.loss(x)
    if not draws:
        return Estimate(float(value), np.nan, np.nan, True, "")
    noisy = np.array(draws) * np.exp(law.noise * rng.normal(size=len(draws)))
    return Estimate(float(value), *percentile_interval(noisy, float(value)), True, "")


def _expected_exponent(law: ChinchillaFit | None, variable: Variable) -> float:
    """That of the pre-training law along the same points; NaN where it is not identified."""
    if law is None:
        return float("nan")
    needed = {"N": (law.alpha,), "D": (law.beta,), "C": (law.alpha, law.beta)}[variable]
    if not all(estimate.identified for estimate in needed):
        return float("nan")
    alpha, beta = law.alpha.value, law.beta.value
    return {"N": alpha, "D": beta, "C": alpha * beta / (alpha + beta)}[variable]


def _chinchilla_loss(law: ChinchillaFit | None, points: _Selected) -> np.ndarray:
    if law is None or law.status == "failed":
        return np.full_like(points.x, np.nan)
    return law.loss(points.model_params, points.tokens)


def _chinchilla_forecast(
    n: np.ndarray, d: np.ndarray, loss: np.ndarray, largest: _Selected, variable: Variable
) -> float:
    """Mean loss at the largest points by the pre-training law, fitted to the points before them; NaN where it fails."""
    x = {"N": n, "D": d, "C": FLOPS_PER_PARAMETER_TOKEN * n * d}[variable]
    rest = x < largest.x.min() * (1 - SAME)
    law = fit_chinchilla(n[rest], d[rest], loss[rest], method="huber", group=None, resamples=0, seed=0)
    if law.status == "failed" or design_doubts(n[rest], d[rest]):
        return float("nan")
    return float(law.loss(largest.model_params, largest.tokens).mean())


def _failed(variable: Variable, points: _Selected, message: str) -> ConvergenceFit:
    none = Estimate(np.nan, np.nan, np.nan, False, message)
    return ConvergenceFit(
        variable=variable, e=none, a=none, alpha=none, num_points=len(points.x), r2=np.nan, chinchilla_alpha=np.nan,
        held_out_x=np.nan, held_out_loss=np.nan, forecast=none, chinchilla_forecast=np.nan, status="failed",
        message=message, x=points.x, loss=points.loss, chinchilla_loss=np.full_like(points.x, np.nan),
    )  # fmt: skip
