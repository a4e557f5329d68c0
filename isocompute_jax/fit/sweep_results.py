"""What an analysis of a sweep found, as every reader takes it: summary.json, tables, sentences, pictures, terminal.

The fields are the content of summary.json, in its order (`plain_data` dumps them); numbers and verdicts that follow
from them are properties, so that a sentence or a picture computes nothing. `conclusions` makes these records.
Compute is in the unit of the analysis; None, or NaN, is unknown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.answer_results import BudgetAnswer, BudgetRange, Chart
from isocompute_jax.fit.comparisons.comparison import ComparisonResult
from isocompute_jax.fit.curve_results import (
    CurveResult,
    FormChoice,
    FormScore,
    HoldoutTotals,
    Spread,
    SteepnessResult,
    choose_form,
    spread,
)
from isocompute_jax.fit.curves.forms import FORMS, Form, FormName
from isocompute_jax.fit.curves.seeds import SAME_COMPUTE
from isocompute_jax.fit.frontier.budget_grid import data_end
from isocompute_jax.fit.frontier_results import (
    AllocationLaw,
    BestN,
    FrontierResult,
    OfConfiguration,
    SeedAgreement,
    SliceResult,
    SwitchRow,
    TargetResult,
    TiesResult,
    wants_larger_n,
)
from isocompute_jax.fit.plain_data import INLINE, INTERNAL
from isocompute_jax.fit.read import SOLVE_SHARES, RunCurve
from isocompute_jax.fit.record_choices import RecordChoice, SwitchesCompared, compared_switches
from isocompute_jax.fit.results import Configuration, NextRuns, Recommendation
from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE_RESIDUAL = 3.0
"""Residuals of more than so many standard deviations of the noise are pointed out."""


@dataclasses.dataclass(frozen=True)
class BootstrapFacts:
    """How the frontier was resampled.

    Attributes:
      method: `noise`, `runs` or `blocks`.
      replicates: how often.
      seeds_differ: whether seeds differ by more than their noise, so that replicates draw their differences too; None
        where the method does not ask or no configuration has several seeds.
    """

    method: str
    replicates: int
    seeds_differ: bool | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class AllocationResult:
    """n*(C), its law, and what follows for the budgets that were asked for."""

    law: AllocationLaw = dataclasses.field(metadata=INLINE)
    smoothing: int
    recommendations: tuple[Recommendation, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingSeries:
    """Mean over seeds of something that training logs: `compute` [E], `mean` [E]."""

    compute: np.ndarray
    mean: np.ndarray

    @property
    def trained(self) -> TrainingSeries:
        """Without the base model's evaluation, which a logarithmic axis cannot show."""
        return TrainingSeries(self.compute[self.compute > 0], self.mean[self.compute > 0])


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResult(OfConfiguration):
    """name -> series of one configuration: entropy, and shares of problems by solve rate."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    series: Mapping[str, TrainingSeries]


class EntropyMove(NamedTuple):
    """Of one configuration, in nats per token."""

    run: str
    first: float
    last: float
    falls: bool


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """Everything that was found about a sweep.

    Attributes:
      options: as given.
      runs: what was read.
      warnings: what was left out or looks off.
      base_model: metric -> mean over every run's evaluation at compute 0.
      curves: [K] one for each configuration.
      forms: form -> how well it fits and predicts, over all curves.
      comparison: steepness under a common asymptote; None where it has no meaning.
      frontier: who leads where, and how sure that is.
      bootstrap: how the frontier was resampled; None without.
      allocation: n*(C) and recommendations.
      slices: frontiers at fixed B_problem and at fixed B.
      ties: leads by the evaluations alone.
      per_seed: each seed alone.
      record_choices: rule -> the frontier under that choice of evaluations.
      targets: metric -> its leaders.
      training: what went on in training.
      answers: what to do at each budget of a grid, in order.
      next_runs: for each budget that was asked for the runs to add; empty without `--next`.
      ranges: the answers, neighbouring budgets with one answer together.
      charts: metric -> its picture.
      comparisons: the answers to the questions beside the frontier, as far as they were asked.
    """

    options: AnalysisOptions = dataclasses.field(metadata=INTERNAL)
    runs: tuple[RunCurve, ...] = dataclasses.field(metadata=INTERNAL)
    warnings: tuple[str, ...] = dataclasses.field(metadata=INTERNAL)
    base_model: Mapping[str, float]
    curves: tuple[CurveResult, ...]
    forms: Mapping[FormName, FormScore]
    comparison: SteepnessResult | None
    frontier: FrontierResult
    bootstrap: BootstrapFacts | None
    allocation: AllocationResult
    slices: tuple[SliceResult, ...]
    ties: TiesResult
    per_seed: SeedAgreement
    record_choices: Mapping[str, RecordChoice]
    targets: Mapping[str, TargetResult]
    training: tuple[TrainingResult, ...]
    answers: tuple[BudgetAnswer, ...]
    next_runs: tuple[NextRuns, ...]
    ranges: tuple[BudgetRange, ...]
    charts: Mapping[str, Chart] = dataclasses.field(metadata=INTERNAL)
    comparisons: tuple[ComparisonResult, ...] = ()

    def __str__(self) -> str:
        """What the command prints with --tables: the tables, and the answer below them."""
        from isocompute_jax.fit.report.terminal import headline, headline_tables  # made from these records

        return f"{headline_tables(self)}\n\n{headline(self)}"

    def __repr__(self) -> str:
        return f"SweepResult({self.metric}: {len(self.curves)} configurations, {len(self.runs)} runs)"

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
    def recommendations(self) -> tuple[Recommendation, ...]:
        """How to spend each budget that was asked for."""
        return self.allocation.recommendations

    @property
    def metric(self) -> str:
        """The column that is optimised."""
        return self.frontier.metric

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
        budgets = [row.budget for row in self.allocation.recommendations] or [data_end([c.fit for c in self.curves])]
        return [answer for answer in self.answers if answer.budget in budgets]

    @property
    def several(self) -> bool:
        """Whether there is more than one configuration."""
        return len(self.curves) > 1

    @property
    def never_rises(self) -> bool:
        """Whether no evaluation of any configuration is above the least reward that there is: nothing was solved."""
        least = self.options.read.reward_range[0]
        return all(bool(np.all(curve.points.reward <= least)) for curve in self.curves)

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
    def curves_with_asymptote(self) -> list[CurveResult]:
        """The fitted curves whose A is identified."""
        return [curve for curve in self.fitted if curve.identified()]

    @property
    def held_asymptote(self) -> float | None:
        """The A that every curve was given (--fix holds a parameter of all of them); None where it was fitted."""
        held = [curve.fit.asymptote for curve in self.fitted if "asymptote" in curve.held]
        return held[0] if held else None

    @property
    def asymptote_known(self) -> bool:
        """Whether any curve's A is identified."""
        return any(curve.identified() for curve in self.curves)

    @property
    def last_leader(self) -> tuple[CurveResult, float, float]:
        """The highest last evaluation: its curve, reward and compute."""
        ended = [curve for curve in self.curves if len(curve.points.reward)]
        best = max(ended, key=lambda curve: curve.points.reward[-1])
        return best, float(best.points.reward[-1]), float(best.points.compute[-1])

    @property
    def with_noise(self) -> list[CurveResult]:
        """The curves that give an estimate of the noise."""
        return [curve for curve in self.curves if curve.has_noise]

    @property
    def noise(self) -> Spread | None:
        """Standard deviation of a residual, over the curves that give one."""
        return spread([curve.fit.noise for curve in self.with_noise])

    @property
    def correlation(self) -> Spread | None:
        """Correlation of neighbouring residuals."""
        return spread([curve.fit.correlation for curve in self.with_noise])

    @property
    def outliers(self) -> list[tuple[CurveResult, float, float]]:
        """Fitted evaluations far from their curve: the curve, compute, and residual in units of the noise."""
        found = []
        for curve in self.with_noise:
            rest = curve.residuals
            rows = zip(rest.compute.tolist(), rest.reward.tolist(), rest.used, strict=True)
            found += [(curve, compute, t) for compute, t, used in rows if used and abs(t) > LARGE_RESIDUAL]
        return found

    @property
    def num_not_fitted(self) -> int:
        """Evaluations that the choice of points left out."""
        return sum(int(np.count_nonzero(~np.asarray(curve.points.used, bool))) for curve in self.with_noise)

    @property
    def scored_forms(self) -> dict[FormName, FormScore]:
        """The forms that have an AICc."""
        return {name: row for name, row in self.forms.items() if math.isfinite(row.aicc)}

    @property
    def aicc_above_lowest(self) -> dict[FormName, float]:
        """How far the AICc of each scored form lies above the lowest."""
        scored = self.scored_forms
        least = min(row.aicc for row in scored.values())
        return {name: row.aicc - least for name, row in scored.items()}

    @property
    def form_choice(self) -> FormChoice | None:
        """Which form fits and which predicts best; None unless two can be scored."""
        return choose_form(self.forms)

    @property
    def holdout_totals(self) -> HoldoutTotals | None:
        """The holdouts of all curves together; None without any."""
        found = [curve.holdout.own for curve in self.curves if curve.holdout]
        if not found:
            return None
        count = sum(row.num_points for row in found)
        return HoldoutTotals(
            num_points=count,
            inside=sum(row.coverage * row.num_points for row in found),
            mean_abs_error=sum(row.mean_abs_error * row.num_points for row in found) / count,
            bias=sum(row.bias * row.num_points for row in found) / count,
        )

    @property
    def choices_compared(self) -> SwitchesCompared:
        """Whether the switches depend on which evaluations count."""
        return compared_switches(self.record_choices)

    @property
    def fallen_leaders(self) -> list[SwitchRow]:
        """The changes of the leader where it collapses."""
        peaks = {curve.run: curve.fit.window[1] for curve in self.curves if curve.fit.fall}
        rows = [switch.row for switch in self.frontier.switches if switch.row.cause == "range"]
        return [
            row for row in rows if math.isclose(peaks.get(row.from_run, math.nan), row.compute, rel_tol=SAME_COMPUTE)
        ]

    @property
    def coverage_wants_larger_n(self) -> Literal["coverage", "sharpening", "same", ""]:
        """Which of best@k and worst@k asks for the larger n at the largest budget; empty where that cannot be told."""
        last = self.largest_budgets
        best = next((row for name, row in last.items() if name.startswith("best@")), None)
        worst = next((row for name, row in last.items() if name.startswith("worst@")), None)
        if best is None or worst is None or not self.known_sizes:
            return ""
        larger = wants_larger_n(best, worst)
        return "same" if larger is None else "coverage" if larger else "sharpening"

    @property
    def entropy_moves(self) -> list[EntropyMove]:
        """First and last entropy of the configurations that have two or more."""
        found = [(row.run, row.series["entropy"].mean) for row in self.training if "entropy" in row.series]
        return [EntropyMove(run, mean[0], mean[-1], mean[-1] < mean[0]) for run, mean in found if len(mean) >= 2]

    @property
    def last_solve_shares(self) -> list[dict[str, Any]]:
        """Shares of evaluation problems by solve rate at the end of each `run` that has them."""
        rows = [row for row in self.training if all(name in row.series for name in SOLVE_SHARES)]
        return [{"run": row.run, **{name: row.series[name].mean[-1] for name in SOLVE_SHARES}} for row in rows]

    @property
    def largest_budgets(self) -> dict[str, BestN]:
        """Target -> its best at the largest budget that compares configurations."""
        return {name: rows[-1].best for name, found in self.targets.items() if (rows := found.compared)}

    def slices_of(self, kind: str) -> list[SliceResult]:
        """The slices of a kind that have budgets."""
        return [part for part in self.slices if part.kind == kind and part.budgets]
