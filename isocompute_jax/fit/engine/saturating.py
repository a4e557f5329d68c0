"""The mean function of the model: a saturating curve for each configuration, with parameters smooth over them.

R_k(C) = R0 + gain_k / (1 + (M_k / C)^beta_k), Hill's form (ScaleRL, arXiv 2510.13786). The gains, ln M and ln beta of
the configurations are jointly normal: a common level, a linear trend in ln n (and ln B where it varies), and departures
that neighbours share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.engine.covariance import matern3
from isocompute_jax.fit.engine.observations import SweepData

Spread = tuple[float, float, float, float]
"""Prior of one kind of parameter over configurations: its mean, and the standard deviations of the shared level, of the
slope per octave, and of a configuration's own departure."""
LATER = 0.35
"""Expected slope of ln M per octave of rollouts per step, half of ln 2: it is ln 2 where progress is by steps, and 0
where it is by rollouts."""
GAIN: Spread = (0.25, 0.2, 0.04, 0.05)
MIDPOINT: Spread = (0.6, 1.0, 0.35, 0.35)
"""Of ln(M / first compute); the mean is a share of the span of the data in ln C."""
STEEPNESS: Spread = (0.2, 0.3, 0.05, 0.1)
"""Of ln beta."""
NEIGHBOURS = 2.5
"""Octaves over which departures are alike."""
ALONE = 0.1
"""Share of the variance of a departure that no neighbour has."""
FLOOR_SD = 0.3
TINY = 1e-8
"""Keeps covariances regular."""


class Prior(NamedTuple):
    """Normal prior of (gains, ln midpoints, ln steepnesses, floor) of K configurations, D = 3 K + 1."""

    mean: np.ndarray  # [D] where `unlike` is 0
    trend: np.ndarray  # [D] what an `unlike` of 1 adds to it
    common: np.ndarray  # [D, D] covariance of what all configurations share
    apart: np.ndarray  # [D, D] of trends and departures, where the hyper-parameter `unlike` is 1

    def expected(self, hyper: np.ndarray) -> np.ndarray:
        """[D] the mean under hyper-parameters."""
        return self.mean + np.exp(hyper[8]) * self.trend

    def covariance(self, hyper: np.ndarray) -> np.ndarray:
        """[D, D] of all of it."""
        return self.common + np.exp(2 * hyper[8]) * self.apart


def prior(observations: SweepData) -> Prior:
    """The prior over the configurations of a sweep."""
    count = len(observations.features)
    apart = np.sqrt(((observations.features[:, None] - observations.features[None]) ** 2).sum(axis=-1))
    alike = matern3(apart / NEIGHBOURS) + ALONE * np.eye(count)
    trends = observations.trends @ observations.trends.T
    span = float(np.log(np.nanmax(observations.ends) / observations.unit))
    mean, (common, unlike) = np.zeros(3 * count + 1), np.zeros((2, 3 * count + 1, 3 * count + 1))
    for i, (expected, level, slope, own) in enumerate((GAIN, MIDPOINT, STEEPNESS)):
        block = slice(i * count, (i + 1) * count)
        mean[block] = expected * (max(span, 1.0) if i == 1 else 1.0)
        common[block, block] = level**2 + TINY * np.eye(count)
        unlike[block, block] = slope**2 * trends + own**2 * alike
    mean[-1], common[-1, -1] = first_level(observations), FLOOR_SD**2
    trend = np.zeros(3 * count + 1)
    trend[count : 2 * count] = LATER * observations.step_octaves
    return Prior(mean, trend, common, unlike)


def first_level(observations: SweepData) -> float:
    """Mean reward of the base model, or, where nobody evaluated it, of the first point of each configuration."""
    base = observations.compute == 0
    if base.any():
        return float(np.average(observations.reward[base], weights=observations.count[base]))
    first = np.unique(observations.owner, return_index=True)[1]
    return float(observations.reward[first].mean())


def saturating(parameters: np.ndarray, owner: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """Rewards [..., N] of points of the configurations `owner` [N] at ln(C / unit) [N], -inf for the base model."""
    gain, _, _, share = _shares(parameters, owner, log_ratio)
    return parameters[..., -1:] + gain * share


def linearised(parameters: np.ndarray, owner: np.ndarray, log_ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rewards [N] and their derivatives [N, 3 K + 1]."""
    gain, steepness, at, share = _shares(parameters, owner, log_ratio)
    steep = gain * share * (1 - share)
    rows, count = np.arange(len(owner)), (len(parameters) - 1) // 3
    slope = np.zeros((len(owner), len(parameters)))
    for i, part in enumerate((share, -steep * np.exp(steepness), steep * at)):
        slope[rows, i * count + owner] = part
    slope[:, -1] = 1.0
    return parameters[-1] + gain * share, slope


def _shares(parameters: np.ndarray, owner: np.ndarray, log_ratio: np.ndarray) -> tuple[np.ndarray, ...]:
    """[..., N] gain, ln steepness, argument of the sigmoid, and share of the gain, which is 0 before training."""
    count = (parameters.shape[-1] - 1) // 3
    gain, midpoint, steepness = (parameters[..., i * count + owner] for i in range(3))
    trained = np.isfinite(log_ratio)
    at = np.exp(steepness) * (np.where(trained, log_ratio, 0.0) - midpoint)
    return gain, steepness, at, np.where(trained, scipy.special.expit(at), 0.0)
