"""Credit: what each rollout of a step is worth (its advantage), and how much each of its tokens weighs.

Computed on the host, in float64 and from sums that do not depend on the order of rollouts or groups, then rounded to
float32: NumPy, outside of `jax.jit`. Denominators are global: they are taken here, from the whole step, before it is
split into micro-batches or shards, so splitting never changes a gradient.

Groups of unequal size stand in arrays [P, G] that are as wide as the largest of them, beside a mask `drawn` [P, G] of
the rollouts that there are: the first of each row, two or more. Elsewhere stands 0. Without a mask all groups are of
size G.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner.turn_credit import EPSILON, Turns, turn_advantages, turns_of
from isocompute_jax.options import check, described, field_of, named, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import RolloutGroup

AdvantageScale = Literal["group_std", "batch_std", "group_mean", "none"]
Baseline = Literal["group_mean", "leave_one_out", "none"]
RewardValues = Literal["as_graded", "plus_minus_one"]
Aggregation = Literal["sequence_mean", "token_mean", "prompt_mean", "constant"]
ZeroVariance = Literal["drop", "drop_regularizers", "regularizers_only", "keep"]


@described
@dataclasses.dataclass(frozen=True)
class CreditConfig:
    """How rewards become advantages and weights."""

    advantage_scale: AdvantageScale = option(
        "group_std",
        "What centred rewards are divided by: group_std, the group's standard deviation (GRPO); batch_std, that of the "
        "batch (ScaleRL); group_mean, the group's mean reward (MaxRL); none (Dr. GRPO).",
    )
    aggregation: Aggregation = option(
        "token_mean",
        "How per-token terms become one number: sequence_mean (GRPO), token_mean (DAPO), prompt_mean (ScaleRL) or "
        "constant (Dr. GRPO).",
    )
    zero_variance_groups: ZeroVariance = option(
        "drop",
        "What groups with equal rewards take part in: drop, nothing, denominators included; drop_regularizers, all but "
        "the KL and entropy terms; regularizers_only, these alone; keep, everything.",
    )

    baseline: Baseline = option(
        "group_mean",
        "What is subtracted from a reward: group_mean, the mean of its group (GRPO); leave_one_out, that of the other "
        "rollouts of the group (RLOO), which makes advantages n / (n - 1) times as large; none, nothing.",
        later=True,
    )
    reward_values: RewardValues = option(
        "as_graded",
        "What advantages are made of: as_graded, rewards as they are; plus_minus_one, 2 r - 1, which is -1 and 1 where "
        "they are 0 and 1. Logs keep rewards as graded.",
        later=True,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.baseline == "none" and self.advantage_scale != "none":
            scale = f"and it is {self.advantage_scale!r}"
            raise InputError(field_of(self, "baseline"), f" = 'none' goes with advantage_scale='none' alone, {scale}")


@flax.struct.dataclass
class Credit:
    """What P groups of G rollouts are worth."""

    advantages: Float[Array | np.ndarray, "*P G"] | Float[Array | np.ndarray, "*P G K"]  # float32
    # float32, weight of each token's policy-gradient term (`aggregation_weights`); 0 leaves the rollout out
    policy_weights: Float[Array | np.ndarray, "*P G"]
    regularizer_weights: Float[Array | np.ndarray, "*P G"]  # float32, the same for the KL and entropy terms
    # where turns have advantages of their own, K of each rollout: its trained tokens up to the end of each
    turn_ends: Int[Array | np.ndarray, "*P G K"] | None = None

    def __post_init__(self) -> None:
        parts = self.advantages, self.policy_weights, self.regularizer_weights, self.turn_ends
        advantages, first, second, ends = (getattr(part, "shape", None) for part in parts)
        if advantages is None or first is None or second is None:  # a transformation of JAX, and no arrays
            return
        own = advantages[: len(first)]  # one number, or one for each turn, of a rollout
        if len(own) > 2 and first[-1] == 1:  # of laid-out tokens (`of_tokens`)
            own = (*own[:-1], 1)
        if not own == first == second or ends not in (None, advantages):
            raise ValueError(f"advantages {advantages} and weights {first}, {second} are not of the same rollouts")

    @property
    def takes_part(self) -> Bool[Array | np.ndarray, "*P G"]:
        """Rollouts that some term weighs."""
        return (self.policy_weights > 0) | (self.regularizer_weights > 0)

    @property
    def kept(self) -> Bool[np.ndarray, "P"]:
        """Groups that take part; the others need not be laid out (see `layout`)."""
        return np.asarray(np.any(np.asarray(self.takes_part), axis=1))

    def flat(self, drawn: Bool[np.ndarray, "P G"], rollouts: int) -> Credit:
        """The same as [N] rollouts, group by group, and others that take no part, up to so many in all.

        However so many rollouts are dealt to groups, the step then has one shape.

        Raises:
          ValueError: more rollouts were drawn.
        """
        missing = rollouts - int(drawn.sum())
        if missing < 0:
            raise ValueError(f"{int(drawn.sum())} rollouts were drawn for a step of {rollouts}")
        return jax.tree.map(lambda x: np.pad(np.asarray(x)[drawn], (0, missing)), self)

    def padded(self, problems: int) -> Credit:
        """The same with groups that take no part, up to so many in all: updates on fewer groups share its program."""
        missing = problems - np.shape(self.advantages)[0]
        if not missing:
            return self
        return jax.tree.map(lambda x: np.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))), self)

    def of(self, rollout: Int[Array | np.ndarray, "*N R"]) -> Credit:
        """Credit [*N, R] of laid-out rollouts, by their numbers (`TokenBatch.rollout`); of turns [*N, R, K]."""
        axes = np.ndim(self.policy_weights)
        return jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[axes:])[rollout], self)

    def of_tokens(self, rollout: Int[Array | np.ndarray, "*N R"], before: Int[Array | np.ndarray, "*N R T"]) -> Credit:
        """Credit of laid-out tokens, [*N, R, 1] where all of a rollout have the same and else [*N, R, T].

        `before` are the trained tokens of their rollout that stand before them.
        """
        found = self.of(rollout)
        weights = found.policy_weights[..., None], found.regularizer_weights[..., None]
        if found.turn_ends is None:
            return Credit(found.advantages[..., None], *weights)
        turn = jnp.sum(before[..., None] >= found.turn_ends[..., None, :], axis=-1)
        last = found.advantages.shape[-1] - 1
        return Credit(jnp.take_along_axis(found.advantages, jnp.minimum(turn, last), axis=-1), *weights)


def credit(
    rewards: Float[Array | np.ndarray, "P G"] | Int[Array | np.ndarray, "P G"],
    lengths: Int[Array | np.ndarray, "P G"],
    recipe: CreditConfig,
    *,
    max_tokens: int,
    penalties: Float[np.ndarray, "P G"] | None = None,
    masked: Bool[np.ndarray, "P G"] | None = None,
    part: Bool[np.ndarray, "P"] | None = None,
    drawn: Bool[np.ndarray, "P G"] | None = None,
    turns: Turns | None = None,
) -> Credit:
    """Advantages of one step's rollouts, over the whole of them, and their weights in one update; NumPy, as all here.

    With advantage_scale=none, baseline=leave_one_out, aggregation=constant and zero_variance_groups=keep, the expected
    gradient is that of the mean over problems of expected reward, divided by `max_tokens`, however many rollouts each
    problem got, if that was decided before its rewards were known. Where groups are dropped, or advantages scaled, what
    a problem weighs depends on the size of its group and on its rate.

    Args:
      rewards: [P, G], one group a row, G >= 2; finite.
      lengths: [P, G] trained tokens per rollout.
      recipe: how.
      max_tokens: longest possible completion (see `aggregation_weights`).
      penalties: [P, G] subtracted from the values of rewards, for their length or the distance from a reference, say;
        None for none. They give a group no signal.
      masked: [P, G] rollouts that leave the loss and its denominators; their rewards count in the statistics of their
        group all the same. None for none.
      part: [P] groups of the update's mini-batch: the others have no weight and leave every denominator; None for all.
      drawn: [P, G] which rollouts there are, where groups are of unequal size (`drawn_of`); None for all.
      turns: their turns, to be credited each by itself (see `turn_credit`); groups are then of one size, and scales
        those of groups.

    Raises:
      ValueError: a reward or a penalty is not finite; says of which rollout. Or a group has fewer than two rollouts.
      TypeError: called under `jax.jit`.
    """
    rewards = _finite(rewards, "reward", "credit")
    value_of = named(REWARD_VALUES, recipe.reward_values, "reward_values")
    penalties = np.zeros(1) if penalties is None else _finite(penalties, "penalty", "credit")
    signal = ~zero_variance(rewards, drawn, turns)
    keep_policy, keep_regularizer = named(KEPT, recipe.zero_variance_groups, "zero_variance_groups")(signal)
    if turns is not None:
        advantages = _of_turns(turns, value_of(turns.returns) - penalties[..., None], recipe)
    else:
        values = value_of(np.asarray(rewards, np.float64)) - penalties
        scale, baseline = recipe.advantage_scale, recipe.baseline
        advantages = group_advantages(values, keep_policy, scale=scale, baseline=baseline, drawn=drawn)
    policy, regularizer = (
        aggregation_weights(
            lengths,
            keep if part is None else keep & part,
            aggregation=recipe.aggregation,
            max_tokens=max_tokens,
            masked=masked,
            drawn=drawn,
        )
        for keep in (keep_policy, keep_regularizer)
    )
    return Credit(advantages, policy, regularizer, None if turns is None else turns.ends)


def _of_turns(turns: Turns, values: Float[np.ndarray, "P G K"], recipe: CreditConfig) -> Float[np.ndarray, "P G K"]:
    """The advantages of turns whose returns have these values."""
    return turn_advantages(
        values,
        turns.reached,
        by_deviation=recipe.advantage_scale == "group_std",
        leave_one_out=recipe.baseline == "leave_one_out",
    )


def rewards_of(group: RolloutGroup) -> Float[np.ndarray, "G"]:
    """The rewards of a graded group."""
    if group.rewards is None:
        raise ValueError(f"problem {group.problem_id!r}: its group has not been graded")
    return group.rewards


def group_rewards(groups: Sequence[RolloutGroup]) -> Float[np.ndarray, "P G"]:
    """The rewards of graded groups; 0 beyond the rollouts of a smaller one."""
    return rows_of([rewards_of(group) for group in groups])


def mean_reward(groups: Sequence[RolloutGroup]) -> float:
    """The mean over problems of the mean reward of their rollouts: one that got more of them counts no more."""
    if drawn_of(groups) is None:
        return float(group_rewards(groups).mean())
    return float(np.mean([rewards_of(group).mean() for group in groups]))


def drawn_of(groups: Sequence[RolloutGroup]) -> Bool[np.ndarray, "P G"] | None:
    """Which rollouts there are, of groups of unequal size; None where all are of one."""
    sizes = np.array([len(group.completions) for group in groups])
    return np.arange(sizes.max()) < sizes[:, None] if len(set(sizes.tolist())) > 1 else None


def first_numbers(groups: Sequence[RolloutGroup]) -> Int[np.ndarray, "P"]:
    """The number of each group's first rollout: those of a step are counted group by group, and within groups."""
    sizes = np.array([len(group.completions) for group in groups], int)
    return np.cumsum(sizes) - sizes


