"""Laws over several models: that of Tan et al. for post-training, and the pre-training laws to compare it with."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.laws import chinchilla, model_size
from isocompute_jax.fit.laws.model_size import NAMES, Estimate, Points
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
    reward_range: tuple[float, float] = option((0.0, 1.0), "1 - metric is a share of it.", finite=False, flag=None)
    budgets: tuple[float, ...] = option((), "C = 6 N D, to divide by chinchilla.", low=1.0, flag=None)
    resamples: int = option(200, "Fits to noise drawn anew, behind the intervals.", low=0, flag=None)
    seed: int = option(0, "Seed of what is drawn.", low=0, flag=None)

    def __post_init__(self) -> None:
        check(self, "--")
        if not -math.inf < self.reward_range[0] < self.reward_range[1]:
            raise InputError(f"--reward_range = {self.reward_range} must be two numbers, the lower one first")

    @property
    def is_loss(self) -> bool:
        """Says whether the metric is L itself."""
        return "loss" in self.metric.lower() or math.isinf(self.reward_range[1])


@dataclasses.dataclass(frozen=True, eq=False)
class LawResult:
    """Holds what the runs say by one law: estimates, tables of numbers, and series to draw."""

    options: LawOptions = dataclasses.field(metadata=INTERNAL)
    runs: tuple[RunCurve, ...] = dataclasses.field(metadata=INTERNAL)
    parameters: Mapping[str, Estimate]  # symbol -> estimate
    tables: Mapping[str, Sequence[Mapping[str, Any]]]  # models, budgets, crossovers, holdouts, sections: see `rows`
    facts: Mapping[str, Any]  # `unit` of X, `points`; by Tan et al. `r2` within models, `misfit` (a p-value)
    series: Sequence[Mapping[str, Any]]  # of each model: model_params, points x and loss, and line_x, line_loss
    notes: tuple[str, ...]  # what was left out

    def rows(self, table: str = "parameters") -> list[dict[str, Any]]:
        """Returns a table's rows of plain cells: an estimate becomes value (None if not identified), ends, note."""
        rows = [{"parameter": name, "value": found} for name, found in self.parameters.items()]
        return [_cells(row) for row in (rows if table == "parameters" else self.tables[table])]


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    cells = dict(row)
    for name, found in [(name, found) for name, found in row.items() if isinstance(found, Estimate)]:
        cells |= {name: found.value if found.identified else None, f"{name}_note": found.note}
        cells |= {f"{name}_low": found.low, f"{name}_high": found.high}
    return cells


def fit_law(runs: Sequence[RunCurve], options: LawOptions) -> LawResult:
    """Fits the law of `options.analysis`; an InputError names the column or flag that the runs lack, and a remedy."""
    points, unit, notes = _points(runs, options)
    parameters, tables, facts, law = (_chinchilla if options.analysis == "chinchilla" else _model_size)(points, options)
    series, facts = [], {"unit": unit, "points": len(points["x"])} | facts
    for size in np.unique(points["model_params"]).tolist():
        if size not in law:
            notes.append(f"model of {size:g} parameters left out: all of its evaluations have one X")
            continue
        x, loss = (points[name][points["model_params"] == size] for name in ("x", "loss"))
        line_x = np.geomspace(x.min(), x.max(), LINE_POINTS)
        series.append({"model_params": size, "x": x, "loss": loss, "line_x": line_x, "line_loss": law[size](line_x)})
    return LawResult(options, tuple(runs), parameters, tables, facts, series, tuple(notes))


def _model_size(points: Points, options: LawOptions) -> tuple[dict, dict, dict, dict]:
    """Returns parameters, tables and facts of a result, and of each N the law's L of X."""
    draws = {"resamples": options.resamples, "seed": options.seed}
    law = model_size.fit_model_size(points, **draws)
    if law is None:
        raise InputError("--runs: the law needs two model sizes with several X each; add runs of another model_params")
    lines, sizes = law.lines, law.lines.model_params.tolist()
    models = zip(sizes, lines.points, law.k, lines.slope, law.level, lines.first, lines.last, strict=True)
    names = ("model_params", "points", "k", "own_k", "level", "first_x", "last_x")
    tables = {
        "models": [dict(zip(names, map(float, row), strict=True)) for row in models],
        "crossovers": model_size.crossovers(law),
        "holdouts": model_size.holdouts(points, share=FITTED_SHARE, anchors=ANCHORS, **draws),
    }
    facts = {"r2": 1 - law.sse / lines.variation if lines.variation else math.nan, "misfit": law.misfit}
    curves = {size: functools.partial(law.loss, number) for number, size in enumerate(sizes)}
    return {"k_max": law.k_max, "N0": law.n0}, tables, facts, curves


