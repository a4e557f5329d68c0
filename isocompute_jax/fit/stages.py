"""The stages of the analysis of one sweep: mean curves, fits, frontier, n*(C), slices, targets, repetitions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.diagnostics import for_form
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.screening import Records, Screening, points_to_fit, screen
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, Curve, average_seeds, rollouts_at, uncovered
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, FittedPoints, PointRule, bootstrap, leaders_at
from isocompute_jax.fit.frontier.envelope import frontier, leader
from isocompute_jax.fit.frontier.forecast import Forecast, between_seeds, forecast
from isocompute_jax.fit.frontier.standings import Budget, compare
from isocompute_jax.fit.results import (
    CLEAR_AICC,
    AllocationFit,
    Configuration,
    CurveFit,
    Frontier,
    FrontierPoint,
    SliceResult,
)
from isocompute_jax.records.errors import InputError

COMPARISON_BIN_WIDTH = 0.02
"""Bin width, a share of the range, of the bucketed rule in the comparison when the flag leaves it at 0 (strict)."""

Rollouts = Callable[[int, float], float]
_Series = tuple[tuple[Curve, ...], tuple[Screening, ...], tuple[np.ndarray, ...] | None]


@dataclasses.dataclass(frozen=True, eq=False)
class MetricAnalysis:
    """Everything about one metric: K mean curves, what was fitted, and who leads where."""

    metric: str  # column name
    curves: tuple[Curve, ...]  # [K] means over seeds
    screened: tuple[Screening, ...]  # [K] what they leave to be fitted: collapses and outliers
    used: tuple[np.ndarray, ...]  # [K] of [E] bool, the evaluations that were fitted
    errors: tuple[np.ndarray, ...] | None  # [K] of [E] standard errors of the rewards; None for equal weights
    points: tuple[FittedPoints, ...]  # [K] what was fitted, seed by seed, with its fit, which may have failed
    frontier: Frontier  # the upper envelope of the fits
    budgets: tuple[Budget, ...]  # comparison at every evaluated compute, with ties
    rollouts: Rollouts | None  # (number of a configuration, compute) -> rollouts; None when compute is in rollouts

    @functools.cached_property
    def configurations(self) -> list[Configuration]:
        """[K]."""
        return [curve.configuration for curve in self.curves]

    @functools.cached_property
    def fits(self) -> tuple[CurveFit, ...]:
        """[K]."""
        return tuple(each.fit for each in self.points)

    @functools.cached_property
    def sound(self) -> list[Curve]:
        """The curves without their outliers, collapses and all: what configurations are compared by."""
        return sound(self.curves, self.screened)

    @property
    def data(self) -> dict[str, Any]:
        """Arguments of another fit of the same points: `compute`, `reward` and `use`, each [K] of [E]."""
        curves = [each.curve for each in self.points]
        return {
            "compute": [curve.compute for curve in curves],
            "reward": [curve.reward for curve in curves],
            "use": [each.use for each in self.points],
        }

    @property
    def standard_errors(self) -> list[np.ndarray] | None:
        """[K] of [E] of the points; None for equal weights."""
        return None if self.errors is None else [each.errors for each in self.points]

    @property
    def has_noise_estimate(self) -> bool:
        """Whether some budget has two seeds of a configuration, which tell the noise of one."""
        return any(math.isfinite(budget.seed_sd) for budget in self.budgets)

    @property
    def compared(self) -> list[Budget]:
        """The budgets at which several configurations were evaluated."""
        return [budget for budget in self.budgets if budget.compared > 1]

    def leader(self, budget: float, fits: Sequence[CurveFit] | None = None) -> int | None:
        """Number of the curve that is the highest at a budget (see `envelope.leader`), or by other `fits`."""
        reached = [float(curve.compute.max(initial=0.0)) for curve in self.curves]
        return leader(fits or self.fits, self.configurations, budget, reached=reached)

    def uncontested(self, envelope: Frontier, members: Sequence[int] = ()) -> list[tuple[float, int]]:
        """The evaluated budgets at which an envelope says who is best, with that configuration's number.

        Not those at which a configuration without data would lead by its own curve: the leader is then one by default.

        Args:
          envelope: over all configurations or some.
          members: numbers of those; empty for all.
        """
        found = []
        among = [i for i, fit in enumerate(self.fits) if (not members or i in members) and fit.status != "failed"]
        for budget in self.budgets:
            compute = budget.compute
            leading = [s.configuration for s in envelope.segments[::-1] if s.start <= compute <= s.end]
            if not leading:
                continue
            places = [self.configurations.index(each) for each in leading]  # two where segments meet
            index = max(places, key=lambda i: float(self.fits[i].reward(compute)))
            best = float(self.fits[index].reward(compute))
            absent = [self.fits[i] for i in among if not self.fits[i].fall and np.isnan(budget.mean[i])]
            if all(float(fit.reward(compute)) <= best for fit in absent):
                found.append((compute, index))
        return found

    def frontier_points(self, envelope: Frontier, members: Sequence[int] = ()) -> tuple[FrontierPoint, ...]:
        """An envelope at the uncontested budgets: n*(C), B_problem*(C), M*(C) and the fitted reward."""
        rows = []
        for compute, index in self.uncontested(envelope, members):
            configuration = self.configurations[index]
            per_step, spent = configuration.rollouts_per_step, self.rollouts_spent(index, compute)
            steps = spent / per_step if per_step and math.isfinite(spent) else None
            rows.append(FrontierPoint(compute, configuration, steps, float(self.fits[index].reward(compute))))
        return tuple(rows)

    @functools.cached_property
    def leading(self) -> tuple[FrontierPoint, ...]:
        """Its own frontier at the uncontested budgets."""
        return self.frontier_points(self.frontier)

    def rollouts_spent(self, index: int, compute: float) -> float:
        """Rollouts of a configuration at a compute."""
        return self.rollouts(index, compute) if self.rollouts else compute

    def optimal_group_size(self, envelope: Frontier, members: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """n*(C) at the uncontested budgets: compute [P] and the group size of the envelope's configuration [P]."""
        led = [(compute, self.configurations[i].group_size) for compute, i in self.uncontested(envelope, members)]
        compute, group_size = np.array(led, dtype=np.float64).reshape(-1, 2).T
        return compute, group_size


