"""Simulated sweeps whose truth is known, as runs of a table in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns, group_runs
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.records.run_files import RunFacts

COMPUTE = np.geomspace(1_000, 64_000, 10)

Level = Callable[[int, int, np.ndarray], np.ndarray]
"""n, B_problem and compute -> the true mean reward."""


def rising(n: int, compute: np.ndarray, *, best: float) -> np.ndarray:
    """Rises to a level that is highest, 0.6, at an n of `best`, at one speed for all."""
    top = 0.6 - 0.02 * math.log2(n / best) ** 2
    return 0.1 + (top - 0.1) / (1 + 8_000 / compute)


def run(
    n: int, batch: int, seed: int, reward: np.ndarray, *, size: int = 1000, params: int = 0, **identity
) -> RunCurve:
    """A run of a table: its facts are its identity, with what else is given."""
    own = {"group_size": n, "problems_per_batch": batch, "problem_set_size": size, "model_params": params}
    own |= identity
    name = "-".join(map(str, (*own.values(), seed)))
    facts = RunFacts(n, batch, 0, size, params, seed)
    return RunCurve(name, "memory", "", facts, own, True, COMPUTE, {"avg@4": np.asarray(reward, float)})


def made(
    level: Level, *, sizes: Sequence[int] = (4, 16, 64), batches: Sequence[int] = (8,), seeds: int = 3,
    noise: float = 0.005, start: int = 0, **more,
) -> list[RunCurve]:  # fmt: skip
    """Runs of every n and B_problem, with noise of evaluations and of seeds."""
    rng = np.random.default_rng(start)
    return [
        run(n, b, seed, level(n, b, COMPUTE) + noise * (rng.normal() + rng.normal(size=len(COMPUTE))), **more)
        for n in sizes
        for b in batches
        for seed in range(seeds)
    ]


def grouped(runs: Sequence[RunCurve]) -> list[ConfigurationRuns]:
    """The configurations of runs."""
    return group_runs(runs)[0]
