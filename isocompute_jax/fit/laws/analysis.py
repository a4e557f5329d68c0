"""The laws from runs to results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isocompute_jax.fit.intervals import percentile_interval
from isocompute_jax.fit.laws.chinchilla import (
    FLOPS_PER_PARAMETER_TOKEN,
    compute_optimal,
    fit_chinchilla,
    parameters_of,
)
from isocompute_jax.fit.laws.chinchilla_results import (
    ChinchillaFit,
    ChinchillaResult,
    LossPoints,
    LossSurface,
    Optimum,
)
from isocompute_jax.fit.laws.convergence import VARIABLES, fit_convergence
from isocompute_jax.fit.laws.crossover import crossovers
from isocompute_jax.fit.laws.extrapolation import inter_model, intra_model, mean_score
from isocompute_jax.fit.laws.law_options import LawOptions
from isocompute_jax.fit.laws.model_size import MISFIT, fit_model_size
from isocompute_jax.fit.laws.model_size_results import (
    EqualData,
    LinePoints,
    ModelLine,
    ModelSizeFit,
    ModelSizeLaw,
    ModelSizeResult,
    PredictedSlope,
    Resource,
    SlopeBand,
)
from isocompute_jax.fit.laws.points import Points, chinchilla_points, model_size_points
from isocompute_jax.fit.laws.reuse import at_equal_data, reuse
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from isocompute_jax.fit.read import RunCurve

SLOPE_POINTS = 80
LINE_POINTS = 2
SURFACE_POINTS = 80
BUDGETS = 9


@dataclasses.dataclass(frozen=True, eq=False)
class LawAnalysis:
    """A law fitted to runs.

    Attributes:
      options: the choices.
      runs: as loaded.
      warnings: what loading and fitting left out.
      result: of the law that `options` names.
    """

    options: LawOptions
    runs: tuple[RunCurve, ...]
    warnings: tuple[str, ...]
    result: ModelSizeResult | ChinchillaResult


def analyse_law(runs: Sequence[RunCurve], warnings: Sequence[str], options: LawOptions) -> LawAnalysis:
    """Fits the law of `options.analysis` to the runs.

    Args:
      runs: as loaded.
      warnings: what loading left out; further warnings are added to them.
      options: choices.

    Raises:
      InputError: the runs lack what the law needs, or nothing could be fitted.
    """
    result, more = _model_size(runs, options) if options.analysis == "model_size" else _chinchilla(runs, options)
    return LawAnalysis(options, tuple(runs), (*warnings, *more), result)


def _model_size(runs: Sequence[RunCurve], options: LawOptions) -> tuple[ModelSizeResult, list[str]]:
    points, warnings = model_size_points(runs, options)
    reward, weight = 1.0 - points.loss, _weights(points, options)
    columns = {"weight": weight, "run": points.run}
    fit = fit_model_size(points.model_params, points.x, reward, **columns)
    if fit.status == "failed":
        raise InputError(
            f"--runs: the model-size law cannot be fitted to {options.metric}: {fit.message} "
            f"({'; '.join(fit.left_out) or 'no point left out'}); a loss column needs --law_loss=metric"
        )
    data = (points.model_params, points.x, reward)
    share = 1.0 - options.holdout
    later = intra_model(*data, **columns, share=share)
    equal_data = at_equal_data(*data, points.tau, points.problem_set_size, run=points.run)
    result = ModelSizeResult(
        resource=Resource(options.x, points.unit),
        law=_law(fit),
        models=_models(fit, points),
        slopes=_slopes(fit),
        crossovers=crossovers(fit),
        intra_model=later,
        inter_model=inter_model(*data, **columns, held_out=options.held_out_models, anchors=options.anchors),
        predictions=tuple(PredictedSlope(n, fit.slope(n)) for n in options.predict_params if len(fit.model_params) > 1),
        reuse=reuse(*data, points.tau, run=points.run, threshold=options.most_reuse),
        equal_data=equal_data,
        later=mean_score(later),
        fitted_share=share,
        reuse_ends=_reuse_ends(equal_data),
    )
    return result, warnings + list(fit.left_out)


def _weights(points: Points, options: LawOptions) -> np.ndarray | None:
    """[P] None for equal weights, or such that the points of each model size weigh as much as those of another."""
    if options.weights == "points":
        return None
    usable = np.isfinite(points.x) & (points.x > 0) & np.isfinite(points.loss) & (points.loss > 0)
    sizes, member = np.unique(points.model_params, return_inverse=True)
    counts = np.bincount(member, weights=usable, minlength=len(sizes))
    return 1.0 / np.maximum(counts, 1.0)[member]


def _law(fit: ModelSizeFit) -> ModelSizeLaw:
    return ModelSizeLaw(
        k_max=fit.k_max,
        n0=fit.n0,
        num_points=int(fit.num_points.sum()),
        k_max_error=fit.k_max_error,
        log_n0_error=fit.log_n0_error,
        autocorrelation=fit.autocorrelation,
        misfit=fit.misfit,
        sse=fit.sse,
        r2=fit.r2,
        status=fit.status,
        message=fit.message,
        departs=fit.misfit < MISFIT,
    )


def _models(fit: ModelSizeFit, points: Points) -> tuple[ModelLine, ...]:
    names = ("model_params", "k", "intercept", "free_k", "free_k_error", "free_intercept", "first_x", "last_x")
    lines = []
    for index, size in enumerate(fit.model_params):
        own = (points.model_params == size) & (points.x > 0) & np.isfinite(points.loss)
        order = np.flatnonzero(own)[np.argsort(points.x[own], kind="stable")]
        ends = np.geomspace(fit.first_x[index], fit.last_x[index], LINE_POINTS)
        lines.append(ModelLine(
            **{name: float(getattr(fit, name)[index]) for name in names},
            num_points=int(fit.num_points[index]),
            num_runs=len(np.unique(points.run[own])),
            points=LinePoints(points.x[order], points.loss[order]),
            drawn=LinePoints(ends, fit.loss(index, ends)),
        ))  # fmt: skip
    return tuple(lines)


def _slopes(fit: ModelSizeFit) -> SlopeBand:
    if len(fit.model_params) < 2:
        return SlopeBand(*np.empty((4, 0)))
    sizes = np.geomspace(fit.model_params[0] / 2, fit.model_params[-1] * 2, SLOPE_POINTS)
    found = [fit.slope(float(size)) for size in sizes]
    return SlopeBand(sizes, *(np.array([getattr(e, end) for e in found]) for end in ("value", "low", "high")))


def _reuse_ends(rows: Sequence[EqualData]) -> tuple[tuple[EqualData, EqualData], ...]:
    ends = []
    for size in dict.fromkeys(row.model_params for row in rows):
        own = sorted((row for row in rows if row.model_params == size), key=lambda row: row.tau)
        ends.append((own[0], own[-1]))
    return tuple(ends)


def _chinchilla(runs: Sequence[RunCurve], options: LawOptions) -> tuple[ChinchillaResult, list[str]]:
    points, warnings = chinchilla_points(runs, options)
    fits = tuple(
        fit_chinchilla(
            points.model_params, points.x, points.loss, method=method, group=points.run, resamples=options.resamples,
            seed=options.seed,
        )
        for method in ("squares", "huber")
    )  # fmt: skip
    if all(fit.status == "failed" for fit in fits):
        raise InputError(
            f"--runs: the pre-training law cannot be fitted to {options.metric}: {fits[0].message} "
            f"({'; '.join(fits[0].left_out) or 'no point left out'}); --points=all uses every row of a run, and a loss "
            "column needs --law_loss=metric"
        )
    kept = np.isfinite(points.loss) & (points.loss > 0) & (points.x > 0)
    data = LossPoints(points.model_params[kept], points.x[kept], points.loss[kept], points.run[kept].astype(int))
    flops = np.sort(np.array(options.flops) if options.flops else _budgets(data))
    trusted = [fit for fit in fits if fit.exponent.identified]
    result = ChinchillaResult(
        points=data,
        fits=fits,
        optimal=tuple(_optimum(fit, float(c)) for fit in fits for c in flops),
        convergence=tuple(
            fit_convergence(
                data.model_params,
                data.tokens,
                data.loss,
                variable=variable,
                law=fits[-1],
                resamples=options.resamples,
                seed=options.seed,
            )
            for variable in VARIABLES
        ),
        surface=_surface(trusted[-1], data) if trusted else None,  # Huber where it is there
    )
    return result, warnings + list(fits[0].left_out)


def _budgets(points: LossPoints) -> np.ndarray:
    flops = FLOPS_PER_PARAMETER_TOKEN * points.model_params * points.tokens
    return np.geomspace(flops.min(), flops.max(), BUDGETS)


def _optimum(fit: ChinchillaFit, flops: float) -> Optimum:
    """N*(C) and D*(C) with bootstrap intervals; without numbers where the allocation is not identified."""
    if not fit.exponent.identified:
        return Optimum(fit.method, flops, False, *[float("nan")] * 7, note=fit.exponent.note)
    best = [float(value) for value in compute_optimal(parameters_of(fit), flops)]
    draws = compute_optimal(fit.replicates, flops)
    ends = [percentile_interval(drawn, value) for drawn, value in zip(draws, best, strict=True)]
    loss = float(fit.loss(*best))
    return Optimum(fit.method, flops, True, best[0], *ends[0], best[1], *ends[1], loss=loss, note="")


def _surface(fit: ChinchillaFit, points: LossPoints) -> LossSurface:
    """The loss over the points' model sizes and tokens, and a factor of two around them."""
    n, d = (
        np.geomspace(values.min() / 2, values.max() * 2, SURFACE_POINTS)
        for values in (points.model_params, points.tokens)
    )
    return LossSurface(n, d, fit.loss(n[None, :], d[:, None]))