def sound(curves: Sequence[Curve], screened: Sequence[Screening]) -> list[Curve]:
    """See `MetricAnalysis.sound`."""
    return [curve.only(~screening.outlier) for curve, screening in zip(curves, screened, strict=True)]


class Stages:
    """The stages of the analysis of one sweep; `form` is that of its curves, None for the one that options name."""

    def __init__(
        self, options: AnalysisOptions, groups: Sequence[ConfigurationRuns], form: FormName | None = None
    ) -> None:
        self.options, self.groups = options, groups
        self.fit = options.fit if form is None else for_form(options.fit, form)
        self._forms: dict[str, dict[FormName, tuple[CurveFit, ...]]] = {}
        self._known: dict[tuple[str, int | None], _Series] = {}
        self._forecasts: dict[tuple[MetricAnalysis, tuple[Configuration, ...], bool], Forecast] = {}

    def in_best_form(self) -> Stages:
        """These, or under --form=auto those of the form whose AICc of the whole sweep is clearly the lowest."""
        if self.options.form != "auto":
            return self
        scores: dict[FormName, float] = {
            name: sum(fit.aicc for fit in fits) for name, fits in self.forms(self.metric(self.options.metric)).items()
        }  # NaN, which is never the lowest, where a curve could not be fitted
        best = min(scores, key=lambda name: scores[name] if math.isfinite(scores[name]) else math.inf)
        clearly = scores[self.fit.form] - scores[best] > CLEAR_AICC
        return Stages(self.options, self.groups, best) if clearly else self

    def metric(
        self, metric: str, *, intervals: bool = False, profiles: bool = True, seed: int | None = None,
        records: Records | None = None,
    ) -> MetricAnalysis:  # fmt: skip
        """Average seeds, pick the points that count, fit, take the envelope, compare (arXiv 2603.12151).

        With `intervals` but without `profiles` there is all that a bootstrap needs (see `fit_curves`).
        """
        curves, screened, errors = self._series(metric, seed)
        records = records or self.options.records
        rule = functools.partial(self._points, records=records)
        used = tuple(_within(s.kept, rule, curve) for curve, s in zip(curves, screened, strict=True))
        rows = [_fitted_rows(curve, s) for curve, s in zip(curves, screened, strict=True)]
        clean = [curve.only(own) for curve, own in zip(curves, rows, strict=True)]
        use = [each[own] for each, own in zip(used, rows, strict=True)]
        weights = None if errors is None else [each[own] for each, own in zip(errors, rows, strict=True)]
        fits = fit_curves(
            [curve.compute for curve in clean],
            [curve.reward for curve in clean],
            use=use,
            standard_error=weights,
            options=dataclasses.replace(self.fit, intervals=intervals),
            profiles=profiles,
        )
        if records != "off":
            fits = [_note_waiver(*each) for each in zip(fits, clean, use, strict=True)]
        fits = [s.note(fit, curve) for s, fit, curve in zip(screened, fits, curves, strict=True)]
        equal = [np.ones(len(each)) for each in use]
        points = tuple(FittedPoints(*each) for each in zip(clean, fits, use, weights or equal, strict=True))
        rollouts = self._rollouts(curves)
        envelope = frontier(fits, [curve.configuration for curve in curves], rollouts=rollouts)
        budgets = tuple(compare(sound(curves, screened)))
        return MetricAnalysis(metric, curves, screened, used, errors, points, envelope, budgets, rollouts)

    def _series(self, metric: str, seed: int | None) -> _Series:
        """Mean curves, what is wrong with them, and their errors: the same for every choice of points."""
        if (metric, seed) not in self._known:
            averaged = (average_seeds(group, metric, seed=seed) for group in self.groups)
            curves = tuple(curve for curve in averaged if curve is not None)
            errors, options = self._errors(curves, seed), self.options
            screened = screen(curves, errors=errors, options=self.fit, falls=options.falls, outliers=options.outliers)
            self._known[metric, seed] = curves, screened, errors
        return self._known[metric, seed]

    def _points(self, compute: np.ndarray, reward: np.ndarray, *, records: Records) -> np.ndarray:
        """[E] bool: inside --window, and counting there by the rule. The base model's evaluation is never outside."""
        width = self.options.bin_width
        if records == "bucketed" and width == 0:
            width = COMPARISON_BIN_WIDTH
        low, high = self.fit.window or (0.0, np.inf)
        used = (compute == 0) | ((compute >= low) & (compute <= high))
        width *= self.fit.width
        used[used] = points_to_fit(compute[used], reward[used], records=records, bin_width=width)
        return used

    def _errors(self, curves: Sequence[Curve], seed: int | None) -> tuple[np.ndarray, ...] | None:
        """Standard errors of the mean rewards, from a column or from the number of samples."""
        samples, column = self.options.evaluation_samples, self.options.stderr_column
        if column:
            return tuple(self._column_errors(curve, column, seed) for curve in curves)
        if not samples:
            return None
        low, high = self.options.read.reward_range
        # Two successes and two failures more (Agresti and Coull 1998), so that no error is 0.
        shares = [((c.reward - low) / (high - low) * samples + 2) / (samples + 4) for c in curves]
        return tuple(np.sqrt(p * (1 - p) / samples / c.count) for p, c in zip(shares, curves, strict=True))

    def _column_errors(self, curve: Curve, column: str, seed: int | None) -> np.ndarray:
        group = next(g for g in self.groups if g.configuration is curve.configuration)
        found = average_seeds(group, column, seed=seed)
        same = found is not None and found.seeds == curve.seeds and np.array_equal(found.compute, curve.compute)
        if found is None or not same or not np.array_equal(found.per_seed > 0, np.isfinite(curve.per_seed)):
            raise InputError(
                f"--stderr_column={column}: {curve.configuration.name} lacks a value above 0 at some evaluations of "
                f"{self.options.metric}; give one for each, or leave the flag out"
            )
        return np.sqrt(np.nansum(found.per_seed**2, axis=0)) / found.count

    def _rollouts(self, curves: Sequence[Curve]) -> Rollouts | None:
        if self.options.read.compute == "rollouts":
            return None
        of = {group.configuration.name: group for group in self.groups}
        return functools.partial(_rollouts_of, [of[curve.configuration.name] for curve in curves])

    def bootstrap(self, main: MetricAnalysis) -> Bootstrap | None:
        """Replicates of the frontier."""
        return bootstrap(
            main.points,
            keep=functools.partial(self._points, records=self.options.records),
            options=dataclasses.replace(self.fit, intervals=False),
            method=self.options.bootstrap,
            replicates=self.options.replicates,
            seed=self.options.seed,
        )

    def forecast(
        self, found: MetricAnalysis, untried: tuple[Configuration, ...] = (), *, same_seeds: bool = False
    ) -> Forecast | None:
        """Draws of what the curves are, and those of configurations that were not run.

        Of all seeds, or of the `same_seeds` as they go on: how these lie from others is in their mean already.
        None where the options name the form, or hold parameters, and where no curve has more points than
        parameters: nothing tells the noise then.
        """
        options = self.options
        if not any(math.isfinite(fit.noise) for fit in found.fits):
            return None
        if options.forecast == "form" or self.fit.holds:
            return None
        key = found, untried, same_seeds
        if key not in self._forecasts:
            self._forecasts[key] = forecast(
                found.points,
                apart=None if same_seeds else between_seeds(found.points),
                untried=untried,
                forms=tuple(FORMS) if options.form == "auto" else (self.fit.form,),
                reward_range=options.read.reward_range,
                seed=options.seed,
            )
        return self._forecasts[key]

    def allocation(self, main: MetricAnalysis, resampled: Bootstrap | None) -> AllocationFit:
        """n*(C) at the evaluated budgets and its law, with intervals from the replicates."""
        compute, group_size = main.optimal_group_size(main.frontier)
        sizes = np.array([each.group_size for each in main.configurations], float)
        replicates = None
        if resampled is not None and len(compute) and np.all(group_size > 0):
            leaders = np.stack([leaders_at(resampled, c) for c in compute], axis=1)
            replicates = np.where(leaders >= 0, sizes[leaders], np.nan)
        window, largest = self.options.smoothing, float(sizes.max())
        return _allocation(compute, group_size, window=window, replicates=replicates, largest=largest)

    def slices(self, main: MetricAnalysis) -> list[SliceResult]:
        """Frontiers at each B_problem and at each B that several group sizes share."""
        batches = {c.problems_per_batch for c in main.configurations}
        if len(batches) < 2 or 0 in batches:
            return []
        found = []
        for kind in ("problems_per_batch", "rollouts_per_step"):
            shared: dict[int, list[int]] = {}
            for i, configuration in enumerate(main.configurations):
                shared.setdefault(getattr(configuration, kind), []).append(i)
            for value, members in sorted(shared.items()):
                if len({main.configurations[i].group_size for i in members}) > 1:
                    found.append(self.slice(main, kind, value, members))
        return found

    def slice(
        self, main: MetricAnalysis, kind: Literal["problems_per_batch", "rollouts_per_step"], value: int,
        members: Sequence[int],
    ) -> SliceResult:  # fmt: skip
        """The frontier of the configurations with the numbers `members`, which share `value`."""
        absent = dataclasses.replace(main.fits[members[0]], status="failed")
        fits = [fit if i in members else absent for i, fit in enumerate(main.fits)]
        envelope = frontier(fits, main.configurations, rollouts=main.rollouts)
        compute, group_size = main.optimal_group_size(envelope, members)
        axis = "steps" if kind == "rollouts_per_step" else "compute"
        if axis == "steps":  # M = C / B
            compute = np.array([main.rollouts_spent(members[0], c) for c in compute]) / value
        own = [main.configurations[i] for i in members]
        largest = max(each.group_size for each in own)
        law = _allocation(compute, group_size, window=self.options.smoothing, axis=axis, largest=largest)
        runs = tuple(each.name for each in own)
        return SliceResult(kind, value, runs, main.frontier_points(envelope, members), envelope.switches, law)

    def forms(self, main: MetricAnalysis) -> dict[FormName, tuple[CurveFit, ...]]:
        """The same points by every form."""
        if main.metric not in self._forms:
            self._forms[main.metric] = {
                name: tuple(
                    fit_curves(
                        **main.data,
                        standard_error=main.standard_errors,
                        options=dataclasses.replace(for_form(self.fit, name), intervals=False),
                    )
                )
                for name in FORMS
            }
        return self._forms[main.metric]

    def targets(self, main: MetricAnalysis) -> tuple[dict[str, MetricAnalysis], list[str]]:
        """The main metric's avg@k, best@k and worst@k and what else is wanted; what cannot be had is named."""
        kind, _, k = main.metric.partition("@")
        names = [f"{kind}@{k}" for kind in ("avg", "best", "worst")] if kind in ("avg", "best", "worst") else []
        targets, missing = {}, []
        for name in dict.fromkeys([*names, *self.options.targets]):
            if not self._in_range(name):
                missing.append(f"{name} has values outside of --reward_range: that target is left out")
                continue
            found = main if name == main.metric else self.metric(name)
            if any(fit.status != "failed" for fit in found.fits):
                targets[name] = found
            else:
                missing.append(f"no run has usable values of {name}: that target is left out")
        return targets, missing

    def _in_range(self, metric: str) -> bool:
        low, high = self.options.read.reward_range
        columns = [run.columns[metric] for group in self.groups for run in group.runs if metric in run.columns]
        return all(np.all(np.isnan(c) | ((c >= low) & (c <= high))) for c in columns)

    def by_seed(self) -> dict[int, MetricAnalysis]:
        """The analysis of each seed alone, for the seeds that every configuration has; empty with fewer than two."""
        shared = set.intersection(*({run.facts.seed for run in group.runs} for group in self.groups))
        if len(shared) < 2:
            return {}
        return {seed: self.metric(self.options.metric, seed=seed) for seed in sorted(shared)}

    def by_records(self, main: MetricAnalysis) -> dict[str, MetricAnalysis]:
        """The analysis under each rule for the points that count, because dropping a noisy plateau moves n*."""
        rules: tuple[Records, ...] = ("strict", "bucketed", "off")
        own = self.options.records
        return {rule: main if rule == own else self.metric(main.metric, records=rule) for rule in rules}

    def unused(self, main: MetricAnalysis) -> list[str]:
        """What the means leave unused because seeds do not reach equally far."""
        by_name = {curve.configuration.name: curve for curve in main.curves}
        found = (uncovered(group, by_name[group.configuration.name]) for group in self.groups
                 if group.configuration.name in by_name)  # fmt: skip
        return [text for text in found if text] + _pooled(main.curves) + self._left_out(main)

    def _left_out(self, main: MetricAnalysis) -> list[str]:
        """Collapses and outliers of the curves."""
        rows = zip(main.curves, main.screened, strict=True)
        found = [(curve.configuration.name, screening.reasons(curve)) for curve, screening in rows]
        return [f"{name}: {'; '.join(reasons)}" for name, reasons in found if reasons]


