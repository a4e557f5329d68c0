"""The laws from runs to results: their options, the points that a law is fitted to, its fit, and what follows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.laws.checks import (
    MOST_REUSE,
    Holdout,
    ReuseFit,
    at_equal_data,
    inter_model,
    intra_model,
    reuse,
)
from isocompute_jax.laws.chinchilla import (
    FLOPS_PER_PARAMETER_TOKEN,
    METHODS,
    ChinchillaFit,
    fit_chinchilla,
    optimum,
)
from isocompute_jax.laws.convergence import VARIABLES, ConvergenceFit, fit_convergence
from isocompute_jax.laws.model_size import Crossover, ModelSizeFit, crossovers, fit_model_size
from isocompute_jax.options import check, described, numbers, option
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from isocompute_jax.fit.read import RunCurve

SLOPE_POINTS = 80
BUDGETS = 9
NEEDS_PARAMS = "a column model_params (parameters N), e.g. --columns=THEIRS:model_params, or give it as a constant"
NEEDS_TOKENS = "a column tokens, e.g. --columns=THEIRS:tokens"


Analysis = Literal["model_size", "chinchilla"]


@described
@dataclasses.dataclass(frozen=True)
class LawOptions:
    """Options of `--analysis=model_size` and `--analysis=chinchilla`."""

    analysis: Analysis = option("model_size", "Which law.", flag=None)
    metric: str = option("avg@4", "Column that is read.")
    eval_set: str = option("validation", "Evaluation set whose rows are used.")
    loss: Literal["one_minus_metric", "metric"] = option(
        "one_minus_metric",
        "What L is in a law: 1 - metric, as a share of --reward_range (model_size), or the metric itself (chinchilla).",
        flag="law_loss",
    )
    reward_range: tuple[float, float] = option(
        (0.0, 1.0), "Least and largest possible metric, of which 1 - metric is a share.", flag=None
    )
    x: Literal["compute", "data"] = option(
        "compute",
        "Resource of model_size: compute (6 N tokens, training FLOPs without sampling) or data (rollouts where every "
        "run has them, tokens otherwise).",
    )
    weights: Literal["points", "models"] = option(
        "points", "What model_size counts alike: evaluations (points), or model sizes (models)."
    )
    holdout: float = option(0.5, "Share of each run's evaluations, the last ones, that is predicted from the first.")
    held_out_models: int = option(1, "Largest models predicted from smaller.", low=0)
    anchors: int = option(3, "First evaluations that set a held-out model's level.", low=1)
    predict_params: tuple[float, ...] = option(
        (), "Model sizes, in parameters, to predict k(N) for: --predict_params=7e9,70e9.", parse=numbers
    )
    most_reuse: float = option(MOST_REUSE, "Epochs above which problems count as much reused.")
    points: Literal["last", "all"] = option("last", "Rows of each run that chinchilla fits.")
    flops: tuple[float, ...] = option(
        (),
        "Budgets C = 6 N D to give the optimal N and D for: --flops=1e21,1e23; empty for the range of the data.",
        parse=numbers,
    )
    resamples: int = option(200, "Bootstrap repetitions of the pre-training law.", flag="replicates", low=0)
    seed: int = option(0, "Seed of the bootstrap.", low=0)
    title: str = option("", "Heading of the report; empty for the law's own.")

    def __post_init__(self) -> None:
        check(self, "--")
        low, high = self.reward_range
        if self.loss == "one_minus_metric" and not -math.inf < low < high < math.inf:
            raise InputError(
                f"--reward_range={low:g},{high:g} must be two finite numbers, the lower one first: L is what "
                f"{self.metric} lacks of the larger one; a column that is a loss itself needs --law_loss=metric"
            )
        if not 0 < self.holdout < 1:
            raise InputError(f"--holdout={self.holdout} must lie between 0 and 1: a share of each run's evaluations")
        for name, values in (
            ("predict_params", self.predict_params), ("flops", self.flops), ("most_reuse", (self.most_reuse,)),
        ):  # fmt: skip
            if not all(0 < value < float("inf") for value in values):
                raise InputError(f"--{name}={','.join(f'{v:g}' for v in values)} must be above 0 and finite")

    @property
    def fitted_share(self) -> float:
        """Of each run's evaluations, that the others are predicted from."""
        return 1.0 - self.holdout

    @property
    def reward_name(self) -> str:
        """What L is one minus: the metric, as a share of its range where that is another one than 0 to 1."""
        low, high = self.reward_range
        return self.metric if (low, high) == (0, 1) else f"{self.metric} as a share of {low:g} to {high:g}"

    def loss_of(self, metric: np.ndarray) -> np.ndarray:
        """[P] L of a metric [P]: what it lacks of the largest possible one, as a share of the range, or itself."""
        low, high = self.reward_range
        return (high - metric) / (high - low) if self.loss == "one_minus_metric" else metric


