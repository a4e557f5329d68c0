"""Which configuration is best where the data end: draws of all curves together, averaged over forms.

Each curve's posterior (`curves.posterior`) says what its own points say. Two things are shared by a sweep. Neighbours
in n are alike: asymptote, position and steepness walk at random in log n and log B_problem (`STEP`), so that a curve
that has not risen yet borrows from those that have; joint draws under that prior come from filtering forwards and
sampling backwards over the draws of the single curves (Carter and Kohn 1994). And all curves have one form: forms are
averaged by their evidence over the sweep, tempered (`TEMPER`), for no form is true and evaluations are less independent
than the likelihood takes them to be. `benchmarks/prediction.py` measures what this is worth.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from isocompute_jax.fit.curves.forms import FORMS, FormName
from isocompute_jax.fit.curves.posterior import (
    STEEPNESS,
    Draws,
    log_normal,
    position,
    posterior,
    share,
    steepness,
)
from isocompute_jax.fit.results import Configuration

STEP = {"high": 0.08, "position": 0.8, "steepness": 0.25}
"""Standard deviation of the change over a factor of two in n or B_problem: of A as a share of the range, of the
logarithm of the compute at the rise, of the logarithm of the steepness."""

TEMPER = 10.0
"""Evidence of a form is divided by this."""

DRAWS = 400

LEAST_NOISE = 1e-4
"""No point is taken as more certain than this share of the range."""

POOLING = 8.0
"""Degrees of freedom with which the noise of all curves enters that of each."""


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """S joint draws of K curves.

    Attributes:
      reference: C_ref.
      reward_range: range of rewards.
      weights: form -> its share of the draws.
      form: [S] number of each draw's form in `weights`.
      draws: per form, per curve, the draws; row s of the joint draws is row s of the curves' draws of form `form[s]`.
      members: [K] whether the configuration has a curve; the others' rewards are NaN.
    """

    reference: float
    reward_range: tuple[float, float]
    weights: dict[FormName, float]
    form: np.ndarray
    draws: tuple[tuple[Draws | None, ...], ...]
    members: np.ndarray

    def rewards(self, compute: float) -> np.ndarray:
        """[S, K] reward at `compute`."""
        x = np.log(np.array([compute]) / self.reference)
        found = np.full((len(self.form), len(self.members)), np.nan)
        for number, name in enumerate(self.weights):
            rows = np.flatnonzero(self.form == number)
            if not len(rows):
                continue
            for k in np.flatnonzero(self.members):
                draws = self.draws[number][k]
                assert draws is not None
                climbed = share(FORMS[name], draws.theta[rows], x)[:, 0]
                found[rows, k] = draws.low[rows] + (draws.high - draws.low)[rows] * climbed
        low, high = self.reward_range
        return low + (high - low) * found


def forecast(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    configurations: Sequence[Configuration],
    *,
    use: Sequence[np.ndarray],
    noise: Sequence[float],
    correlation: Sequence[float],
    forms: Sequence[FormName] = tuple(FORMS),
    reward_range: tuple[float, float] = (0.0, 1.0),
    draws: int = DRAWS,
    seed: int = 0,
) -> Forecast:
    """Joint draws of what K curves are, inside and beyond their data.

    Args:
      compute: per curve [P_k], increasing; 0 is the base model.
      reward: per curve [P_k].
      configurations: [K] what they belong to.
      use: per curve [P_k] bool, the points that count; a curve with fewer than two of them is not a member.
      noise: [K] standard deviation of a point, in units of reward (`CurveFit.noise`); NaN where unknown.
      correlation: [K] of neighbouring points (`CurveFit.correlation`); NaN where unknown.
      forms: forms to average over; one for that form alone.
      reward_range: range of rewards.
      draws: S.
      seed: of the random numbers.
    """
    low, high = reward_range
    points = [(c[u], (r[u] - low) / (high - low)) for c, r, u in zip(compute, reward, use, strict=True)]
    members = np.array([np.count_nonzero(c > 0) >= 2 for c, _ in points])
    order = sorted(np.flatnonzero(members), key=lambda k: (configurations[k].group_size, _batch(configurations[k])))
    trained = np.concatenate([points[k][0][points[k][0] > 0] for k in order])
    reference = float(trained.min())
    box = 0.0, float(np.log(trained.max() / reference))
    errors, rho = _noise(
        [points[k] for k in order], [noise[k] / (high - low) for k in order], [correlation[k] for k in order]
    )
    steps = [_distance(configurations[i], configurations[j]) for i, j in itertools.pairwise(order)]
    rng = np.random.default_rng(seed)
    table, evidence = [], []
    for name in forms:
        with np.errstate(divide="ignore"):
            found = [
                posterior(name, np.log(points[k][0] / reference), points[k][1], noise=error, correlation=rho, box=box)
                for k, error in zip(order, errors, strict=True)
            ]
        single = [one.draw(draws, rng) for one in found]
        joint, gained = _walk(name, single, steps, box, rng)
        row: list[Draws | None] = [None] * len(points)
        for k, own in zip(order, joint, strict=True):
            row[k] = own
        table.append(tuple(row))
        evidence.append(sum(one.evidence for one in found) + gained)
    weights = np.exp(np.array(evidence) / TEMPER - logsumexp(np.array(evidence) / TEMPER))
    shares = (rng.permutation(draws) + 0.5) / draws
    form = np.minimum(np.searchsorted(np.cumsum(weights), shares), len(weights) - 1)
    named = {name: float(weight) for name, weight in zip(forms, weights, strict=True)}
    return Forecast(reference, reward_range, named, form, tuple(table), members)


def _batch(configuration: Configuration) -> int:
    return configuration.problems_per_batch or 0


def _distance(one: Configuration, other: Configuration) -> float:
    """Factors of two between neighbours, at least one half; infinite where an n is unknown."""
    if not (one.group_size and other.group_size):
        return float("inf")
    steps = abs(np.log2(other.group_size / one.group_size))
    if _batch(one) and _batch(other):
        steps += abs(np.log2(_batch(other) / _batch(one)))
    return max(float(steps), 0.5)


def _noise(
    points: Sequence[tuple[np.ndarray, np.ndarray]], noise: Sequence[float], correlation: Sequence[float]
) -> tuple[np.ndarray, float]:
    """[K] standard deviation of a point of each curve, drawn towards that of all, and one correlation."""
    freedom = np.array([max(len(c) - 4, 1) for c, _ in points], float)
    own = np.array(noise, float)
    known = np.isfinite(own)
    pooled = float(np.average(own[known] ** 2, weights=freedom[known])) if known.any() else 0.0
    freedom = np.where(known, freedom, 0.0)
    variance = (POOLING * pooled + freedom * np.where(known, own, 0.0) ** 2) / (POOLING + freedom)
    rho = np.array(correlation, float)[known]
    shared = float(np.clip(np.average(rho, weights=freedom[known]), 0.0, 0.9)) if len(rho) else 0.0
    return np.maximum(np.sqrt(variance), LEAST_NOISE), shared


def _walk(
    name: FormName, single: Sequence[Draws], steps: Sequence[float], box: tuple[float, float], rng: np.random.Generator
) -> tuple[list[Draws], float]:
    """Joint draws of neighbouring curves under the random walk, and the log evidence that it gains.

    The draws of one curve are its particles: each stands for its likelihood times the prior of a single curve, which is
    divided out where the walk takes its place.
    """
    count = len(single[0].high)
    values = [_coordinates(name, draws, box) for draws in single]
    forward, moves = [np.zeros(count)], []
    for before, after, step in zip(values, values[1:], steps, strict=False):
        if np.isfinite(step):
            error = np.array([STEP[key] for key in before[0]]) * np.sqrt(step)
            a, b = before[1] / error, after[1] / error
            squares = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2.0 * a @ b.T
            normal = np.sum(np.log(error)) + 0.5 * len(error) * np.log(2 * np.pi)
            move = -0.5 * squares - normal - after[2]
        else:
            move = np.zeros((count, count))
        moves.append(move)
        forward.append(logsumexp(forward[-1][:, None] + move, axis=0) - np.log(count))
    gained = float(logsumexp(forward[-1]) - np.log(count))
    chosen = [rng.choice(count, count, p=np.exp(forward[-1] - logsumexp(forward[-1])))]
    for log_weight, move in zip(forward[-2::-1], moves[::-1], strict=True):
        weight = log_weight[:, None] + move[:, chosen[0]]
        climbed = np.exp(weight - weight.max(axis=0)).cumsum(axis=0)
        place = np.count_nonzero(climbed < rng.random(count) * climbed[-1], axis=0)
        chosen.insert(0, np.minimum(place, count - 1))
    return [Draws(*(part[i] for part in draws)) for draws, i in zip(single, chosen, strict=True)], gained


def _coordinates(
    name: FormName, draws: Draws, box: tuple[float, float]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """What walks: names, values [S, D], and the log density of these under the prior of a single curve [S]."""
    keys, columns, density = ["high"], [draws.high], np.log(2.0 * np.maximum(draws.high, 1e-6))
    place, rise = position(name, draws.theta), steepness(name, draws.theta)
    if place is not None:
        least, most = FORMS[name].box(box[1] - box[0])
        keys.append("position")
        columns.append(place)
        density = density - np.log(most[0] - least[0])
    if rise is not None:
        keys.append("steepness")
        columns.append(rise)
        density = density + log_normal(rise, *STEEPNESS[name])
    return tuple(keys), np.stack(columns, axis=1), density
