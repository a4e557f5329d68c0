"""Laws over several models: that of Tan et al. for post-training, and the pre-training laws to compare it with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.laws import chinchilla, model_size
from isocompute_jax.fit.laws.model_size import Estimate, Points
from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError

FITTED_SHARE, ANCHORS = 0.5, 3
"""Of each run's evaluations, which predict the others; first evaluations that set a held-out model's level."""
BUDGETS, LINE_POINTS = 9, 60


@described
@dataclasses.dataclass(frozen=True)
class LawOptions:
    """Options of the laws. A metric that is named a loss, or has no upper end, is L itself; else L is 1 - metric."""

    analysis: Literal["model_size", "model_size_data", "chinchilla"] = option(
        "model_size",
        "model_size: ln L = -k(N) ln X + E(N), X in FLOPs (6 N tokens). model_size_data: X in rollouts where every run "
        "has them, else tokens. chinchilla: L = E + A/N^alpha + B/D^beta.",
        flag=None,
    )
    metric: str = option("avg@4", "Column that is read.", flag=None)
    eval_set: str = option("validation", "Evaluation set whose rows are used.", flag=None)
    reward_range: tuple[float, float] = option((0.0, 1.0), "Of the metric; 1 - metric is a share of it.", flag=None)
    budgets: tuple[float, ...] = option((), "C = 6 N D, to divide by chinchilla.", low=1.0, flag=None)
    resamples: int = option(200, "Fits to noise drawn anew, behind the intervals.", low=0, flag=None)
    seed: int = option(0, "Seed of what is drawn.", low=0, flag=None)

    def __post_init__(self) -> None:
        check(self, "--")

    @property
    def is_loss(self) -> bool:
        """Whether the metric is L itself."""
        return "loss" in self.metric.lower() or math.isinf(self.reward_range[1])


@dataclasses.dataclass(frozen=True, eq=False)
class LawResult:
    """What the runs say by one law."""

    options: LawOptions = dataclasses.field(metadata=INTERNAL)
    runs: tuple[RunCurve, ...] = dataclasses.field(metadata=INTERNAL)
    parameters: Mapping[str, Estimate]  # symbol -> estimate
    tables: Mapping[str, Sequence[Mapping[str, Any]]]  # models, budgets, crossovers, holdouts, sections: see `rows`
    facts: Mapping[str, Any]  # `unit` of X, `points`; by Tan et al. `r2` within models, `misfit` (a p-value)
    series: Sequence[
        Mapping[str, Any]
    ]  # per model: model_params, x and loss of points, line_x and line_loss of the law
    notes: tuple[str, ...]  # what was left out

    def rows(self, table: str = "parameters") -> list[dict[str, Any]]:
        """A table's rows of plain cells: an estimate is spread over its value, empty if not identified, and ends."""
        rows = [{"parameter": name, "value": found} for name, found in self.parameters.items()]
        return [_cells(row) for row in (rows if table == "parameters" else self.tables[table])]


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    cells = dict(row)
    for name, found in row.items():
        if isinstance(found, Estimate):
            cells[name] = found.value if found.identified else None
            cells |= {f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_note": found.note}
    return cells


def fit_law(runs: Sequence[RunCurve], options: LawOptions) -> LawResult:
    """Fits the law of `options.analysis` to the runs.

    Raises:
      InputError: the runs lack what the law needs; it names the column or flag, and what to do.
    """
    points, unit, notes = _points(runs, options)
    parameters, tables, facts, law = (_chinchilla if options.analysis == "chinchilla" else _model_size)(points, options)
    series = []
    for size in np.unique(points["model_params"]):
        x, loss = (points[name][points["model_params"] == size] for name in ("x", "loss"))
        line_x = np.geomspace(x.min(), x.max(), LINE_POINTS)
        line = {"line_x": line_x, "line_loss": law(size, line_x)}
        series.append({"model_params": float(size), "x": x, "loss": loss} | line)
    facts = {"unit": unit, "points": len(points["x"])} | facts
    return LawResult(options, tuple(runs), parameters, tables, facts, series, tuple(notes))


Found = tuple[dict[str, Estimate], dict[str, list[dict[str, Any]]], dict[str, float], Callable[..., np.ndarray]]
"""Parameters, tables and facts of a result, and the law's L of (N, X)."""


def _model_size(points: Points, options: LawOptions) -> Found:
    draws = {"resamples": options.resamples, "seed": options.seed}
    law = model_size.fit_model_size(points, **draws)
    if law is None:
        raise InputError(
            "--runs: the model-size law needs two model sizes with evaluations at different X each; add runs of another"
        )
    lines, number = law.lines, {float(size): model for model, size in enumerate(law.lines.model_params)}
    models = zip(lines.model_params, lines.points, law.k, lines.slope, law.level, lines.first, lines.last, strict=True)
    names = ("model_params", "points", "k", "own_k", "level", "first_x", "last_x")
    tables = {
        "models": [dict(zip(names, map(float, row), strict=True)) for row in models],
        "crossovers": model_size.crossovers(law),
        "holdouts": model_size.holdouts(points, share=FITTED_SHARE, anchors=ANCHORS, **draws),
    }
    facts = {"r2": 1 - law.sse / lines.variation if lines.variation else math.nan, "misfit": law.misfit}
    line = lambda size, x: law.loss(number[size], x) if size in number else np.full_like(x, np.nan)  # noqa: E731
    return {"k_max": law.k_max, "N0": law.n0}, tables, facts, line


def _chinchilla(points: Points, options: LawOptions) -> Found:
    n, d, loss = points["model_params"], points["x"], points["loss"]
    if len(n) < 5:
        raise InputError(f"--runs: {len(n)} usable losses for the five parameters of the pre-training law: add runs")
    law = chinchilla.fit_power_law(n, d, loss=loss, resamples=options.resamples, seed=options.seed)
    flops = chinchilla.FLOPS_PER_PARAMETER_TOKEN * n * d
    budgets = np.sort(options.budgets or np.geomspace(flops.min(), flops.max(), BUDGETS)).tolist()
    sections = [chinchilla.section(law, variable, options.resamples, options.seed) for variable in "NDC"]
    tables = {"budgets": chinchilla.optima(law, budgets), "sections": [row for row in sections if row]}
    return law.estimates(), tables, {}, lambda size, x: chinchilla.predict(law.parameters, size, x)


def _points(runs: Sequence[RunCurve], options: LawOptions) -> tuple[Points, str, list[str]]:
    """The evaluations that a law can be fitted to, the unit of X, and what was left out."""
    notes: list[str] = []
    kept = _with(
        runs, lambda run: not run.schedule, "its n changes within it, and a law needs runs of a fixed n", notes
    )
    remedy = "its model_params are not known: name their column by --columns=THEIRS:model_params"
    kept = _with(kept, lambda run: run.facts.model_params > 0, remedy, notes)
    column, unit = "compute", "rollouts"
    if options.analysis != "model_size_data" or not all(_known(run, column) for run in kept):
        column, unit = "tokens", "FLOPs" if options.analysis == "model_size" else "tokens"
        other = ", or use --analysis=model_size_data" if unit == "FLOPs" else ""
        remedy = f"it has no tokens: name their column by --columns=THEIRS:tokens{other}"
        kept = _with(kept, lambda run: _known(run, "tokens"), remedy, notes)
    low, high = options.reward_range
    parts = []
    for number, run in enumerate(kept):
        one = np.ones(len(run.compute))
        metric = run.columns.get(options.metric, np.nan * one)
        loss = metric if options.is_loss else (high - metric) / (high - low)
        scale = chinchilla.FLOPS_PER_PARAMETER_TOKEN * run.facts.model_params if unit == "FLOPs" else 1.0
        parts.append([run.facts.model_params * one, scale * run.columns[column], loss, number * one])
    points = dict(zip(("model_params", "x", "loss", "run"), np.concatenate(parts, axis=1), strict=True))
    points = model_size.part(points, _usable(points, options, notes))
    return (_final(points, notes) if options.analysis == "chinchilla" else points), unit, notes


def _usable(points: Points, options: LawOptions, notes: list[str]) -> np.ndarray:
    """[P] which points have logarithms."""
    start, known = points["x"] == 0, np.isfinite(points["x"]) & np.isfinite(points["loss"]) & (points["x"] > 0)
    solved, good = known & (points["loss"] <= 0), known & (points["loss"] > 0)
    if not good.any() or (solved.any() and (options.is_loss or solved.sum() > good.sum())):
        remedy = "name a column of losses" if options.is_loss else "set --reward_range to what the metric can reach"
        raise InputError(
            f"--metric={options.metric}: {good.sum()} of {known.sum()} evaluations have a loss above 0 and so a "
            f"logarithm, {solved.sum()} one of zero or below: {remedy}"
        )
    if not good.all():
        notes.append(
            f"{np.sum(~good)} of {len(good)} evaluations left out: {start.sum()} before training (X = 0), "
            f"{solved.sum()} with a loss of 0, {np.sum(~good & ~start & ~solved)} without a number"
        )
    return good


def _final(points: Points, notes: list[str]) -> Points:
    """The last evaluation of each run; all, where those have too few token counts, as in a table that names no runs."""
    order = np.lexsort((points["x"], points["run"]))
    last = np.sort(order[np.append(np.diff(points["run"][order]) > 0, True)])
    if chinchilla.distinct(points["x"][last]) < chinchilla.FEWEST_LEVELS <= chinchilla.distinct(points["x"]):
        notes.append("every evaluation is fitted, not the last of each run, which have too few token counts")
        return points
    return model_size.part(points, last)


def _with(runs: Sequence[RunCurve], usable: Callable[[RunCurve], bool], why: str, notes: list[str]) -> list[RunCurve]:
    kept = [run for run in runs if usable(run)]
    if not kept:
        raise InputError(f"--runs: no run can be used for this law; of each, {why}")
    notes += [f"{run.source}: run {run.run} left out: {why}" for run in runs if not usable(run)]
    return kept


def _known(run: RunCurve, column: str) -> bool:
    return column in run.columns and bool(np.any(run.columns[column] > 0))