def _chinchilla(points: Points, options: LawOptions) -> tuple[dict, dict, dict, dict]:
    n, d, loss = points["model_params"], points["x"], points["loss"]
    if len(n) < 5:
        raise InputError(f"--runs: {len(n)} usable losses for the five parameters of the pre-training law: add runs")
    law = chinchilla.fit_power_law(n, d, loss=loss, resamples=options.resamples, seed=options.seed)
    flops = chinchilla.FLOPS_PER_PARAMETER_TOKEN * n * d
    budgets = np.sort(options.budgets or np.geomspace(flops.min(), flops.max(), BUDGETS)).tolist()
    sections = [chinchilla.section(law, variable, options.resamples, options.seed) for variable in "NDC"]
    tables = {"budgets": chinchilla.optima(law, budgets), "sections": [row for row in sections if row]}
    curves = {size: functools.partial(chinchilla.predict, law.parameters, size) for size in n.tolist()}
    return law.estimates(), tables, {}, curves


def _points(runs: Sequence[RunCurve], options: LawOptions) -> tuple[Points, str, list[str]]:
    """Returns the evaluations that a law can be fitted to, the unit of X, and what was left out."""
    notes: list[str] = []
    kept = _with(runs, lambda run: not run.schedule, "its n changes within it: give runs of a fixed n", notes)
    remedy = "its model_params are not known: name their column by --columns=THEIRS:model_params"
    kept = _with(kept, lambda run: run.facts.model_params > 0, remedy, notes)
    column, unit = "compute", "rollouts"
    if options.analysis != "model_size_data" or not all(np.any(run.columns.get(column, 0.0) > 0) for run in kept):
        column, unit = "tokens", "FLOPs" if options.analysis == "model_size" else "tokens"
        remedy = "it has no tokens: name their column by --columns=THEIRS:tokens"
        remedy += ", or use --analysis=model_size_data" if unit == "FLOPs" else ""
        kept = _with(kept, lambda run: np.any(run.columns.get("tokens", 0.0) > 0), remedy, notes)
    (low, high), parts = options.reward_range, []
    for number, run in enumerate(kept):
        one = np.ones(len(run.compute))
        metric = run.columns.get(options.metric, np.nan * one)
        loss = metric if options.is_loss else (high - metric) / (high - low)
        scale = chinchilla.FLOPS_PER_PARAMETER_TOKEN * run.facts.model_params if unit == "FLOPs" else 1.0
        parts.append([run.facts.model_params * one, scale * run.columns[column], loss, number * one])
    points = dict(zip(NAMES, np.concatenate(parts, axis=1), strict=True))
    points = model_size.part(points, _usable(points, options, notes))
    last = np.append(np.diff(points["run"]) > 0, True)  # of each run; a table that names no runs has one for each N
    if options.analysis == "chinchilla" and chinchilla.distinct(points["x"][last]) >= chinchilla.FEWEST_LEVELS:
        points = model_size.part(points, last)
    elif options.analysis == "chinchilla" and not last.all():
        notes.append("every evaluation is fitted: the last of each run have fewer than three token counts")
    return points, unit, notes


def _usable(points: Points, options: LawOptions, notes: list[str]) -> np.ndarray:
    """Returns [P] which points have logarithms; those at X = 0, of the base model, are left out without a word."""
    known = np.isfinite(points["x"]) & np.isfinite(points["loss"]) & (points["x"] > 0)
    solved, unread = known & (points["loss"] <= 0), ~known & (points["x"] != 0)
    if not known.any():
        raise InputError(f"--metric={options.metric}: no evaluation after the start has a number in this column")
    if solved.any() and (options.is_loss or solved.sum() > known.sum() / 2):
        remedy = "name a column of losses" if options.is_loss else "set --reward_range to what the metric can reach"
        count = f"{solved.sum()} of {known.sum()} evaluations have a loss of zero or below, without a logarithm"
        raise InputError(f"--metric={options.metric}: {count}; {remedy}")
    reasons = {"a loss of 0 has no logarithm": solved, "no number": unread}
    notes += [f"{rows.sum()} of {len(rows)} evaluations left out: {why}" for why, rows in reasons.items() if rows.any()]
    return known & ~solved


