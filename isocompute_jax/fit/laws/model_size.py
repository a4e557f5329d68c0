"""The model-size law of RL post-training: ln L = -k(N) ln X + E(N), with k(N) = k_max / (1 + N0 / N).

Source: Tan et al., arXiv 2509.25300. The paper gives no law for E(N): as in its authors' own analysis every model size
has a level of its own, so a model that was not measured has a predicted slope and no predicted level.

Given N0 the rest is linear, so the fit depends on the data through each model's own line alone and the search runs over
ln N0. Intervals are 95% percentiles of fits to lines drawn anew around the law, with the noise of the residuals, as
uncertain as their number leaves it. Neighbouring evaluations of a run resemble each other (correlation rho), so
variances are multiplied by (1 + rho) / (1 - rho) and degrees of freedom are divided by it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

Points = dict[str, np.ndarray]
NAMES: tuple[str, ...] = ("model_params", "x", "loss", "run")
"""What points say of every evaluation, [P] each; the first three are above 0, the run is a number."""

PERCENTILES = (2.5, 97.5)
MARGIN, CELLS = 1e3, 240
"""N0 is searched from the smallest model / margin to the largest x margin, in so many cells and then within one."""
FAR = 10.0
"""An N0 so many times smaller or larger than all models is not identified: each model's slope is then within a tenth
of k_max of one of its limits, 0 and k_max, so that the rise between them was not seen."""
HIGHEST_AUTOCORRELATION = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval, NaN where there is none, and why it must not be quoted."""

    value: float
    low: float
    high: float
    note: str = ""  # empty where the data determine it

    @property
    def identified(self) -> bool:
        """Says whether the data determine it."""
        return not self.note


def estimate(value: float, draws: np.ndarray, note: str = "") -> Estimate:
    """Joins a value with the 95% percentiles of its draws [R], widened to hold it; no interval without draws."""
    low, high = np.percentile(draws, PERCENTILES) if len(draws) else (math.nan, math.nan)
    return Estimate(float(value), float(np.minimum(low, value)), float(np.maximum(high, value)), note)


class Lines(NamedTuple):
    """Each model's own line through its points, as the sums that the law is fitted from; M models in rising order."""

    model_params: np.ndarray  # [M]
    points: np.ndarray  # [M] how many
    mean_x: np.ndarray  # [M] of ln X
    mean_y: np.ndarray  # [M] of ln L
    spread: np.ndarray  # [M] sum of (ln X - mean_x)^2
    slope: np.ndarray  # [M]
    first: np.ndarray  # [M] smallest X
    last: np.ndarray  # [M] largest X
    sse: float  # about these lines
    variation: float  # sum of squares about the models' means
    scale: float  # (1 + rho) / (1 - rho)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelSizeLaw:
    """The fitted law of M >= 2 model sizes."""

    lines: Lines
    k_max: Estimate  # slope of an infinitely large model
    n0: Estimate  # parameters at which the slope is half of k_max
    k: np.ndarray  # [M] the law's slopes
    level: np.ndarray  # [M] E
    draws: np.ndarray  # [R, 2 + M] k_max, N0 and levels
    sse: float
    misfit: float  # p-value of the law against free slopes, NaN where it cannot be tested

    def slope_draws(self, model_params: float) -> np.ndarray:
        """Returns [R] k(N) at any N, of every draw."""
        return self.draws[:, 0] * _share(model_params, self.draws[:, 1])

    def slope(self, model_params: float) -> Estimate:
        """Returns k(N) at any N; its interval is that of the law, which takes k(N) to have this form."""
        value = self.k_max.value * _share(model_params, self.n0.value)
        return estimate(value, self.slope_draws(model_params), self.k_max.note if len(self.k) < 3 else "")

    def loss(self, model: int, x: np.ndarray | float) -> np.ndarray:
        """Returns L of a model, given by its number, at X > 0."""
        return np.exp(self.level[model] - self.k[model] * np.log(x))


def fit_model_size(points: Points, *, resamples: int, seed: int) -> ModelSizeLaw | None:
    """Fits k_max, N0 and one level per model by least squares in ln L; None unless two models have two different X.

    Intervals come from so many `resamples`, drawn by `seed`; there are none without.
    """
    lines = own_lines(points)
    models, freedom = len(lines.model_params), float(lines.points.sum() - 2 * len(lines.points))
    if models < 2:
        return None
    k_max, n0 = _search(lines, lines.slope)
    k = k_max * _share(lines.model_params, n0)
    excess = float(lines.spread @ (lines.slope - k) ** 2)
    draws = _draws(lines, k, excess, resamples, np.random.default_rng(seed))
    misfit = math.nan
    if models > 2 and freedom > 0 and lines.sse > 1e-24 * lines.variation:
        ratio = excess / (models - 2) / (lines.sse / freedom * lines.scale)  # an F test against free slopes
        misfit = float(scipy.special.fdtrc(models - 2, max(freedom / lines.scale, 1.0), ratio))
    estimates, level = _estimates(lines, k_max, n0, draws), lines.mean_y + k * lines.mean_x
    return ModelSizeLaw(lines, *estimates, k, level, draws, lines.sse + excess, misfit)


