"""The model of a sweep is fitted to its runs, and its posterior drawn.

A reward is the configuration's mean curve, plus how this run differs from the mean of many (correlated along the run),
plus noise of the evaluation. The mean curve is a saturating form (`saturating`) plus a Gaussian process (`covariance`),
which follows falls and plateaus inside the data and stays as it is beyond them. Hyper-parameters are drawn around the
maximum of their posterior, the curves' parameters given these, and the process given both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns
from isocompute_jax.fit.engine import covariance, saturating
from isocompute_jax.fit.engine.covariance import Array, Coordinates
from isocompute_jax.fit.engine.observations import SweepData, observe, place
from isocompute_jax.fit.engine.saturating import Prior

JITTER = 1e-9
ROUNDS = 2
"""Times that the saturating form is linearised anew before the last search for hyper-parameters."""
MOST_SEARCH_STEPS = 40
MOST_NEWTON_STEPS = 40
HYPER_DRAWS = 8
"""Draws of the hyper-parameters, each of which stands for as many draws of the curves."""
DRAWS = 512
SEED_SD, SEED_FREEDOM = 0.015, 4.0
"""Prior of the standard deviation between seeds, as a share of the range, and how many seeds it counts for."""

RISE, RISE_SD = 0.8, 0.5
"""Median and log standard deviation of how far curves rise beyond their data, over what the saturating form says: other
forms saturate sooner. One draw for all configurations."""
PAD = 32
"""Arrays are padded to multiples of this, so that few programs are compiled."""


class SweepDraws(NamedTuple):
    """S joint draws of the rewards of K configurations at P computes, in units of the reward."""

    compute: np.ndarray  # [P]
    mean: np.ndarray  # [K, S, P] of many runs
    run: np.ndarray  # [K, S, P] of one run, without the noise of its evaluation
    noise: np.ndarray  # [S] standard deviation of one evaluation's noise


class _Padded(NamedTuple):
    """What the likelihood is computed from: arrays of padded sizes, `used` marks what counts."""

    residual: np.ndarray  # [N] reward minus the linearised form at its prior's mean
    trend: np.ndarray  # [N] what of it is expected where `unlike` is 1
    common: np.ndarray  # [N, N] covariance of the linearised form, of what all configurations share
    apart: np.ndarray  # [N, N] and of what they do not, where `unlike` is 1
    places: Coordinates
    overlap: np.ndarray  # [N, N]
    noise: np.ndarray  # [N] share of one evaluation's noise; 1 / count
    used: np.ndarray  # [N] bool
    contrast_at: np.ndarray  # [Q, E]
    contrast_taper: np.ndarray  # [Q, E]
    contrast: np.ndarray  # [Q, E]
    contrast_noise: np.ndarray  # [Q, E]; inf where nothing is known


@dataclasses.dataclass(frozen=True, eq=False)
class SweepModel:
    """A fitted sweep."""

    configurations: tuple[Configuration, ...]  # [K]
    observations: SweepData
    reward_range: tuple[float, float]
    hyper: np.ndarray  # [H] log hyper-parameters at the maximum, in the order of `covariance.NAMES`
    hyper_covariance: np.ndarray  # [H, H]
    parameters: np.ndarray  # [3 K + 1] of the saturating curves at the maximum

    def curves(
        self, compute: np.ndarray, *, draws: int = DRAWS, seed: int = 0, untried: Sequence[Configuration] = ()
    ) -> SweepDraws:
        """Draws rewards at `compute` [P] > 0 from the posterior, of configurations without data (`untried`) too."""
        return _drawn(self, np.asarray(compute, float), draws, np.random.default_rng(seed), tuple(untried))

    @property
    def seed_sd(self) -> float:
        """Standard deviation of one run's departure from the mean of many, late in training; in units of the reward."""
        low, high = self.reward_range
        return float(np.exp(self.hyper[5])) * (high - low)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of one evaluation's noise, in units of the reward."""
        low, high = self.reward_range
        return float(np.exp(self.hyper[7])) * (high - low)


