"""Pools of difficulty: problems by the rate at which a model was measured to solve them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem


def ranks_of(problems: Sequence[Problem], config: CurriculumConfig) -> np.ndarray | None:
    """[D] where each problem comes within an epoch, lowest first; None where the order is by chance alone.

    Raises:
      InputError: a problem was not measured, or a pool has no problem.
    """
    if config.order == "shuffled":
        return None
    rates = rates_of(problems, config.rate_column)
    easy_last = pools_of(rates, config.pools) if config.pools else rates
    return -easy_last if config.order == "easy_to_hard" else easy_last


def rates_of(problems: Sequence[Problem], column: str) -> np.ndarray:
    """[D] float64 measured rates.

    Raises:
      InputError: a problem has none.
    """
    for problem in problems:
        if column not in problem.measured:
            known = ", ".join(sorted(problem.measured)) or "none"
            raise InputError(
                f"config.curriculum.rate_column = {column!r}: problem {problem.id!r} was not measured so (it has: "
                f"{known}): curate the set (python -m isocompute_jax.curate), or name the column that it has"
            )
    return np.array([problem.measured[column] for problem in problems])


def pools_of(rates: np.ndarray, cuts: Sequence[float]) -> np.ndarray:
    """[D] int64 pool of each problem: 0 up to and with the first of the ascending `cuts`, and so on.

    Raises:
      InputError: a pool has no problem.
    """
    pools = np.searchsorted(np.asarray(cuts), rates, side="left")
    ends = [0.0, *cuts, 1.0]
    for pool in range(len(cuts) + 1):
        if not np.any(pools == pool):
            raise InputError(
                f"config.curriculum.pools = {tuple(cuts)}: no training problem has a rate "
                f"{'from' if pool == 0 else 'above'} {ends[pool]:g} up to {ends[pool + 1]:g}; the rates lie between "
                f"{rates.min():g} and {rates.max():g}: choose other cuts"
            )
    return pools
