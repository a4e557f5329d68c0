"""What the laws return: small frozen records, each with a `status` and, where something is off, a `message`."""

from __future__ import annotations

import dataclasses

import numpy as np

from isocompute_jax.fit.results import Status


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, and whether the data pin it down at all.

    Attributes:
      value: best value; NaN when there is none.
      low: lower end of the interval; 0 or -inf when the data set none, NaN when it is unknown.
      high: upper end; inf when the data set none, NaN when it is unknown.
      identified: whether the value may be quoted; when not, only the interval's reach says something.
      note: empty, or why it is not identified.
    """

    value: float
    low: float
    high: float
    identified: bool
    note: str


@dataclasses.dataclass(frozen=True, eq=False)
class ModelSizeFit:
    """ln L(N, X) = -k(N) ln X + E(N) with k(N) = k_max / (1 + N0 / N), for M model sizes in rising order.

    Attributes:
      k_max: slope of an infinitely large model.
      n0: N0, the number of parameters at which k is half of k_max.
      k_max_error: standard error of k_max from the curvature at the minimum; NaN when there is none.
      log_n0_error: the same for ln N0.
      model_params: [M] parameters N.
      k: [M] the law's slopes; the free ones when there is no law (one model size).
      intercept: [M] E, free per model.
      free_k: [M] slope of each model's own line.
      free_k_error: [M] its standard error; NaN with two points.
      free_intercept: [M] intercept of each model's own line.
      first_x: [M] smallest X fitted.
      last_x: [M] largest X fitted.
      num_points: [M] points fitted.
      covariance: [2M, 2M] of (k, intercept), from the curvature at the minimum; NaN without noise to estimate it from.
      region_n0: [R] values of N0 inside the 95% region.
      region_k_max: [R, 2] least and largest k_max inside the region at that N0.
      autocorrelation: of neighbouring residuals of a run; intervals are widened for it.
      misfit: p-value of the law against free slopes; small: k(N) does not have this form. NaN when untestable.
      sse: weighted sum of squared residuals in ln L.
      r2: share of the variation of ln L within models that the law explains.
      left_out: what was not fitted, and why.
      status: `ok`, `warning` (read `message`) or `failed` (the numbers are NaN).
      message: empty, or what is wrong.
    """

    k_max: Estimate
    n0: Estimate
    k_max_error: float
    log_n0_error: float
    model_params: np.ndarray
    k: np.ndarray
    intercept: np.ndarray
    free_k: np.ndarray
    free_k_error: np.ndarray
    free_intercept: np.ndarray
    first_x: np.ndarray
    last_x: np.ndarray
    num_points: np.ndarray
    covariance: np.ndarray
    region_n0: np.ndarray
    region_k_max: np.ndarray
    autocorrelation: float
    misfit: float
    sse: float
    r2: float
    left_out: tuple[str, ...]
    status: Status
    message: str

    def slope(self, model_params: float) -> Estimate:
        """k(N) of the law at any N, with its 95% interval; not identified without a law."""
        share = 1.0 / (1.0 + self.n0.value / model_params)
        value = self.k_max.value * share
        if not len(self.region_n0):
            return Estimate(value, np.nan, np.nan, False, self.k_max.note)
        shares = 1.0 / (1.0 + self.region_n0 / model_params)
        low, high = np.min(self.region_k_max[:, 0] * shares), np.max(self.region_k_max[:, 1] * shares)
        enough = len(self.model_params) >= 3
        return Estimate(value, float(low), float(high), enough, "" if enough else self.k_max.note)

    def loss(self, index: int, x: np.ndarray | float) -> np.ndarray:
        """L of model number `index` at X > 0, inside its data or not."""
        return np.exp(self.intercept[index] - self.k[index] * np.log(x))


@dataclasses.dataclass(frozen=True)
class Crossover:
    """Where the lines of two models have the same loss.

    Attributes:
      smaller: parameters of the smaller model.
      larger: parameters of the larger one.
      x: X of the crossing; NaN when the lines are parallel.
      low: lower end of its 95% interval (Fieller); 0 when the data set none.
      high: upper end; inf when the data set none.
      inside: whether x lies inside the data of both models.
      better_after: parameters of the model with the lower loss beyond x.
      status: `ok`, or `warning`: the slopes are not told apart.
      message: empty, or what is wrong.
    """

    smaller: float
    larger: float
    x: float
    low: float
    high: float
    inside: bool
    better_after: float
    status: Status
    message: str


@dataclasses.dataclass(frozen=True)
class Holdout:
    """How well points that were not fitted are predicted.

    Attributes:
      model_params: parameters N.
      num_fitted: points behind the prediction (the anchor's, when the model itself was held out).
      num_scored: points that were predicted.
      log_loss_error: mean absolute error in ln L.
      reward_error: mean absolute error in reward.
      unchanged_error: the same in reward for the prediction that the last known reward stays: a yardstick.
      predicted_k: slope that the prediction used.
      measured_k: slope of the model's own line through all of its points.
      points: rows (X, reward, predicted reward) of the scored points, in order of X.
    """

    model_params: float
    num_fitted: int
    num_scored: int
    log_loss_error: float
    reward_error: float
    unchanged_error: float
    predicted_k: Estimate
    measured_k: float
    points: tuple[tuple[float, float, float], ...]


@dataclasses.dataclass(frozen=True)
class ReuseFit:
    """Whether reusing problems more than `threshold` times goes with a higher loss than the lines say.

    Attributes:
      threshold: tau above which problems count as much reused.
      num_below: points at or below it.
      num_above: points above it.
      mean_below: mean residual of ln L about lines through all points, at or below the threshold.
      error_below: its standard error.
      mean_above: the same above the threshold.
      error_above: its standard error.
      shift: jump of ln L above the threshold, fitted beside the lines (so that they do not absorb it).
      shift_error: its standard error.
      degraded: True when the shift exceeds 0 by more than its 95% bound, False when not, None when it cannot be told.
      status: `ok`, or `failed`: there is nothing to compare.
      message: the finding or the reason in words.
    """

    threshold: float
    num_below: int
    num_above: int
    mean_below: float
    error_below: float
    mean_above: float
    error_above: float
    shift: float
    shift_error: float
    degraded: bool | None
    status: Status
    message: str


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
      replicates: [R, 5] (E, A, B, alpha, beta) of the bootstrap; empty without one.
      num_points: points fitted.
      objective: minimum of what was minimised.
      r2: share of the variation of the loss that is explained; for `huber` of its logarithm.
      left_out: what was not fitted, and why.
      status: `ok`, `warning` (read `message`) or `failed` (the numbers are NaN).
      message: empty, or what is wrong.
    """

    method: str
    e: Estimate
    a: Estimate
    b: Estimate
    alpha: Estimate
    beta: Estimate
    exponent: Estimate
    replicates: np.ndarray
    num_points: int
    objective: float
    r2: float
    left_out: tuple[str, ...]
    status: Status
    message: str

    def loss(self, model_params: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """L at N parameters and D tokens."""
        n, d = np.asarray(model_params, np.float64), np.asarray(tokens, np.float64)
        return self.e.value + self.a.value / n**self.alpha.value + self.b.value / d**self.beta.value
