"""The whole analysis, in order: load, average seeds, fit, frontier, n*(C), targets, and how far to trust it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.allocation import fit_allocation
from isocompute_jax.fit.curves import Records, fit_curves, record_breaking
from isocompute_jax.fit.frontier import frontier
from isocompute_jax.fit.inputs import RunCurve, load_runs
from isocompute_jax.fit.pooling import Budget, Curve, Group, average_seeds, compare, group_runs, uncovered
from isocompute_jax.fit.results import AllocationFit, CurveFit, Frontier
from isocompute_jax.records.errors import InputError

COMPARISON_BIN_WIDTH = 0.02
"""Bin width of the bucketed rule in the side-by-side comparison when the flag leaves it at 0 (which is strict)."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What the analysis leaves to its user.

    Attributes:
      metric: column that is optimised, e.g. `avg@4`; its best@k and worst@k are analysed beside it.
      eval_set: evaluation set whose rows are used.
      records: which evaluations of a mean curve are fitted (`strict` in the IsoCompute paper).
      bin_width: bin of the `bucketed` rule, in units of reward; 0 is strict.
      window: running average over neighbouring budgets before the sigmoid of n*(C); odd.
      title: heading of the report.
    """

    metric: str = "avg@4"
    eval_set: str = "validation"
    records: Records = "strict"
    bin_width: float = 0.0
    window: int = 3
    title: str = "How many rollouts per problem?"

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise InputError(f"--window={self.window} must be odd and at least 1")
        if not 0 <= self.bin_width < 1:
            raise InputError(f"--bin_width={self.bin_width} must lie in [0, 1), in units of reward")
        if self.records == "bucketed" and self.bin_width == 0:
            raise InputError("--records=bucketed needs --bin_width above 0, e.g. --bin_width=0.02")


@dataclasses.dataclass(frozen=True, eq=False)
class MetricAnalysis:
    """Everything about one metric: K mean curves, what was fitted, and who leads where.

    Attributes:
      metric: column name.
      curves: [K] mean curves.
      used: [K] of [E] bool, the evaluations that were fitted.
      fits: [K] fitted curves.
      frontier: their upper envelope.
      budgets: comparison at every evaluated compute, with ties.
    """

    metric: str
    curves: tuple[Curve, ...]
    used: tuple[np.ndarray, ...]
    fits: tuple[CurveFit, ...]
    frontier: Frontier
    budgets: tuple[Budget, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """What `analyse` found; `isocompute_jax.fit.summary.summarise` turns it into summary.json.

    Attributes:
      options: as given.
      runs: what was loaded.
      groups: the configurations and their runs.
      main: the analysis of `options.metric`.
      allocation: n*(C) of the main metric.
      targets: metric -> analysis, for avg@k, best@k and worst@k as far as the runs have them.
      by_seed: seed -> analysis of the main metric on that seed alone (empty with one seed).
      by_records: rule -> analysis of the main metric under that choice of points.
      warnings: everything that was left out or looks off.
    """

    options: Options
    runs: tuple[RunCurve, ...]
    groups: tuple[Group, ...]
    main: MetricAnalysis
    allocation: AllocationFit
    targets: dict[str, MetricAnalysis]
    by_seed: dict[int, MetricAnalysis]
    by_records: dict[str, MetricAnalysis]
    warnings: tuple[str, ...]


def analyse_runs(roots: Sequence[str], options: Options) -> Analysis:
    """Runs every stage on the runs below `roots` and returns the findings; writes nothing.

    Raises:
      InputError: there is nothing that could be fitted.
    """
    runs, warnings = load_runs(roots, eval_set=options.eval_set, metric=options.metric)
    groups, more = group_runs(runs)
    warnings = warnings + more

    main = analyse_metric(groups, options.metric, records=options.records, bin_width=options.bin_width)
    if all(fit.status == "failed" for fit in main.fits):
        details = "; ".join(f"{c.configuration.name}: {f.message}" for c, f in zip(main.curves, main.fits, strict=True))
        raise InputError(f"--runs: no curve of {options.metric} could be fitted ({details})")
    by_name = {curve.configuration.name: curve for curve in main.curves}
    unused = [uncovered(group, by_name[name]) for group in groups if (name := group.configuration.name) in by_name]
    allocation = fit_allocation(*optimal_group_size(main), window=options.window)

    targets, missing = _targets(groups, main, options)
    return Analysis(
        options=options,
        runs=tuple(runs),
        groups=tuple(groups),
        main=main,
        allocation=allocation,
        targets=targets,
        by_seed=_by_seed(groups, options),
        by_records=_by_records(groups, main, options),
        warnings=(*warnings, *filter(None, unused), *missing),
    )


def analyse_metric(
    groups: Sequence[Group], metric: str, *, records: Records, bin_width: float, seed: int | None = None
) -> MetricAnalysis:
    """Average seeds, pick the points that count, fit, take the envelope, compare (REFERENCE section 4, stages 1-3)."""
    averaged = (average_seeds(group, metric, seed=seed) for group in groups)
    curves = tuple(curve for curve in averaged if curve is not None)
    used = tuple(points_to_fit(curve, records=records, bin_width=bin_width) for curve in curves)
    fits = fit_curves([c.compute for c in curves], [c.reward for c in curves], use=used)
    fits = tuple(_note_single_record(*each, records=records) for each in zip(fits, curves, used, strict=True))
    envelope = frontier(fits, [curve.configuration for curve in curves])
    return MetricAnalysis(metric, curves, used, fits, envelope, tuple(compare(curves)))


def points_to_fit(curve: Curve, *, records: Records, bin_width: float) -> np.ndarray:
    """[E] bool: record-breaking points, or every point when fewer than two evaluations after the base model's count.

    The base model's evaluation is the first that later ones must exceed. A single record would make a flat curve at its
    luckiest evaluation.
    """
    keep = record_breaking(curve.reward, records=records, bin_width=bin_width)
    return keep if np.count_nonzero(keep & (curve.compute > 0)) >= 2 else np.ones_like(keep)


def optimal_group_size(analysis: MetricAnalysis) -> tuple[np.ndarray, np.ndarray]:
    """n*(C) at the evaluated budgets: compute [P] and the group size of the frontier's configuration [P]."""
    found = [(b.compute, analysis.frontier.index_at(b.compute)) for b in analysis.budgets]
    on_frontier = [(compute, analysis.curves[i].configuration.group_size) for compute, i in found if i is not None]
    compute, group_size = np.array(on_frontier, dtype=np.float64).reshape(-1, 2).T
    return compute, group_size


