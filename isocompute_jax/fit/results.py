"""What fits, frontier and advice return: small frozen records, those that may fail with a `status` and a `message`.

Compute is in the unit of the analysis, rollouts if no other is named. What was found of a whole sweep is in
`sweep_results`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.curves.falls import Fall
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.uncertainty import NoiseModel
from isocompute_jax.fit.plain_data import INLINE, INTERNAL, inline

Status = Literal["ok", "warning", "failed"]
LawStatus = Literal["ok", "warning", "extrapolated", "failed"]

SURE = 0.95
"""A leader is sure, and a switch established, where at least this share of the replicates has it."""

CLEAR_AICC = 10.0
SOME_AICC = 2.0
"""A form is clearly better, or better at all, when its AICc is lower by so much (Burnham and Anderson 2002)."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, and whether the data pin it down at all."""

    value: float  # NaN when there is none
    low: float  # lower end of the interval; 0 or -inf when the data set none, NaN when it is unknown
    high: float  # upper end; inf when the data set none, NaN when it is unknown
    identified: bool  # whether the value may be quoted; when not, only the interval's reach says something
    note: str  # empty, or why it is not identified


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One cell of a sweep: everything that its runs share but for the random seed."""

    name: str  # in tables and legends: `n = 8`, or `n = 8, B = 16`
    group_size: int  # n, rollouts per problem and step; 0 when unknown
    problems_per_batch: int  # B_problem, unique problems per step; 0 when unknown
    problem_set_size: int  # D, unique training problems; 0 when unknown

    @property
    def rollouts_per_step(self) -> int:
        """B = n B_problem; 0 when unknown."""
        return self.group_size * self.problems_per_batch

    def written(self) -> dict[str, Any]:
        """See `plain_data`."""
        return {"run": self.name, "group_size": self.group_size, "problems_per_batch": self.problems_per_batch}


class OfConfiguration:
    """A record of one configuration, which is called by its name."""

    configuration: Configuration

    @property
    def run(self) -> str:
        """What tables and legends call it."""
        return self.configuration.name

    @property
    def group_size(self) -> int:
        """Its n; 0 when unknown."""
        return self.configuration.group_size

    @property
    def problems_per_batch(self) -> int:
        """Its B_problem; 0 when unknown."""
        return self.configuration.problems_per_batch


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """The fit as the search sees it: y = low + (high - low) share(theta, ln(C / reference))."""

    at: np.ndarray  # [Q + 2] low, high, *theta (logarithms of the shape parameters in units of `reference`)
    covariance: np.ndarray  # [Q + 2, Q + 2] of `at`; 0 for what is fixed or at its bound
    reference: float  # C_ref, the first compute of the window
    noise: NoiseModel | None = None  # of the points; None where no uncertainty was asked for


@dataclasses.dataclass(frozen=True, eq=False)
class CurveFit:
    """A monotone learning curve. The mappings have the form's own parameters as keys (see `forms`).

    `fit_curves` makes them from data. A published curve is made from `form`, `params` and `window` alone; the mappings
    about uncertainty are empty where none was computed.
    """

    form: FormName
    params: Mapping[str, float]  # the estimates; do not quote one that is not `identified`
    window: tuple[float, float]  # first and last compute > 0 that it is used at; ends at the peak of a collapse
    stderr: Mapping[str, float] = dataclasses.field(default_factory=dict)  # 0 for a fixed one, NaN when unknown
    interval95: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # by profile likelihood
    identified: Mapping[str, bool] = dataclasses.field(default_factory=dict)  # see `fit_options.FitOptions.tolerance`
    at_bound: tuple[str, ...] = ()  # parameters that stand at their bound
    num_points: int = 0  # that it was fitted to
    sse: float = math.nan  # sum of squared residuals over them, weighted when weights were given (mean weight 1)
    r2: float = math.nan  # 1 - sse / (weighted sum of squares about their mean); NaN when they are all equal
    aicc: float = math.nan  # corrected Akaike criterion, comparable between forms on the same points
    bic: float = math.nan  # Bayesian information criterion
    condition: float = math.nan  # condition number of the Jacobian with columns of length 1
    noise: float = math.nan  # standard deviation of a residual
    correlation: float = math.nan  # of neighbouring residuals, in -0.6..0.9
    status: Status = "ok"  # `warning`: read `message`; `failed`: the numbers are NaN
    message: str = ""
    search: Search | None = dataclasses.field(default=None, metadata=INTERNAL)  # None when failed
    fall: Fall | None = None  # the collapse that ends the curve; None without
    outliers: tuple[float, ...] = ()  # compute of the evaluations that were left out because they stand alone

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
class FormScore:
    """Sums over curves of a form's AICc and BIC, and means of its holdout over the curves that have one."""

    aicc: float
    bic: float
    holdout_mean_abs_error: float | None
    holdout_coverage: float | None
    holdout_curves: int


