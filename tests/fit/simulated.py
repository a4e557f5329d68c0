"""Simulated sweeps whose truth is known, as groups of runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isocompute_jax.fit.configurations import Configuration, ConfigurationRuns
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.records.run_files import RunFacts

METRIC = "avg@4"
COMPUTE = np.concatenate([[0.0], np.geomspace(2e3, 1e6, 20)])
SIZES = (4, 16, 64)
PROBLEMS = 8

Truth = Callable[[int, np.ndarray], np.ndarray]
"""n and compute [E] -> the mean reward of many runs [E]."""


def hill(low: float, high: float, middle: float, steepness: float = 1.0) -> Callable[[np.ndarray], np.ndarray]:
    """A saturating curve, `low` at compute 0."""
    return lambda compute: low + (high - low) / (1 + (middle / np.maximum(compute, 1e-9)) ** steepness)


def rising(n: int, compute: np.ndarray) -> np.ndarray:
    """Larger n are later and get further."""
    return hill(0.1, {4: 0.45, 16: 0.55, 64: 0.65}[n], 600.0 * n)(compute)


def same(n: int, compute: np.ndarray) -> np.ndarray:
    """One curve for every n."""
    return hill(0.1, 0.5, 2e4)(compute)


def sweep(
    truth: Truth,
    *,
    seeds: int = 3,
    seed_sd: float = 0.01,
    noise: float = 0.005,
    samples: int = 0,
    compute: np.ndarray = COMPUTE,
    sizes: tuple[int, ...] = SIZES,
    draw: int = 0,
    scale: tuple[float, float] = (0.0, 1.0),
) -> list[ConfigurationRuns]:
    """Runs of a truth in [0, 1]: seeds differ along the whole run, evaluations have normal or binomial noise.

    Args:
      truth: the mean reward.
      seeds: runs of each n.
      seed_sd: standard deviation of a run's departure, which is correlated over a factor e^2 of compute.
      noise: standard deviation of an evaluation's noise; without effect where `samples` are drawn.
      samples: of each evaluation; 0 for normal noise.
      compute: [E] of the evaluations.
      sizes: the n.
      draw: number of the draw.
      scale: the rewards at 0 and at 1.
    """
    rng = np.random.default_rng(draw)
    trained = np.log(compute[compute > 0])
    root = np.linalg.cholesky(np.exp(-np.abs(trained[:, None] - trained) / 2) + 1e-9 * np.eye(len(trained)))
    groups = []
    for n in sizes:
        runs = []
        for seed in range(seeds):
            apart = np.where(compute > 0, np.nan, 0.0)
            apart[compute > 0] = seed_sd * root @ rng.normal(size=len(trained))
            reward = truth(n, compute) + apart
            if samples:
                reward = rng.binomial(samples, np.clip(reward, 0, 1)) / samples
            else:
                reward = np.clip(reward + noise * rng.normal(size=len(compute)), 0, 1)
            runs.append(run_curve(n, seed, compute, scale[0] + (scale[1] - scale[0]) * reward))
        groups.append(ConfigurationRuns(Configuration(f"n = {n}", n, PROBLEMS, 64), tuple(runs)))
    return groups


def run_curve(n: int, seed: int, compute: np.ndarray, reward: np.ndarray) -> RunCurve:
    """One run."""
    return RunCurve(
        run=f"n{n}-s{seed}",
        source="simulated",
        sha256="",
        facts=RunFacts(
            group_size=n, problems_per_batch=PROBLEMS, problem_set_size=64, num_steps=0, model_params=0, seed=seed
        ),
        identity={"group_size": n, "problems_per_batch": PROBLEMS},
        finished=True,
        compute=compute,
        columns={METRIC: reward, "compute": compute},
    )


def every_run(groups: list[ConfigurationRuns]) -> list[RunCurve]:
    """All runs of a sweep."""
    return [run for group in groups for run in group.runs]
