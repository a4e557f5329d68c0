"""n for each problem: who gets how many of a step's rollouts.

History in, counts out: `believe` turns what was seen of the problems into a Beta distribution of each one's rate p,
and `deal` hands out the rollouts of a step in blocks, one block or more to each of its problems:

    uniform       as evenly as blocks allow
    variance      least sum of E[p (1 - p)] / (n - 1), the variance of leave-one-out gradients (VIP, arXiv 2602.01601)
    knapsack      most value; of n rollouts: the chance of a mixed group times p (1 - p)^2 (Knapsack RL, 2509.25849)
    hit           most expected hits among further rollouts (HORA, 2605.07114), after a first block to each problem
    until_signal  a first block to each; then those whose rewards are all equal double (Reinforce-Ada, 2510.04996)

The value of n rollouts is concave in n under the first four: their next rollout adds less than the last. So is its mean
over a distribution of p, and a sum over problems of concave values is largest where the blocks that add most are dealt.
Of Knapsack RL's: one more rollout makes a group mixed that was not with probability p^n (1 - p) + (1 - p)^n p, which
falls as n rises. No dynamic programme is needed.

Departures from the papers. All: what is known of a rate comes from the run's own history, whose older groups count half
as much with each later one (`experiment.problem_history`), and from a prior fitted to all problems (`prior`), where
HORA has a uniform one and this step's rollouts alone, VIP a Gaussian process over prompts, and Knapsack RL the last
epoch's rate; values are means over that distribution, so that a problem that was never solved keeps some. Every problem
gets a block at least. `hit` gives every problem one block more in its second round, which its estimator needs
(`estimator`). `until_signal` trains on all that was drawn, within a fixed number of rollouts a step; what is left when
every problem has a signal is dealt evenly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.records.errors import Field, InputError

Policy = Literal["uniform", "hit", "variance", "knapsack", "until_signal"]

LOOKS: frozenset[Policy] = frozenset({"hit", "until_signal"})
"""Policies whose later rounds depend on the rewards of the earlier ones of the same step."""

_RELATED, _GROUPS = 1 / 3, 8.0
"""Correlation of two rollouts of a problem under a uniform prior, and how many groups' worth of evidence it counts."""
_LEAST_RELATED, _MOST_RELATED = 0.01, 0.8


@dataclasses.dataclass(frozen=True, eq=False)
class Belief:
    """What is known of the rates p of P problems: Beta(solved, failed) of each, both above 0."""

    solved: np.ndarray  # [P] float64
    failed: np.ndarray  # [P] float64

    @property
    def rate(self) -> np.ndarray:
        """[P] E[p]."""
        return self.solved / (self.solved + self.failed)

    @property
    def spread(self) -> np.ndarray:
        """[P] E[p (1 - p)], the variance of a reward at a rate that is known."""
        both = self.solved + self.failed
        return self.solved * self.failed / (both * (both + 1))

    @property
    def turned(self) -> Belief:
        """Of 1 - p."""
        return Belief(self.failed, self.solved)

    def missed(self, most: int) -> np.ndarray:
        """[P, most + 1] E[(1 - p)^n], the chance that none of n = 0 .. most rollouts is solved."""
        drawn = np.arange(most)
        left = (self.failed[:, None] + drawn) / ((self.solved + self.failed)[:, None] + drawn)
        return np.cumprod(np.concatenate([np.ones((len(left), 1)), left], axis=1), axis=1)

    def mixed(self, most: int) -> np.ndarray:
        """[P, most + 1] the chance that of n = 0 .. most rollouts some are solved and some are not."""
        return np.maximum(1 - self.missed(most) - self.turned.missed(most), 0.0)

    def having_seen(self, rewards: Sequence[np.ndarray]) -> Belief:
        """After rollouts of each problem, of which those with a reward of 1 or more are solved."""
        solves = np.array([np.count_nonzero(np.asarray(each) >= 1.0) for each in rewards])
        return Belief(self.solved + solves, self.failed + [len(each) for each in rewards] - solves)