@dataclasses.dataclass(frozen=True)
class FormChoice:
    """Which form fits best, by how much AICc it is ahead of the second, and which predicts best (None: unscored)."""

    best: FormName
    second: FormName
    ahead: float
    predicts_best: FormName | None
    prediction_error: float

    @property
    def strength(self) -> Literal["clear", "some", "hardly"]:
        """How much the difference says."""
        return "clear" if self.ahead > CLEAR_AICC else "some" if self.ahead > SOME_AICC else "hardly"


def choose_form(forms: Mapping[FormName, FormScore]) -> FormChoice | None:
    """Which form fits and which predicts best; None unless two can be scored."""
    scored: dict[FormName, FormScore] = {name: row for name, row in forms.items() if math.isfinite(row.aicc)}
    if len(scored) < 2:
        return None
    best, second = sorted(scored, key=lambda name: scored[name].aicc)[:2]
    errors: dict[FormName, float] = {
        name: row.holdout_mean_abs_error for name, row in scored.items() if row.holdout_mean_abs_error is not None
    }
    sure = min(errors, key=lambda name: errors[name]) if errors else None
    ahead = scored[second].aicc - scored[best].aicc
    return FormChoice(best, second, ahead, sure, errors[sure] if sure else math.nan)


@dataclasses.dataclass(frozen=True)
class Segment(OfConfiguration):
    """A stretch of compute [start, end] on which one configuration's curve is the best."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Switch:
    """The compute at which the frontier passes from one configuration to another."""

    compute: float
    before: Configuration = dataclasses.field(metadata=inline("from_"))  # the best up to there
    after: Configuration = dataclasses.field(metadata=inline("to_"))  # the best from there
    reward: float  # fitted, of the new configuration there
    epochs: float  # compute / (n D) of the configuration that is left; NaN when D is unknown
    span: tuple[float, float] = dataclasses.field(metadata=INTERNAL)  # where `before` took the lead, `after` loses it
    cause: Literal["crossing", "range"]  # `range`: data begin or end there, which says nothing about n

    @property
    def from_run(self) -> str:
        """Name of the configuration that is left."""
        return self.before.name

    @property
    def to_run(self) -> str:
        """Name of the configuration that leads from here on."""
        return self.after.name


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The upper envelope over configurations: its segments in order of compute, and the switches between them."""

    segments: tuple[Segment, ...]
    switches: tuple[Switch, ...]

    def leader_at(self, compute: float) -> Configuration | None:
        """The best configuration at `compute`; at a switch the new one; None outside every window."""
        for segment in reversed(self.segments):
            if segment.start <= compute <= segment.end:
                return segment.configuration
        return None


@dataclasses.dataclass(frozen=True)
class FrontierPoint(OfConfiguration):
    """Who leads at an evaluated budget, with which number of steps and at which fitted reward."""

    compute: float
    configuration: Configuration = dataclasses.field(metadata=INLINE)
    num_steps: float | None
    reward: float


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationFit:
    """The law log2 n* = span / (1 + exp(-slope (x - midpoint))) + floor, and n* as it was fitted."""

    axis: Literal["compute", "steps"]  # x = log10 C, or x = M for sweeps at a fixed number of rollouts per step
    span: float  # L, octaves that n* rises by
    slope: float  # k, per decade of compute, or per step
    midpoint: float  # log10 C0, decades; or M0, steps
    floor: float  # b, log2 of n* at small compute
    saturation: float  # 2^(span + floor), the n* of unlimited compute
    compute: np.ndarray  # [P] rollouts, or steps
    group_size: np.ndarray  # [P] n* read off the frontier
    smoothed: np.ndarray  # [P] n* after the running average (of log2 n*)
    status: LawStatus  # `warning`: degenerate; `extrapolated`: midpoint, floor or saturation outside of the data
    message: str  # empty, or the reason
    interval95: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # of those that have one

    def written(self) -> dict[str, Any]:
        """See `plain_data`: the law without the n* that it was fitted to."""
        law = {name: getattr(self, name) for name in ("span", "slope", "midpoint", "floor")}
        others = ("axis", "saturation", "status", "message", "interval95")
        return {"law": law} | {name: getattr(self, name) for name in others}

    def octaves(self, compute: np.ndarray | float) -> np.ndarray:
        """log2 n* of the law at `compute` (> 0; rollouts or steps, see `axis`)."""
        x = np.log10(compute) if self.axis == "compute" else np.asarray(compute, np.float64)
        with np.errstate(over="ignore"):
            return self.span / (1.0 + np.exp(-self.slope * (x - self.midpoint))) + self.floor

    def optimal_group_size(self, compute: np.ndarray | float) -> np.ndarray:
        """n* of the law at `compute`."""
        return 2.0 ** self.octaves(compute)


