"""How far switch points and n*(C) move when the experiment is repeated on paper.

`noise` draws new noise around each fitted curve, and moves it as the seeds differ; `runs` draws the seeds of each
configuration again, with replacement; `blocks` draws runs of neighbouring residuals again (see `replicates`). All
curves of all replicates are fitted in one batch. `benchmarks/frontier_coverage.py` measures what the intervals hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, prepare
from isocompute_jax.fit.curves.fitting import solve
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier.envelope import aligned
from isocompute_jax.fit.frontier.replicates import FittedPoints, PointRule, draw
from isocompute_jax.fit.intervals import PERCENTILES, percentile_interval
from isocompute_jax.fit.results import Configuration, CurveFit, Switch

Resampling = Literal["auto", "noise", "runs", "blocks", "none"]

GRID_POINTS = 1024
"""Computes at which replicate frontiers are compared; a switch is found between two of them by interpolation."""

CLEAR = 6.0
"""A curve whose rise is so many times its standard error is fitted again from where it was found alone: 99 in
100 of such replicates have their minimum there, while those of a flat curve may have it anywhere."""


@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """R replicates of the frontier of K configurations.

    Attributes:
      method: `noise`, `runs` or `blocks`.
      at: [R, K, Q + 2] replicate curves as (low, high, *theta).
      compute: [G] grid, even in log C.
      leader: [R, G] number of the best configuration; -1 where none has data.
      lead: [R, K, G] reward of each configuration; -inf outside its window.
      seeds_differ: whether seeds differ by more than their noise; None where the method does not ask.
    """

    method: str
    at: np.ndarray
    compute: np.ndarray
    leader: np.ndarray
    lead: np.ndarray
    seeds_differ: bool | None = None

    def tells(self, fit: CurveFit, index: int) -> bool:
        """Whether the replicates of a configuration say anything: a curve through all its points has no residuals."""
        return (self.method == "runs" or fit.measured) and bool(np.isfinite(self.at[:, index]).all())


def bootstrap(
    curves: Sequence[Curve],
    fits: Sequence[CurveFit],
    *,
    use: Sequence[np.ndarray],
    errors: Sequence[np.ndarray] | None,
    keep: PointRule,
    options: FitOptions,
    method: Resampling,
    replicates: int,
    seed: int,
) -> Bootstrap | None:
    """Repeats the analysis of mean curves `replicates` times; None for method `none` or when nothing was fitted.

    Args:
      curves: K mean curves.
      fits: their fits; for `noise` with what they know of it (`FitOptions.intervals`).
      use: [K] of [E_k] bool, the points that were fitted.
      errors: [K] of [E_k] standard errors that weigh the points; None for equal weights.
      keep: the rule by which the points of drawn seeds count. The other methods keep the points that were fitted: to
        pick high points a second time would bias the replicates upwards.
      options: of the fits.
      method: see the module.
      replicates: R.
      seed: of the random numbers.
    """
    fits = aligned(fits)
    fitted = [k for k, fit in enumerate(fits) if fit.status != "failed"]
    if method == "none" or not fitted or replicates < 1:
        return None
    method = "noise" if method == "auto" else method
    some = [
        FittedPoints(curves[k], fits[k], use[k], np.ones(len(use[k])) if errors is None else errors[k]) for k in fitted
    ]
    drawn = draw(some, method, replicates, keep, np.random.default_rng(seed))
    at = np.full((replicates, len(fits), len(fits[fitted[0]].params)), np.nan)
    for near in (True, False):
        chosen = [i for i, k in enumerate(fitted) if (method != "runs" and _clear(fits[k])) == near]
        if chosen:
            own = [some[i] for i in chosen], [drawn.reward[i] for i in chosen], [drawn.weight[i] for i in chosen]
            at[:, [fitted[i] for i in chosen]] = _refitted(*own, near=near, options=options)
    ends = np.array([fits[k].window for k in fitted])
    grid = np.geomspace(ends[:, 0].min(), ends[:, 1].max(), GRID_POINTS)
    lead = np.stack([_rewards(fits[k], at[:, k], grid) for k in range(len(fits))], axis=1)
    leader = np.where(np.isfinite(lead).any(axis=1), lead.argmax(axis=1), -1)
    return Bootstrap(method, at, grid, leader, lead, seeds_differ=drawn.seeds_differ)


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


@dataclasses.dataclass(frozen=True)
class SwitchInterval:
    """Where the replicates have a switch: 95% interval of its compute, and the share of replicates that have it."""

    interval95: tuple[float, float]
    share: float


def switch_interval(found: Bootstrap, switch: Switch) -> SwitchInterval:
    """The interval of one switch of the frontier; of several like it in a replicate the nearest in log C counts.

    NaN ends when fewer than a tenth of the replicates have it, or where they do not hold it (`percentile_interval`).
    """
    places = []
    for leader, lead in zip(found.leader, found.lead, strict=True):
        at = np.flatnonzero((leader[:-1] == switch.from_index) & (leader[1:] == switch.to_index))
        if len(at):
            computes = [_between(found.compute, lead, int(i), switch) for i in at]
            places.append(min(computes, key=lambda compute: abs(math.log(compute / switch.compute))))
    share = len(places) / len(found.leader)
    if share < 0.1:
        return SwitchInterval((math.nan, math.nan), share)
    step = float(found.compute[1] / found.compute[0]) - 1.0  # of the grid: a replicate's switch is known to less
    return SwitchInterval(percentile_interval(np.array(places), switch.compute, rounding=step), share)


def _between(grid: np.ndarray, lead: np.ndarray, i: int, switch: Switch) -> float:
    """The crossing between grid points i and i + 1, by linear interpolation in log C; half-way at a window's end."""
    gap = lead[switch.to_index, i : i + 2] - lead[switch.from_index, i : i + 2]
    share = 0.5 if not np.isfinite(gap).all() or gap[1] == gap[0] else -gap[0] / (gap[1] - gap[0])
    return float(grid[i] * (grid[i + 1] / grid[i]) ** share)


def group_size_interval(
    found: Bootstrap, configurations: Sequence[Configuration], compute: float
) -> tuple[tuple[int, int], np.ndarray]:
    """95% interval of n* at a compute, and the numbers of the replicates' leaders there [R'], those that have one."""
    leaders = leaders_at(found, compute)
    leaders = leaders[leaders >= 0]
    sizes = np.array([configurations[i].group_size for i in leaders])
    low, high = np.percentile(sizes, PERCENTILES, method="nearest").tolist()
    return (low, high), leaders


def leaders_at(found: Bootstrap, compute: float) -> np.ndarray:
    """[R] number of each replicate's best configuration at the grid's point nearest to `compute`; -1 for none."""
    return found.leader[:, int(np.argmin(np.abs(np.log(found.compute / compute))))]
