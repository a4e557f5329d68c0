"""How far switch points and n*(C) move when the experiment is repeated on paper.

`noise` draws new noise around each fitted curve, and moves it as the seeds differ; `runs` draws the seeds of each
configuration again, with replacement; `blocks` draws runs of neighbouring residuals again. All curves of all replicates
are fitted in one batch. `benchmarks/frontier_coverage.py` measures what the intervals hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, prepare
from isocompute_jax.fit.curves.fitting import solve
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.seed_noise import MOVES, SeedDifferences, differences, seed_noise
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.curves.uncertainty import NoiseModel, alike
from isocompute_jax.fit.frontier.envelope import aligned
from isocompute_jax.fit.results import Configuration, CurveFit

Resampling = Literal["auto", "noise", "runs", "blocks", "none"]

PointRule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(compute [E], reward [E]) -> [E] bool, the points of a replicate that count."""

GRID_POINTS = 1024
"""Computes at which replicate frontiers are compared; a switch is found between two of them by interpolation."""

CLEAR = 6.0
"""A curve whose rise is so many times its standard error is fitted again from where it was found alone: 99 in
100 of such replicates have their minimum there, while those of a flat curve may have it anywhere."""

PERCENTILES = (2.5, 97.5)
"""Ends of a 95% interval by draws."""
ROUNDING = 1e-9
"""Of an end of an interval: draws that are all alike differ by so much from their mean."""


class FittedPoints(NamedTuple):
    """A configuration's curve as it was fitted."""

    curve: Curve  # its evaluations
    fit: CurveFit
    use: np.ndarray  # [E] bool, those that were fitted
    errors: np.ndarray  # [E] standard errors that weigh them; all 1 for equal weights

    @property
    def fitted(self) -> np.ndarray:
        """[E] reward of the fit; the point's own where the form has none, as the power law at C = 0."""
        found = self.fit.reward(self.curve.compute)
        return np.where(np.isfinite(found), found, self.curve.reward)

    @property
    def noise(self) -> NoiseModel:
        """Of the points, as the fit knows it; ValueError where it was made without intervals."""
        if self.fit.search is None or self.fit.search.noise is None:
            raise ValueError("noise can be drawn around fits with intervals only")
        return self.fit.search.noise

    @property
    def size(self) -> np.ndarray:
        """[E] standard deviations relative to a point of weight 1, the fitted ones having a mean weight of 1."""
        return self.errors * math.sqrt(float(np.mean(self.errors[self.use] ** -2.0)))


@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """R replicates of the frontier of K configurations."""

    method: str  # `noise`, `runs` or `blocks`
    configurations: tuple[Configuration, ...]  # [K]
    at: np.ndarray  # [R, K, Q + 2] replicate curves as (low, high, *theta)
    compute: np.ndarray  # [G] grid, even in log C
    leader: np.ndarray  # [R, G] number of the best configuration; -1 where none has data
    lead: np.ndarray  # [R, K, G] reward of each configuration; -inf outside its window
    seeds_differ: bool | None = None  # by more than their noise; None where the method does not ask, or there is one

    @property
    def replicates(self) -> int:
        """R."""
        return len(self.leader)

    def written(self) -> dict[str, Any]:
        """See `plain_data`."""
        return {"method": self.method, "replicates": self.replicates, "seeds_differ": self.seeds_differ}

    def tells(self, fit: CurveFit, index: int) -> bool:
        """Whether the replicates of a configuration say anything: a curve through all its points has no residuals."""
        return (self.method == "runs" or fit.measured) and bool(np.isfinite(self.at[:, index]).all())


def bootstrap(
    points: Sequence[FittedPoints],
    *,
    keep: PointRule,
    options: FitOptions,
    method: Resampling,
    replicates: int,
    seed: int,
) -> Bootstrap | None:
    """Repeats the analysis of K mean curves `replicates` times; None for method `none` or when nothing was fitted.

    Args:
      points: [K] the curves as they were fitted; for `noise` with what the fits know of it (`FitOptions.intervals`).
      keep: the rule by which the points of drawn seeds count. The other methods keep the points that were fitted: to
        pick high points a second time would bias the replicates upwards.
      options: of the fits.
      method: see the module.
      replicates: R.
      seed: of the random numbers.
    """
    fits = aligned([each.fit for each in points])
    points = [each._replace(fit=fit) for each, fit in zip(points, fits, strict=True)]
    fitted = [k for k, fit in enumerate(fits) if fit.status != "failed"]
    if method == "none" or not fitted or replicates < 1:
        return None
    method = "noise" if method == "auto" else method
    some = [points[k] for k in fitted]
    reward, weight, differ = draw(some, method, replicates, keep, np.random.default_rng(seed))
    at = np.full((replicates, len(fits), len(fits[fitted[0]].params)), np.nan)
    for near in (True, False):
        chosen = [i for i, k in enumerate(fitted) if (method != "runs" and _clear(fits[k])) == near]
        if chosen:
            own = [some[i] for i in chosen], [reward[i] for i in chosen], [weight[i] for i in chosen]
            at[:, [fitted[i] for i in chosen]] = _refitted(*own, near=near, options=options)
    ends = np.array([fits[k].window for k in fitted])
    grid = np.geomspace(ends[:, 0].min(), ends[:, 1].max(), GRID_POINTS)
    lead = np.stack([_rewards(fits[k], at[:, k], grid) for k in range(len(fits))], axis=1)
    leader = np.where(np.isfinite(lead).any(axis=1), lead.argmax(axis=1), -1)
    configurations = tuple(each.curve.configuration for each in points)
    return Bootstrap(method, configurations, at, grid, leader, lead, seeds_differ=differ)


