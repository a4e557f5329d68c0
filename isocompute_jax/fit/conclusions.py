"""From the stages of an analysis to its results: derived numbers and verdicts are made here.

Readers take the `SweepResult` and compute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.analysis import Analysis
from isocompute_jax.fit.answering import answer, chart, ranges
from isocompute_jax.fit.curve_results import (
    CurveResult,
    FormCriteria,
    FormScore,
    HoldoutResult,
    HoldoutScore,
    Points,
    SteepnessResult,
    SteepnessRow,
    choose_form,
)
from isocompute_jax.fit.curves.diagnostics import CurveHoldout
from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.curves.seeds import average_seeds
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, group_size_interval, parameter_intervals
from isocompute_jax.fit.frontier.switch_evidence import seed_agreement, switch_results, switch_rows
from isocompute_jax.fit.frontier_results import (
    AllocationLaw,
    BestN,
    FrontierBudget,
    FrontierPoint,
    FrontierResult,
    SegmentResult,
    SliceResult,
    TargetBudget,
    TargetResult,
    TiesResult,
)
from isocompute_jax.fit.intervals import whole_or_none
from isocompute_jax.fit.metric_analysis import MetricAnalysis, uncontested
from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.record_choices import ChoiceBudget, RecordChoice
from isocompute_jax.fit.results import Frontier
from isocompute_jax.fit.stages import FrontierSlice
from isocompute_jax.fit.sweep_results import (
    AllocationResult,
    BootstrapFacts,
    SweepResult,
    TrainingResult,
    TrainingSeries,
)

TIE_RULE = (
    "tied with the best when within one standard error of the difference; "
    "the standard deviation of a seed is pooled over configurations at each budget"
)


def conclude(analysis: Analysis) -> SweepResult:
    """What an analysis found, for readers."""
    main, resampled, options = analysis.main, analysis.resampled, analysis.options
    forms = _forms(analysis)
    answers = tuple(answer(analysis, found, choose_form(forms)) for found in analysis.by_budget)
    budgets, names = [row.budget for row in answers], [curve.configuration.name for curve in main.curves]
    return SweepResult(
        options=options,
        runs=analysis.runs,
        warnings=analysis.warnings,
        base_model=_base_model(analysis),
        curves=_curves(analysis),
        forms=forms,
        comparison=_comparison(analysis),
        frontier=_frontier(analysis),
        bootstrap=None if resampled is None else _bootstrap(resampled),
        allocation=AllocationResult(AllocationLaw.of(analysis.allocation), options.smoothing, analysis.recommendations),
        slices=tuple(_slice(main, part) for part in analysis.slices),
        ties=_ties(main),
        per_seed=seed_agreement(analysis.by_seed),
        record_choices={rule: _choice(found) for rule, found in analysis.by_records.items()},
        targets={name: _target(found) for name, found in analysis.targets.items()},
        training=_training(analysis),
        answers=answers,
        next_runs=analysis.next_runs,
        ranges=tuple(ranges(answers, main.frontier.switches, names)),
        charts={found.metric: chart(found, budgets) for found in {main.metric: main, **analysis.targets}.values()},
    )


def _bootstrap(found: Bootstrap) -> BootstrapFacts:
    return BootstrapFacts(found.method, len(found.leader), found.seeds_differ)


def _base_model(analysis: Analysis) -> dict[str, float]:
    """metric -> mean over every run's evaluation at compute 0."""
    means = {}
    for name, found in ({analysis.main.metric: analysis.main} | dict(analysis.targets)).items():
        values = np.concatenate([c.per_seed[:, c.compute == 0].ravel() for c in found.curves])
        values = values[np.isfinite(values)]
        if len(values):
            means[name] = float(values.mean())
    return means


def _curves(analysis: Analysis) -> tuple[CurveResult, ...]:
    main, resampled = analysis.main, analysis.resampled
    held = [name for name, (least, most) in analysis.options.fit.limits().items() if least == most]
    held += ["floor"] if analysis.options.fit.r0 == "first" else []
    return tuple(
        CurveResult(
            configuration=curve.configuration,
            seeds=curve.seeds,
            fit=fit,
            held=tuple(held),
            bootstrap95=parameter_intervals(resampled, fit, k) if resampled and resampled.tells(fit, k) else None,
            forms={
                name: FormCriteria(fits[k].aicc, fits[k].bic, fits[k].sse, fits[k].r2)
                for name, fits in analysis.forms.items()
            },
            holdout=_holdout(analysis.holdout[k], fit.form) if analysis.holdout else None,
            grid=analysis.grid[k] if analysis.grid else None,
            profile=analysis.profiles[k],
            points=Points(
                curve.compute,
                curve.reward,
                main.used[k],
                None if main.errors is None else main.errors[k],
                main.screened[k].outlier,
            ),
        )
        for k, (curve, fit) in enumerate(zip(main.curves, main.fits, strict=True))
    )


def _holdout(found: Mapping[FormName, CurveHoldout], form: FormName) -> HoldoutResult | None:
    """The fitted form's own holdout, and the scores of the other forms."""
    if form not in found:
        return None
    return HoldoutResult(found[form], {name: HoldoutScore(h.mean_abs_error, h.coverage) for name, h in found.items()})


def _forms(analysis: Analysis) -> dict[FormName, FormScore]:
    """Sums over the curves that could be fitted, and means over those that have a holdout."""
    rows = {}
    for name, fits in analysis.forms.items():
        fitted = [fit for fit in fits if fit.status != "failed"]
        held = [h[name] for h in analysis.holdout if name in h]
        rows[name] = FormScore(
            aicc=sum(fit.aicc for fit in fitted),
            bic=sum(fit.bic for fit in fitted),
            holdout_mean_abs_error=float(np.mean([h.mean_abs_error for h in held])) if held else None,
            holdout_coverage=float(np.mean([h.coverage for h in held])) if held else None,
            holdout_curves=len(held),
        )
    return rows