def _note_single_record(fit: CurveFit, curve: Curve, used: np.ndarray, *, records: Records) -> CurveFit:
    """Says so when the record rule had to be waived for a curve."""
    waived = records != "off" and used.all() and np.any(np.diff(curve.reward) <= 0)
    if fit.status == "failed" or not waived:
        return fit
    reason = "fewer than two record-breaking evaluations, so all of them were fitted"
    return dataclasses.replace(fit, status="warning", message="; ".join(filter(None, [fit.message, reason])))


def _targets(
    groups: Sequence[Group], main: MetricAnalysis, options: Options
) -> tuple[dict[str, MetricAnalysis], list[str]]:
    """The main metric's avg@k, best@k and worst@k; a target that no run has is named in a warning."""
    kind, _, k = options.metric.partition("@")
    names = [f"{kind}@{k}" for kind in ("avg", "best", "worst")] if kind in ("avg", "best", "worst") else []
    targets, missing = {}, []
    for name in names:
        if name == options.metric:
            targets[name] = main
            continue
        found = analyse_metric(groups, name, records=options.records, bin_width=options.bin_width)
        if any(fit.status != "failed" for fit in found.fits):
            targets[name] = found
        else:
            missing.append(f"no run has usable values of {name}: that target is left out")
    return targets, missing


def _by_seed(groups: Sequence[Group], options: Options) -> dict[int, MetricAnalysis]:
    """The analysis of each seed alone, for the seeds that every configuration has; empty with fewer than two."""
    shared = set.intersection(*({run.facts.seed for run in group.runs} for group in groups))
    if len(shared) < 2:
        return {}
    rule = {"records": options.records, "bin_width": options.bin_width}
    return {seed: analyse_metric(groups, options.metric, seed=seed, **rule) for seed in sorted(shared)}


def _by_records(groups: Sequence[Group], main: MetricAnalysis, options: Options) -> dict[str, MetricAnalysis]:
    """The analysis under each rule for the points that count, because dropping a noisy plateau moves n*."""
    width = options.bin_width or COMPARISON_BIN_WIDTH
    rules: tuple[Records, ...] = ("strict", "bucketed", "off")
    return {
        rule: main if rule == options.records else analyse_metric(groups, options.metric, records=rule, bin_width=width)
        for rule in rules
    }
