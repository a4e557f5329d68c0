"""The laws from runs to plain data: the content of summary.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isocompute_jax.fit.laws.chinchilla import (
    FLOPS_PER_PARAMETER_TOKEN,
    TAILS,
    compute_optimal,
    fit_chinchilla,
    parameters_of,
)
from isocompute_jax.fit.laws.crossover import crossovers
from isocompute_jax.fit.laws.extrapolation import inter_model, intra_model
from isocompute_jax.fit.laws.model_size import fit_model_size
from isocompute_jax.fit.laws.options import LawOptions
from isocompute_jax.fit.laws.points import Points, chinchilla_points, model_size_points
from isocompute_jax.fit.laws.results import ChinchillaFit, ModelSizeFit
from isocompute_jax.fit.laws.reuse import at_equal_data, reuse
from isocompute_jax.fit.report.provenance import SCHEMA_VERSION, input_row, plain, versions
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from isocompute_jax.fit.read import RunCurve

SLOPE_POINTS = 80
BUDGETS = 9


def analyse_law(runs: Sequence[RunCurve], warnings: Sequence[str], options: LawOptions) -> dict[str, Any]:
    """Fits the law of `options.analysis` to the runs: dicts, lists, strings, numbers and None only.

    Args:
      runs: as loaded.
      warnings: what loading left out; further warnings are added to them.
      options: choices.

    Raises:
      InputError: the runs lack what the law needs, or nothing could be fitted.
    """
    parts, more = _model_size(runs, options) if options.analysis == "model_size" else _chinchilla(runs, options)
    return plain({
        "schema_version": SCHEMA_VERSION,
        "analysis": options.analysis,
        "inputs": [input_row(run) for run in runs],
        "flags": dataclasses.asdict(options),
        "versions": versions(),
        "seed": options.seed if options.analysis == "chinchilla" else None,  # the model-size law draws no numbers
        "warnings": [*warnings, *more],
        **parts,
    })  # fmt: skip


def _model_size(runs: Sequence[RunCurve], options: LawOptions) -> tuple[dict[str, Any], list[str]]:
    points, warnings = model_size_points(runs, options)
    reward, weight = 1.0 - points.loss, _weights(points, options)
    columns = {"weight": weight, "run": points.run}
    fit = fit_model_size(points.model_params, points.x, reward, **columns)
    if fit.status == "failed":
        raise InputError(
            f"--runs: the model-size law cannot be fitted to {options.metric}: {fit.message} "
            f"({'; '.join(fit.left_out) or 'no point left out'}); a loss column needs --loss=metric"
        )
    data = (points.model_params, points.x, reward)
    parts = {
        "resource": {"kind": options.x, "unit": points.unit},
        "law": _law(fit),
        "models": _models(fit, points),
        "slopes": _slopes(fit),
        "crossovers": [dataclasses.asdict(c) for c in crossovers(fit)],
        "intra_model": [_holdout(h) for h in intra_model(*data, **columns, share=1.0 - options.holdout)],
        "inter_model": [
            _holdout(h)
            for h in inter_model(*data, **columns, held_out=options.held_out_models, anchors=options.anchors)
        ],
        "predictions": [
            {"model_params": n, "k": dataclasses.asdict(fit.slope(n))}
            for n in options.predict_params
            if len(fit.model_params) > 1
        ],
        "reuse": dataclasses.asdict(reuse(*data, points.tau, run=points.run, threshold=options.most_reuse)),
        "equal_data": [
            dataclasses.asdict(row) for row in at_equal_data(*data, points.tau, points.problem_set_size, run=points.run)
        ],
    }
    return parts, warnings + list(fit.left_out)


def _weights(points: Points, options: LawOptions) -> np.ndarray | None:
    """[P] None for equal weights, or such that the points of each model size weigh as much as those of another."""
    if options.weights == "points":
        return None
    usable = np.isfinite(points.x) & (points.x > 0) & np.isfinite(points.loss) & (points.loss > 0)
    sizes, member = np.unique(points.model_params, return_inverse=True)
    counts = np.bincount(member, weights=usable, minlength=len(sizes))
    return 1.0 / np.maximum(counts, 1.0)[member]


def _law(fit: ModelSizeFit) -> dict[str, Any]:
    names = ("k_max_error", "log_n0_error", "autocorrelation", "misfit", "sse", "r2", "status", "message")
    estimates = {"k_max": dataclasses.asdict(fit.k_max), "n0": dataclasses.asdict(fit.n0)}
    return estimates | {"num_points": int(fit.num_points.sum())} | {name: getattr(fit, name) for name in names}


def _models(fit: ModelSizeFit, points: Points) -> list[dict[str, Any]]:
    names = ("model_params", "k", "intercept", "free_k", "free_k_error", "free_intercept", "first_x", "last_x")
    rows = []
    for index, size in enumerate(fit.model_params):
        own = (points.model_params == size) & (points.x > 0) & np.isfinite(points.loss)
        order = np.flatnonzero(own)[np.argsort(points.x[own], kind="stable")]
        rows.append(
            {name: getattr(fit, name)[index] for name in names}
            | {"num_points": fit.num_points[index], "num_runs": len(np.unique(points.run[own]))}
            | {"points": {"x": points.x[order], "loss": points.loss[order]}}
        )
    return rows


def _slopes(fit: ModelSizeFit) -> dict[str, Any]:
    """k(N) with its 95% interval over a little more than the range of model sizes, for drawing; empty without a law."""
    if len(fit.model_params) < 2:
        return {"model_params": [], "k": [], "low": [], "high": []}
    sizes = np.geomspace(fit.model_params[0] / 2, fit.model_params[-1] * 2, SLOPE_POINTS)
    found = [fit.slope(float(size)) for size in sizes]
    return {
        "model_params": sizes,
        "k": [e.value for e in found],
        "low": [e.low for e in found],
        "high": [e.high for e in found],
    }


def _holdout(holdout) -> dict[str, Any]:
    x, reward, predicted = zip(*holdout.points, strict=True)
    return dataclasses.asdict(holdout) | {"points": {"x": x, "reward": reward, "predicted": predicted}}


def _chinchilla(runs: Sequence[RunCurve], options: LawOptions) -> tuple[dict[str, Any], list[str]]:
    points, warnings = chinchilla_points(runs, options)
    fits = [
        fit_chinchilla(
            points.model_params, points.x, points.loss, method=method, group=points.run, resamples=options.resamples,
            seed=options.seed,
        )
        for method in ("squares", "huber")
    ]  # fmt: skip
    if all(fit.status == "failed" for fit in fits):
        raise InputError(
            f"--runs: the pre-training law cannot be fitted to {options.metric}: {fits[0].message} "
            f"({'; '.join(fits[0].left_out) or 'no point left out'}); --points=all uses every row of a run, and a loss "
            "column needs --loss=metric"
        )
    kept = np.isfinite(points.loss) & (points.loss > 0) & (points.x > 0)
    flops = np.sort(np.array(options.flops) if options.flops else _budgets(points, kept))
    data = {"model_params": points.model_params[kept], "tokens": points.x[kept], "loss": points.loss[kept]}
    parts = {
        "points": data | {"run": points.run[kept].astype(int)},
        "fits": [_chinchilla_fit(fit, data) for fit in fits],
        "optimal": [_optimal(fit, c) for fit in fits for c in flops],
    }
    return parts, warnings + list(fits[0].left_out)


def _budgets(points: Points, kept: np.ndarray) -> np.ndarray:
    flops = FLOPS_PER_PARAMETER_TOKEN * points.model_params[kept] * points.x[kept]
    return np.geomspace(flops.min(), flops.max(), BUDGETS)


def _chinchilla_fit(fit: ChinchillaFit, data: dict[str, np.ndarray]) -> dict[str, Any]:
    fields = {f.name: getattr(fit, f.name) for f in dataclasses.fields(fit) if f.name not in ("replicates", "left_out")}
    fields |= {name: dataclasses.asdict(e) for name, e in fields.items() if dataclasses.is_dataclass(e)}
    return fields | {"predicted": fit.loss(data["model_params"], data["tokens"])}


def _optimal(fit: ChinchillaFit, flops: float) -> dict[str, Any]:
    """N*(C) and D*(C) with bootstrap intervals; without numbers where the allocation is not identified."""
    row: dict[str, Any] = {"method": fit.method, "flops": flops, "identified": fit.exponent.identified}
    names = ("model_params", "tokens")
    if not fit.exponent.identified:
        blank = dict.fromkeys([f"{name}{end}" for name in names for end in ("", "_low", "_high")] + ["loss"])
        return row | blank | {"note": fit.exponent.note}
    best = compute_optimal(parameters_of(fit), flops)
    for name, value, draws in zip(names, best, compute_optimal(fit.replicates, flops), strict=True):
        draws = draws[np.isfinite(draws)]
        low, high = np.percentile(draws, TAILS) if len(draws) else (np.nan, np.nan)
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row | {"loss": fit.loss(*best), "note": ""}
