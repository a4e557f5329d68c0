"""What the runs say by the model-size law: its fit, and what follows from it."""

from __future__ import annotations

import dataclasses

import numpy as np

from isocompute_jax.fit.laws.results import Estimate
from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.fit.results import Status


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
class ModelSizeLaw:
    """The law without its models; the fields are those of `ModelSizeFit`, `num_points` of all models together."""

    k_max: Estimate
    n0: Estimate
    num_points: int
    k_max_error: float
    log_n0_error: float
    autocorrelation: float
    misfit: float
    sse: float
    r2: float
    status: Status
    message: str
    departs: bool = dataclasses.field(metadata=INTERNAL)

    @property
    def identified(self) -> bool:
        """Whether both parameters may be quoted."""
        return self.k_max.identified and self.n0.identified

    @property
    def n0_error(self) -> float:
        """Standard error of N0, from that of its logarithm."""
        return self.log_n0_error * self.n0.value


@dataclasses.dataclass(frozen=True, eq=False)
class LinePoints:
    """The evaluations of one model in order of X: X and loss [P]."""

    x: np.ndarray
    loss: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class ModelLine:
    """One model of the model-size law; the fields are its entries in `ModelSizeFit`.

    Attributes:
      num_runs: runs behind the points.
      points: what was fitted.
      drawn: the law's line between the first and the last X.
    """

    model_params: float
    k: float
    intercept: float
    free_k: float
    free_k_error: float
    free_intercept: float
    first_x: float
    last_x: float
    num_points: int
    num_runs: int
    points: LinePoints
    drawn: LinePoints = dataclasses.field(metadata=INTERNAL)


@dataclasses.dataclass(frozen=True, eq=False)
class SlopeBand:
    """k(N) with its 95% interval over a little more than the range of model sizes, [S] each; empty without a law."""

    model_params: np.ndarray
    k: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class PredictedSlope:
    """k(N) of the law for a model that was not measured."""

    model_params: float
    k: Estimate


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
      loss: of both models at the crossing.
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
    loss: float = dataclasses.field(metadata=INTERNAL)


@dataclasses.dataclass(frozen=True, eq=False)
class ScoredPoints:
    """The points that were predicted, in order of X: X, reward and predicted reward [P]."""

    x: np.ndarray
    reward: np.ndarray
    predicted: np.ndarray


@dataclasses.dataclass(frozen=True)
class HoldoutScore:
    """The mean absolute error in reward over several models' scored points, and that of expecting no change."""

    reward_error: float
    unchanged_error: float

    @property
    def better(self) -> bool:
        """Whether the law predicts better than to expect no change."""
        return self.reward_error < self.unchanged_error


@dataclasses.dataclass(frozen=True, eq=False)
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
      points: the points that were predicted.
    """

    model_params: float
    num_fitted: int
    num_scored: int
    log_loss_error: float
    reward_error: float
    unchanged_error: float
    predicted_k: Estimate
    measured_k: float
    points: ScoredPoints

    @property
    def better(self) -> bool:
        """Whether the law predicts better than to expect no change."""
        return self.reward_error < self.unchanged_error


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


@dataclasses.dataclass(frozen=True)
class EqualData:
    """The loss of one model trained on problem sets of different size, read off at the same X.

    Attributes:
      model_params: parameters N.
      x: where the loss is read off: the largest X that every problem set reaches.
      problem_set_size: D, unique problems.
      tau: epochs at x, mean over runs.
      loss: 1 - reward at x by interpolation in ln X, mean over runs.
      error: its standard error over runs; NaN with one run.
      num_runs: runs with this D.
    """

    model_params: float
    x: float
    problem_set_size: float
    tau: float
    loss: float
    error: float
    num_runs: int


@dataclasses.dataclass(frozen=True)
class Resource:
    """X of the model-size law: `compute` or `data`, and what is counted, in words."""

    kind: str
    unit: str


@dataclasses.dataclass(frozen=True, eq=False)
class ModelSizeResult:
    """All that the runs say by the model-size law.

    Attributes:
      resource: what X is.
      law: k_max and N0.
      models: the models' lines, in order of size.
      slopes: k(N) for drawing.
      crossovers: of every pair of models.
      intra_model: each model's later evaluations, predicted from its earlier ones.
      inter_model: the largest models, predicted from the smaller ones.
      predictions: slopes of the sizes that were asked for.
      reuse: whether much reuse of problems goes with a higher loss.
      equal_data: losses of one model with problem sets of different size.
      later: the score of all of `intra_model`; None where there is nothing to predict.
      fitted_share: of each run's evaluations, behind `intra_model`.
      reuse_ends: of each model of `equal_data`, its rows with the fewest and the most epochs.
    """

    resource: Resource
    law: ModelSizeLaw
    models: tuple[ModelLine, ...]
    slopes: SlopeBand
    crossovers: tuple[Crossover, ...]
    intra_model: tuple[Holdout, ...]
    inter_model: tuple[Holdout, ...]
    predictions: tuple[PredictedSlope, ...]
    reuse: ReuseFit
    equal_data: tuple[EqualData, ...]
    later: HoldoutScore | None = dataclasses.field(metadata=INTERNAL)
    fitted_share: float = dataclasses.field(metadata=INTERNAL)
    reuse_ends: tuple[tuple[EqualData, EqualData], ...] = dataclasses.field(metadata=INTERNAL)

    @property
    def crossings_inside(self) -> tuple[Crossover, ...]:
        """Those that lie inside the data of both models."""
        return tuple(row for row in self.crossovers if row.inside)
