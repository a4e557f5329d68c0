"""What the fitter returns: small frozen records, each with a `status` and, where something is off, a `message`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.falls import Fall
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.uncertainty import NoiseModel
from isocompute_jax.fit.plain_data import INTERNAL

Status = Literal["ok", "warning", "failed"]
LawStatus = Literal["ok", "warning", "extrapolated", "failed"]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One cell of a sweep: everything that its runs share but for the random seed.

    Attributes:
      name: what tables and legends call it, e.g. `n = 8` or `n = 8, B = 16`.
      group_size: n, rollouts per problem and step; 0 when unknown.
      problems_per_batch: B_problem, unique problems per step; 0 when unknown.
      problem_set_size: D, unique training problems; 0 when unknown.
    """

    name: str = dataclasses.field(metadata={"key": "run"})
    group_size: int
    problems_per_batch: int
    problem_set_size: int = dataclasses.field(metadata=INTERNAL)

    @property
    def rollouts_per_step(self) -> int:
        """B = n B_problem; 0 when unknown."""
        return self.group_size * self.problems_per_batch


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """The fit as the search sees it: y = low + (high - low) share(theta, ln(C / reference)).

    Attributes:
      at: [Q + 2] low, high, *theta (logarithms of the shape parameters in units of `reference`).
      covariance: [Q + 2, Q + 2] of `at`; 0 for what is fixed or at its bound.
      reference: C_ref, the first compute of the window.
      noise: of the points; None where no uncertainty was asked for.
    """

    at: np.ndarray
    covariance: np.ndarray
    reference: float
    noise: NoiseModel | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class CurveFit:
    """A monotone learning curve. The mappings have the form's own parameters as keys (see `forms`).

    `fit_curves` makes them from data. A published curve is made from `form`, `params` and `window` alone; the mappings
    about uncertainty are empty where none was computed.

    Attributes:
      form: `hill`, `logistic`, `expsat` or `power`.
      params: the estimates. Do not quote one that is not `identified`.
      window: compute of the first and last evaluation after the base model's; the curve is used only there. It ends at
        the peak of a curve that collapses.
      stderr: standard errors; 0 for a fixed parameter, NaN when unknown.
      interval95: 95% profile-likelihood intervals; NaN when unknown.
      identified: whether the data pin the parameter down (see `problem.FitOptions.tolerance`).
      at_bound: parameters that stand at their bound.
      num_points: points that the curve was fitted to.
      sse: sum of squared residuals over those points, weighted when weights were given (mean weight 1).
      r2: 1 - sse / (weighted sum of squares about their mean); NaN when they are all equal.
      aicc: corrected Akaike information criterion, comparable between forms on the same points.
      bic: Bayesian information criterion.
      condition: condition number of the Jacobian with columns of length 1.
      noise: standard deviation of a residual.
      correlation: of neighbouring residuals, in -0.6..0.9.
      status: `ok`, `warning` (read `message`) or `failed` (the numbers are NaN).
      message: empty, or what is wrong.
      search: for further computations; None when failed.
      fall: the collapse that ends the curve; None without.
      outliers: compute of the evaluations that were left out because they stand alone.
    """

    form: FormName
    params: Mapping[str, float]
    window: tuple[float, float]
    stderr: Mapping[str, float] = dataclasses.field(default_factory=dict)
    interval95: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    identified: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    at_bound: tuple[str, ...] = ()
    num_points: int = 0
    sse: float = math.nan
    r2: float = math.nan
    aicc: float = math.nan
    bic: float = math.nan
    condition: float = math.nan
    noise: float = math.nan
    correlation: float = math.nan
    status: Status = "ok"
    message: str = ""
    search: Search | None = dataclasses.field(default=None, metadata=INTERNAL)
    fall: Fall | None = None
    outliers: tuple[float, ...] = ()

    def reward(self, compute: np.ndarray | float) -> np.ndarray:
        """Fitted reward at `compute` (> 0), inside the window or not."""
        return FORMS[self.form].curve(compute, **self.params)

    @property
    def asymptote(self) -> float:
        """A, reward of unlimited compute."""
        return self.params["asymptote"]

    @property
    def measured(self) -> bool:
        """Whether there are more points than free parameters, so that the noise can be told and intervals exist."""
        return math.isfinite(self.noise)

    def reaches(self, compute: float) -> bool:
        """Whether the curve may be carried on to `compute`: never past a peak."""
        return self.fall is None or compute <= self.window[1]

    @property
    def midpoint(self) -> float:
        """Compute at half the gain; NaN for `power`."""
        return FORMS[self.form].midpoint(self.params)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A stretch of compute [start, end] (rollouts) on which curve number `index` is the best one."""

    index: int
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Switch:
    """The compute at which the frontier passes from one configuration to another.

    Attributes:
      compute: rollouts.
      from_index: number of the configuration that was best before.
      to_index: number of the configuration that is best after.
      reward: fitted reward of the new configuration there.
      epochs: compute / (n D) of the configuration that is left; NaN when D is unknown.
      span: compute at which the old configuration took the lead, and at which the new one loses it.
      cause: `crossing` of two curves, or `range`: a curve's data begin or end there, which says nothing about n.
    """

    compute: float
    from_index: int
    to_index: int
    reward: float
    epochs: float
    span: tuple[float, float]
    cause: Literal["crossing", "range"]


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The upper envelope over configurations: its segments in order of compute, and the switches between them."""

    segments: tuple[Segment, ...]
    switches: tuple[Switch, ...]

    def index_at(self, compute: float) -> int | None:
        """The best configuration's number at `compute`; at a switch the new one; None outside every window."""
        for segment in reversed(self.segments):
            if segment.start <= compute <= segment.end:
                return segment.index
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationFit:
    """The law log2 n* = span / (1 + exp(-slope (x - midpoint))) + floor, and n* as it was fitted.

    Attributes:
      axis: `compute`: x = log10 C; `steps`: x = M, for sweeps at a fixed number of rollouts per step.
      span: L, octaves that n* rises by.
      slope: k, per decade of compute, or per step.
      midpoint: log10 C0, decades; or M0, steps.
      floor: b, log2 of n* at small compute.
      saturation: 2^(span + floor), the n* of unlimited compute.
      compute: [P] rollouts, or steps.
      group_size: [P] n* read off the frontier.
      smoothed: [P] n* after the running average (of log2 n*).
      status: `warning` when the law is degenerate, `extrapolated` when its midpoint, floor or saturation value lies
        outside of the data (see `frontier.allocation`), and `failed` when there is nothing to fit.
      message: empty, or the reason.
      interval95: `span`, `slope`, `midpoint`, `floor`, `saturation` -> bootstrap interval; without those that
        have none.
    """

    axis: Literal["compute", "steps"]
    span: float
    slope: float
    midpoint: float
    floor: float
    saturation: float
    compute: np.ndarray
    group_size: np.ndarray
    smoothed: np.ndarray
    status: LawStatus
    message: str
    interval95: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def octaves(self, compute: np.ndarray | float) -> np.ndarray:
        """log2 n* of the law at `compute` (> 0; rollouts or steps, see `axis`)."""
        x = np.log10(compute) if self.axis == "compute" else np.asarray(compute, np.float64)
        with np.errstate(over="ignore"):
            return self.span / (1.0 + np.exp(-self.slope * (x - self.midpoint))) + self.floor

    def optimal_group_size(self, compute: np.ndarray | float) -> np.ndarray:
        """n* of the law at `compute`."""
        return 2.0 ** self.octaves(compute)