@dataclasses.dataclass(frozen=True, eq=False)
class ModelSizeResult:
    """All that the runs say by the model-size law."""

    resource: Mapping[str, str]  # X: its `kind`, compute or data, and the `unit` that is counted, in words
    law: ModelSizeFit
    models: tuple[Mapping[str, Any], ...]  # entries of the law's arrays, runs, and points (x and loss) of each model
    slopes: Mapping[str, np.ndarray]  # model_params, k, low, high [S] around the models' sizes; empty without a law
    crossovers: tuple[Crossover, ...]  # of every pair of models
    intra_model: tuple[Holdout, ...]  # each model's later evaluations, predicted from its earlier ones
    inter_model: tuple[Holdout, ...]  # the largest models, predicted from the smaller ones
    predictions: tuple[Mapping[str, Any], ...]  # model_params and slope k (an estimate) of sizes that were asked for
    reuse: ReuseFit  # whether much reuse of problems goes with a higher loss
    equal_data: tuple[Mapping[str, float], ...]  # losses of one model with problem sets of different size
    options: LawOptions = dataclasses.field(metadata=INTERNAL)
    runs: tuple[RunCurve, ...] = dataclasses.field(metadata=INTERNAL)  # as loaded
    warnings: tuple[str, ...] = dataclasses.field(metadata=INTERNAL)  # what loading and fitting left out

    @property
    def crossings_inside(self) -> tuple[Crossover, ...]:
        """Those that lie inside the data of both models."""
        return tuple(row for row in self.crossovers if row.inside)

    @property
    def later(self) -> tuple[float, float] | None:
        """Errors in reward over all points of `intra_model`: of the law, and of expecting no change."""
        if not self.intra_model:
            return None
        errors = [(row.reward_error, row.unchanged_error) for row in self.intra_model]
        law, unchanged = np.average(errors, axis=0, weights=[row.num_scored for row in self.intra_model])
        return float(law), float(unchanged)

    @property
    def reuse_ends(self) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
        """Of each model of `equal_data`, its rows with the fewest and the most epochs."""
        models: dict[float, list[Mapping[str, float]]] = {}
        for row in sorted(self.equal_data, key=lambda row: (row["model_params"], row["tau"])):
            models.setdefault(row["model_params"], []).append(row)
        return [(rows[0], rows[-1]) for rows in models.values()]


@dataclasses.dataclass(frozen=True, eq=False)
class ChinchillaResult:
    """All that the runs say by the pre-training law."""

    points: Mapping[str, np.ndarray]  # what was fitted: model_params, tokens, loss and number of the run, [P] each
    fits: tuple[ChinchillaFit, ...]  # by each method
    optimal: tuple[Mapping[str, Any], ...]  # of `chinchilla.optimum`, by each method and budget, in rising order
    convergence: tuple[ConvergenceFit, ...]  # the laws of N, D and C alone
    options: LawOptions = dataclasses.field(metadata=INTERNAL)
    runs: tuple[RunCurve, ...] = dataclasses.field(metadata=INTERNAL)  # as loaded
    warnings: tuple[str, ...] = dataclasses.field(metadata=INTERNAL)  # what loading and fitting left out

    def path(self, method: str) -> tuple[Mapping[str, Any], ...]:
        """The compute-optimal path by one method; empty where it is not identified."""
        return tuple(row for row in self.optimal if row["method"] == method and row["identified"])


LawResult = ModelSizeResult | ChinchillaResult


def analyse_law(runs: Sequence[RunCurve], warnings: Sequence[str], options: LawOptions) -> LawResult:
    """Fits the law of `options.analysis` to the runs.

    Args:
      runs: as loaded.
      warnings: what loading left out; further warnings are added to them.
      options: choices.

    Raises:
      InputError: the runs lack what the law needs, or nothing could be fitted.
    """
    fixed, scheduled = _with(runs, lambda run: not run.schedule, "its n changes within it", "runs of a fixed n")
    law = _model_size if options.analysis == "model_size" else _chinchilla
    return law(fixed, [*warnings, *scheduled], options)


