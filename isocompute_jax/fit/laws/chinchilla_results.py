"""What the runs say by the pre-training law: its fits, and the compute-optimal allocation."""

from __future__ import annotations

import dataclasses

import numpy as np

from isocompute_jax.fit.laws.results import Estimate
from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.fit.results import Status


@dataclasses.dataclass(frozen=True, eq=False)
class ChinchillaFit:
    """L(N, D) = E + A / N^alpha + B / D^beta.

    Attributes:
      method: `squares` (of the loss) or `huber` (of its logarithm).
      e: irreducible loss E.
      a: A.
      b: B.
      alpha: exponent of N.
      beta: exponent of D.
      exponent: a = beta / (alpha + beta): compute-optimal N grows as C^a.
      num_points: points fitted.
      objective: minimum of what was minimised.
      r2: share of the variation of the loss that is explained; for `huber` of its logarithm.
      status: `ok`, `warning` (read `message`) or `failed` (the numbers are NaN).
      message: empty, or what is wrong.
      predicted: [num_points] the law's loss at the points that were fitted.
      replicates: [R, 5] (E, A, B, alpha, beta) of the bootstrap; empty without one.
      left_out: what was not fitted, and why.
    """

    method: str
    e: Estimate
    a: Estimate
    b: Estimate
    alpha: Estimate
    beta: Estimate
    exponent: Estimate
    num_points: int
    objective: float
    r2: float
    status: Status
    message: str
    predicted: np.ndarray
    replicates: np.ndarray = dataclasses.field(metadata=INTERNAL)
    left_out: tuple[str, ...] = dataclasses.field(metadata=INTERNAL)

    def loss(self, model_params: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """L at N parameters and D tokens."""
        n, d = np.asarray(model_params, np.float64), np.asarray(tokens, np.float64)
        return self.e.value + self.a.value / n**self.alpha.value + self.b.value / d**self.beta.value


@dataclasses.dataclass(frozen=True, eq=False)
class ConvergenceFit:
    """A convergence law of one variable, L(x) = E + A x^-alpha, and what it says about its largest x.

    Attributes:
      variable: `N` (at the largest D of each N), `D` (at the largest N) or `C` (on the lower envelope).
      e: irreducible loss E: of unlimited x, the rest being as it is.
      a: A.
      alpha: exponent.
      num_points: P, points that were fitted.
      r2: share of the variation of ln L that is explained.
      chinchilla_alpha: the exponent that the pre-training law expects; NaN where it does not identify it.
      held_out_x: the largest x.
      held_out_loss: mean loss measured there.
      forecast: of that loss from the smaller x; its interval is that of a measurement.
      chinchilla_forecast: the same by the pre-training law, fitted without points at or beyond the largest x.
      status: `ok`, `warning` (read `message`) or `failed` (the numbers are NaN).
      message: empty, or what is wrong.
      x: [P] rising.
      loss: [P].
      chinchilla_loss: [P] the pre-training law's loss at these points; NaN without one.
    """

    variable: str
    e: Estimate
    a: Estimate
    alpha: Estimate
    num_points: int
    r2: float
    chinchilla_alpha: float
    held_out_x: float
    held_out_loss: float
    forecast: Estimate
    chinchilla_forecast: float
    status: Status
    message: str
    x: np.ndarray
    loss: np.ndarray
    chinchilla_loss: np.ndarray

    @property
    def inside(self) -> bool:
        """Whether the interval of the forecast holds what was measured."""
        return self.forecast.low <= self.held_out_loss <= self.forecast.high

    def predicted(self, x: np.ndarray | float) -> np.ndarray:
        """L of the fit at x."""
        return self.e.value + self.a.value * np.asarray(x, np.float64) ** -self.alpha.value


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The compute-optimal allocation of C = 6 N D by one fit, with 95% bootstrap intervals.

    Attributes:
      method: of the fit.
      flops: C.
      identified: whether the allocation is known; the numbers are NaN where it is not.
      model_params: N*(C).
      model_params_low: lower end of its interval.
      model_params_high: upper end.
      tokens: D*(C).
      tokens_low: lower end of its interval.
      tokens_high: upper end.
      loss: L(N*, D*).
      note: empty, or why it is not identified.
    """

    method: str
    flops: float
    identified: bool
    model_params: float
    model_params_low: float
    model_params_high: float
    tokens: float
    tokens_low: float
    tokens_high: float
    loss: float
    note: str


@dataclasses.dataclass(frozen=True, eq=False)
class LossPoints:
    """The points of the pre-training law, [P] each: N, D, loss, and the number of the run."""

    model_params: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    run: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class LossSurface:
    """The loss [T, S] of a fit at T numbers of tokens and S model sizes."""

    model_params: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class ChinchillaResult:
    """All that the runs say by the pre-training law.

    Attributes:
      points: what was fitted.
      fits: by each method.
      optimal: by each method and at each budget, in rising order.
      convergence: the laws of N, D and C alone.
      surface: the loss around the data by the fit that outliers move least, for drawing; None where no fit knows the
        compute-optimal allocation.
    """

    points: LossPoints
    fits: tuple[ChinchillaFit, ...]
    optimal: tuple[Optimum, ...]
    convergence: tuple[ConvergenceFit, ...]
    surface: LossSurface | None = dataclasses.field(metadata=INTERNAL)

    def path(self, method: str) -> tuple[Optimum, ...]:
        """The compute-optimal path by one method; empty where it is not identified."""
        return tuple(row for row in self.optimal if row.method == method and row.identified)
