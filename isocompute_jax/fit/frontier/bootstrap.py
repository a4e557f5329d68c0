"""How far switch points and n*(C) move when the experiment is repeated on paper.

`runs` draws the seeds of each configuration again, with replacement; `blocks` keeps each fitted curve and draws runs of
neighbouring residuals again (evaluations are autocorrelated), scaled up for the degrees of freedom that the fit used.
All curves of all replicates are fitted in one batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import solve
from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.padding import prepare
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier.envelope import aligned
from isocompute_jax.fit.results import CurveFit, Switch

Resampling = Literal["auto", "runs", "blocks", "none"]

ENOUGH_SEEDS = 5
"""`auto` draws seeds again where every configuration has so many; three seeds have only ten different samples."""

GRID_POINTS = 1024
"""Computes at which replicate frontiers are compared; a switch is found between two of them by interpolation."""

PERCENTILES = (2.5, 97.5)

PointRule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(compute [E], reward [E]) -> [E] bool, the points of a replicate that count."""


@dataclasses.dataclass(frozen=True, eq=False)
class Bootstrap:
    """R replicates of the frontier of K configurations.

    Attributes:
      method: `runs` or `blocks`.
      at: [R, K, Q + 2] replicate curves as (low, high, *theta).
      compute: [G] grid, even in log C.
      leader: [R, G] number of the best configuration; -1 where none has data.
      lead: [R, K, G] reward of each configuration; -inf outside its window.
    """

    method: str
    at: np.ndarray
    compute: np.ndarray
    leader: np.ndarray
    lead: np.ndarray

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
      fits: their fits.
      use: [K] of [E_k] bool, the points that were fitted.
      errors: [K] of [E_k] standard errors that weigh the points; None for equal weights.
      keep: the rule by which the points of drawn seeds count. Drawn residuals keep the points that were fitted: to pick
        high points a second time would bias the replicates upwards.
      options: of the fits.
      method: see the module; `auto` decides by the number of seeds.
      replicates: R.
      seed: of the random numbers.
    """
    fits = aligned(fits)
    fitted = [k for k, fit in enumerate(fits) if fit.status != "failed"]
    if method == "none" or not fitted or replicates < 1:
        return None
    if method == "auto":
        method = "runs" if min(len(curves[k].seeds) for k in fitted) >= ENOUGH_SEEDS else "blocks"
    rng = np.random.default_rng(seed)
    drawn = [_replicates(curves[k], fits[k], method, replicates, rng) for k in fitted]
    flat = [(k, row, share) for k, both in zip(fitted, drawn, strict=True) for row, share in zip(*both, strict=True)]
    base = [np.ones(len(c.compute)) if errors is None else errors[k] ** -2.0 for k, c in enumerate(curves)]
    weights = [
        base[k] * share * (_counting(keep, curves[k], row, share > 0) if method == "runs" else use[k])
        for k, row, share in flat
    ]
    compute = [curves[k].compute for k, _, _ in flat]
    prepared = prepare(compute, [row for _, row, _ in flat], weights, options=options)
    _, found = solve(prepared, options)
    at = np.full((replicates, len(fits), found.theta.shape[1] + 2), np.nan)
    at[:, fitted] = uncertainty.coordinates(found).reshape(len(fitted), replicates, -1).swapaxes(0, 1)
    ends = np.array([fits[k].window for k in fitted])
    grid = np.geomspace(ends[:, 0].min(), ends[:, 1].max(), GRID_POINTS)
    lead = np.stack([_rewards(fits[k], at[:, k], grid) for k in range(len(fits))], axis=1)
    leader = np.where(np.isfinite(lead).any(axis=1), lead.argmax(axis=1), -1)
    return Bootstrap(method, at, grid, leader, lead)


def _counting(keep: PointRule, curve: Curve, reward: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """[E] bool: the points of the seeds that were drawn, as far as they count."""
    found = np.zeros(len(reward), bool)
    for own in curve.series:
        rows = own & drawn
        found[rows] = keep(curve.compute[rows], reward[rows])
    return found


def _replicates(
    curve: Curve, fit: CurveFit, method: str, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """[R, E] rewards of a configuration in each replicate, and how often each point was drawn, relative to its data."""
    if method == "runs":
        drawn = rng.integers(len(curve.seeds), size=(count, len(curve.seeds)))
        picked = curve.per_seed[drawn]
        share = np.isfinite(picked).sum(axis=1) / curve.count
        rewards = np.nansum(picked, axis=1) / np.maximum(share * curve.count, 1)
        return np.where(share > 0, rewards, curve.reward), share
    points = len(curve.compute)
    fitted = fit.reward(curve.compute)
    fitted = np.where(np.isfinite(fitted), fitted, curve.reward)
    freedom = max(points - len(fit.params), 1)
    residuals = (curve.reward - fitted) * math.sqrt(points / freedom)
    residuals -= residuals.mean()
    length = block_length(points)
    starts = rng.integers(points, size=(count, -(-points // length)))
    index = (starts[:, :, None] + np.arange(length)) % points  # blocks go round, so that every point is drawn alike
    rewards = fitted + residuals[index.reshape(count, -1)[:, :points]]
    return rewards, np.ones_like(rewards)


def block_length(points: int) -> int:
    """Length of a block, about points^(1/3) (Hall, Horowitz and Jing 1995) and at least 2 where there are 8 points."""
    return max(1, round(points ** (1 / 3)))


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


def leaders_among(found: Bootstrap, fits: Sequence[CurveFit], compute: float, members: Sequence[int]) -> np.ndarray:
    """[R] number of the highest replicate curve at `compute` among `members`, inside their data or not."""
    at = np.array([compute])
    rewards = np.stack([replicate_rewards(fits[i], found.at[:, i], at)[:, 0] for i in members])
    return np.asarray(members)[rewards.argmax(axis=0)]


def parameter_intervals(found: Bootstrap, fit: CurveFit, index: int) -> dict[str, tuple[float, float]]:
    """parameter -> 95% percentile interval over the replicates of configuration `index`; empty for a failed fit."""
    if fit.search is None:
        return {}
    form = FORMS[fit.form]
    values = form.parameters(found.at[:, index], fit.search.reference)
    ends = {name: np.percentile(values[name], PERCENTILES) for name in form.params}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


@dataclasses.dataclass(frozen=True)
class SwitchInterval:
    """Where the replicates have a switch: 95% interval of its compute, and the share of replicates that have it."""

    interval95: tuple[float, float]
    share: float


def switch_interval(found: Bootstrap, switch: Switch) -> SwitchInterval:
    """The interval of one switch of the frontier; of several like it in a replicate the nearest in log C counts.

    NaN ends when fewer than a tenth of the replicates have it.
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
    low, high = np.percentile(places, PERCENTILES)
    return SwitchInterval((float(low), float(high)), share)


def _between(grid: np.ndarray, lead: np.ndarray, i: int, switch: Switch) -> float:
    """The crossing between grid points i and i + 1, by linear interpolation in log C; half-way at a window's end."""
    gap = lead[switch.to_index, i : i + 2] - lead[switch.from_index, i : i + 2]
    share = 0.5 if not np.isfinite(gap).all() or gap[1] == gap[0] else -gap[0] / (gap[1] - gap[0])
    return float(grid[i] * (grid[i + 1] / grid[i]) ** share)


def leaders_at(found: Bootstrap, compute: float) -> np.ndarray:
    """[R] number of each replicate's best configuration at the grid's point nearest to `compute`; -1 for none."""
    return found.leader[:, int(np.argmin(np.abs(np.log(found.compute / compute))))]