@dataclasses.dataclass(frozen=True)
class Unseen:
    """A configuration that competes for a budget near which it has no evaluations.

    Attributes:
      run: its name.
      first: compute of its first evaluation.
      last: of its last.
      open: whether it may be better than the recommended one: their draws do not tell them apart, or the budget is more
        than twice as far as its data go.
    """

    run: str
    first: float
    last: float
    open: bool


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """How to spend a budget.

    Attributes:
      budget: compute, in the unit of the analysis.
      run: name of the configuration that it rests on; `none` where the budget pays no step of any.
      group_size: n; 0 when unknown, or none.
      problems_per_batch: B_problem; None when the data do not say.
      num_steps: M, rounded down; None when it cannot be told.
      learning_rate: for rollouts_per_step = n B_problem; None when that is unknown.
      law_group_size: n* of the sigmoid law at this budget, as it is; NaN where the law is degenerate.
      reward: expected: by the forecast, or the configuration's fitted curve.
      interval95: of the forecast's draws, or of that curve; NaN where nothing could be resampled.
      beyond: budget, or `stop`, / largest compute that this configuration was run to; above 1 is an extrapolation.
      stop: compute at which to stop a configuration that has collapsed before the budget, at its peak, or is expected
        to; None to spend all of it.
      status: `ok`, or `warning` (read `reasons`).
      reasons: why this and not another, and what to mistrust: whole sentences.
      place: where the budget lies against the data of this configuration.
      doubts: those of the reasons that say what to mistrust.
      others_fallen: those of the doubts that name others which have collapsed, and were not better at their peak.
      tied: names of the other configurations that cannot be told from this one at 95%, at the budget (without a
        forecast, beyond the data: where they end).
      expected_regret: what choosing this configuration is expected to cost, in units of reward; NaN without a forecast.
      best_share: share of the forecast's draws in which it is the best of all; NaN without a forecast.
      rival: who is the best in most of the other draws, and in which share of all; None where nobody is.
      by_records: who leads with the other choice of evaluations; empty where nobody else does.
      forms: form -> its weight in the forecast that the answer rests on; empty without.
      unseen: the other configurations that compete without evaluations near the budget.
      left_out: names of those that cannot be compared: with no curve, or too few evaluations.
    """

    budget: float
    run: str
    group_size: int
    problems_per_batch: int | None
    num_steps: int | None
    learning_rate: float | None
    law_group_size: float
    reward: float
    interval95: tuple[float, float]
    beyond: float
    status: Status
    reasons: tuple[str, ...]
    place: Literal["beyond", "inside", "before"] = dataclasses.field(metadata=INTERNAL)
    stop: float | None = None
    doubts: tuple[str, ...] = dataclasses.field(default=(), metadata=INTERNAL)
    others_fallen: tuple[str, ...] = dataclasses.field(default=(), metadata=INTERNAL)
    tied: tuple[str, ...] = ()
    expected_regret: float = math.nan
    best_share: float = math.nan
    rival: tuple[str, float] | None = None
    by_records: str = dataclasses.field(default="", metadata=INTERNAL)
    forms: Mapping[FormName, float] = dataclasses.field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def seen(self) -> bool:
        """Whether evaluations say that it is the best: its own, and those of everybody who might be better."""
        return self.place == "inside" and not any(each.open for each in self.unseen)


