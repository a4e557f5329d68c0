"""What an analysis of a sweep found, as every reader takes it: summary.json, tables, sentences, pictures, terminal.

`analysis` makes these records. Their fields are the content of summary.json, in its order (`plain_data` dumps them);
numbers and verdicts that follow from them are properties, so that a sentence or a picture computes nothing.
Compute is in the unit of the analysis; None, or NaN, is unknown.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.advice import BudgetAnswer, BudgetRange
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.comparison import ComparisonResult
from isocompute_jax.fit.curves.diagnostics import CurveHoldout, GridFit, Profile
from isocompute_jax.fit.curves.forms import FORMS, Form, FormName
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.frontier.envelope import data_end
from isocompute_jax.fit.frontier.schedules import ScheduleResult
from isocompute_jax.fit.frontier.switches import SeedAgreement, SwitchResult
from isocompute_jax.fit.plain_data import INLINE, INTERNAL, OPTIONAL, declared, fields_of
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.results import (
    SURE,
    AllocationFit,
    Configuration,
    CurveFit,
    FormChoice,
    FormScore,
    FrontierPoint,
    NextRuns,
    OfConfiguration,
    Recommendation,
    Segment,
    SliceResult,
    choose_form,
)
from isocompute_jax.fit.stages import MetricAnalysis
from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TIE_RULE = (
    "tied with the best when within one standard error of the difference; "
    "the standard deviation of a seed is pooled over configurations at each budget"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """A mean curve's evaluations."""

    compute: np.ndarray  # [E]
    reward: np.ndarray  # [E]
    used: np.ndarray  # [E] bool, those that were fitted
    stderr: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)  # [E] where the fit is weighted
    outlier: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)  # [E] bool, those that stand alone