def _model_size(runs: Sequence[RunCurve], warnings: Sequence[str], options: LawOptions) -> ModelSizeResult:
    points, unit, left_out = _model_size_points(runs, options)
    data = (points["model_params"], points["x"], 1.0 - points["loss"])
    columns = {"weight": _weights(points, options), "run": points["run"]}
    fit = fit_model_size(*data, **columns)
    if fit.status == "failed":
        raise InputError(
            f"--runs: the model-size law cannot be fitted to {options.metric}: {fit.message} "
            f"({'; '.join(fit.left_out) or 'no point left out'}); a loss column needs --law_loss=metric"
        )
    asked = options.predict_params if len(fit.model_params) > 1 else ()
    return ModelSizeResult(
        resource={"kind": options.x, "unit": unit},
        law=fit,
        models=_models(fit, points),
        slopes=_slopes(fit),
        crossovers=crossovers(fit),
        intra_model=intra_model(*data, **columns, share=options.fitted_share),
        inter_model=inter_model(*data, **columns, held_out=options.held_out_models, anchors=options.anchors),
        predictions=tuple({"model_params": n, "k": fit.slope(n)} for n in asked),
        reuse=reuse(*data, points["tau"], run=points["run"], threshold=options.most_reuse),
        equal_data=at_equal_data(*data, points["tau"], points["problem_set_size"], run=points["run"]),
        options=options,
        runs=tuple(runs),
        warnings=(*warnings, *left_out, *fit.left_out),
    )


def _weights(points: Mapping[str, np.ndarray], options: LawOptions) -> np.ndarray | None:
    """[P] None for equal weights, or such that the points of each model size weigh as much as those of another."""
    if options.weights == "points":
        return None
    x, loss = points["x"], points["loss"]
    usable = np.isfinite(x) & (x > 0) & np.isfinite(loss) & (loss > 0)
    sizes, member = np.unique(points["model_params"], return_inverse=True)
    counts = np.bincount(member, weights=usable, minlength=len(sizes))
    return 1.0 / np.maximum(counts, 1.0)[member]


def _models(fit: ModelSizeFit, points: Mapping[str, np.ndarray]) -> tuple[Mapping[str, Any], ...]:
    names = ("model_params", "k", "intercept", "free_k", "free_k_error", "free_intercept", "first_x", "last_x")
    rows = []
    for index, size in enumerate(fit.model_params):
        own = np.flatnonzero((points["model_params"] == size) & (points["x"] > 0) & np.isfinite(points["loss"]))
        own = own[np.argsort(points["x"][own], kind="stable")]
        rows.append({
            **{name: float(getattr(fit, name)[index]) for name in names},
            "num_points": int(fit.counts[index]),
            "num_runs": len(np.unique(points["run"][own])),
            "points": {name: points[name][own] for name in ("x", "loss")},
        })  # fmt: skip
    return tuple(rows)


def _slopes(fit: ModelSizeFit) -> dict[str, np.ndarray]:
    sizes = fit.model_params
    sizes = np.geomspace(sizes[0] / 2, sizes[-1] * 2, SLOPE_POINTS) if len(sizes) > 1 else np.empty(0)
    slopes = np.array([(e.value, e.low, e.high) for e in map(fit.slope, sizes.tolist())]).reshape(-1, 3)
    return {"model_params": sizes, "k": slopes[:, 0], "low": slopes[:, 1], "high": slopes[:, 2]}


def _chinchilla(runs: Sequence[RunCurve], warnings: Sequence[str], options: LawOptions) -> ChinchillaResult:
    points, left_out = _chinchilla_points(runs, options)
    draws = {"resamples": options.resamples, "seed": options.seed}
    data = (points["model_params"], points["x"], points["loss"])
    fits = tuple(fit_chinchilla(*data, method=method, group=points["run"], **draws) for method in METHODS)
    if all(fit.status == "failed" for fit in fits):
        raise InputError(
            f"--runs: the pre-training law cannot be fitted to {options.metric}: {fits[0].message} "
            f"({'; '.join(fits[0].left_out) or 'no point left out'}); --points=all uses every row of a run, and a loss "
            "column needs --law_loss=metric"
        )
    kept = np.isfinite(points["loss"]) & (points["loss"] > 0) & (points["x"] > 0)
    n, d, loss = (column[kept] for column in data)
    budgets = FLOPS_PER_PARAMETER_TOKEN * n * d
    flops = np.sort(options.flops or np.geomspace(budgets.min(), budgets.max(), BUDGETS)).tolist()
    return ChinchillaResult(
        points={"model_params": n, "tokens": d, "loss": loss, "run": points["run"][kept].astype(int)},
        fits=fits,
        optimal=tuple(optimum(fit, c) for fit in fits for c in flops),
        convergence=tuple(fit_convergence(n, d, loss, variable=v, law=fits[-1], **draws) for v in VARIABLES),
        options=options,
        runs=tuple(runs),
        warnings=(*warnings, *left_out, *fits[0].left_out),
    )