def _comparison(analysis: Analysis) -> SteepnessResult | None:
    found, main = analysis.comparison, analysis.main
    if found is None:
        return None
    rows = []
    for k, (curve, fit) in enumerate(zip(main.curves, found.fits, strict=True)):
        if fit.status == "failed":
            continue
        low, high = main.fits[k].interval95["asymptote"]
        rows.append(
            SteepnessRow(
                run=curve.configuration.name,
                group_size=curve.configuration.group_size,
                steepness=fit.params["steepness"],
                midpoint=fit.params["midpoint"],
                interval95=fit.interval95["steepness"],
                identified=fit.identified["steepness"],
                asymptote_within=low <= found.asymptote <= high,
                log_compute=found.log_compute[k],
                log_f=found.log_f[k],
            )
        )
    return SteepnessResult(found.asymptote, tuple(rows))


def _frontier(analysis: Analysis) -> FrontierResult:
    main = analysis.main
    segments = main.frontier.segments
    return FrontierResult(
        metric=main.metric,
        switches=switch_results(main, analysis.by_seed, analysis.resampled),
        segments=tuple(SegmentResult(main.curves[s.index].configuration, s.start, s.end) for s in segments),
        budgets=_budgets(analysis),
    )


def _budgets(analysis: Analysis) -> tuple[FrontierBudget, ...]:
    """n*(C), smoothed and with what the replicates say."""
    main, resampled, allocation = analysis.main, analysis.resampled, analysis.allocation
    smoothed = dict(zip(allocation.compute.tolist(), allocation.smoothed.tolist(), strict=True))
    configurations = [curve.configuration for curve in main.curves]
    rows = []
    for point in _points(main, main.frontier):
        interval = share = None
        if resampled is not None and all(resampled.tells(f, i) for i, f in enumerate(main.fits) if f.search):
            interval, leaders = group_size_interval(resampled, configurations, point.compute)
            interval = whole_or_none(interval, point.group_size)
            share = float(np.mean([configurations[i] is point.configuration for i in leaders]))
        rows.append(FrontierBudget(point, smoothed.get(point.compute), interval, share))
    return tuple(rows)


def _points(main: MetricAnalysis, envelope: Frontier, members: Sequence[int] = ()) -> tuple[FrontierPoint, ...]:
    """The envelope at the uncontested budgets: n*(C), B_problem*(C), M*(C) and the fitted reward."""
    rows = []
    for budget, index in uncontested(main, envelope, members):
        configuration = main.curves[index].configuration
        per_step = configuration.group_size * configuration.problems_per_batch
        spent = main.rollouts(index, budget.compute) if main.rollouts else budget.compute
        steps = spent / per_step if per_step and math.isfinite(spent) else None
        rows.append(FrontierPoint(budget.compute, configuration, steps, float(main.fits[index].reward(budget.compute))))
    return tuple(rows)


def _slice(main: MetricAnalysis, part: FrontierSlice) -> SliceResult:
    return SliceResult(
        kind=part.kind,
        value=part.value,
        runs=tuple(main.curves[i].configuration.name for i in part.members),
        budgets=_points(main, part.frontier, part.members),
        switches=switch_rows(main, part.frontier.switches),
        allocation=AllocationLaw.of(part.allocation),
    )


def _ties(found: MetricAnalysis) -> TiesResult:
    """Who leads at each budget by the evaluations alone, and who cannot be told from the leader."""
    return TiesResult(
        rule=TIE_RULE,
        seeds=max(len(curve.seeds) for curve in found.curves),
        noise_estimate=any(math.isfinite(budget.seed_sd) for budget in found.budgets),
        budgets=_best(found),
    )


def _best(found: MetricAnalysis) -> tuple[BestN, ...]:
    configurations = [curve.configuration for curve in found.curves]
    return tuple(
        BestN(
            compute=budget.compute,
            best_run=configurations[budget.best].name,
            best_group_size=configurations[budget.best].group_size,
            tied_runs=tuple(configurations[k].name for k in budget.tied),
            tied_group_sizes=tuple(sorted({configurations[k].group_size for k in budget.tied})),
            compared=int(np.count_nonzero(~np.isnan(budget.mean))),
            reward=float(budget.mean[budget.best]),
            seed_sd=budget.seed_sd,
        )
        for budget in found.budgets
    )


def _choice(found: MetricAnalysis) -> RecordChoice:
    return RecordChoice(
        num_points=sum(int(np.count_nonzero(used)) for used in found.used),
        switches=switch_rows(found),
        budgets=tuple(ChoiceBudget(p.compute, p.run, p.group_size) for p in _points(found, found.frontier)),
    )


def _target(found: MetricAnalysis) -> TargetResult:
    rows = []
    for row in _best(found):
        index = found.frontier.index_at(row.compute)
        leader = None if index is None else found.curves[index].configuration
        rows.append(TargetBudget(row, leader.group_size if leader else None, leader.name if leader else None))
    return TargetResult(tuple(rows), switch_rows(found))


def _training(analysis: Analysis) -> tuple[TrainingResult, ...]:
    """Entropy and solve-rate shares over training, per configuration, as far as the runs have them."""
    rows = []
    for group in analysis.groups:
        series = {}
        for name in ("entropy", *SOLVE_SHARES):
            curve = average_seeds(group, name)
            if curve is not None and np.any(curve.compute > 0):
                series[name] = TrainingSeries(curve.compute, curve.reward)
        if series:
            rows.append(TrainingResult(group.configuration, series))
    return tuple(rows)
