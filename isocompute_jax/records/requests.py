"""What is asked of a sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Completion, RolloutGroup


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """What distribution completions are drawn from."""

    temperature: float  # > 0; logits are divided by it.
    top_p: float  # in (0, 1]; below 1 only the smallest set of tokens that holds this probability is drawn from.
    max_tokens: int  # longest completion, in tokens.
    # 0, or how many of the most probable tokens may be drawn, before `top_p` cuts; completions then say which could be.
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature = {self.temperature} must be above 0 (use a small value for greedy decoding)"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p} must lie in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k} must be at least 0 (all tokens)")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens} must be at least 1")


@dataclasses.dataclass(frozen=True, eq=False)
class SampleRequest:
    """A group to sample: G rollouts of one problem.

    The random numbers of rollout i are keyed by (seed, step, problem_id, i) and, in later turns, the turn: they do not
    depend on what else is sampled, where, or in which order.
    """

    problem_id: str  # names the problem, which the caller keeps.
    prompt_tokens: np.ndarray  # [S] int32.
    group_size: int  # G.
    seed: int  # of the random numbers, 0 to 2^32 - 1.
    step: int  # the step that asks, which keys the random numbers too.
    stop_tokens: tuple[int, ...]  # ids that end a completion; the one that was drawn is its last token.
    params: SamplingParams  # what distribution is drawn from.
    # [G] longest completion of each rollout, in tokens, 1 to `params.max_tokens`; None for `max_tokens` each.
    budgets: tuple[int, ...] | None = None
    first_rollout: int = 0  # index i of the first rollout; the others follow.
    # 0, or which turn of its rollouts this is (see `sampling.turns`): the prompt then ends with what they have so
    # far.
    turn: int = 0

    def __post_init__(self) -> None:
        if self.budgets is None:
            return
        if len(self.budgets) != self.group_size:
            raise ValueError(f"budgets has {len(self.budgets)} numbers for group_size = {self.group_size} rollouts")
        if not 1 <= min(self.budgets) <= max(self.budgets) <= self.params.max_tokens:
            raise ValueError(
                f"budgets of {min(self.budgets)} to {max(self.budgets)} tokens: each must lie in 1 .. "
                f"{self.params.max_tokens} = max_tokens"
            )

    def budget(self, index: int) -> int:
        """Longest completion of the group's rollout `index` (from 0), in tokens."""
        return self.params.max_tokens if self.budgets is None else self.budgets[index]

    def grouped(self, completions: Sequence[Completion]) -> RolloutGroup:
        """The group that the request asked for, ungraded."""
        return RolloutGroup(
            self.problem_id,
            self.step,
            self.prompt_tokens,
            tuple(completions),
            first_rollout=self.first_rollout,
            turn=self.turn,
        )

    def check_prompt(self, longest: int, limit: str) -> None:
        """Raises InputError unless the prompt has 1 to `longest` tokens; `limit` is what the message calls that."""
        length = len(self.prompt_tokens)
        if not 1 <= length <= longest:
            raise InputError(
                f"problem {self.problem_id!r}: its prompt has {length} tokens; between 1 and {limit} = {longest} are "
                "possible"
            )
