"""The evaluations of a sweep as the model takes them: means over seeds, and contrasts between seeds.

The mean over the seeds of a configuration and the differences between its seeds are independent when all seeds are
evaluated at the same computes: the mean then says what the curve is, and the differences how far runs lie apart. Seeds
that were evaluated elsewhere, or ended early, are averaged in bins of log compute; the covariance of the bins counts
which seeds are in which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns, clusters

MOST_POINTS = 360
"""Upper limit of the number of points, since fitting takes time cubic in it; more evaluations share bins."""

LEAST_BINS = 6

MISMATCH = 2.0
"""Distance, in octaves of n, between configurations that differ in a column without order."""


class SweepData(NamedTuple):
    """N points of K configurations, and Q contrasts between seeds; rewards are shares of the range."""

    owner: np.ndarray  # [N] number of the point's configuration
    compute: np.ndarray  # [N], 0 for the base model
    reward: np.ndarray  # [N] mean over the evaluations of a point
    count: np.ndarray  # [N] how many evaluations a point has
    overlap: np.ndarray  # [N, N] how far two points are averages over the same seeds: sum of the products of shares
    contrast_compute: np.ndarray  # [Q, E]
    contrast: np.ndarray  # [Q, E] orthonormal differences between seeds; 0 where `contrast_noise` is infinite
    contrast_noise: np.ndarray  # [Q, E] variance of the evaluations' noise, over that of one evaluation; inf: no data
    features: np.ndarray  # [K, F] places of the configurations, one octave apart where n is doubled
    trends: np.ndarray  # [K, T] the features that have an order, centred
    step_octaves: np.ndarray  # [K] octaves of rollouts per step, centred; zeros where they are unknown
    ends: np.ndarray  # [K] largest compute of a configuration; NaN without evaluations
    unit: float  # least compute after the base model's
    seeds: np.ndarray  # [K] number of seeds


_Binned = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A configuration in bins: compute [E], mean of each seed's evaluations [S, E] (NaN without any), and counts [S, E]."""


