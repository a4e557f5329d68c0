"""Who leads at one compute, and who cannot be told from the leader: by the evaluations, by draws, by fitted curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.diagnostics import predict
from isocompute_jax.fit.curves.seeds import SAME_COMPUTE, Curve, merge_close, read_off
from isocompute_jax.fit.frontier.bootstrap import PERCENTILES, Bootstrap, percentile_interval, replicate_rewards
from isocompute_jax.fit.results import Configuration, CurveFit

NEAR = 1.25
"""Evaluations within this factor of a compute say something about it."""

ALIKE = 1e-6
"""Curves that differ by less than this share of the reward range are equal, noise or not."""

ONE_SIDED = 0.025
"""Configurations that lie below in all but this share of the draws are told apart."""


@dataclasses.dataclass(frozen=True, eq=False)
class Budget:
    """How K configurations compare at one compute, from the evaluations themselves (no fit)."""

    compute: float
    mean: np.ndarray  # [K] mean reward over seeds; NaN where a configuration has no data
    seed_sd: float  # standard deviation of one seed's reward, pooled over configurations; NaN with one seed each
    best: Configuration  # the highest mean
    tied: tuple[Configuration, ...]  # within one standard error of the difference of the best, itself included
    behind: tuple[Configuration, ...]  # clearly below the best: beyond the 95% interval of the difference, for all
    # pairs at once (Bonferroni: the best of several is picked because it is high); none without noise

    def written(self) -> dict[str, Any]:
        """See `plain_data`."""
        names = "compute", "best_run", "best_group_size", "tied_runs", "tied_group_sizes", "compared", "reward"
        return {name: getattr(self, name) for name in (*names, "seed_sd")}

    @property
    def best_run(self) -> str:
        """Name of the best."""
        return self.best.name

    @property
    def best_group_size(self) -> int:
        """Its n."""
        return self.best.group_size

    @property
    def reward(self) -> float:
        """Its mean."""
        return float(np.nanmax(self.mean))

    @property
    def tied_runs(self) -> tuple[str, ...]:
        """Names of the best and of those tied with it."""
        return tuple(each.name for each in self.tied)

    @property
    def rivals(self) -> list[str]:
        """Names of those tied with the best."""
        return [run for run in self.tied_runs if run != self.best_run]

    @property
    def tied_group_sizes(self) -> tuple[int, ...]:
        """Every n of those that tie."""
        return tuple(sorted({each.group_size for each in self.tied}))

    @property
    def compared(self) -> int:
        """How many configurations have data there."""
        return int(np.count_nonzero(~np.isnan(self.mean)))

    def wants_larger_n(self, other: Budget) -> bool | None:
        """Whether it asks for a larger n than another one; None where the same n serves both within noise."""
        if set(self.tied_group_sizes) & set(other.tied_group_sizes):
            return None
        return self.best_group_size >= other.best_group_size


def nearest(budgets: Sequence[Budget], compute: float) -> Budget | None:
    """The evaluated budget nearest to a compute, inside the data or at their end; None where none is near (`NEAR`)."""
    at = min(compute, max((budget.compute for budget in budgets), default=math.nan))
    near = min(budgets, key=lambda budget: abs(math.log(budget.compute / at)), default=None)
    return near if near and max(near.compute / at, at / near.compute) <= NEAR else None


def compare(curves: Sequence[Curve]) -> list[Budget]:
    """Compares the configurations at every evaluated compute > 0, with ties inside seed noise."""
    trained = [curve.compute[curve.compute > 0] for curve in curves]
    if not any(len(compute) for compute in trained):
        return []
    return [_compare_at(float(c), curves) for c in merge_close(np.concatenate(trained))]


def _compare_at(compute: float, curves: Sequence[Curve]) -> Budget:
    levels = [_level(curve, np.array([compute])) for curve in curves]
    mean = np.array([np.nan if level is None else level.mean() for level in levels])
    seeds = np.array([1 if level is None else len(level) for level in levels])
    seed_sd, freedom = _pooled_sd(levels)
    best = int(np.nanargmax(mean))
    error = seed_sd * np.sqrt(1.0 / seeds + 1.0 / seeds[best])
    below = mean[best] - mean
    count = int(np.count_nonzero(~np.isnan(mean)))
    pairs = max(count * (count - 1) // 2, 1)
    least = scipy.special.stdtrit(max(freedom, 1), 1 - (1 - uncertainty.CONFIDENCE) / 2 / pairs) * error
    tied = (below <= error) | (np.arange(len(curves)) == best)
    behind = below > least  # none where the noise, and so the limit, is NaN

    def of(chosen: np.ndarray) -> tuple[Configuration, ...]:
        return tuple(curve.configuration for curve, is_one in zip(curves, chosen, strict=True) if is_one)

    return Budget(compute, mean, seed_sd, curves[best].configuration, of(tied), of(behind))


def lead(
    curves: Sequence[Curve], better: Configuration, worse: Configuration, *, compute: np.ndarray
) -> tuple[float, float]:
    """How far `better` is ahead of `worse` on average over several budgets: (difference, its standard error).

    A seed's evaluations move together, so each seed is averaged over the budgets first and counts as one observation;
    the variance of these is pooled over configurations. Of budgets that only some seeds of a pooled curve reach none
    counts, unless there are no others: else the seeds that begin late or end early would not.

    Args:
      curves: all configurations.
      better: one of them.
      worse: another.
      compute: [P] budgets.

    Returns:
      NaN for what the data do not give.
    """
    names = [curve.configuration for curve in curves]
    one, other = names.index(better), names.index(worse)
    covered = compute[_reached(curves[one], compute) & _reached(curves[other], compute)]
    compute = covered if len(covered) else compute
    levels = [_level(curve, compute) for curve in curves]
    ahead, below = levels[one], levels[other]
    if ahead is None or below is None:
        return math.nan, math.nan
    error = _pooled_sd(levels)[0] * np.sqrt(1.0 / len(ahead) + 1.0 / len(below))
    return float(ahead.mean() - below.mean()), float(error)


def _reached(curve: Curve, compute: np.ndarray) -> np.ndarray:
    """[P] bool: budgets that every seed of a pooled curve reaches over; all of them for a mean."""
    found = np.ones(len(compute), bool)
    if curve.pooled:
        for number in range(len(curve.seeds)):
            own = curve.of_seed(number)[0]
            own = own[own > 0]
            if len(own):
                found &= (compute >= own[0] * (1 - SAME_COMPUTE)) & (compute <= own[-1] * (1 + SAME_COMPUTE))
    return found


def _level(curve: Curve, compute: np.ndarray) -> np.ndarray | None:
    """[S] mean reward over budgets `compute` of each seed that reaches over all of them; None when none does."""
    if not len(compute):
        return None
    found = []
    for own, reward in map(curve.of_seed, range(len(curve.seeds))):
        trained = own[own > 0]
        if not len(trained) or compute.min() < trained[0] * (1 - SAME_COMPUTE):
            continue
        if compute.max() <= trained[-1] * (1 + SAME_COMPUTE):
            found.append(read_off(own, reward, compute).mean())
    return np.array(found) if found else None


def _pooled_sd(levels: Sequence[np.ndarray | None]) -> tuple[float, int]:
    """Standard deviation of one seed, pooled over configurations, and its freedom; NaN when none has two seeds."""
    known = [level for level in levels if level is not None]
    freedom = sum(len(level) - 1 for level in known)
    squares = sum(float(np.sum((level - level.mean()) ** 2)) for level in known)
    return (float(np.sqrt(squares / freedom)) if freedom else float("nan")), freedom


class Choice(NamedTuple):
    """Which of several configurations to take, and what is known of it there; the last four by draws alone."""

    index: int  # number of the configuration: that with the highest expected reward
    reward: float  # its expected reward
    interval95: tuple[float, float]  # of its reward: parameters, noise and form
    tied: tuple[int, ...]  # numbers of those that do not differ from it at 95%, itself included
    best_share: float = math.nan  # share of the draws in which it is the best
    rival: int | None = None  # who is the best in most of the others; None where nobody else ever is
    rival_share: float = math.nan  # share of all draws in which that is so
    regret: float = math.nan  # what choosing it is expected to cost: mean of the best reward less its own


def prospect(rewards: np.ndarray, among: Sequence[int], *, choices: Collection[int] | None = None) -> Choice:
    """The choice by draws [S, K] of the rewards of the configurations with the numbers `among` [K].

    One of `choices` is taken, any where that is None; all others compete.
    """
    places = [k for k, i in enumerate(among) if choices is None or i in choices]
    place = max(places, key=lambda k: float(rewards[:, k].mean()))
    tied = _tied(rewards, place)
    own, best = rewards[:, place], rewards.max(axis=1)
    first = (own[:, None] < rewards).any(axis=1)  # somebody else is the best
    leaders = np.bincount(rewards[first].argmax(axis=1), minlength=len(among))
    rival = int(leaders.argmax())
    return Choice(
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
    apart, always = told_apart(rewards[:, place, None], rewards), np.all(behind > 0, axis=0)
    far = behind.mean(axis=0) / np.maximum(behind.std(axis=0), ALIKE)

    def ties(k: int, pairs: int) -> bool:
        return not apart[k] or bool(not always[k] and far[k] < -scipy.special.ndtri(ONE_SIDED / pairs))

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
    themselves have clearly `behind` (see `Budget`) tie with nothing, unless the highest is one of them.
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
