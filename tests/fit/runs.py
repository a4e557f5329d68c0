"""Synthetic run directories: Hill curves in avg@4, best@4 and worst@4, with seed noise."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL, append_line

BATCH = 8
PROBLEMS = 1000
BUDGETS = np.array([2**i for i in range(11, 19)])


def write_run(
    path: pathlib.Path,
    *,
    group_size: int,
    seed: int,
    params: tuple[float, float, float, float],
    noise: float = 0.0,
    budgets: np.ndarray = BUDGETS,
    done: bool = True,
    config: Mapping[str, object] | None = None,
) -> pathlib.Path:
    """One run: `params` are floor, asymptote, midpoint and steepness of avg@4."""
    path.mkdir(parents=True)
    rng = np.random.default_rng([group_size, seed])
    steps = int(BUDGETS[-1] // (BATCH * group_size))
    facts = {
        "group_size": group_size,
        "problems_per_batch": BATCH,
        "num_steps": steps,
        "problem_set_size": PROBLEMS,
        "model_params": 100_000,
        "seed": seed,
    }
    (path / CONFIG).write_text(
        json.dumps(facts | {"config": {"seed": seed, "group_size": group_size, **(config or {})}})
    )
    for compute in [0, *budgets.tolist()]:
        avg = float(np.clip(hill(max(compute, 1e-9), *params) + noise * rng.normal(), 0, 1))
        counts = rng.binomial(4, avg, size=100)
        line = {
            "step": compute // (BATCH * group_size),
            "compute": compute,
            "tokens": 8 * compute,
            "wall_s": compute / 5000,
            "device_hours": compute / 5000 / 3600,
            "eval_set": "validation",
            "epochs": compute / (group_size * PROBLEMS),
            "avg@4": avg,
            "best@4": 1 - (1 - avg) ** 2,
            "worst@4": avg**2,
            "entropy": 1.0 - 0.7 * avg,
            "solve_rate_histogram": np.bincount(counts, minlength=5).tolist(),
        }
        append_line(path / EVAL, line)
    if done:
        (path / DONE).touch()
    return path


CROSSING = {2: (0.07, 0.60, 2e4, 1.2), 4: (0.07, 0.80, 4e4, 1.2), 8: (0.07, 0.93, 7e4, 1.2), 16: (0.07, 0.90, 2e5, 1.2)}
"""n -> curve; the frontier goes 2 -> 4 -> 8 inside the budgets, 16 is never on it."""


def write_sweep(
    root: pathlib.Path,
    *,
    curves: Mapping[int, tuple[float, float, float, float]] = CROSSING,
    seeds: int = 3,
    noise: float = 0.004,
) -> pathlib.Path:
    """A sweep over group_size with several seeds each."""
    for group_size, params in curves.items():
        for seed in range(seeds):
            write_run(root / f"n{group_size}-s{seed}", group_size=group_size, seed=seed, params=params, noise=noise)
    return root