def rows_of(values: Sequence[Any]) -> Any:
    """One row for each group, zero (False) beyond the values of a smaller one."""
    width, arrays = max(map(len, values)), map(np.asarray, values)
    return np.stack([x if len(x) == width else np.pad(x, (0, width - len(x))) for x in arrays])


KEPT: Mapping[ZeroVariance, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "drop": lambda signal: (signal, signal),
    "drop_regularizers": lambda signal: (np.ones_like(signal), signal),
    "regularizers_only": lambda signal: (signal, np.ones_like(signal)),
    "keep": lambda signal: (np.ones_like(signal), np.ones_like(signal)),
}
"""Which groups count in the policy-gradient term, and which in the KL and entropy terms."""

REWARD_VALUES: Mapping[RewardValues, Callable[[np.ndarray], np.ndarray]] = {
    "as_graded": lambda rewards: rewards,
    "plus_minus_one": lambda rewards: 2.0 * rewards - 1.0,
}
"""What advantages are made of, from rewards."""


# --- advantages


def zero_variance(
    rewards: Float[Array | np.ndarray, "P G"] | Int[Array | np.ndarray, "P G"],
    drawn: Bool[np.ndarray, "P G"] | None = None,
    turns: Turns | None = None,
) -> Bool[np.ndarray, "P"]:
    """Groups whose rewards are all equal, or those of their turns are: their advantages are zero whatever the scale."""
    if turns is not None:
        return turns.alike
    rewards = np.asarray(rewards)
    alike = rewards == rewards[:, :1]
    return np.all(alike if drawn is None else alike | ~drawn, axis=1)