def prior(attempts: np.ndarray, solves: np.ndarray) -> tuple[float, float]:
    """The two parameters of the Beta distribution of rates over problems, by moments (Kleinman 1973).

    It is drawn towards the uniform distribution, which it is where nothing was tried. With n_i rollouts of problem i,
    of which a share r_i was solved, the mean m over all N rollouts, and the correlation c = 1 / (1 + a + b) of two
    rollouts of one problem whose rate is of Beta(a, b):

        E[sum n_i (r_i - m)^2] = m (1 - m) sum (1 - n_i / N) (1 + (n_i - 1) c)

    Args:
      attempts: [D] rollouts of each problem, not necessarily whole numbers; 0 for one that was not tried.
      solves: [D] those that were solved.
    """
    tried = attempts > 0
    n, k = np.asarray(attempts, np.float64)[tried], np.asarray(solves, np.float64)[tried]
    total = math.fsum(n)  # exact sums, whatever the order of the problems
    mean = (math.fsum(k) + 1.0) / (total + 2.0)
    free = 1.0 - n / total if total else n
    seen = math.fsum(n * (k / n - mean) ** 2) / (mean * (1 - mean)) - math.fsum(free)
    pairs = math.fsum(free * np.maximum(n - 1.0, 0.0))
    related = np.clip((seen + _GROUPS * _RELATED) / (pairs + _GROUPS), _LEAST_RELATED, _MOST_RELATED)
    weight = float(1.0 / related - 1.0)
    return mean * weight, (1 - mean) * weight


def believe(attempts: np.ndarray, solves: np.ndarray, places: np.ndarray) -> Belief:
    """What is known of the problems of a step.

    Args:
      attempts: [D] rollouts of every problem of the run, the older ones at less than 1 (`History.recent_attempts`).
      solves: [D] those of them that were solved.
      places: [P] which of the D are in the step.
    """
    first, second = prior(attempts, solves)
    n, k = np.asarray(attempts, np.float64)[places], np.asarray(solves, np.float64)[places]
    return Belief(first + k, second + np.maximum(n - k, 0.0))


def check_deal(policy: Policy, *, group_size: int, block: int, most: int) -> None:
    """Holds the fields of a deal to each other; `block` and `most` mean nothing where all get the same.

    Args:
      policy: who gets how many.
      group_size: n, the mean over the problems of a step.
      block: rollouts that are dealt at once, and the least that a problem gets.
      most: rollouts that a problem gets at most; 0 for no limit.

    Raises:
      InputError: blocks too small for a group, or which do not divide n; a limit below n.
    """
    if policy == "uniform":
        return
    if block < 2:
        raise InputError(Field("block"), f" = {block}: a group needs 2 rollouts or more to have a baseline")
    if group_size % block:
        fits = ", ".join(str(b) for b in range(2, group_size + 1) if group_size % b == 0)
        raise InputError(
            Field("block"),
            f" = {block} does not divide the group size {group_size}, so that no deal of whole blocks has as many "
            f"rollouts: choose one of {fits}",
        )
    if most and most // block * block < group_size:
        raise InputError(
            Field("most"),
            f" = {most} in blocks of {block} lets a problem have {most // block * block} rollouts, below the mean of "
            f"{group_size}, so that they cannot all be dealt: raise it to {group_size} or more, or set 0 for no limit",
        )