def observe(groups: Sequence[ConfigurationRuns], metric: str, reward_range: tuple[float, float]) -> SweepData | None:
    """Collects the evaluations of a metric; None where no run was evaluated after training began."""
    series = [_series(group, metric, reward_range) for group in groups]
    trained = [compute[compute > 0] for own in series for compute, _ in own]
    if not any(len(compute) for compute in trained):
        return None
    unit = min(float(compute.min()) for compute in trained if len(compute))
    known = sum(bool(own) for own in series)
    most = max(LEAST_BINS, MOST_POINTS // known)
    binned = [_binned(own, most) if own else None for own in series]
    places = [(k, each) for k, each in enumerate(binned) if each is not None]
    features, trends, step_octaves = place([group.configuration for group in groups])
    return SweepData(
        owner=np.concatenate([np.full(len(compute), k) for k, (compute, _, _) in places]),
        compute=np.concatenate([compute for _, (compute, _, _) in places]),
        reward=np.concatenate([_weighted_mean(each) for _, each in places]),
        count=np.concatenate([counts.sum(axis=0) for _, (_, _, counts) in places]),
        overlap=np.asarray(scipy.linalg.block_diag(*(_overlap(each) for _, each in places))),
        **_contrasts([each for _, each in places]),
        features=features,
        trends=trends,
        step_octaves=step_octaves,
        ends=np.array([max((float(compute.max()) for compute, _ in own), default=np.nan) for own in series]),
        unit=unit,
        seeds=np.array([len(own) for own in series]),
    )


def _series(
    group: ConfigurationRuns, metric: str, reward_range: tuple[float, float]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Compute and share of the range of each seed's evaluations; seeds without any are left out."""
    low, high = reward_range
    found = []
    for run in group.runs:
        values = run.columns.get(metric)
        if values is not None and np.isfinite(values).any():
            known = np.isfinite(values)
            found.append((run.compute[known], (values[known] - low) / (high - low)))
    return found


def _binned(series: Sequence[tuple[np.ndarray, np.ndarray]], most: int) -> _Binned:
    """Evaluations at (nearly) the same compute together, or, of seeds on different grids, in bins even in log C."""
    every = np.unique(np.concatenate([compute for compute, _ in series]))
    trained = every[every > 0]
    edges = np.array([cluster[0] for cluster in clusters(trained)]) * (1 - 1e-9)
    shared = max(len(compute) for compute, _ in series) + 1
    most = min(most, shared)
    if len(edges) > most:
        # Bins even in rank of log C: dense stretches of evaluations get more of them.
        edges = np.quantile(np.log(trained), np.linspace(0, 1, most + 1)[:-1])
        edges = np.exp(np.unique(edges)) * (1 - 1e-9)
    bins = [np.searchsorted(edges, compute, side="right") for compute, _ in series]  # 0 is the base model
    width = len(edges) + 1
    total, log_sum, counts = np.zeros((3, len(series), width))
    for s, ((compute, reward), own) in enumerate(zip(series, bins, strict=True)):
        np.add.at(counts[s], own, 1.0)
        np.add.at(total[s], own, reward)
        np.add.at(log_sum[s], own, np.log(np.maximum(compute, 1e-300)))
    used = counts.sum(axis=0) > 0
    counts, total, log_sum = counts[:, used], total[:, used], log_sum[:, used]
    at = np.exp(log_sum.sum(axis=0) / counts.sum(axis=0))
    if np.flatnonzero(used)[0] == 0:
        at[0] = 0.0
    with np.errstate(invalid="ignore"):
        return at, np.where(counts > 0, total / counts, np.nan), counts


def _weighted_mean(binned: _Binned) -> np.ndarray:
    _, per_seed, counts = binned
    return np.nansum(per_seed * counts, axis=0) / counts.sum(axis=0)


def _overlap(binned: _Binned) -> np.ndarray:
    share = binned[2] / binned[2].sum(axis=0)
    return share.T @ share


def _contrasts(binned: Sequence[_Binned]) -> dict[str, np.ndarray]:
    """Helmert contrasts of the seeds of each configuration: each seed against the mean of those before it."""
    computes, values, noises = [], [], []
    for compute, per_seed, every in binned:
        order = np.argsort(-np.isfinite(per_seed).sum(axis=1), kind="stable")  # the longest seeds first
        rewards, counts = per_seed[order], every[order]
        for i in range(1, len(rewards)):
            with np.errstate(divide="ignore"):
                inverse = 1.0 / counts[: i + 1]
                noise = (inverse[i] + inverse[:i].mean(axis=0) / i) * i / (i + 1)
            difference = (rewards[i] - rewards[:i].mean(axis=0)) * np.sqrt(i / (i + 1))
            computes.append(compute)
            values.append(np.where(np.isfinite(noise), difference, 0.0))
            noises.append(noise)
    width = max((len(each) for each in computes), default=1)
    return {
        "contrast_compute": _padded(computes, width, 0.0),
        "contrast": _padded(values, width, 0.0),
        "contrast_noise": _padded(noises, width, np.inf),
    }


def _padded(rows: Sequence[np.ndarray], width: int, value: float) -> np.ndarray:
    return np.array([np.pad(row, (0, width - len(row)), constant_values=value) for row in rows]).reshape(-1, width)


def place(configurations: Sequence[Configuration]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [K, F] whose distances say how unlike configurations are, those with an order [K, T], rollouts per step.

    The last two, [K, T] and octaves [K], are centred.

    Numbers above 0 that all configurations have count in octaves; whatever else differs stands `MISMATCH` apart.
    """
    columns: dict[str, list[object]] = {
        "group_size": [each.group_size or each.name for each in configurations],
        "problems_per_batch": [each.problems_per_batch for each in configurations],
        "problem_set_size": [each.problem_set_size for each in configurations],
        "learning_rate": [each.learning_rate for each in configurations],
    }
    names = dict.fromkeys(name for each in configurations for name, _ in each.settings)
    for name in names:
        columns.setdefault(name, [dict(each.settings).get(name) for each in configurations])
    features, ordered = [], []
    for values in columns.values():
        if len(set(map(str, values))) < 2:
            continue
        if all(isinstance(value, int | float) and not isinstance(value, bool) and value > 0 for value in values):
            octaves = np.log2(np.array(values, float))
            features.append(octaves)
            ordered.append(octaves - octaves.mean())
            continue
        for one in dict.fromkeys(map(str, values)):
            features.append(np.array([MISMATCH / np.sqrt(2) * (str(value) == one) for value in values]))
    count = len(configurations)
    rollouts = np.array([each.rollouts_per_step or 0 for each in configurations], float)
    step_octaves = np.log2(rollouts) if rollouts.all() else np.zeros(count)
    features, trends = (np.array(values).reshape(-1, count).T for values in (features, ordered))
    return features, trends, step_octaves - step_octaves.mean()