@dataclasses.dataclass(frozen=True)
class NextRun:
    """Runs to add to a sweep.

    Attributes:
      run: name of their configuration.
      group_size: n.
      problems_per_batch: B_problem; None when the data do not say.
      seeds: how many runs.
      compute: of each, in the unit of the analysis.
      num_steps: M of each; None when it cannot be told.
      cost: compute of all of them.
      expected_regret: after these and the ones proposed before them, at the budget.
      untried: whether no run has this configuration yet.
    """

    run: str
    group_size: int
    problems_per_batch: int | None
    seeds: int
    compute: float
    num_steps: int | None
    cost: float
    expected_regret: float
    untried: bool


@dataclasses.dataclass(frozen=True)
class NextRuns:
    """The runs that reduce the regret at a budget most.

    Attributes:
      budget: that n is to be chosen for.
      expected_regret: of choosing today, in units of reward.
      untried: names of configurations that no run has, but that could be chosen too.
      proposals: in order; empty where no run is expected to reduce it.
      interval95: of n* at the budget, by the draws of all curves, those of `untried` included; None where an n is
        unknown, or nothing can be chosen.
    """

    budget: float
    expected_regret: float
    untried: tuple[str, ...]
    proposals: tuple[NextRun, ...]
    interval95: tuple[int, int] | None = None

    @property
    def settled(self) -> bool:
        """Whether n* is known to one octave."""
        return self.interval95 is not None and self.interval95[1] <= 2 * self.interval95[0]