def fit_sweep(
    groups: Sequence[ConfigurationRuns], metric: str, *, reward_range: tuple[float, float] = (0.0, 1.0)
) -> SweepModel | None:
    """Fits the model to every run of a sweep.

    Args:
      groups: K configurations and their runs.
      metric: the column of rewards.
      reward_range: least and largest possible reward; standard deviations of the priors are shares of it.

    Returns:
      The model, or None where no run has an evaluation of the metric after training began.
    """
    observations = observe(groups, metric, reward_range)
    if observations is None:
        return None
    with jax.enable_x64(True):
        return _fitted(tuple(group.configuration for group in groups), observations, reward_range)


def _fitted(
    configurations: tuple[Configuration, ...], observations: SweepData, reward_range: tuple[float, float]
) -> SweepModel:
    """Searches the hyper-parameters under the saturating form linearised at its mode, which moves with them."""
    prior = saturating.prior(observations)
    hyper = covariance.PRIOR_MEDIAN.copy()
    parameters = prior.expected(hyper)
    for _ in range(ROUNDS):
        parameters = _mode(observations, hyper, prior, parameters)
        padded = _padded(observations, parameters, prior)
        hyper = _search(padded, hyper)
    parameters = _mode(observations, hyper, prior, parameters)
    return SweepModel(
        configurations=configurations,
        observations=observations,
        reward_range=reward_range,
        hyper=hyper,
        hyper_covariance=_hyper_covariance(padded, hyper),
        parameters=parameters,
    )


def _points(observations: SweepData) -> Coordinates:
    """Coordinates of the points of the data."""
    ends, owner = observations.ends, observations.owner
    return covariance.coordinates(
        observations.compute,
        observations.features[owner],
        own_end=ends[owner],
        end=float(np.nanmax(ends)),
        unit=observations.unit,
    )


