"""What draws of several configurations' rewards at one compute say: whom to take, how surely, and who ties."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.frontier import standings
from isocompute_jax.fit.frontier.standings import ALIKE
from isocompute_jax.fit.intervals import percentile_interval

ONE_SIDED = 0.025
"""Configurations that lie below in all but this share of the draws are told apart."""


class Prospect(NamedTuple):
    """A budget, over the draws.

    Attributes:
      index: number of the configuration to take: that with the highest expected reward.
      reward: its expected reward.
      interval95: 95% interval of its reward: parameters, noise and form.
      best_share: share of the draws in which it is the best.
      rival: who is the best in most of the others; None where nobody else ever is.
      rival_share: share of all draws in which it is.
      regret: mean over the draws of the best reward less its own: what choosing it is expected to cost.
      tied: numbers of those that cannot be told from it at 95%, itself included.
    """

    index: int
    reward: float
    interval95: tuple[float, float]
    best_share: float
    rival: int | None
    rival_share: float
    regret: float
    tied: tuple[int, ...]


def prospect(rewards: np.ndarray, among: Sequence[int], *, choices: Collection[int] | None = None) -> Prospect:
    """Reads it off draws [S, K] of the rewards of the configurations with the numbers `among` [K].

    One of `choices` is taken, any where that is None; all others compete.
    """
    places = [k for k, i in enumerate(among) if choices is None or i in choices]
    place = max(places, key=lambda k: float(rewards[:, k].mean()))
    tied = _tied(rewards, place)
    own, best = rewards[:, place], rewards.max(axis=1)
    first = (own[:, None] < rewards).any(axis=1)  # somebody else is the best
    leaders = np.bincount(rewards[first].argmax(axis=1), minlength=len(among))
    rival = int(leaders.argmax())
    return Prospect(
        index=among[place],
        reward=float(own.mean()),
        interval95=percentile_interval(own, float(own.mean())),
        best_share=float(np.mean(~first)),
        rival=among[rival] if leaders.any() else None,
        rival_share=float(leaders[rival] / len(rewards)),
        regret=float(np.mean(best - own)),
        tied=tuple(among[k] for k in tied),
    )


def told_apart(better: np.ndarray, worse: np.ndarray) -> np.ndarray:
    """[...] whether one configuration lies above others in all but `ONE_SIDED` of their draws [S, ...]."""
    return np.mean(better > worse, axis=0) >= 1 - ONE_SIDED


def _tied(rewards: np.ndarray, place: int) -> list[int]:
    """Who cannot be told from `place` at 95%: by the draws, and for all pairs that tie together (Bonferroni).

    The highest of many equal curves stands out from each of them by luck. Draws that all agree tell two apart, however
    far the tail of their differences reaches.
    """
    behind = rewards[:, place, None] - rewards
    told, always = told_apart(rewards[:, place, None], rewards), np.all(behind > 0, axis=0)
    far = behind.mean(axis=0) / np.maximum(behind.std(axis=0), ALIKE)

    def ties(k: int, pairs: int) -> bool:
        return not told[k] or bool(not always[k] and far[k] < -scipy.special.ndtri(ONE_SIDED / pairs))

    return standings.those_that_tie(range(rewards.shape[1]), ties)