def signal_of(groups: Sequence[RolloutGroup], credited_turns: int) -> Bool[np.ndarray, "P"]:
    """Which graded groups have a signal, where so many turns at most are credited each by itself; 0 for rollouts."""
    turns = turns_of(groups, credited_turns) if credited_turns else None
    return ~zero_variance(group_rewards(groups), drawn_of(groups), turns)


def group_advantages(
    rewards: Float[Array | np.ndarray, "P G"] | Int[Array | np.ndarray, "P G"],
    keep: Bool[Array | np.ndarray, "P"],
    *,
    scale: AdvantageScale,
    baseline: Baseline,
    drawn: Bool[np.ndarray, "P G"] | None = None,
) -> Float[np.ndarray, "P G"]:
    """A_i = (r_i - baseline_i) / scale, in NumPy.

    Args:
      rewards: [P, G] rewards, one group a row, G >= 2; finite.
      keep: [P] groups that count in the batch's statistics; only `batch_std` looks at it.
      scale:
        `group_std`: sample standard deviation of the group (ddof 1) + 1e-6 (GRPO, arXiv 2402.03300);
        `batch_std`: standard deviation of the centred rewards over the kept rollouts + 1e-6 (ScaleRL, 2510.13786);
        `group_mean`: the group's mean reward, where it is above 0 (MaxRL, 2602.02710): of rewards of 0 and 1, at a rate
        of p, the expected gradient is (1 - (1 - p)^(n-1)) / p times that of p: of log p, its series cut after n - 1;
        `none`: 1 (Dr. GRPO, 2503.20783).
        All of them are of rewards less the group's mean, whatever the baseline.
      baseline:
        `group_mean`: the mean of the group (GRPO);
        `leave_one_out`: that of its other rollouts (RLOO, 2402.14740), which does not depend on r_i, so that the
        gradient is unbiased: r_i - mean of the others = n / (n - 1) x (r_i - mean of all), n being the group's size;
        `none`: 0, so that a group may be of one.
      drawn: [P, G] as in `credit`.

    Returns:
      [P, G] float32 advantages; bit for bit the same for a rollout wherever it stands in its group or in the batch, and
      (but for `batch_std`) whatever size other groups have. 0 where nothing was drawn.

    Raises:
      ValueError: a reward is not finite; says of which rollout. Or a group has fewer than two rollouts.
      TypeError: called under `jax.jit`.
    """
    rewards = _finite(rewards, "reward", "group_advantages")
    values = np.asarray(rewards, np.float64)
    sizes = _sizes(values, drawn)
    means = _group_sums(values, drawn) / sizes
    centred = values - means
    # The mean of equal rewards is rounded, and the rounding error over its own deviation would pass for a signal.
    centred[zero_variance(rewards, drawn)] = 0.0
    there = np.broadcast_to(True, values.shape) if drawn is None else drawn
    centred[~there] = 0.0
    shifted = np.where(there, values, 0.0) if baseline == "none" else centred
    scaled = shifted / named(SCALES, scale, "scale")(centred, means, np.asarray(keep), there)
    return (scaled * named(BASELINES, baseline, "baseline")(sizes)).astype(np.float32)