def _with(runs: Sequence[RunCurve], usable: Callable[[RunCurve], Any], why: str, notes: list[str]) -> list[RunCurve]:
    kept = [run for run in runs if usable(run)]
    if not kept:
        raise InputError(f"--runs: no run can be used for this law; of each, {why}")
    notes += [f"{run.source}: run {run.run} left out: {why}" for run in runs if not usable(run)]
    return kept


def sentences(result: LawResult) -> list[str]:
    """Returns what the law says; a number that is not identified is not quoted."""
    return (_say_chinchilla if result.options.analysis == "chinchilla" else _say_model_size)(result)[:8]


def _say_model_size(result: LawResult) -> list[str]:
    unit, tables, k_max, n0 = result.facts["unit"], result.tables, *result.parameters.values()
    gains = [f"{1 - 10 ** -row['k']:.0%} at {_text(row['model_params'])} parameters" for row in tables["models"]]
    said = [f"Ten times the {unit} lower the loss by {gains[0]} and by {gains[-1]}."]
    if k_max.value <= 0:
        said = [f"The loss does not fall with more {unit}."]
    levels = f"The slope levels off at k_max = {_of(k_max)}, and is half of it at N0 = {_of(n0)} parameters."
    said.append(levels if n0.identified else f"Where that levels off with model size is not known: {n0.note}.")
    if result.facts["misfit"] < 0.01:
        said.append("The models' own slopes depart from this law by more than noise, so its intervals are too narrow.")
    for row in [row for row in tables["crossovers"] if row["inside"] and row["x"].identified][-1:]:
        pair, better = f"{_text(row['smaller'])} and {_text(row['larger'])}", _text(row["better_after"])
        said.append(f"The lines of {pair} cross at {_of(row['x'])} {unit}; beyond, {better} is better.")
    for kind, what in (("later evaluations", "the later half of each run"), ("larger model", "the largest model")):
        if rows := [row for row in tables["holdouts"] if row["kind"] == kind]:
            count = sum(row["scored"] for row in rows)
            law, stays = (sum(r[e] * r["scored"] for r in rows) / count for e in ("loss_error", "unchanged_error"))
            said.append(f"Held out, {what} is predicted within {law:.2g}; to expect no change errs by {stays:.2g}.")
    return said


def _say_chinchilla(result: LawResult) -> list[str]:
    known = [f"{name} = {_of(e)}" for name, e in result.parameters.items() if e.identified and name != "exponent"]
    said = [f"L = E + A/N^alpha + B/D^beta: {', '.join(known) or 'nothing is determined'}."]
    doubts = dict.fromkeys(e.note for e in result.parameters.values() if e.note)
    said += [f"Not determined: {note}." for note in doubts][:2]
    for row in result.tables["budgets"][-1:]:
        said.append(f"The best model size grows as compute to the power {_of(result.parameters['exponent'])}.")
        best = f"{_of(row['model_params'])} parameters on {_of(row['tokens'])} tokens, for a loss of {_of(row['loss'])}"
        said.append(f"For {_text(row['flops'])} FLOPs it is {best}.")
    for row in [row for row in result.tables["sections"] if row["alpha"].identified]:
        expected = f"; the law of both expects {row['expected']:.3g}" if math.isfinite(row["expected"]) else ""
        said.append(f"Of {row['variable']} alone the exponent is {_of(row['alpha'])}{expected}.")
    return said


def _of(found: Estimate) -> str:
    ends = f" ({_text(found.low)} to {_text(found.high)})" if math.isfinite(found.low + found.high) else ""
    return _text(found.value) + ends


def _text(value: float) -> str:
    """Writes a number to three digits: 500M, 1.5B, 0.12."""
    of, unit = next(((of, unit) for of, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if of <= value < 1e15), (1, ""))
    return f"{value / of:.3g}{unit}"
