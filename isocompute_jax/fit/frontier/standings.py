"""Who leads at one compute, and who cannot be told from the leader: by draws, by replicates, by the delta method."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.diagnostics import predict
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, replicate_rewards
from isocompute_jax.fit.intervals import PERCENTILES, percentile_interval
from isocompute_jax.fit.results import Configuration, CurveFit

ALIKE = 1e-6
"""Curves that differ by less than this share of the reward range are equal, noise or not."""

ONE_SIDED = 0.025
"""Configurations that lie below in all but this share of the draws are told apart."""


class Prospect(NamedTuple):
    """What draws of the rewards of several configurations at one compute say."""

    index: int  # number of the configuration to take: that with the highest expected reward
    reward: float  # its expected reward
    interval95: tuple[float, float]  # of its reward: parameters, noise and form
    best_share: float  # share of the draws in which it is the best
    rival: int | None  # who is the best in most of the others; None where nobody else ever is
    rival_share: float  # share of all draws in which that is so
    regret: float  # what choosing it is expected to cost: mean of the best reward less its own
    tied: tuple[int, ...]  # numbers of those that cannot be told from it at 95%, itself included


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

    return those_that_tie(range(rewards.shape[1]), ties)


def standings(
    at: Mapping[int, float],
    *,
    fits: Sequence[CurveFit],
    configurations: Sequence[Configuration],
    resampled: Bootstrap | None,
    reward_range: tuple[float, float],
    behind: Collection[int] = (),
) -> tuple[int, tuple[int, ...]]:
    """The highest of curves, each `at` its own compute (by number), and those that cannot be told from it, with it.

    Of equal ones that of the smaller n is the highest.

    A curve ties with the highest when their difference is within its 95% interval, for all pairs that tie together
    (Bonferroni): the highest of many equal curves stands out from each of them by luck. Five equal Hill curves with 30
    evaluations each tie in 95% of simulated studies.

    A curve that follows its evaluations badly is known badly, and ties with everything. So those that the evaluations
    themselves have clearly `behind` (see `ties.Budget`) tie with nothing, unless the highest is one of them.
    """
    members = list(at)
    reward = {i: float(fits[i].reward(at[i])) for i in members}
    highest = max(members, key=lambda i: (reward[i], -configurations[i].group_size))
    least = ALIKE * (reward_range[1] - reward_range[0])
    error = {i: standard_error(fits[i], i, at[i], resampled) for i in members}

    def ties(i: int, pairs: int) -> bool:
        reach = critical_value(fits[highest], fits[i], pairs=pairs) * math.hypot(error[highest], error[i])
        # NaN where nothing tells: then equals alone tie
        return i == highest or bool(reward[highest] - reward[i] <= np.fmax(reach, least))

    tied = those_that_tie(members, ties)
    if highest not in behind:
        tied = [i for i in tied if i not in behind]
    return highest, tuple(tied)


def those_that_tie(members: Sequence[int], ties: Callable[[int, int], bool]) -> list[int]:
    """Those of whom `ties` (member, pairs compared) stays true; whoever is clearly below leaves fewer pairs."""
    tied = list(members)
    for _ in members:
        pairs = max(len(tied) * (len(tied) - 1) // 2, 1)
        still = [i for i in tied if ties(i, pairs)]
        if still == tied:
            break
        tied = still
    return tied


def critical_value(*fits: CurveFit, pairs: int = 1) -> float:
    """Student's t of a two-sided 95% interval, or of so many at once (Bonferroni), for the curve known worst."""
    least = min(freedom(fit) for fit in fits)
    return float(scipy.special.stdtrit(max(least, 1), 1 - (1 - uncertainty.CONFIDENCE) / 2 / max(pairs, 1)))


def freedom(fit: CurveFit) -> int:
    """Points above the number of free parameters."""
    return fit.num_points - int(np.count_nonzero(np.diagonal(fit.search.covariance))) if fit.search else 0


def standard_error(fit: CurveFit, index: int, compute: float, resampled: Bootstrap | None) -> float:
    """Of the curve at one compute, the larger of the replicates' and the delta method's; NaN where nothing tells."""
    found = [math.nan]
    if resampled is not None and resampled.tells(fit, index):
        rewards = replicate_rewards(fit, resampled.at[:, index], np.array([compute]))
        found.append(_replicates_error(fit, rewards, resampled.method))
    if fit.search is not None and np.isfinite(fit.search.covariance).all():
        found.append(float(predict(fit, np.array([compute]))[1][0]))
    return float(np.fmax.reduce(found))


def _replicates_error(fit: CurveFit, rewards: np.ndarray, method: str) -> float:
    """Standard deviation; of drawn noise, which has Student's tails, what `critical_value` makes its interval of."""
    if method != "noise":
        return float(np.std(rewards, ddof=1))
    low, high = np.percentile(rewards, PERCENTILES)
    return float(high - low) / 2 / critical_value(fit)


def interval(fit: CurveFit, index: int, compute: float, resampled: Bootstrap | None) -> tuple[float, float]:
    """95% interval of the curve: from the replicates, else by the delta method; NaN where nothing tells it."""
    if resampled is not None and resampled.tells(fit, index):
        draws = replicate_rewards(fit, resampled.at[:, index], np.array([compute]))[:, 0]
        return percentile_interval(draws, float(fit.reward(compute)))
    error = standard_error(fit, index, compute, resampled)
    if math.isnan(error):
        return math.nan, math.nan
    mean, reach = float(fit.reward(compute)), critical_value(fit) * error
    return mean - reach, mean + reach


def tie_text(tied: Sequence[int], members: Sequence[int], configurations: Sequence[Configuration]) -> str | None:
    """`any n from 8 to 64: no difference seen`, or the configurations by name; None where one leads alone."""
    if len(tied) < 2:
        return None
    sizes = sorted({configurations[i].group_size for i in tied})
    between = {configurations[i].group_size for i in members if sizes[0] <= configurations[i].group_size <= sizes[-1]}
    if sizes[0] > 0 and len(sizes) == len(tied) > 2 and between == set(sizes):
        return f"any n from {sizes[0]} to {sizes[-1]}: no difference seen"
    names = [configurations[i].name for i in tied]
    return f"{', '.join(names[:-1])} and {names[-1]}: no difference seen"