def _finite(values: Any, what: str, where: str) -> np.ndarray:
    """One number for each rollout [P, G], on the host: what is not finite would spread over its group, or the batch."""
    if isinstance(values, Tracer):
        raise TypeError(
            f"learner.{where} is NumPy, in float64, and does not work under jax.jit: call it before the jitted step, "
            "which takes the advantages and weights that it gives"
        )
    values = np.asarray(values)
    if not np.all(np.isfinite(values)):
        group, rollout = (int(index[0]) for index in np.nonzero(~np.isfinite(values)))
        raise ValueError(
            f"the {what} of rollout {rollout} of group {group} is {values[group, rollout]}, and must be finite: give "
            "it a number, or leave its group out"
        )
    return values


def _ordered_sum(x: Float[np.ndarray, "..."], *, axis: int) -> Float[np.ndarray, "..."]:
    """A sum, dimension kept, that depends on what is added and not on its order: smallest first."""
    return np.sum(np.sort(x, axis=axis), axis=axis, keepdims=True)


def _group_sums(x: Float[np.ndarray, "P G"], drawn: Bool[np.ndarray, "P G"] | None) -> Float[np.ndarray, "P 1"]:
    """The ordered sum of each group, groups of one size together: zeros between would change how sums are rounded."""
    if drawn is None:
        return _ordered_sum(x, axis=1)
    sizes, sums = drawn.sum(axis=1), np.zeros((len(x), 1))
    for size in np.unique(sizes):
        sums[sizes == size] = _ordered_sum(x[sizes == size][:, :size], axis=1)
    return sums