@dataclasses.dataclass(frozen=True, eq=False)
class SliceResult:
    """The frontier of the configurations that share B_problem, or B (IsoCompute Playbook, arXiv 2603.12151)."""

    kind: Literal["problems_per_batch", "rollouts_per_step"]  # n against M, or n against B_problem
    value: int  # what they share
    runs: tuple[str, ...]  # their names
    budgets: tuple[FrontierPoint, ...]
    switches: tuple[Switch, ...]
    allocation: AllocationFit  # n*(C), or n*(M) for `rollouts_per_step`

    @property
    def course(self) -> Literal["rises", "level", "mixed"]:
        """How n* moves over the budgets."""
        sizes = [row.group_size for row in self.budgets]
        if len(set(sizes)) == 1:
            return "level"
        return "rises" if sizes[-1] > sizes[0] and sizes == sorted(sizes) else "mixed"


@dataclasses.dataclass(frozen=True)
class Unseen:
    """A configuration that competes for a budget near which it has no evaluations."""

    run: str
    first: float  # compute of its first evaluation
    last: float  # of its last
    open: bool  # it may be better: draws do not tell them apart, or the budget is more than twice as far as its data


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """How to spend a budget."""

    budget: float
    run: str  # name of the configuration that it rests on; `none` where the budget pays no step of any
    group_size: int  # n; 0 when unknown, or none
    problems_per_batch: int | None  # B_problem; None when the data do not say
    num_steps: int | None  # M, rounded down; None when it cannot be told
    learning_rate: float | None  # for rollouts_per_step = n B_problem; None when that is unknown
    law_group_size: float  # n* of the sigmoid law at this budget, as it is; NaN where the law is degenerate
    reward: float  # expected: by the forecast, or the configuration's fitted curve
    interval95: tuple[float, float]  # of the forecast's draws, or of that curve; NaN where nothing could be resampled
    beyond: float  # budget, or `stop`, / largest compute that it was run to; above 1 is an extrapolation
    status: Status  # `ok`, or `warning` (read `reasons`)
    reasons: tuple[str, ...]  # why this and not another, and what to mistrust: whole sentences
    place: Literal["beyond", "inside", "before"] = dataclasses.field(metadata=INTERNAL)  # against its data
    stop: float | None = None  # where to stop a configuration that collapses before the budget, or is expected to
    doubts: tuple[str, ...] = dataclasses.field(default=(), metadata=INTERNAL)  # reasons that say what to mistrust
    others_fallen: tuple[str, ...] = dataclasses.field(default=(), metadata=INTERNAL)  # doubts about others alone
    tied: tuple[str, ...] = ()  # names of the others that cannot be told from it at 95%, at the budget (or data's end)
    expected_regret: float = math.nan  # what choosing it is expected to cost, in reward; NaN without a forecast
    best_share: float = math.nan  # share of the forecast's draws in which it is the best of all; NaN without
    rival: tuple[str, float] | None = None  # the best in most of the other draws, and its share of all
    by_records: str = dataclasses.field(default="", metadata=INTERNAL)  # who leads with the other choice of evaluations
    forms: Mapping[FormName, float] = dataclasses.field(default_factory=dict)  # form -> weight in the forecast
    unseen: tuple[Unseen, ...] = ()  # the others that compete without evaluations near the budget
    left_out: tuple[str, ...] = ()  # names of those that cannot be compared: no curve, or too few evaluations

    @property
    def seen(self) -> bool:
        """Whether evaluations say that it is the best: its own, and those of everybody who might be better."""
        return self.place == "inside" and not any(each.open for each in self.unseen)


@dataclasses.dataclass(frozen=True)
class NextRun:
    """Runs to add to a sweep."""

    run: str  # name of their configuration
    group_size: int  # n
    problems_per_batch: int | None  # B_problem; None when the data do not say
    seeds: int  # how many runs
    compute: float  # of each
    num_steps: int | None  # M of each; None when it cannot be told
    cost: float  # compute of all of them
    expected_regret: float  # after these and the ones proposed before them, at the budget
    untried: bool  # no run has this configuration yet


@dataclasses.dataclass(frozen=True)
class NextRuns:
    """The runs that reduce the regret at a budget most."""

    budget: float  # that n is to be chosen for
    expected_regret: float  # of choosing today, in units of reward
    untried: tuple[str, ...]  # names of configurations that no run has, but that could be chosen too
    proposals: tuple[NextRun, ...]  # in order; empty where no run is expected to reduce it
    interval95: tuple[int, int] | None = None  # of n* by the draws of all curves; None where nothing can be chosen

    @property
    def settled(self) -> bool:
        """Whether n* is known to one octave."""
        return self.interval95 is not None and self.interval95[1] <= 2 * self.interval95[0]
