"""Sweeps held against each other: how far n* moves, how much reward is gained, each with its interval over seeds.

n*(C) is that of `profile_sizes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.gallery.curves import (
    Curves,
    Estimate,
    Means,
    common_budgets,
    estimate,
    estimates,
    profile_sizes,
    records_at,
)


def rise_of(curves: Curves) -> Estimate:
    """Octaves of n* from the smallest budget that all n were evaluated at to the largest."""
    budgets = common_budgets(curves)
    return estimate(lambda mean: float(np.diff(profile_sizes(mean, budgets[[0, -1]]))[0]), curves)


def size_shift(of: Curves, beside: Curves) -> Estimate:
    """Octaves by which n* of one sweep lies above that of another at equal compute, a mean over log-spaced budgets.

    n that both have are compared.
    """
    of, beside = ({n: curves[n] for n in curves if n in other} for curves, other in ((of, beside), (beside, of)))
    budgets = common_budgets(of, beside)

    def shift(one: Means, other: Means) -> float:
        return float(np.mean(profile_sizes(one, budgets) - profile_sizes(other, budgets)))

    return estimate(shift, of, beside)


def target_shift(curves: Curves) -> Estimate:
    """Octaves by which n* of the first column lies above that of the second, a mean over log-spaced budgets."""
    budgets = common_budgets(curves)

    def shift(mean: Means) -> float:
        return float(np.mean(profile_sizes(mean, budgets, 0) - profile_sizes(mean, budgets, 1)))

    return estimate(shift, curves)


def level_gain(of: Curves, beside: Curves, sizes: Sequence[int] = ()) -> Estimate:
    """Highest mean reward of one sweep within the budget, over its n, less that of another.

    Args:
      of: the one.
      beside: the other.
      sizes: n that may be chosen in either; all if empty.
    """
    return estimate(lambda one, other: level(one, sizes) - level(other, sizes), of, beside)


def level(mean: Means, sizes: Sequence[int] = ()) -> float:
    """Highest mean reward over n and budgets."""
    return max(float(value[:, 0].max()) for n, (_, value) in mean.items() if not sizes or n in sizes)


def batch_effect(sweeps: Mapping[int, Curves]) -> tuple[Estimate, Estimate, Estimate]:
    """Spread of reward over B_problem at equal n, over n at equal B_problem, both at equal compute, and their ratio.

    A spread is the standard deviation of records, a mean over log-spaced budgets and over what is held equal.

    Args:
      sweeps: B_problem -> curves; n that all of them have are compared.
    """
    sizes = sorted(set.intersection(*(set(curves) for curves in sweeps.values())))
    shared = [{n: curves[n] for n in sizes} for curves in sweeps.values()]
    budgets = common_budgets(*shared)

    def spreads(*found: Means) -> list[float]:
        records = np.stack([records_at(mean, budgets) for mean in found])  # [B_problem, n, C]
        by_batch, by_size = (float(records.std(axis=axis, ddof=1).mean()) for axis in (0, 1))
        return [by_batch, by_size, by_batch / by_size]

    by_batch, by_size, ratio = estimates(spreads, *shared)
    return by_batch, by_size, ratio


def size_effect(of: Curves, beside: Curves) -> Estimate:
    """Spread of reward over n in one sweep, in that of another, over the n that both have, at equal compute.

    A spread is the standard deviation of records, a mean over log-spaced budgets.
    """
    sizes = sorted(set(of) & set(beside))
    shared = [{n: curves[n] for n in sizes} for curves in (of, beside)]
    budgets = common_budgets(*shared)

    def ratio(*found: Means) -> float:
        one, other = (records_at(mean, budgets).std(axis=0, ddof=1).mean() for mean in found)
        return float(one / other)

    return estimate(ratio, *shared)
