"""Rewards of replicate experiments: noise drawn anew, seeds drawn again, or blocks of residuals drawn again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.curves.seed_noise import MOVES, SeedDifferences, differences, seed_noise
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.curves.uncertainty import NoiseModel, alike
from isocompute_jax.fit.results import CurveFit

PointRule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(compute [E], reward [E]) -> [E] bool, the points of a replicate that count."""


class FittedPoints(NamedTuple):
    """A configuration's curve as it was fitted.

    Attributes:
      curve: its evaluations.
      fit: not a failed one.
      use: [E] bool, those that were fitted.
      errors: [E] standard errors that weigh them; all 1 for equal weights.
    """

    curve: Curve
    fit: CurveFit
    use: np.ndarray
    errors: np.ndarray

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


class Replicates(NamedTuple):
    """R replicates of K curves.

    Attributes:
      reward: [K] of [R, E].
      weight: [K] of [R, E].
      seeds_differ: whether seeds were found to differ by more than their noise; None where nothing asked.
    """

    reward: list[np.ndarray]
    weight: list[np.ndarray]
    seeds_differ: bool | None = None


def draw(
    points: Sequence[FittedPoints], method: str, count: int, keep: PointRule, rng: np.random.Generator
) -> Replicates:
    """`count` replicates by `noise`, `runs` or `blocks`; `keep` is the rule for the points of drawn seeds."""
    if method == "runs":
        pairs = [seeds_again(each, count, keep, rng) for each in points]
        return Replicates([reward for reward, _ in pairs], [weight for _, weight in pairs])
    weight = [np.tile(each.use * each.errors**-2.0, (count, 1)) for each in points]
    if method == "blocks":
        return Replicates([blocks_again(each, count, rng) for each in points], weight)
    reward, differ = noise_anew(points, count, rng)
    return Replicates(reward, weight, differ)


def noise_anew(
    points: Sequence[FittedPoints], count: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], bool | None]:
    """[K] of [R, E] rewards: fitted curves with new AR(1) noise, moved as seeds differ; and whether they do.

    Noise and differences are those of all seeds where there are several (see `seed_noise`), else those of the fit;
    correlations are taken as alike (see `noise_model.alike`).

    Raises:
      ValueError: a fit was made without intervals, so nothing is known of its noise.
    """
    told = [seed_noise(each.curve, each.fit, use=each.use, size=each.size) for each in points]
    seeds = [one for one in told if one is not None]
    apart = differences(seeds)
    models = alike([one.model if one else each.noise for each, one in zip(points, told, strict=True)])
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