def deal(
    policy: Policy,
    belief: Belief,
    rewards: Sequence[np.ndarray] | None = None,
    *,
    total: int,
    block: int,
    most: int = 0,
) -> np.ndarray:
    """[P] rollouts of each problem in the next round of a step; the rounds of a step come to `total`.

    The first round gives every problem a block or more. Policies that do not look at rewards (`LOOKS`) deal everything
    in it. Deterministic; what is worth the same goes to problems with fewer rollouts first, then by place.

    Args:
      policy: who gets how many.
      belief: of the P problems before the step.
      rewards: [P][n] those of each problem in the rounds of this step so far; None before the first.
      total: rollouts of the step, a multiple of `block`, from P x block to P x most (`check_deal` says so beforehand).
      block: rollouts that are dealt at once, 2 or more.
      most: rollouts that a problem gets at most; 0 for no limit.

    Raises:
      ValueError: such a deal does not exist.
    """
    problems = len(belief.solved)
    drawn = np.array([len(each) for each in rewards]) if rewards is not None else np.zeros(problems, int)
    blocks = (total - int(drawn.sum())) // block
    room = (most // block if most else total // block) - drawn // block
    if total % block or block < 2 or np.any(drawn % block) or not 0 <= blocks <= room.sum():
        raise ValueError(f"{total} rollouts cannot be dealt to {problems} problems in blocks of {block}, most = {most}")
    if rewards is None:
        if blocks < problems:
            raise ValueError(f"{total} rollouts are less than a block of {block} for each of {problems} problems")
        dealt = FIRST[policy](belief, blocks, room, block)
    else:
        dealt = THEN[policy](belief, rewards, blocks, room, block)
    return dealt * block


# --- rounds: blocks to each problem [P], given how many there are in all and how many each has room for


def _by_value(value: Callable[[Belief, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """The first round deals all blocks, by the values [P, S] of sizes [S]."""

    def dealt(belief: Belief, blocks: int, room: np.ndarray, block: int) -> np.ndarray:
        return _worth_most(value(belief, _sizes(blocks, room, block)), blocks, room)

    return dealt


def _a_block_each(belief: Belief, _blocks: int, _room: np.ndarray, _block: int) -> np.ndarray:
    return np.ones(len(belief.solved), int)


FIRST: Mapping[Policy, Callable[..., np.ndarray]] = {
    "uniform": _by_value(lambda belief, sizes: np.zeros((len(belief.solved), len(sizes)))),
    "variance": _by_value(lambda belief, sizes: -belief.spread[:, None] / (sizes - 1.0)),
    "knapsack": _by_value(lambda belief, sizes: _gain(belief)[:, None] * _gaining(belief).mixed(sizes[-1])[:, sizes]),
    "hit": _a_block_each,
    "until_signal": _a_block_each,
}


def _gain(belief: Belief) -> np.ndarray:
    """[P] E[p (1 - p)^2]."""
    both = belief.solved + belief.failed
    return belief.spread * (belief.failed + 1) / (both + 2)


def _gaining(belief: Belief) -> Belief:
    """The distribution of p weighed by p (1 - p)^2, so that E[p (1 - p)^2 f(p)] is `_gain` times its mean of f."""
    return Belief(belief.solved + 1, belief.failed + 2)


def _nothing_more(belief: Belief, *_: object) -> np.ndarray:
    return np.zeros(len(belief.solved), int)


def _by_hits(belief: Belief, rewards: Sequence[np.ndarray], blocks: int, room: np.ndarray, block: int) -> np.ndarray:
    """All that is left, a block or more to each problem, by the chance of a hit among them."""
    if not blocks:
        return _nothing_more(belief)
    sizes = _sizes(blocks, room, block)
    return _worth_most(-belief.having_seen(rewards).missed(sizes[-1])[:, sizes], blocks, room)


def _by_signal(belief: Belief, rewards: Sequence[np.ndarray], blocks: int, room: np.ndarray, block: int) -> np.ndarray:
    """As much again to each problem whose rewards are all equal; where there is too little, or too much, evenly."""
    drawn = np.array([len(each) for each in rewards]) // block
    silent = np.array([np.ptp(each) == 0 for each in rewards])
    wanted = np.where(silent, np.minimum(drawn, room), 0)
    if 0 < wanted.sum() <= blocks:
        return wanted
    further = np.arange(blocks)
    if wanted.any():  # a block to each in turn, those first that it gives a signal most likely
        chance = belief.having_seen(rewards).mixed(block)[:, block]
        return _largest(chance[:, None] - further, blocks, wanted)
    return _largest(-(drawn[:, None] + further).astype(float), blocks, room)


THEN: Mapping[Policy, Callable[..., np.ndarray]] = {
    "uniform": _nothing_more,
    "variance": _nothing_more,
    "knapsack": _nothing_more,
    "hit": _by_hits,
    "until_signal": _by_signal,
}


def _sizes(blocks: int, room: np.ndarray, block: int) -> np.ndarray:
    """[S] the rollouts that a problem can get in a round that gives each problem a block or more."""
    return block * np.arange(1, min(blocks - len(room) + 1, int(room.max())) + 1)


def _worth_most(values: np.ndarray, blocks: int, room: np.ndarray) -> np.ndarray:
    """[P] a block each, and the others so that the sum of values is largest.

    Args:
      values: [P, S] of 1 .. S blocks of each problem, concave.
      blocks: to deal.
      room: [P] blocks that each problem takes at most.
    """
    return 1 + _largest(np.diff(values, axis=1), blocks - len(room), room - 1)


def _largest(gains: np.ndarray, blocks: int, room: np.ndarray) -> np.ndarray:
    """[P] so many blocks in all, those with the largest gains; among equals the first ones, then by place.

    Args:
      gains: [P, S] of the next blocks of each problem, falling.
      blocks: to deal; all, if there is room.
      room: [P] blocks that each problem takes at most.
    """
    place, step = np.nonzero(np.arange(gains.shape[1]) < room[:, None])
    order = np.lexsort((place, step, -gains[place, step]))[:blocks]
    return np.bincount(place[order], minlength=len(gains))