def _sizes(values: np.ndarray, drawn: Bool[np.ndarray, "P G"] | None) -> Any:
    """The size of the groups: one number, or [P, 1]."""
    if drawn is None:
        return values.shape[1]
    sizes = drawn.sum(axis=1, keepdims=True)
    if np.any(sizes < 2):
        raise ValueError(f"group {int(np.argmin(sizes))} has {sizes.min()} rollouts, and needs two for a baseline")
    return sizes


def _group_std(
    centred: Float[np.ndarray, "P G"], _means: np.ndarray, _keep: Bool[np.ndarray, "P"], drawn: Bool[np.ndarray, "P G"]
) -> Float[np.ndarray, "P 1"]:
    others = np.maximum(drawn.sum(axis=1, keepdims=True) - 1, 1)
    return np.sqrt(_group_sums(centred**2, drawn) / others) + EPSILON


def _batch_std(
    centred: Float[np.ndarray, "P G"], _means: np.ndarray, keep: Bool[np.ndarray, "P"], drawn: Bool[np.ndarray, "P G"]
) -> Float[np.ndarray, "1"]:
    # Centred rewards have mean zero within every group, hence over any set of whole groups.
    squares = centred[keep][drawn[keep]] ** 2
    return np.sqrt(_ordered_sum(squares, axis=0) / max(squares.size, 1)) + EPSILON


SCALES: Mapping[AdvantageScale, Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "group_std": _group_std,
    "batch_std": _batch_std,
    "group_mean": lambda _centred, means, _keep, _drawn: np.where(means > 0, means, 1.0),
    "none": lambda _centred, _means, _keep, _drawn: np.ones(1),
}
"""The divisor of centred rewards [P, G], given the means [P, 1], which groups [P] are kept and which rollouts [P, G]
there are."""

BASELINES: Mapping[Baseline, Callable[[Any], Any]] = {
    "group_mean": lambda _size: 1.0,
    "leave_one_out": lambda size: size / (size - 1),
    "none": lambda _size: 1.0,
}
"""The factor by which rewards less a baseline exceed rewards less the mean of a group of so many."""


# --- weights