@dataclasses.dataclass(frozen=True, eq=False)
class CurveResult(OfConfiguration):
    """One configuration's curve."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    seeds: tuple[int, ...]  # those that were averaged
    fit: CurveFit = dataclasses.field(metadata=INLINE)
    held: tuple[str, ...]  # parameters whose value was given
    bootstrap95: Mapping[str, tuple[float, float]] | None  # parameter -> interval over the replicates; None without
    forms: Mapping[FormName, CurveFit]  # form -> fit of the same points
    holdouts: Mapping[FormName, CurveHoldout]  # form -> how the first part predicts the rest; empty without
    grid: GridFit | None  # by ScaleRL's procedure; None without
    profile: Profile | None  # how the fit worsens as A is moved; None where that says nothing
    points: Points

    @property
    def holdout(self) -> CurveHoldout | None:
        """Of the form that was fitted; None where it says nothing."""
        return self.holdouts.get(self.fit.form)

    def written(self) -> dict[str, Any]:
        """See `plain_data`: of other forms the criteria and scores alone."""
        fields, criteria = declared(self), ("aicc", "bic", "sse", "r2")
        forms = {form: {name: getattr(fit, name) for name in criteria} for form, fit in self.forms.items()}
        scores = {
            form: {"mean_abs_error": each.mean_abs_error, "coverage": each.coverage}
            for form, each in fields.pop("holdouts").items()
        }
        holdout = None if self.holdout is None else declared(self.holdout) | {"forms": scores}
        return fields | {"forms": forms, "holdout": holdout}

    def identified(self, name: str = "asymptote") -> bool:
        """Whether the data pin a parameter down."""
        return self.fit.identified.get(name, False)

    @property
    def has_noise(self) -> bool:
        """Whether there is an estimate of the noise."""
        return self.fit.status != "failed" and math.isfinite(self.fit.noise) and self.fit.noise > 0

    @functools.cached_property
    def residuals(self) -> Points:
        """The trained evaluations with (reward - curve) / noise in place of the reward."""
        trained = self.points.compute > 0
        compute, reward = self.points.compute[trained], self.points.reward[trained]
        return Points(compute, (reward - self.fit.reward(compute)) / self.fit.noise, self.points.used[trained])


@dataclasses.dataclass(frozen=True, eq=False)
class SteepnessRow:
    """One curve under the common asymptote: its B, and the points of its straight line ln F = B ln C."""

    run: str
    group_size: int
    steepness: float
    midpoint: float
    interval95: tuple[float, float]
    identified: bool
    asymptote_within: bool
    log_compute: np.ndarray
    log_f: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class SteepnessResult:
    """Curves under one asymptote."""

    asymptote: float  # the common A
    curves: tuple[SteepnessRow, ...]  # those that could be fitted with it

    @property
    def known(self) -> list[SteepnessRow]:
        """Those whose B is identified, with an interval."""
        return [row for row in self.curves if row.identified and np.isfinite(row.interval95).all()]

    @property
    def outside(self) -> list[str]:
        """Configurations whose own interval of A excludes the common one: their B says nothing."""
        return [row.run for row in self.curves if not row.asymptote_within]

    @property
    def comparable(self) -> list[SteepnessRow]:
        """Those whose B may be compared, from the least steep to the steepest."""
        return sorted((row for row in self.known if row.asymptote_within), key=lambda row: row.steepness)

    @property
    def differ(self) -> bool:
        """Whether the intervals of the least steep and of the steepest are apart."""
        rows = self.comparable
        return rows[0].interval95[1] < rows[-1].interval95[0]


@dataclasses.dataclass(frozen=True)
class FrontierBudget(FrontierPoint):
    """A point of the main frontier, with its smoothed n*, the n of 95% of replicates, and the share that agree."""

    smoothed_group_size: float | None
    interval95: tuple[float, float] | None
    leader_share: float | None


@dataclasses.dataclass(frozen=True)
class FrontierResult:
    """The frontier of the metric."""

    metric: str
    switches: tuple[SwitchResult, ...]
    segments: tuple[Segment, ...]
    budgets: tuple[FrontierBudget, ...]

    @property
    def crossings(self) -> list[SwitchResult]:
        """The switches at which two curves cross."""
        return [switch for switch in self.switches if switch.cause == "crossing"]

    @property
    def num_established(self) -> int | None:
        """How many crossings are established; None where nothing tells."""
        known = [switch.established for switch in self.crossings if switch.established is not None]
        return sum(known) if known else None

    @property
    def shares(self) -> tuple[float, float] | None:
        """Least and largest share of replicates that have a crossing; None without."""
        found = [switch.share for switch in self.crossings if switch.share is not None]
        return (min(found), max(found)) if found else None

    @property
    def leader_shares(self) -> list[float]:
        """Share of replicates that agree on the leader, at the budgets where there is one."""
        return [row.leader_share for row in self.budgets if row.leader_share is not None]

    @property
    def num_sure(self) -> int:
        """Budgets whose leader is the same in nearly all replicates."""
        return sum(share >= SURE for share in self.leader_shares)

    @property
    def with_epochs(self) -> list[SwitchResult]:
        """The crossings whose number of epochs is known."""
        return [switch for switch in self.crossings if np.isfinite(switch.epochs)]


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """Everything that was found about a sweep."""

    options: AnalysisOptions = dataclasses.field(metadata=INTERNAL)  # as given
    runs: tuple[RunCurve, ...] = dataclasses.field(metadata=INTERNAL)  # what was read, scheduled runs apart
    warnings: tuple[str, ...] = dataclasses.field(metadata=INTERNAL)  # what was left out or looks off
    base_model: Mapping[str, float]  # metric -> mean over every run's evaluation at compute 0
    curves: tuple[CurveResult, ...]  # [K] one for each configuration
    forms: Mapping[FormName, FormScore]  # form -> how well it fits and predicts, over all curves
    comparison: SteepnessResult | None  # steepness under a common asymptote; None where it has no meaning
    frontier: FrontierResult  # who leads where, and how sure that is
    bootstrap: Bootstrap | None  # replicates of the frontier; None without
    allocation: AllocationFit  # n*(C) and its law
    recommendations: tuple[Recommendation, ...] = dataclasses.field(metadata=INTERNAL)  # for the budgets asked for
    slices: tuple[SliceResult, ...]  # frontiers at fixed B_problem and at fixed B
    per_seed: SeedAgreement  # each seed alone
    record_choices: Mapping[str, MetricAnalysis]  # rule -> the analysis under that choice of evaluations
    targets: Mapping[str, MetricAnalysis]  # metric -> its analysis: avg@k, best@k, worst@k, or another column
    # configuration -> name -> mean over seeds of what training logs: entropy, and shares of problems by solve rate
    training: Mapping[Configuration, Mapping[str, Curve]]
    answers: tuple[BudgetAnswer, ...]  # what to do at each budget of a grid, in order
    next_runs: tuple[NextRuns, ...]  # for each budget that was asked for the runs to add; empty without `--next`
    ranges: tuple[BudgetRange, ...]  # the answers, neighbouring budgets with one answer together
    metrics: Mapping[str, MetricAnalysis] = dataclasses.field(metadata=INTERNAL)  # the metric's and targets' curves
    comparisons: tuple[ComparisonResult, ...] = ()  # the answers to the questions beside the frontier
    # the scheduled runs, which have no part in anything above; None where there is none
    scheduled: tuple[ScheduleResult, ...] | None = dataclasses.field(default=None, metadata=OPTIONAL)

    def written(self) -> dict[str, Any]:
        """See `plain_data`: the content of summary.json."""
        smoothing = {"smoothing": self.options.smoothing, "recommendations": self.recommendations}
        return declared(self) | {
            "allocation": fields_of(self.allocation) | smoothing,
            "ties": {
                "rule": TIE_RULE,
                "seeds": max(len(curve.seeds) for curve in self.main.curves),
                "noise_estimate": self.main.has_noise_estimate,
                "budgets": self.main.budgets,
            },
            "record_choices": {rule: _record_choice(each) for rule, each in self.record_choices.items()},
            "targets": {name: _target(each) for name, each in self.targets.items()},
            "training": [
                fields_of(configuration)
                | {"series": {name: {"compute": of.compute, "mean": of.reward} for name, of in series.items()}}
                for configuration, series in self.training.items()
            ],
        }

    def __str__(self) -> str:
        """What the command prints with --tables: the tables, and the answer below them."""
        from isocompute_jax.fit.report.terminal import headline, headline_tables  # made from these records

        return f"{headline_tables(self)}\n\n{headline(self)}"

    def __repr__(self) -> str:
        return f"SweepResult({self.metric}: {len(self.curves)} configurations, {len(self.every_run)} runs)"

    def to_table(self, name: str = "frontier") -> pa.Table:
        """A table of the results; `.to_pandas()` makes a data frame of it.

        Args:
          name: `frontier`, the best configuration at each budget that compares them, with the interval of its n;
            `ranges`, the answer for each range of budgets; `fits`, every parameter of every curve; `switches`, where
            the frontier passes from one configuration to another; `ties`, who leads by the evaluations alone;
            `allocation`, the recommendations; `next`, the runs to add; `comparisons`, every number of the questions
            beside the frontier. Columns are those of NAME.csv.

        Raises:
          InputError: there is no table of that name.
        """
        from isocompute_jax.fit.report.tables import table_rows

        found = table_rows(self)
        if name not in found:
            raise InputError(unknown_word("table", name, found))
        rows, columns = found[name]
        return pa.table({column: [row.get(column) for row in rows] for column in columns})

    def plot(self) -> Figure:
        """A figure of every evaluation, the fitted curves and the frontier; `savefig` writes it, notebooks show it."""
        from isocompute_jax.fit.report.figures import curves, style  # matplotlib takes a second to import

        with style.in_style():
            return curves.learning_curves(self)

    @property
    def every_run(self) -> tuple[RunCurve, ...]:
        """All runs that were read, the scheduled ones last."""
        return (*self.runs, *(run for each in self.scheduled or () for run in each.group.runs))

    @property
    def only_scheduled(self) -> bool:
        """Whether there is no run of a fixed n: the curves are then those of the schedules."""
        return not self.runs

    @property
    def beside(self) -> tuple[ScheduleResult, ...]:
        """The schedules that are no curves of their own here."""
        return () if self.only_scheduled else self.scheduled or ()

    @property
    def metric(self) -> str:
        """The column that is optimised."""
        return self.frontier.metric

    @property
    def main(self) -> MetricAnalysis:
        """Its mean curves, fits and envelope."""
        return self.metrics[self.metric]

    @property
    def named_comparisons(self) -> dict[str, ComparisonResult]:
        """Name of its picture -> comparison: `comparison_data_sizes`, `comparison_data_sizes_2` of another part."""
        found: dict[str, ComparisonResult] = {}
        for each in self.comparisons:
            number = sum(other.question == each.question for other in found.values()) + 1
            found[f"comparison_{each.question}" + (f"_{number}" if number > 1 else "")] = each
        return found

    @property
    def asked(self) -> list[BudgetAnswer]:
        """The answers for the budgets that were asked for; where none was, for the largest compute of the data."""
        budgets = [row.budget for row in self.recommendations] or [data_end([c.fit for c in self.curves])]
        return [answer for answer in self.answers if answer.budget in budgets]

    @property
    def several(self) -> bool:
        """Whether there is more than one configuration."""
        return len(self.curves) > 1

    @property
    def leads(self) -> list[tuple[str, float, float]]:
        """Where one configuration alone is the answer, from where to where, as far as its own data reach."""
        windows = {curve.run: curve.fit.window for curve in self.curves}
        found = []
        for each in self.ranges:
            if each.run in windows and each.confidence != "tied" and not each.beyond:
                start, end = max(each.start, windows[each.run][0]), min(each.end, windows[each.run][1])
                found += [(each.run, start, end)] if start < end else []
        return found

    @property
    def group_sizes(self) -> list[int]:
        """[K] n of each configuration; 0 where unknown."""
        return [curve.group_size for curve in self.curves]

    @property
    def known_sizes(self) -> bool:
        """Whether every configuration has a group size."""
        return all(size > 0 for size in self.group_sizes)

    @property
    def several_sizes(self) -> bool:
        """Whether there are several group sizes, all of them known."""
        return self.known_sizes and len(set(self.group_sizes)) > 1

    @property
    def several_batches(self) -> bool:
        """Whether there is more than one B_problem, all of them known."""
        batches = {curve.problems_per_batch for curve in self.curves}
        return len(batches) > 1 and 0 not in batches

    @property
    def fitted(self) -> list[CurveResult]:
        """The curves whose fit did not fail."""
        return [curve for curve in self.curves if curve.fit.status != "failed"]

    @property
    def form(self) -> Form:
        """The form of the curves."""
        return FORMS[self.curves[0].fit.form]

    @property
    def with_noise(self) -> list[CurveResult]:
        """The curves that give an estimate of the noise."""
        return [curve for curve in self.curves if curve.has_noise]

    @property
    def form_choice(self) -> FormChoice | None:
        """Which form fits and which predicts best; None unless two can be scored."""
        return choose_form(self.forms)

    def slices_of(self, kind: str) -> list[SliceResult]:
        """The slices of a kind that have budgets."""
        return [part for part in self.slices if part.kind == kind and part.budgets]


def _record_choice(found: MetricAnalysis) -> dict[str, Any]:
    """The frontier under one rule for the evaluations that count."""
    budgets = [{"compute": each.compute, "run": each.run, "group_size": each.group_size} for each in found.leading]
    points = sum(int(np.count_nonzero(used)) for used in found.used)
    return {"num_points": points, "switches": found.frontier.switches, "budgets": budgets}


def _target(found: MetricAnalysis) -> dict[str, Any]:
    """Who leads in a target: by the evaluations at each budget, and on its fitted frontier."""
    budgets = []
    for budget in found.budgets:
        leader = found.frontier.leader_at(budget.compute)
        n, run = (leader.group_size, leader.name) if leader else (None, None)
        budgets.append(fields_of(budget) | {"frontier_group_size": n, "frontier_run": run})
    return {"budgets": budgets, "switches": found.frontier.switches}
