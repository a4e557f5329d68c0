"""Credit of turns: what each turn of a rollout is worth by itself, where an environment rewards turns.

A turn's return is what it and the later ones are rewarded with: G_k = r_k + r_(k+1) + ... Its advantage compares it
with the returns from turn k on of the group's rollouts that got so far:

    A_k = (G_k - mean of G_k over them) / scale

The mean depends on other rollouts and, but for this one's own share of it, not on what this one does in turn k. With
`leave_one_out` that share is left out too; the expected gradient of a turn is then that of the expected return (Sutton
and Barto, section 13.4: a baseline that does not depend on the action), times the chance that another rollout of the
group reached the turn: one that is alone there has nothing to be compared with, and an advantage of 0.

NumPy on the host, in float64, as `credit` is. Which turn a token belongs to is found in the compiled step, from how
many trained tokens of its rollout stand before it: that is the same in every layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from isocompute_jax.records.rollout import Episode, RolloutGroup

EPSILON = 1e-6
"""Added to deviations that advantages are divided by."""


@dataclasses.dataclass(frozen=True)
class Turns:
    """The turns of P groups of G rollouts, K of each at most."""

    rewards: Float[np.ndarray, "P G K"]  # 0 beyond a rollout's turns
    ends: Int[np.ndarray, "P G K"]  # trained tokens of the rollout up to the end of the turn, of the last one beyond
    reached: Bool[np.ndarray, "P G K"]  # which turns there are

    @property
    def returns(self) -> Float[np.ndarray, "P G K"]:
        """What each turn and the later ones are rewarded with."""
        return np.cumsum(self.rewards[..., ::-1], axis=-1)[..., ::-1]

    @property
    def alike(self) -> Bool[np.ndarray, "P"]:
        """Groups without a signal: whichever turn they are compared from, all rollouts that reached it got the same."""
        return np.all(_alike(self.returns, self.reached), axis=(1, 2))


def turns_of(groups: Sequence[RolloutGroup], most: int) -> Turns:
    """The turns of groups of one size, up to so many; a rollout without an episode is one turn of no reward."""
    shape = (len(groups), len(groups[0].completions), most)
    rewards, ends, reached = np.zeros(shape), np.zeros(shape, np.int32), np.zeros(shape, bool)
    for p, group in enumerate(groups):
        for g, completion in enumerate(group.completions):
            episode = completion.episode or Episode()
            count = len(episode.ends)
            trained = np.cumsum(completion.mask)
            ends[p, g] = trained[-1]
            ends[p, g, :count] = trained[np.array(episode.ends, int) - 1]
            reached[p, g, : max(count, 1)] = True
            if not episode.failure:
                rewards[p, g, :count] = episode.rewards
    return Turns(rewards, ends, reached)


def turn_advantages(
    returns: Float[np.ndarray, "P G K"],
    reached: Bool[np.ndarray, "P G K"],
    *,
    by_deviation: bool,
    leave_one_out: bool,
) -> Float[np.ndarray, "P G K"]:
    """Advantages of turns; 0 where there is none.

    Args:
      returns: of turns, finite.
      reached: which there are.
      by_deviation: divided by the sample standard deviation of the returns that are compared, + 1e-6.
      leave_one_out: compared with the mean of the others.
    """
    counts = reached.sum(axis=1, keepdims=True)
    values = np.where(reached, returns, 0.0)
    means = _sums(values) / np.maximum(counts, 1)
    centred = np.where(reached, values - means, 0.0)
    # As in `credit`: the rounding error of a mean of equal numbers is no signal.
    centred = np.where(_alike(returns, reached), 0.0, centred)
    others = np.maximum(counts - 1, 1)
    if by_deviation:
        centred = centred / (np.sqrt(_sums(centred**2) / others) + EPSILON)
    return (centred * (counts / others if leave_one_out else 1.0)).astype(np.float32)


def _alike(returns: Float[np.ndarray, "P G K"], reached: Bool[np.ndarray, "P G K"]) -> Bool[np.ndarray, "P 1 K"]:
    """Turns whose returns are all equal."""
    highest = np.where(reached, returns, -np.inf).max(axis=1, keepdims=True)
    return highest <= np.where(reached, returns, np.inf).min(axis=1, keepdims=True)


def _sums(x: Float[np.ndarray, "P G K"]) -> Float[np.ndarray, "P 1 K"]:
    """Sums over groups that do not depend on the order of rollouts: smallest first."""
    return np.sort(x, axis=1).sum(axis=1, keepdims=True)