def draw(
    points: Sequence[FittedPoints], method: str, count: int, keep: PointRule, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray], bool | None]:
    """`count` replicates of K curves by `noise`, `runs` or `blocks`; `keep` is the rule for the points of drawn seeds.

    Returns:
      Rewards [K] of [R, E], their weights [K] of [R, E], and whether seeds were found to differ by more than their
      noise; None where nothing asked.
    """
    if method == "runs":
        pairs = [seeds_again(each, count, keep, rng) for each in points]
        return [reward for reward, _ in pairs], [weight for _, weight in pairs], None
    weight = [np.tile(each.use * each.errors**-2.0, (count, 1)) for each in points]
    if method == "blocks":
        return [blocks_again(each, count, rng) for each in points], weight, None
    reward, differ = noise_anew(points, count, rng)
    return reward, weight, differ


def noise_anew(
    points: Sequence[FittedPoints], count: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], bool | None]:
    """[K] of [R, E] rewards: fitted curves with new AR(1) noise, moved as seeds differ; and whether they do.

    Noise and differences are those of all seeds where there are several (see `seed_noise`), else those of the fit;
    correlations are taken as alike (see `uncertainty.alike`).

    Raises:
      ValueError: a fit was made without intervals, so nothing is known of its noise.
    """
    noise = [seed_noise(each.curve, each.fit, use=each.use, size=each.size) for each in points]
    seeds = [one for one in noise if one is not None]
    apart = differences(seeds)
    models = alike([one.model if one else each.noise for each, one in zip(points, noise, strict=True)])
    rewards = []
    for each, model in zip(points, models, strict=True):
        drawn = np.tile(each.fitted, (count, 1)) if apart is None else _moved(each, apart, count, rng)
        drawn[:, each.use] += model.draw(count, int(np.count_nonzero(each.use)), rng) * each.size[each.use]
        rewards.append(drawn)
    return rewards, apart is not None if seeds else None


def _moved(points: FittedPoints, apart: SeedDifferences, count: int, rng: np.random.Generator) -> np.ndarray:
    """[R, E] rewards without noise: means of seeds that differ from the fit."""
    curve, fit = points.curve, points.fit
    assert fit.search is not None
    form = FORMS[fit.form]
    at = np.tile(fit.search.at, (count, len(curve.seeds), 1))
    at[..., MOVES] += apart.draw(count, len(curve.seeds), rng)
    with np.errstate(invalid="ignore"):
        rewards = form.curve(curve.compute, **form.parameters(at[:, :, None], fit.search.reference))
    mean = np.sum(np.where(np.isfinite(curve.per_seed), rewards, 0.0), axis=1) / curve.count
    return np.where(np.isfinite(mean), mean, curve.reward)


