"""When rollouts are continued, and with what, where that follows from the rollout alone: `TurnPolicy` of two kinds."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.sampling.turns import Turn


class PurePolicy:
    """Of a `TurnPolicy` what needs no saying where all methods are pure functions of the rollout."""

    def begin(self, request: SampleRequest) -> None:
        """Nothing stands before the first turn."""

    def close(self) -> None:
        """Nothing is held."""


@dataclasses.dataclass(frozen=True, eq=False)
class Interruption(PurePolicy):
    """Forced interruption, a `TurnPolicy`: thinking that takes too long is ended by a phrase, and the answer begins.

    As in ScaleRL (arXiv 2510.13786) and s1's budget forcing (2501.19393): after a number of tokens drawn uniformly from
    a range the phrase is put into the context, so that the policy learns to answer from what it has; the model reads
    the phrase and is not trained on it. The number is drawn for each rollout by itself, from (seed, step, problem,
    rollout).

    A rollout that ends by itself within its thinking budget is done. One that is cut there, and is answering already,
    goes on with what is left of the answer's budget; any other gets the phrase first, and the whole of it.
    """

    low: int  # thinking budgets are drawn uniformly from low .. high, in tokens
    high: int
    answer_tokens: int  # the answer's budget
    phrase: np.ndarray  # [C] int32 tokens that end the thinking
    # tokens [T] -> how many of them are thought, its end included; None where it has no end
    thought: Callable[[np.ndarray], int | None]

    @property
    def continued_tokens(self) -> int:
        """The longest completion that is continued, phrase included."""
        return self.high + len(self.phrase)

    @property
    def turn_tokens(self) -> int:
        """The largest budget of a later turn."""
        return self.answer_tokens

    def first_turn(self, request: SampleRequest) -> SampleRequest:
        """The request with a thinking budget for each rollout."""
        budgets = tuple(
            thinking_budget(request, request.first_rollout + i, self.low, self.high) for i in range(request.group_size)
        )
        params = dataclasses.replace(request.params, max_tokens=self.high)
        return dataclasses.replace(request, params=params, budgets=budgets)

    def next_turn(self, request: SampleRequest, rollout: int, turn: int, completion: Completion) -> Turn | None:
        """The answer, where thinking was cut; nothing follows it."""
        if turn > 0 or completion.finish_reason == "stop":
            return None
        thought = self.thought(completion.tokens)
        if thought is None:
            return Turn(self.phrase, self.answer_tokens)
        left = self.answer_tokens - (len(completion.tokens) - thought)
        return Turn(np.zeros(0, np.int32), left) if left > 0 else None


def thinking_budget(request: SampleRequest, rollout: int, low: int, high: int) -> int:
    """The thinking budget of a rollout, uniform in low .. high, from (seed, step, problem, rollout) alone."""
    key = f"thinking/{request.seed}/{request.step}/{rollout}/{request.problem_id}".encode()
    word = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return low + (word * (high - low + 1) >> 64)


def thought_before(end: str, decode: Callable[[list[int]], str]) -> Callable[[np.ndarray], int | None]:
    """`Interruption.thought` for an `end` of thinking that is text, such as `</think>`; `decode` gives the text of ids.

    It is looked for in the text: a tokenizer may join its last character with what follows, as `>` and a line break.
    """

    def thought(tokens: np.ndarray) -> int | None:
        ids = tokens.tolist()
        if end not in decode(ids):
            return None
        # The fewest tokens whose text has it.
        return 1 + bisect.bisect_left(range(1, len(ids)), True, key=lambda count: end in decode(ids[:count]))

    return thought


@dataclasses.dataclass(frozen=True, eq=False)
class ToolTurns(PurePolicy):
    """Tool turns, a `TurnPolicy`: a call that the policy writes is answered in the context, and the rollout goes on.

    A call ends with the tool's stop token. What the tool answers is a pure function of the rollout's text; it is read
    by the model, and not trained on. Turns of a user are the same: their words answer the end of the model's turn.

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