def aggregation_weights(
    lengths: Int[Array | np.ndarray, "P G"],
    keep: Bool[Array | np.ndarray, "P"],
    *,
    aggregation: Aggregation,
    max_tokens: int,
    masked: Bool[np.ndarray, "P G"] | None = None,
    drawn: Bool[np.ndarray, "P G"] | None = None,
) -> Float[np.ndarray, "P G"]:
    """The weight of each token of a rollout, so that loss = sum(weight x per-token term) over the whole batch.

    Args:
      lengths: [P, G] trained tokens per rollout.
      keep: [P] groups that take part; the others get weight 0 and leave every denominator.
      aggregation:
        `sequence_mean`: token mean per rollout, then mean over rollouts (GRPO);
        `token_mean`: all tokens of the batch alike (DAPO as implemented);
        `prompt_mean`: token mean within a problem's group, then mean over problems (ScaleRL; DAPO's formula);
        `constant`: sum / (rollouts x max_tokens) (Dr. GRPO).
      max_tokens: longest possible completion; `constant` divides by it.
      masked: [P, G] rollouts that do not take part, as if they had not been drawn; None for none.
      drawn: [P, G] as in `credit`. Where it is given, means over rollouts are means over problems of the means over
        their rollouts that take part, so that `sequence_mean`, `constant` and `prompt_mean` weigh problems alike
        whatever they drew. `token_mean` weighs them by the tokens that they drew.

    Returns:
      [P, G] float32 weights.
    """
    kept = np.broadcast_to(np.asarray(keep)[:, None], np.shape(lengths))
    if masked is not None:
        kept = kept & ~masked
    if drawn is not None:
        kept = kept & drawn
    lengths = np.where(kept, np.asarray(lengths), 0)
    denominators = named(DENOMINATORS, aggregation, "aggregation")(
        lengths, _rollouts(kept, by_problem=drawn is not None), _problems(kept), max_tokens
    )
    return np.where(kept, 1.0 / np.broadcast_to(denominators, lengths.shape), 0.0).astype(np.float32)


def _rollouts(kept: Bool[np.ndarray, "P G"], *, by_problem: bool) -> Int[np.ndarray, "#P 1"]:
    """What one of the kept rollouts is divided by for a mean over them, or over problems of the means over theirs."""
    if not by_problem:
        return np.array([[max(int(kept.sum()), 1)]])
    return _problems(kept) * np.maximum(kept.sum(axis=1, keepdims=True), 1)


def _problems(kept: Bool[np.ndarray, "P G"]) -> int:
    return max(int(kept.any(axis=1).sum()), 1)


DENOMINATORS: Mapping[Aggregation, Callable[[np.ndarray, np.ndarray, int, int], np.ndarray | int]] = {
    "sequence_mean": lambda lengths, rollouts, _problems, _: rollouts * np.maximum(lengths, 1),
    "token_mean": lambda lengths, _rollouts, _problems, _: np.maximum(lengths.sum(), 1),
    "prompt_mean": lambda lengths, _rollouts, problems, _: problems * np.maximum(lengths.sum(axis=1, keepdims=True), 1),
    "constant": lambda _lengths, rollouts, _problems, max_tokens: rollouts * max_tokens,
}
"""What divides the terms of a rollout's tokens, given the lengths [P, G] of kept rollouts, the number of these ([1, 1],
or what stands for it where problems are weighed alike, [P, 1]) and of their problems, and `max_tokens`."""


def overlong_penalty(
    lengths: Int[Array | np.ndarray, "P G"], *, limit: int, buffer: int, penalty: float
) -> Float[np.ndarray, "P G"]:
    """The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), as what is subtracted from the reward.

    With |y| tokens, L_max = `limit` and L_cache = `buffer`:

        0                                    |y| <= L_max - L_cache
        (|y| - (L_max - L_cache)) / L_cache  in between, times `penalty`
        1                                    |y| >= L_max

    ScaleRL's length penalty (arXiv 2510.13786, equation 9: -clip((L_max - |y|) / L_cache - 1, -1, 0)) is the same
    function, for correct completions alone; it used L_max = 14k and L_cache = 2k tokens.

    Args:
      lengths: [P, G] tokens of each completion.
      limit: L_max, at least `buffer`.
      buffer: L_cache, at least 1.
      penalty: the penalty at the limit.
    """
    return penalty * np.clip((np.asarray(lengths, np.float64) - (limit - buffer)) / buffer, 0.0, 1.0)


def completion_lengths(groups: Sequence[RolloutGroup]) -> Int[np.ndarray, "P G"]:
    """How many tokens each completion has, context that was put into it included: it takes room too."""
    return rows_of([[len(completion.tokens) for completion in group.completions] for group in groups])


def truncated(groups: Sequence[RolloutGroup]) -> Bool[np.ndarray, "P G"]:
    """Which completions were cut off at the longest length."""
    return rows_of([[completion.finish_reason == "length" for completion in group.completions] for group in groups])
