"""The whole analysis, in order: load, average seeds, fit, frontier, n*(C), targets, answers, how far to trust them."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.advice import answer, budget_grid, disagreement, ranges, recommend
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.diagnostics import (
    CurveHoldout,
    compare_steepness,
    for_form,
    grid_fit,
    hold_out,
    profile_asymptotes,
)
from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.curves.seeds import (
    ConfigurationRuns,
    Curve,
    average_seeds,
    ended_early,
    group_runs,
    group_schedules,
)
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, group_size_interval, parameter_intervals, whole_or_none
from isocompute_jax.fit.frontier.schedules import beside_the_frontier
from isocompute_jax.fit.frontier.switches import seed_agreement, switch_results
from isocompute_jax.fit.further_runs import further_runs
from isocompute_jax.fit.read import SOLVE_SHARES, MemoryTable, RunCurve, read_curves
from isocompute_jax.fit.results import AllocationFit, Configuration, CurveFit, FormScore, choose_form
from isocompute_jax.fit.stages import MetricAnalysis, Stages
from isocompute_jax.fit.sweep_results import (
    CurveResult,
    FrontierBudget,
    FrontierResult,
    Points,
    SteepnessResult,
    SteepnessRow,
    SweepResult,
)
from isocompute_jax.records.errors import InputError

_Forms = Mapping[FormName, tuple[CurveFit, ...]]
_Holdouts = Sequence[Mapping[FormName, CurveHoldout]]


def analyse_runs(
    roots: Sequence[str] | MemoryTable, options: AnalysisOptions, *, progress: bool = False
) -> SweepResult:
    """Runs every stage on the runs below `roots`, or of a table, and returns the findings; writes nothing.

    Raises:
      InputError: there is nothing that could be fitted.
    """
    runs, warnings = read_curves(roots, options.read, progress=progress)
    return analyse_curves(runs, options, warnings=warnings)


def analyse_curves(runs: Sequence[RunCurve], options: AnalysisOptions, *, warnings: Sequence[str] = ()) -> SweepResult:
    """The same of runs that have been read; `warnings` are of their reading.

    Raises:
      InputError: there is nothing that could be fitted.
    """
    fixed = [run for run in runs if not run.schedule]
    groups, more = group_runs(fixed)
    scheduled, remarks = group_schedules(runs)
    beside = beside_the_frontier(
        scheduled, groups, options.metric, width=options.fit.width, seed=options.seed
    )  # fmt: skip
    groups = groups or scheduled  # without a fixed n there is nothing to compare with, and their curves are shown
    stages = Stages(options, groups).in_best_form()
    main = stages.metric(options.metric, intervals=True)
    _require_a_curve(main)
    resampled = stages.bootstrap(main)
    allocation = stages.allocation(main, resampled)
    targets, missing = stages.targets(main)
    metrics = {main.metric: main} | targets
    by_records, by_seed = stages.by_records(main), stages.by_seed()
    forms = stages.forms(main)
    holdouts = _holdouts(stages, main)
    scores = _scores(forms, holdouts)

    budgets = budget_grid(main.fits, options.budgets) if main.frontier.segments else options.budgets
    advice = recommend(budgets, stages, main, allocation, resampled, by_records)
    choice = choose_form(scores)
    answers = tuple(answer(each, main, resampled, by_seed, forms, choice) for each in advice.values())
    asked = tuple(advice[budget] for budget in options.budgets)
    return SweepResult(
        options=options,
        runs=tuple(fixed),
        warnings=(
            *warnings,
            *more,
            *remarks,
            *ended_early(groups),
            *stages.unused(main),
            *missing,
            *disagreement(options.records, by_records),
            *_selection(options),
            *_several_models(fixed or runs),
        ),
        base_model=_base_model(metrics),
        curves=_curves(stages, main, resampled, forms, holdouts),
        forms=scores,
        comparison=_steepness(stages, main),
        frontier=FrontierResult(
            metric=main.metric,
            switches=switch_results(main, by_seed, resampled),
            segments=main.frontier.segments,
            budgets=frontier_budgets(main, resampled, allocation),
        ),
        bootstrap=resampled,
        allocation=allocation,
        recommendations=asked,
        slices=tuple(stages.slices(main)),
        per_seed=seed_agreement(by_seed),
        record_choices=by_records,
        targets=targets,
        training=_training(groups),
        answers=answers,
        next_runs=further_runs(stages, main),
        ranges=tuple(ranges(answers, main.frontier.switches)),
        metrics=metrics,
        scheduled=beside if scheduled else None,
    )


def _base_model(metrics: Mapping[str, MetricAnalysis]) -> dict[str, float]:
    """metric -> mean over every run's evaluation at compute 0."""
    means = {}
    for name, found in metrics.items():
        values = np.concatenate([c.per_seed[:, c.compute == 0].ravel() for c in found.curves])
        values = values[np.isfinite(values)]
        if len(values):
            means[name] = float(values.mean())
    return means


def _holdouts(stages: Stages, main: MetricAnalysis) -> _Holdouts:
    """[K] form -> how the first part of a curve predicts the rest; empty without --holdout."""
    cut = stages.options.holdout
    return hold_out(**main.data, options=stages.fit, cut=cut) if cut else ()