def seeds_again(
    points: FittedPoints, count: int, keep: PointRule, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """[R, E] rewards when seeds are drawn with replacement, and their weights: how often each point was drawn."""
    curve = points.curve
    drawn = rng.integers(len(curve.seeds), size=(count, len(curve.seeds)))
    picked = curve.per_seed[drawn]
    share = np.isfinite(picked).sum(axis=1) / curve.count
    rewards = np.nansum(picked, axis=1) / np.maximum(share * curve.count, 1)
    rewards = np.where(share > 0, rewards, curve.reward)
    counting = np.array([_counting(keep, curve, *row) for row in zip(rewards, share > 0, strict=True)])
    return rewards, points.errors**-2.0 * share * counting


def _counting(keep: PointRule, curve: Curve, reward: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """[E] bool: the points of the seeds that were drawn, as far as they count."""
    found = np.zeros(len(reward), bool)
    for own in curve.series:
        rows = own & drawn
        found[rows] = keep(curve.compute[rows], reward[rows])
    return found


def blocks_again(points: FittedPoints, count: int, rng: np.random.Generator) -> np.ndarray:
    """[R, E] rewards when runs of neighbouring residuals are drawn again, scaled up for what the fit used up."""
    evaluations, fitted = len(points.use), points.fitted
    freedom = max(evaluations - len(points.fit.params), 1)
    residuals = (points.curve.reward - fitted) * math.sqrt(evaluations / freedom)
    residuals -= residuals.mean()
    length = block_length(evaluations)
    starts = rng.integers(evaluations, size=(count, -(-evaluations // length)))
    index = (starts[:, :, None] + np.arange(length)) % evaluations  # blocks go round: every point is drawn alike
    return fitted + residuals[index.reshape(count, -1)[:, :evaluations]]


def block_length(points: int) -> int:
    """Length of a block, about points^(1/3) (Hall, Horowitz and Jing 1995) and at least 2 where there are 8 points."""
    return max(1, round(points ** (1 / 3)))


def _clear(fit: CurveFit) -> bool:
    """Whether the data say that the curve rises, so that what is drawn around the fit has its minimum near it."""
    if fit.search is None:
        return False
    low, high = fit.search.at[:2]
    variance = np.array([-1.0, 1.0]) @ fit.search.covariance[:2, :2] @ np.array([-1.0, 1.0])
    return bool(high - low > CLEAR * math.sqrt(max(variance, 0.0)))


def _refitted(
    points: Sequence[FittedPoints],
    reward: Sequence[np.ndarray],
    weight: Sequence[np.ndarray],
    *,
    near: bool,
    options: FitOptions,
) -> np.ndarray:
    """[R, K, Q + 2] fits of replicates [K] of [R, E], from the fits around which they were drawn or from a grid."""
    count = len(reward[0])
    compute = [each.curve.compute for each in points for _ in range(count)]
    prepared = prepare(
        compute, [row for each in reward for row in each], [row for each in weight for row in each], options=options
    )
    starts = None
    if near:
        theta = np.stack([each.fit.search.at[2:] for each in points if each.fit.search is not None])
        starts = np.repeat(theta, count, axis=0)[:, None]
    _, found = solve(prepared, options, starts=starts)
    return uncertainty.coordinates(found).reshape(len(points), count, -1).swapaxes(0, 1)


def _rewards(fit: CurveFit, at: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """[R, G] reward of one configuration's replicate curves inside its window, -inf outside."""
    rewards = np.full((len(at), len(grid)), -np.inf)
    if fit.search is not None:
        inside = (grid >= fit.window[0]) & (grid <= fit.window[1])
        rewards[:, inside] = replicate_rewards(fit, at, grid[inside])
    return rewards


def replicate_rewards(fit: CurveFit, at: np.ndarray, compute: np.ndarray) -> np.ndarray:
    """[R, E] reward at `compute` [E] of the replicate curves `at` [R, Q + 2] of one configuration."""
    form, reference = FORMS[fit.form], fit.search.reference if fit.search else math.nan
    return form.curve(compute, **form.parameters(at[:, None], reference))


def leaders_among(found: Bootstrap, fits: Sequence[CurveFit], at: Mapping[int, float]) -> np.ndarray:
    """[R] number of the highest replicate curve, each read `at` its own compute (by number), in its data or not."""
    rewards = [replicate_rewards(fits[i], found.at[:, i], np.array([compute]))[:, 0] for i, compute in at.items()]
    return np.array(list(at))[np.stack(rewards).argmax(axis=0)]


def parameter_intervals(found: Bootstrap, fit: CurveFit, index: int) -> dict[str, tuple[float, float]]:
    """parameter -> `percentile_interval` over the replicates of configuration `index`; empty for a failed fit."""
    if fit.search is None:
        return {}
    form = FORMS[fit.form]
    values = form.parameters(found.at[:, index], fit.search.reference)
    return {name: percentile_interval(values[name], fit.params[name]) for name in form.params}


def group_size_interval(found: Bootstrap, compute: float) -> tuple[tuple[int, int], np.ndarray]:
    """95% interval of n* at a compute, and the numbers of the replicates' leaders there [R'], those that have one."""
    leaders = leaders_at(found, compute)
    leaders = leaders[leaders >= 0]
    sizes = np.array([found.configurations[i].group_size for i in leaders])
    low, high = np.percentile(sizes, PERCENTILES, method="nearest").tolist()
    return (low, high), leaders


def leaders_at(found: Bootstrap, compute: float) -> np.ndarray:
    """[R] number of each replicate's best configuration at the grid's point nearest to `compute`; -1 for none."""
    return found.leader[:, int(np.argmin(np.abs(np.log(found.compute / compute))))]


def percentile_interval(
    draws: np.ndarray, estimate: float, *, rounding: float = ROUNDING, method: Literal["linear", "nearest"] = "linear"
) -> tuple[float, float]:
    """The interval of an estimate by draws of it [R], of which NaN ones do not count.

    NaN ends where it does not hold the estimate: draws that lie to one side of it are biased by more than they scatter,
    and an interval of them says nothing of what was estimated. NaN ends too without draws.
    """
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return math.nan, math.nan
    low, high = np.percentile(draws, PERCENTILES, method=method).tolist()
    return holding(low, high, estimate, rounding=rounding)


def whole_or_none(ends: tuple[int, int] | None, estimate: float) -> tuple[int, int] | None:
    """The interval of a whole number such as n; None where there is none, or it does not hold the estimate."""
    return ends if ends is not None and ends[0] <= estimate <= ends[1] else None


def holding(low: float, high: float, estimate: float, *, rounding: float = ROUNDING) -> tuple[float, float]:
    """The ends of an interval where it holds the estimate, up to the rounding of both, a share of them; else NaN."""
    slack = rounding * max(abs(low), abs(high))
    if not low - slack <= estimate <= high + slack:
        return math.nan, math.nan
    return float(min(low, estimate)), float(max(high, estimate))
