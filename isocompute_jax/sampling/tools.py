"""Tool turns: a call that the policy writes is answered in the context, and the rollout goes on.

A call ends with the tool's stop token. What the tool answers is a pure function of the rollout's text; it is read by
the model, and not trained on. Turns of a user are the same: their words answer the end of the model's turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.sampling.turns import Turn


@dataclasses.dataclass(frozen=True, eq=False)
class ToolTurns:
    """Implements `sampling.turns.TurnPolicy`.

    A rollout goes on after each of its first `calls` turns that ends with a call that the tool answers.
    """

    # text of the completion so far, the call at its end -> [C] int32 tokens that answer it; None for a call that cannot
    # be answered, which ends the rollout
    answer: Callable[[str], np.ndarray | None]
    decode: Callable[[list[int]], str]  # token ids -> text
    stop_token: int  # the last token of every call
    calls: int  # calls that are answered, at most
    call_tokens: int  # the budget of each turn
    longest_answer: int  # the longest that `answer` gives

    @property
    def continued_tokens(self) -> int:
        """The longest completion that is continued, answers included."""
        return self.calls * (self.call_tokens + self.longest_answer)

    @property
    def turn_tokens(self) -> int:
        """The budget of a turn."""
        return self.call_tokens

    def first_turn(self, request: SampleRequest) -> SampleRequest:
        """The request, with a turn's budget and the tool's stop token."""
        params = dataclasses.replace(request.params, max_tokens=self.call_tokens)
        return dataclasses.replace(request, params=params, stop_tokens=(*request.stop_tokens, self.stop_token))

    def next_turn(self, request: SampleRequest, rollout: int, turn: int, completion: Completion) -> Turn | None:
        """The tool's answer, where the turn ended with a call."""
        if turn >= self.calls or completion.tokens[-1] != self.stop_token:
            return None
        answer = self.answer(self.decode(completion.tokens.tolist()))
        return None if answer is None else Turn(answer, self.call_tokens)
