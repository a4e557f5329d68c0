"""The whole analysis, in order: load, average seeds, fit, frontier, n*(C), targets, and how far to trust it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from isocompute_jax.fit.advice import disagreement, recommend
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.diagnostics import (
    Comparison,
    CurveHoldout,
    GridFit,
    Profile,
    compare_steepness,
    for_form,
    grid_fit,
    hold_out,
    profile_asymptotes,
)
from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, ended_early, group_runs
from isocompute_jax.fit.frontier.bootstrap import Bootstrap
from isocompute_jax.fit.frontier.budget_grid import budget_grid
from isocompute_jax.fit.further_runs import further_runs
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.read import MemoryTable, RunCurve, read_curves
from isocompute_jax.fit.results import AllocationFit, CurveFit, NextRuns, Recommendation
from isocompute_jax.fit.stages import FrontierSlice, Stages
from isocompute_jax.records.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """What `analyse` found; `conclusions.conclude` turns it into results for readers.

    Attributes:
      options: as given.
      runs: what was loaded.
      groups: the configurations and their runs.
      main: the analysis of the metric.
      forms: form -> [K] fits of the same points by every form.
      resampled: bootstrap of the frontier; None without.
      profiles: [K] how the fit worsens as A is moved; None where that says nothing.
      holdout: [K] of form -> how the first part of the curve predicts the rest; empty without.
      comparison: steepness under a common asymptote; None where it has no meaning.
      grid: [K] fits by ScaleRL's grid procedure; empty without.
      allocation: n*(C) of the main metric.
      slices: frontiers at fixed B_problem and at fixed B, where the sweep has several.
      recommendations: one for each budget that was asked for.
      by_budget: one for each budget of a grid, those that were asked for and the data's end among them.
      next_runs: for each budget that was asked for the runs to add; empty without `--next`.
      targets: metric -> analysis, for avg@k, best@k and worst@k as far as the runs have them.
      by_seed: seed -> analysis of the main metric on that seed alone (empty with one seed).
      by_records: rule -> analysis of the main metric under that choice of points.
      warnings: everything that was left out or looks off.
    """

    options: AnalysisOptions
    runs: tuple[RunCurve, ...]
    groups: tuple[ConfigurationRuns, ...]
    main: MetricAnalysis
    forms: Mapping[FormName, tuple[CurveFit, ...]]
    resampled: Bootstrap | None
    profiles: tuple[Profile | None, ...]
    holdout: tuple[dict[FormName, CurveHoldout], ...]
    comparison: Comparison | None
    grid: tuple[GridFit, ...]
    allocation: AllocationFit
    slices: tuple[FrontierSlice, ...]
    recommendations: tuple[Recommendation, ...]
    by_budget: tuple[Recommendation, ...]
    next_runs: tuple[NextRuns, ...]
    targets: Mapping[str, MetricAnalysis]
    by_seed: Mapping[int, MetricAnalysis]
    by_records: Mapping[str, MetricAnalysis]
    warnings: tuple[str, ...]


def analyse_runs(roots: Sequence[str] | MemoryTable, options: AnalysisOptions, *, progress: bool = False) -> Analysis:
    """Runs every stage on the runs below `roots`, or of a table, and returns the findings; writes nothing.

    Raises:
      InputError: there is nothing that could be fitted.
    """
    runs, warnings = read_curves(roots, options.read, progress=progress)
    return analyse_curves(runs, options, warnings=warnings)


def analyse_curves(runs: Sequence[RunCurve], options: AnalysisOptions, *, warnings: Sequence[str] = ()) -> Analysis:
    """The same of runs that have been read; `warnings` are of their reading.

    Raises:
      InputError: there is nothing that could be fitted.
    """
    groups, more = group_runs(runs)
    stages = Stages(options, groups).in_best_form()
    main = stages.metric(options.metric, intervals=True)
    _require_a_curve(main)
    resampled = stages.bootstrap(main)
    allocation = stages.allocation(main, resampled)
    targets, missing = stages.targets(main)
    by_records = stages.by_records(main)
    budgets = budget_grid(main.fits, options.budgets) if main.frontier.segments else options.budgets
    by_budget = recommend(budgets, stages, main, allocation, resampled, by_records)
    compute, reward, errors = main.trusted.compute, main.trusted.reward, main.trusted.errors
    given = {"use": main.trusted.used, "options": stages.fit}
    hill, own = main.fits, stages.fit
    if options.form == "auto" and own.form != "hill":  # ScaleRL's comparison is one of Hill curves
        hill, own = stages.forms(main)["hill"], for_form(own, "hill")
    return Analysis(
        options=options,
        runs=tuple(runs),
        groups=tuple(groups),
        main=main,
        forms=stages.forms(main),
        resampled=resampled,
        profiles=tuple(profile_asymptotes(compute, reward, main.fits, errors=errors, **given)),
        holdout=tuple(hold_out(compute, reward, cut=options.holdout, **given)) if options.holdout else (),
        comparison=compare_steepness(compute, reward, hill, use=main.trusted.used, options=own),
        grid=tuple(grid_fit(compute, reward, grid=options.grid, **given)) if options.grid else (),
        allocation=allocation,
        slices=tuple(stages.slices(main)),
        recommendations=tuple(by_budget[budget] for budget in options.budgets),
        by_budget=tuple(by_budget.values()),
        next_runs=further_runs(stages, main),
        targets=targets,
        by_seed=stages.by_seed(),
        by_records=by_records,
        warnings=(
            *warnings,
            *more,
            *ended_early(groups),
            *stages.unused(main),
            *missing,
            *disagreement(options.records, by_records),
            *_selection(options),
            *_several_models(runs),
        ),
    )


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