def own_lines(points: Points) -> Lines:
    """Fits each model's own line; models whose points have one X have none, and are not among them."""
    log_x, log_loss, run = np.log(points["x"]), np.log(points["loss"]), points["run"]
    rows, residual = [], np.full_like(log_x, np.nan)
    for size in np.unique(points["model_params"]):
        own = points["model_params"] == size
        if np.ptp(log_x[own]) == 0:
            continue
        means = log_x[own].mean(), log_loss[own].mean()
        u, y = log_x[own] - means[0], log_loss[own] - means[1]
        slope, x = -(u @ y) / (u @ u), points["x"][own]
        residual[own] = y + slope * u
        rows.append((size, own.sum(), *means, u @ u, slope, x.min(), x.max(), y @ y))
    *sums, variation = np.array(rows).reshape(-1, 9).T
    order = [row for row in np.lexsort((log_x, run)) if np.isfinite(residual[row])]
    same, rest = np.diff(run[order]) == 0, residual[order]
    after, before = rest[1:][same], rest[:-1][same]
    squares = (after @ after + before @ before) / 2
    rho = float(np.clip(after @ before / squares, 0.0, HIGHEST_AUTOCORRELATION)) if squares > 0 else 0.0
    return Lines(*sums, sse=float(rest @ rest), variation=float(variation.sum()), scale=(1 + rho) / (1 - rho))


def _share(model_params: Any, n0: Any) -> Any:
    """Returns k(N) / k_max, of arrays broadcast against each other."""
    return 1.0 / (1.0 + n0 / model_params)