def _model_size_points(runs: Sequence[RunCurve], options: LawOptions) -> tuple[dict[str, np.ndarray], str, list[str]]:
    """Every evaluation of every run whose N and X are known, the unit of X, and a warning for each run left out.

    Raises:
      InputError: no run can be used; the message names the column that is missing.
    """
    sized, warnings = _sized(runs)
    if options.x == "data" and all(_known(run, "compute") for run in sized):
        return _points(sized, options, lambda run: run.columns["compute"]), "rollouts", warnings
    remedy = NEEDS_TOKENS if options.x == "data" else f"{NEEDS_TOKENS}, or use --x=data"
    used, more = _with(sized, lambda run: _known(run, "tokens"), "it has no tokens", remedy)
    if options.x == "data":
        return _points(used, options, lambda run: run.columns["tokens"]), "tokens", warnings + more
    flops = _points(used, options, lambda r: FLOPS_PER_PARAMETER_TOKEN * r.facts.model_params * r.columns["tokens"])
    return flops, "FLOPs (6 N tokens)", warnings + more + _mixtures(used)


def _chinchilla_points(runs: Sequence[RunCurve], options: LawOptions) -> tuple[dict[str, np.ndarray], list[str]]:
    """The last row of each run, or all of its rows, with N, tokens D and the loss; errors as of the other law."""
    sized, warnings = _sized(runs)
    used, more = _with(sized, lambda run: _known(run, "tokens"), "it has no tokens", NEEDS_TOKENS)
    points = _points(used, options, lambda run: run.columns["tokens"])
    if options.points == "last":
        known = np.isfinite(points["x"]) & np.isfinite(points["loss"])
        last = [np.flatnonzero(known & (points["run"] == run))[-1:] for run in np.unique(points["run"])]
        points = {name: column[np.concatenate(last)] for name, column in points.items()}
    return points, warnings + more


def _sized(runs: Sequence[RunCurve]) -> tuple[list[RunCurve], list[str]]:
    return _with(runs, lambda run: run.facts.model_params > 0, "its model_params are not known", NEEDS_PARAMS)


def _with(
    runs: Sequence[RunCurve], usable: Callable[[RunCurve], bool], why: str, remedy: str
) -> tuple[list[RunCurve], list[str]]:
    kept = [run for run in runs if usable(run)]
    if not kept:
        raise InputError(f"--runs: no run can be used for this law, because of each {why}; it needs {remedy}")
    return kept, [f"{run.source}: run {run.run} left out: {why}" for run in runs if not usable(run)]


def _known(run: RunCurve, column: str) -> bool:
    return column in run.columns and bool(np.any(run.columns[column] > 0))


def _points(
    runs: Sequence[RunCurve], options: LawOptions, resource: Callable[[RunCurve], np.ndarray]
) -> dict[str, np.ndarray]:
    """Evaluations of all runs, one after the other, [P] each: parameters N, resource X, L and the number of the run.

    `tau` are epochs C / (n D), NaN where unknown; `problem_set_size` is D, 0 where unknown.
    """
    rows = []
    for number, run in enumerate(runs):
        unknown, one = np.full_like(run.compute, np.nan), np.ones_like(run.compute)
        facts = run.facts
        per_epoch = facts.group_size * facts.problem_set_size
        rows.append({
            "model_params": facts.model_params * one,
            "x": np.asarray(resource(run), np.float64),
            "loss": options.loss_of(run.columns.get(options.metric, unknown)),
            "tau": run.columns.get("compute", unknown) / per_epoch if per_epoch else unknown,
            "problem_set_size": facts.problem_set_size * one,
            "run": number * one,
        })  # fmt: skip
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _mixtures(runs: Sequence[RunCurve]) -> list[str]:
    """Model sizes whose runs differ in group size or batch: one line goes through all of them."""
    kinds: dict[int, set[tuple[int, int]]] = {}
    for run in runs:
        kinds.setdefault(run.facts.model_params, set()).add((run.facts.group_size, run.facts.problems_per_batch))
    mixed = [f"{size:g}" for size, pairs in sorted(kinds.items()) if len(pairs) > 1]
    return [f"one line is fitted to runs of several configurations (model_params {', '.join(mixed)})"] if mixed else []