def _scores(forms: _Forms, holdouts: _Holdouts) -> dict[FormName, FormScore]:
    """Sums over the curves that could be fitted, and means over those that have a holdout."""
    rows = {}
    for name, fits in forms.items():
        fitted = [fit for fit in fits if fit.status != "failed"]
        scored = [found[name] for found in holdouts if name in found]
        rows[name] = FormScore(
            aicc=sum(fit.aicc for fit in fitted),
            bic=sum(fit.bic for fit in fitted),
            holdout_mean_abs_error=float(np.mean([h.mean_abs_error for h in scored])) if scored else None,
            holdout_coverage=float(np.mean([h.coverage for h in scored])) if scored else None,
            holdout_curves=len(scored),
        )
    return rows


def _curves(
    stages: Stages, main: MetricAnalysis, resampled: Bootstrap | None, forms: _Forms, holdouts: _Holdouts
) -> tuple[CurveResult, ...]:
    options = stages.options
    profiles = profile_asymptotes(**main.data, fits=main.fits, errors=main.standard_errors, options=stages.fit)
    grid = grid_fit(**main.data, grid=options.grid, options=stages.fit) if options.grid else ()
    given = [name for name, (least, most) in options.fit.limits().items() if least == most]
    given += ["floor"] if options.fit.r0 == "first" else []
    return tuple(
        CurveResult(
            configuration=curve.configuration,
            seeds=curve.seeds,
            fit=fit,
            held=tuple(given),
            bootstrap95=parameter_intervals(resampled, fit, k) if resampled and resampled.tells(fit, k) else None,
            forms={name: fits[k] for name, fits in forms.items()},
            holdouts=holdouts[k] if holdouts and fit.form in holdouts[k] else {},
            grid=grid[k] if grid else None,
            profile=profiles[k],
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


def _steepness(stages: Stages, main: MetricAnalysis) -> SteepnessResult | None:
    """The curves under one asymptote, as ScaleRL compares them; None where that has no meaning."""
    fits, own = main.fits, stages.fit
    if stages.options.form == "auto" and own.form != "hill":  # the comparison is one of Hill curves
        fits, own = stages.forms(main)["hill"], for_form(own, "hill")
    found = compare_steepness(**main.data, fits=fits, options=own)
    if found is None:
        return None
    rows = []
    for k, (configuration, fit) in enumerate(zip(main.configurations, found.fits, strict=True)):
        if fit.status == "failed":
            continue
        low, high = main.fits[k].interval95["asymptote"]
        rows.append(
            SteepnessRow(
                run=configuration.name,
                group_size=configuration.group_size,
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


def frontier_budgets(
    main: MetricAnalysis, resampled: Bootstrap | None, law: AllocationFit | None = None
) -> tuple[FrontierBudget, ...]:
    """n*(C), smoothed as in its law and with what the replicates say."""
    smoothed = dict(zip(law.compute.tolist(), law.smoothed.tolist(), strict=True)) if law else {}
    rows = []
    for point in main.leading:
        interval = share = None
        if resampled is not None and all(resampled.tells(f, i) for i, f in enumerate(main.fits) if f.search):
            interval, leaders = group_size_interval(resampled, point.compute)
            interval = whole_or_none(interval, point.group_size)
            share = float(np.mean(leaders == main.configurations.index(point.configuration)))
        rows.append(
            FrontierBudget(
                **vars(point), smoothed_group_size=smoothed.get(point.compute), interval95=interval, leader_share=share
            )
        )
    return tuple(rows)


def _training(groups: Sequence[ConfigurationRuns]) -> dict[Configuration, dict[str, Curve]]:
    """Entropy and solve-rate shares over training, per configuration, as far as the runs have them."""
    training = {}
    for group in groups:
        curves = {name: average_seeds(group, name) for name in ("entropy", *SOLVE_SHARES)}
        series = {name: curve for name, curve in curves.items() if curve is not None and np.any(curve.compute > 0)}
        if series:
            training[group.configuration] = series
    return training


def _require_a_curve(main: MetricAnalysis) -> None:
    if all(fit.status == "failed" for fit in main.fits):
        details = "; ".join(f"{c.configuration.name}: {f.message}" for c, f in zip(main.curves, main.fits, strict=True))
        raise InputError(f"--runs: no curve of {main.metric} could be fitted ({details})")


def _several_models(runs: Sequence[RunCurve]) -> list[str]:
    """Runs that began from different weights are no one sweep, whatever n they have."""
    counts = collections.Counter(str(run.identity.get("model") or run.facts.model_params or "") for run in runs)
    if len(counts) < 2:
        return []
    each = ", ".join(f"{model or 'unnamed'} ({count})" for model, count in sorted(counts.items()))
    return [f"runs of several base models are fitted as one sweep: {each}; name those of one model with --runs"]


def _selection(options: AnalysisOptions) -> list[str]:
    """Intervals hold for points that were not picked by their value."""
    if options.records == "off":
        return []
    return [
        f"--records={options.records} fits evaluations that were picked because they are high: standard errors and "
        "intervals leave that out, and are calibrated for --records=off"
    ]