def _log_ratio(compute: np.ndarray, unit: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(compute / unit)


def _spread(hyper: Array, at: Coordinates, overlap: Array) -> Array:
    """Covariance [N, N] of the data around the saturating curves, without the evaluations' noise."""
    seeds = at.shared, at.seed_taper
    return covariance.departures(hyper, at, at) + overlap * covariance.between_seeds(hyper, seeds, seeds)


def _data_covariance(observations: SweepData, hyper: np.ndarray) -> np.ndarray:
    spread = _spread(hyper, _points(observations), observations.overlap)
    return spread + np.diag(np.exp(2 * hyper[7]) / observations.count + JITTER)


def _mode(observations: SweepData, hyper: np.ndarray, prior: Prior, start: np.ndarray) -> np.ndarray:
    """The parameters of largest posterior density given hyper-parameters, by damped Gauss-Newton steps."""
    factor = scipy.linalg.cho_factor(_data_covariance(observations, hyper), lower=True)
    precision, expected = np.linalg.inv(prior.covariance(hyper)), prior.expected(hyper)
    log_ratio = _log_ratio(observations.compute, observations.unit)

    def look(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope = saturating.linearised(at, observations.owner, log_ratio)
        residual, away = observations.reward - value, at - expected
        weighted = scipy.linalg.cho_solve(factor, np.column_stack([residual, slope]))
        loss = 0.5 * (residual @ weighted[:, 0] + away @ precision @ away)
        return loss, slope.T @ weighted[:, 0] - precision @ away, slope.T @ weighted[:, 1:] + precision

    parameters, damping = start, 1e-3
    loss, gradient, curvature = look(parameters)
    for _ in range(MOST_NEWTON_STEPS):
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
        found = look(parameters + step)
        if not found[0] < loss:
            damping *= 8
            if damping > 1e6:
                break
            continue
        gained, parameters, damping = loss - found[0], parameters + step, max(damping / 8, 1e-9)
        loss, gradient, curvature = found
        if gained < 1e-7:
            break
    return parameters


def _padded(observations: SweepData, parameters: np.ndarray, prior: Prior) -> _Padded:
    """The data under the form linearised at `parameters`."""
    log_ratio = _log_ratio(observations.compute, observations.unit)
    value, slope = saturating.linearised(parameters, observations.owner, log_ratio)
    count = len(observations.reward)
    more = -count % PAD
    rows, wide = (0, more), ((0, more), (0, more))
    at = _points(observations)
    contrasts, width = observations.contrast.shape
    around = ((0, -contrasts % 8), (0, -width % 16))
    compute = np.pad(observations.contrast_compute, around)
    return _Padded(
        residual=np.pad(observations.reward - value - slope @ (prior.mean - parameters), rows),
        trend=np.pad(slope @ prior.trend, rows),
        common=np.pad(slope @ prior.common @ slope.T, wide),
        apart=np.pad(slope @ prior.apart @ slope.T, wide),
        places=Coordinates(
            *(np.pad(part, (rows, (0, 0))[: part.ndim] if part.ndim == 1 else (rows, (0, 0))) for part in at)
        ),
        overlap=np.pad(observations.overlap, wide),
        noise=np.pad(1.0 / observations.count, rows),
        used=np.arange(count + more) < count,
        contrast_at=covariance.log_compute(compute, observations.unit),
        contrast_taper=covariance.taper(compute, covariance.EARLY * observations.unit),
        contrast=np.pad(observations.contrast, around),
        contrast_noise=np.pad(observations.contrast_noise, around, constant_values=np.inf),
    )


@jax.custom_vjp
def _normal_loss(residual: jax.Array, spread: jax.Array) -> jax.Array:
    """Minus the log density of a normal vector [N] with covariance `spread`, without constants."""
    return _normal_forward(residual, spread)[0]


def _normal_forward(residual: jax.Array, spread: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    root = jnp.linalg.cholesky(spread)
    solved = jax.scipy.linalg.cho_solve((root, True), residual)
    return 0.5 * residual @ solved + jnp.log(jnp.diagonal(root)).sum(), (root, solved)


def _normal_backward(kept: tuple[jax.Array, jax.Array], slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The derivatives are known in closed form, and several times faster than through the factorisation."""
    root, solved = kept
    inverse = jax.scipy.linalg.cho_solve((root, True), jnp.eye(len(root)))
    return slope * solved, 0.5 * slope * (inverse - jnp.outer(solved, solved))


_normal_loss.defvjp(_normal_forward, _normal_backward)


def _log_density(residual: Array, spread: Array, used: Array) -> jax.Array:
    """Minus the log density, without constants, of the entries that are `used`."""
    spread = jnp.where(used[:, None] & used[None], spread, 0.0)
    return _normal_loss(jnp.where(used, residual, 0.0), spread + jnp.diag(jnp.where(used, JITTER, 1.0)))


def _loss(hyper: Array, data: _Padded) -> jax.Array:
    """Minus the log posterior density of hyper-parameters, of the means and of the contrasts between seeds."""
    spread = data.common + jnp.exp(2 * hyper[8]) * data.apart + _spread(hyper, data.places, data.overlap)
    residual = data.residual - jnp.exp(hyper[8]) * data.trend
    means = _log_density(residual, spread + jnp.diag(jnp.exp(2 * hyper[7]) * data.noise), data.used)

    def contrast(at: Array, taper: Array, value: Array, noise: Array) -> jax.Array:
        used = jnp.isfinite(noise)
        own = covariance.between_seeds(hyper, (at, taper), (at, taper))
        own += jnp.diag(jnp.where(used, noise, 0.0) * jnp.exp(2 * hyper[7]))
        return _log_density(value, own, used)

    seeds = jax.vmap(contrast)(data.contrast_at, data.contrast_taper, data.contrast, data.contrast_noise)
    away = (hyper - covariance.PRIOR_MEDIAN) / covariance.PRIOR_SD
    return means + seeds.sum() + 0.5 * away @ away


_loss_and_slope = jax.jit(jax.value_and_grad(_loss))


def _search(data: _Padded, start: np.ndarray) -> np.ndarray:
    """The hyper-parameters of largest posterior density."""

    def look(hyper: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = _loss_and_slope(hyper, data)
        return float(loss), np.asarray(slope)

    found = scipy.optimize.minimize(
        look, start, jac=True, method="L-BFGS-B", options={"maxiter": MOST_SEARCH_STEPS, "ftol": 1e-8}
    )
    return found.x


def _hyper_covariance(data: _Padded, hyper: np.ndarray) -> np.ndarray:
    """Laplace's approximation: the inverse of the second derivatives, by differences of the slope."""
    step = 0.05
    curvature = np.empty((len(hyper), len(hyper)))
    for i in range(len(hyper)):
        moved = np.zeros(len(hyper))
        moved[i] = step
        ahead, behind = (np.asarray(_loss_and_slope(hyper + sign * moved, data)[1]) for sign in (1, -1))
        curvature[i] = (ahead - behind) / (2 * step)
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    # The prior alone has this curvature at least; a direction in which the data flatten it is no wider than the prior.
    values = np.maximum(values, 1.0 / covariance.PRIOR_SD.max() ** 2)
    return vectors / values @ vectors.T


def _drawn(
    model: SweepModel, compute: np.ndarray, draws: int, rng: np.random.Generator, untried: tuple[Configuration, ...]
) -> SweepDraws:
    """Each draw of the hyper-parameters gives as many draws of the curves as every other."""
    wider = _with_untried(model, untried)
    blocks = min(HYPER_DRAWS, draws)
    root = np.linalg.cholesky(model.hyper_covariance)
    white = rng.normal(size=(blocks // 2 + 1, len(model.hyper)))
    white = np.concatenate([white, -white])[:blocks]
    sizes = np.full(blocks, draws // blocks)
    sizes[: draws - sizes.sum()] += 1
    found = [_block(wider, model.hyper + root @ z, compute, size, rng) for z, size in zip(white, sizes, strict=True)]
    low, high = model.reward_range
    mean, run = (
        low + (high - low) * np.clip(np.concatenate([part[i] for part in found], axis=1), 0.0, 1.0) for i in (0, 1)
    )
    noise = np.repeat([np.exp((model.hyper + root @ z)[7]) for z in white], sizes) * (high - low)
    return SweepDraws(compute, mean, run, noise)


def _with_untried(model: SweepModel, untried: tuple[Configuration, ...]) -> SweepModel:
    """The model with further configurations, of which nothing is known but the prior given the others."""
    if not untried:
        return model
    seen = model.observations
    features, trends, step_octaves = place([*model.configurations, *untried])
    shift = trends[: len(seen.ends)].mean(axis=0, keepdims=True)
    count, tried = len(features), len(seen.ends)
    observations = seen._replace(
        features=features,
        trends=trends - shift,
        step_octaves=step_octaves - step_octaves[: len(seen.ends)].mean(),
        ends=np.concatenate([seen.ends, np.full(len(untried), np.nan)]),
        seeds=np.concatenate([seen.seeds, np.zeros(len(untried), seen.seeds.dtype)]),
    )
    parameters = saturating.prior(observations).expected(model.hyper)
    for i in range(3):
        parameters[i * count : i * count + tried] = model.parameters[i * tried : (i + 1) * tried]
    parameters[-1] = model.parameters[-1]
    return dataclasses.replace(
        model,
        configurations=(*model.configurations, *untried),
        observations=observations,
        parameters=parameters,
    )


def _block(
    model: SweepModel, hyper: np.ndarray, compute: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws [K, S, P] of mean curves and of single runs under one set of hyper-parameters; shares of the range."""
    seen = model.observations
    count, width = len(model.configurations), len(compute)
    prior = saturating.prior(seen)
    data = _data_covariance(seen, hyper)
    factor = scipy.linalg.cho_factor(data, lower=True)
    seen_ratio = _log_ratio(seen.compute, seen.unit)
    value, slope = saturating.linearised(model.parameters, seen.owner, seen_ratio)
    # The posterior of the parameters under these hyper-parameters, by one Newton step from the mode.
    precision = np.linalg.inv(prior.covariance(hyper))
    weighted = scipy.linalg.cho_solve(factor, np.column_stack([seen.reward - value, slope]))
    curvature = slope.T @ weighted[:, 1:] + precision
    centre = model.parameters + np.linalg.solve(
        curvature, slope.T @ weighted[:, 0] - precision @ (model.parameters - prior.expected(hyper))
    )
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    parameters = centre + rng.normal(size=(draws, len(centre))) @ root.T

    owner, at = np.repeat(np.arange(count), width), np.tile(compute, count)
    end = float(np.nanmax(seen.ends))
    own_end = np.where(np.isfinite(seen.ends), seen.ends, end)
    wanted = covariance.coordinates(at, seen.features[owner], own_end=own_end[owner], end=end, unit=seen.unit)
    cross = covariance.departures(hyper, wanted, _points(seen))
    gain = scipy.linalg.cho_solve(factor, cross.T).T
    left = covariance.departures(hyper, wanted, wanted) - gain @ cross.T
    form = saturating.saturating(parameters, owner, _log_ratio(at, seen.unit))
    held = saturating.saturating(parameters, owner, _log_ratio(np.minimum(at, own_end[owner]), seen.unit))
    form = held + RISE * np.exp(RISE_SD * rng.normal(size=(draws, 1))) * (form - held)
    residual = seen.reward - saturating.saturating(parameters, seen.owner, seen_ratio)
    curves = form + residual @ gain.T + rng.normal(size=(draws, len(at))) @ _root(left).T

    along = covariance.log_compute(compute, seen.unit), covariance.taper(compute, covariance.EARLY * seen.unit)
    apart = _root(covariance.between_seeds(hyper, along, along))
    runs = rng.normal(size=(draws, count, width)) @ apart.T
    curves = curves.reshape(draws, count, width)
    return curves.transpose(1, 0, 2), (curves + runs).transpose(1, 0, 2)


def _root(matrix: np.ndarray) -> np.ndarray:
    """A square root of a covariance that rounding may have made slightly indefinite."""
    size = len(matrix)
    scale = max(float(np.trace(matrix)) / size, 1e-12)
    return np.linalg.cholesky((matrix + matrix.T) / 2 + (1e-7 * scale + 1e-12) * np.eye(size))


def end_point_draws(model: SweepModel, compute: np.ndarray) -> SweepDraws:
    """Draws in which a configuration keeps the reward of its best point so far; before its first point it has none.

    The variance between seeds is that of all configurations together, drawn with the prior's.
    """
    seen, rng = model.observations, np.random.default_rng(0)
    low, high = model.reward_range
    known = np.isfinite(seen.contrast_noise)
    freedom = SEED_FREEDOM + known.sum()
    squares = SEED_FREEDOM * SEED_SD**2 + (seen.contrast[known] ** 2).sum()
    sd = np.sqrt(squares / rng.chisquare(freedom, DRAWS))
    count = len(seen.features)
    mean = np.full((count, DRAWS, len(compute)), np.nan)
    base = seen.reward[seen.compute == 0]
    first = float(base.mean()) if len(base) else float(seen.reward.min())
    for k in range(count):
        own = np.flatnonzero((seen.owner == k) & (seen.compute > 0))
        draws = seen.reward[own] + sd[:, None] * rng.normal(size=(DRAWS, len(own))) / np.sqrt(seen.count[own])
        mean[k] = first
        for reward, at in zip(draws.T, seen.compute[own], strict=True):
            mean[k][:, compute >= at * 0.999] = reward[:, None]
    run = mean + (sd * rng.normal(size=(count, DRAWS)))[..., None]
    scaled = (low + (high - low) * np.clip(part, 0.0, 1.0) for part in (mean, run))
    return SweepDraws(compute, *scaled, noise=sd * 0.0)
