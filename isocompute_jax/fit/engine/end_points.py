"""Draws for runs of one or two evaluations, of which no curve can be known: what was measured, with its noise."""

from __future__ import annotations

import numpy as np

from isocompute_jax.fit.engine.sweep_model import DRAWS, SweepDraws, SweepModel

SEED_SD, SEED_FREEDOM = 0.015, 4.0
"""Prior of the standard deviation between seeds, as a share of the range, and how many seeds it counts for."""


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
        for place, at in zip(draws.T, seen.compute[own], strict=True):
            mean[k][:, compute >= at * 0.999] = place[:, None]
    run = mean + (sd * rng.normal(size=(count, DRAWS)))[..., None]
    scaled = (low + (high - low) * np.clip(part, 0.0, 1.0) for part in (mean, run))
    return SweepDraws(compute, *scaled, noise=sd * 0.0)