def _rollouts_of(groups: Sequence[ConfigurationRuns], index: int, compute: float) -> float:
    return rollouts_at(groups[index], compute)


def _allocation(
    compute: np.ndarray, group_size: np.ndarray, *, window: int, axis: Literal["compute", "steps"] = "compute",
    replicates: np.ndarray | None = None, largest: float,
) -> AllocationFit:  # fmt: skip
    if np.any(group_size <= 0):
        unknown = fit_allocation(compute[:0], group_size[:0], window=window, axis=axis)
        return dataclasses.replace(unknown, message="the group size of some configurations is unknown")
    return fit_allocation(compute, group_size, window=window, axis=axis, replicates=replicates, largest=largest)


def _fitted_rows(curve: Curve, screening: Screening) -> np.ndarray:
    """Numbers of the evaluations that may be fitted, seed by seed: no outlier, and none after a collapse."""
    order = curve.seed_by_seed
    return order[screening.kept[order]]


def _within(kept: np.ndarray, rule: PointRule, curve: Curve) -> np.ndarray:
    """[E] bool: what a rule picks of the kept evaluations, of each pooled seed by itself."""
    used = kept.copy()
    for own in curve.series:
        rows = kept & own
        used[rows] = rule(curve.compute[rows], curve.reward[rows])
    return used


def _note_waiver(fit: CurveFit, curve: Curve, used: np.ndarray) -> CurveFit:
    """Says so when the record rule had to be waived for a curve."""
    if fit.status == "failed" or not (used.all() and np.any(np.diff(curve.reward) <= 0)):
        return fit
    reason = "fewer than two record-breaking evaluations, so all of them were fitted"
    return dataclasses.replace(fit, status="warning", message="; ".join(filter(None, [fit.message, reason])))


def _pooled(curves: Sequence[Curve]) -> list[str]:
    """Configurations whose seeds were evaluated at different computes."""
    names = [curve.configuration.name for curve in curves if curve.pooled]
    if not names:
        return []
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return [
        f"{listed}: seeds were evaluated at different computes, so every evaluation is fitted as a point of one curve, "
        "in place of a mean"
    ]
