"""What the gradient of rollouts that were dealt unevenly estimates, and the credit that keeps it right.

The target is the mean over the P problems of a step of the gradient of expected reward. Rollout j of problem p adds
w_pj A_pj grad log pi(j), where nothing but the rewards of a step is random.

**Counts from history alone** (`uniform`, `variance`, `knapsack`): with leave-one-out advantages that are not divided by
a deviation, and weights 1 / (P n_p), the expectation is the target, whatever the counts. Advantages over the group's
mean are (n_p - 1) / n_p as large: such a problem is weighed by that.

**Counts that look at this step's rewards** (`hit`, `until_signal`): a mean over the whole group is a biased baseline,
and 1 / n_p a biased weight, since n_p depends on the reward that they multiply. What is known before a round may enter
the round's credit: the rewards of earlier rounds, and how many rollouts it has. So the baseline of a rollout is the
mean of the other rewards of its problem in **its own round and the earlier ones**, and each round by itself is
unbiased, given those before it:

    hit            w = (share of the step's rollouts that are in the round) / (P x rollouts of p in the round)
    until_signal   w = 1 / (all rollouts of the step)

As every problem is in both rounds of `hit`, and the shares are fixed beforehand, its expectation is the target. Under
`until_signal` (Wald's identity, for rounds) problem p is weighed by E[n_p] over the mean count: more, the nearer its
rate is to 0 or 1. No fixed weights undo that without the rates: a first round that has no signal adds nothing, so that
the first rounds alone have the expectation of the target, and what the later ones add is the tilt. Sampling until the
first success has E[n] = 1 / p, and that tilt makes it the gradient of log p: it is what the policy is for.

`expected_weight` says what dividing by the group's deviation makes of it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from isocompute_jax.allocation.policies import Policy

AdvantageScale = Literal["group_std", "none"]
Baseline = Literal["group_mean", "leave_one_out"]
"""As in the learner's config."""

STD_EPSILON = 1e-6


def advantages(rewards: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """[P, G] r - the mean of the problem's other rewards in the rollout's round and the earlier ones; 0 in padding.

    Leave-one-out where there is one round.

    Args:
      rewards: [P, G] in the order in which they were drawn, round after round, padded with 0.
      rounds: [P, R] rollouts of each problem in each round; the first has 2 or more of each.
    """
    ends, own, drawn = _own_round(rewards.shape[1], rounds)
    seen = np.take_along_axis(ends, own, axis=1)  # rollouts up to the end of the own round
    sums = np.cumsum(np.asarray(rewards, np.float64), axis=1)
    others = np.take_along_axis(sums, seen - 1, axis=1) - rewards
    return np.where(drawn, rewards - others / (seen - 1), 0.0)


def weights(policy: Policy, width: int, rounds: np.ndarray) -> np.ndarray:
    """[P, G] the weight of each rollout's term, 0 in padding; they come to 1.

    Args:
      policy: who dealt.
      width: G, rollouts of the largest group.
      rounds: as of `advantages`.
    """
    _, own, drawn = _own_round(width, rounds)
    if policy == "until_signal":
        return drawn / rounds.sum()
    shares = rounds.sum(axis=0) / rounds.sum()
    in_round = np.take_along_axis(rounds, own, axis=1)
    return np.where(drawn, shares[own] / (len(rounds) * np.maximum(in_round, 1)), 0.0)


def _own_round(width: int, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[P, R] where each round ends, [P, G] each rollout's round (in padding the last), [P, G] bool, what was drawn."""
    ends = np.cumsum(rounds, axis=1)
    places = np.arange(width)
    own = np.sum(places[None, :, None] >= ends[:, None, :], axis=2)
    return ends, np.minimum(own, rounds.shape[1] - 1), places < ends[:, -1:]


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """[n] GRPO's advantages: less the group's mean, over its deviation (ddof 1)."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + STD_EPSILON)


def group_signals(
    group_size: int, *, advantage_scale: AdvantageScale, baseline: Baseline, most: int | None = None
) -> np.ndarray:
    """[most + 1] s_k of a group in which k = 0 .. n were solved; 0 beyond, and where all or none were.

    Args:
      group_size: n, at least 2.
      advantage_scale: `group_std` divides by the sample standard deviation (ddof 1), as GRPO does.
      baseline: the mean of the group, or of the other rollouts, which makes every advantage n / (n - 1) times as large.
      most: how many k there is room for; n when None.

    Raises:
      ValueError: n is below 2.
    """
    n = group_size
    if n < 2:
        raise ValueError(f"a group of {n} has no advantages: group_size must be 2 or more")
    k = np.arange((most or n) + 1.0)
    inside = (k > 0) & (k < n)
    spread = np.where(inside, k * (n - k), 0.0) / n**2  # the variance of the group's rewards
    if advantage_scale == "group_std":
        spread = spread / (np.sqrt(spread * n / (n - 1)) + STD_EPSILON)
    return spread * (n / (n - 1) if baseline == "leave_one_out" else 1.0)


def expected_weight(rate: float, group_size: int, *, advantage_scale: AdvantageScale, baseline: Baseline) -> float:
    """What a problem of rate p is weighed by in the gradient at n rollouts, where the target weighs it by 1.

    The group's signal s_k, of k of n solved, moves the log-odds of solving it; the target's is p (1 - p):

        sum_k Binomial(k; n, p) s_k / (p (1 - p)),   s_k = k (n - k) / n^2 / scale_k

    It is 1 with leave-one-out advantages, (n - 1) / n with the group's mean. Divided by the group's deviation it is
    about 1 / sqrt(p (1 - p)) where n p and n (1 - p) are large, and tends to (n - 1) / sqrt(n) where p nears 0 or 1
    (with leave-one-out advantages to sqrt(n)).

    Args:
      rate: p, between 0 and 1, both excluded.
      group_size: n, 2 or more.
      advantage_scale: `group_std` divides by the sample standard deviation (ddof 1), as GRPO does.
      baseline: as in the learner's config.
    """
    n = group_size
    signals = group_signals(n, advantage_scale=advantage_scale, baseline=baseline).tolist()
    expected = sum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) * signals[k] for k in range(1, n))
    return expected / (rate * (1 - rate))