def _search(lines: Lines, slopes: np.ndarray) -> tuple[float, float]:
    """Finds k_max and N0 that are nearest to the slopes [M]: the best cell of a grid, then a polish within it."""

    def profile(log_n0: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        share = _share(lines.model_params, np.exp(np.asarray(log_n0))[..., None])
        k_max = share @ (lines.spread * slopes) / (share**2 @ lines.spread)
        return (slopes - k_max[..., None] * share) ** 2 @ lines.spread, k_max

    grid = np.log(np.geomspace(lines.model_params[0] / MARGIN, lines.model_params[-1] * MARGIN, CELLS + 1))
    best = int(np.argmin(profile(grid)[0]))
    bracket = grid[max(best - 1, 0)], grid[min(best + 1, CELLS)]
    polished: Any = scipy.optimize.minimize_scalar(
        lambda at: float(profile(at)[0]), bounds=bracket, method="bounded", options={"xatol": 1e-12}
    )
    log_n0 = min(float(polished.x), float(grid[best]), key=lambda at: float(profile(at)[0]))
    return float(profile(log_n0)[1]), math.exp(log_n0)


def _draws(lines: Lines, k: np.ndarray, excess: float, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Returns [R, 2 + M] k_max, N0 and levels of fits to lines that are drawn around the law's."""
    freedom = float(lines.points.sum() - len(k) - 2)
    if freedom <= 0 or not resamples:
        return np.empty((0, 2 + len(k)))
    effective = max(freedom / lines.scale, 1.0)
    variance = (lines.sse + excess) / freedom * lines.scale
    sd = np.sqrt(variance * effective / rng.chisquare(effective, resamples))[:, None]
    slopes = k + sd * rng.normal(size=(resamples, len(k))) / np.sqrt(lines.spread)
    means = lines.mean_y + sd * rng.normal(size=slopes.shape) / np.sqrt(lines.points)
    found = np.array([_search(lines, row) for row in slopes])
    levels = means + found[:, :1] * _share(lines.model_params, found[:, 1:]) * lines.mean_x
    return np.column_stack([found, levels])


def _estimates(lines: Lines, k_max: float, n0: float, draws: np.ndarray) -> tuple[Estimate, Estimate]:
    """Returns k_max and N0 with intervals, and why one of them is not identified."""
    sizes, k, ends = lines.model_params, estimate(k_max, draws[:, 0]), estimate(n0, draws[:, 1])
    open_low, open_high = ends.low < sizes[0] / MARGIN * (1 + 1e-6), ends.high > sizes[-1] * MARGIN * (1 - 1e-6)
    neither = {
        "two model sizes determine two parameters and leave nothing to test them; 3 are needed": len(sizes) < 3,
        "too few points for an interval": not len(draws),
        "the data say nothing about how the slope changes with N: any N0 fits as well": open_low and open_high,
        "the slope does not level off within these model sizes: any larger N0 fits as well": open_high,
        f"N0 is more than {FAR:g} times larger than these models: it is an extrapolation": n0 > sizes[-1] * FAR,
    }
    no_n0 = neither | {
        "the slope does not change with N within these model sizes: any smaller N0 fits as well": open_low,
        f"N0 is more than {FAR:g} times smaller than these models: they hardly differ in slope": n0 < sizes[0] / FAR,
    }
    notes = [next((note for note, holds in found.items() if holds), "") for found in (neither, no_n0)]
    k_high, high = (math.inf, math.inf) if open_high else (k.high, ends.high)
    return Estimate(k_max, k.low, k_high, notes[0]), Estimate(n0, 0.0 if open_low else ends.low, high, notes[1])


def crossover(k1: Any, e1: Any, k2: Any, e2: Any) -> np.ndarray:
    """Returns X at which two lines ln L = -k ln X + E meet, exp((E2 - E1) / (k2 - k1)); NaN when parallel."""
    with np.errstate(all="ignore"):  # a crossing may lie at 0 or beyond every number
        return np.exp(np.subtract(e2, e1) / np.where(np.equal(k1, k2), np.nan, np.subtract(k2, k1)))


def crossovers(law: ModelSizeLaw) -> list[dict[str, Any]]:
    """Returns the crossing of every pair of models; its interval is 0 to infinity if slopes are not told apart."""
    lines, rows = law.lines, []
    told_apart = law.n0.low > 0 and (law.k_max.low > 0 or law.k_max.high < 0)
    for i, j in itertools.combinations(range(len(law.k)), 2):
        x = float(crossover(law.k[i], law.level[i], law.k[j], law.level[j]))
        lower, upper = ((law.slope_draws(lines.model_params[m]), law.draws[:, 2 + m]) for m in (i, j))
        found = Estimate(x, 0.0, math.inf, "the slopes are not told apart")
        if told_apart or not len(law.draws):
            found = estimate(x, crossover(*lower, *upper))
        inside = bool(max(lines.first[[i, j]]) <= x <= min(lines.last[[i, j]]))  # the data of both
        sizes = {"smaller": float(lines.model_params[i]), "larger": float(lines.model_params[j])}
        better = sizes["larger" if law.k[j] > law.k[i] else "smaller"]
        rows.append(sizes | {"x": found, "inside": inside, "better_after": better})
    return rows


def holdouts(points: Points, *, share: float, anchors: int, resamples: int, seed: int) -> list[dict[str, Any]]:
    """Scores how well what was not fitted is predicted: the later evaluations of each model, and the largest model.

    The law of the first `share` of each run's evaluations predicts the others. That of all smaller models, of which
    there must be two, predicts the slope `k` of the largest; its level is the mean of ln L + k ln X over its own first
    `anchors` evaluations, and nothing else of it is used.
    """
    x, size_of, run = points["x"], points["model_params"], points["run"]
    largest, first, known = size_of == size_of.max(), np.zeros(len(x), bool), np.zeros(len(x), bool)
    for rows in (_in_order(x, run == name) for name in np.unique(run)):
        first[rows[: math.ceil(share * len(rows))]] = True
    scores, law = [], fit_model_size(part(points, first), resamples=0, seed=seed)
    for size, *line in zip(law.lines.model_params, law.level, law.k, strict=True) if law else ():
        own = size_of == size
        if (own & ~first).any():
            scores.append({"kind": "later evaluations"} | _score(points, line, own & first, own & ~first))
    law = fit_model_size(part(points, ~largest), resamples=resamples, seed=seed)
    known[_in_order(x, largest)[:anchors]] = True
    if law and (largest & ~known).any() and np.ptp(x[largest]) > 0:
        k = law.slope(float(size_of.max()))
        level = float(np.mean(np.log(points["loss"][known]) + k.value * np.log(x[known])))
        scores.append({"kind": "larger model"} | _score(points, (level, k.value), known, largest & ~known) | {"k": k})
    return scores


def part(points: Points, chosen: np.ndarray) -> Points:
    """Returns the points that are chosen, by a mask or by their numbers."""
    return {name: column[chosen] for name, column in points.items()}


def _in_order(x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the numbers of the chosen points, in order of X."""
    return np.flatnonzero(chosen)[np.argsort(x[chosen], kind="stable")]


def _score(points: Points, line: Sequence[float], known: np.ndarray, rest: np.ndarray) -> dict[str, Any]:
    """Returns mean absolute errors at the `rest` [P] of a model, of its line (E, k) and of its last `known` loss."""
    x, loss, own = points["x"], points["loss"], known | rest
    predicted = np.exp(line[0] - line[1] * np.log(x[rest]))
    errors = {"loss_error": predicted - loss[rest], "unchanged_error": loss[known][np.argmax(x[known])] - loss[rest]}
    slope = -float(np.polyfit(np.log(x[own]), np.log(loss[own]), 1)[0])
    means = {name: float(np.mean(np.abs(error))) for name, error in errors.items()}
    counts = {"model_params": float(points["model_params"][rest][0]), "fitted": int(known.sum())}
    return counts | {"scored": int(rest.sum())} | means | {"k": float(line[1]), "own_k": slope}
