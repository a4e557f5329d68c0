"""Which turns the rollouts of a run have, from its config."""

from __future__ import annotations

import numpy as np

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.sampling.thinking import Interruption, thought_before
from isocompute_jax.sampling.tools import ToolTurns
from isocompute_jax.sampling.turns import TurnPolicy
from isocompute_jax.tasks import Tokenizer, calculator


def make_turns(sampling: SamplingConfig, tokenizer: Tokenizer) -> TurnPolicy | None:
    """When rollouts are continued, and with what; None where each has one turn.

    Raises:
      InputError: the turns are longer together than `sampling.max_tokens`, or the tokenizer does not know their text.
    """
    if sampling.thinking.high and sampling.tool.name != "none":
        raise InputError(
            f"config.sampling.thinking.high = {sampling.thinking.high} and config.sampling.tool.name = "
            f"{sampling.tool.name!r}: rollouts are interrupted, or call tools; switch one of them off"
        )
    if sampling.thinking.high:
        return interruption(sampling, tokenizer)
    return None if sampling.tool.name == "none" else calculator_turns(sampling, tokenizer)


def interruption(sampling: SamplingConfig, tokenizer: Tokenizer) -> Interruption:
    """Forced interruption (`sampling.thinking`)."""
    thinking = sampling.thinking
    try:
        phrase = tokenizer.encode_within(thinking.end_phrase)
    except InputError as error:
        drawn = thinking.high + thinking.answer_tokens
        if drawn >= sampling.max_tokens:  # which is as plain without the phrase's length
            raise InputError(
                f"config.sampling.thinking: high = {thinking.high} and answer_tokens = {thinking.answer_tokens} make "
                f"completions of more than {drawn} tokens, and config.sampling.max_tokens = {sampling.max_tokens}: "
                "raise that, or lower high or answer_tokens"
            ) from None
        raise InputError(f"config.sampling.thinking.end_phrase: {error}; write it in characters it knows") from None
    total = thinking.high + len(phrase) + thinking.answer_tokens
    if total > sampling.max_tokens:
        raise InputError(
            f"config.sampling.thinking: high = {thinking.high}, an end_phrase of {len(phrase)} tokens and "
            f"answer_tokens = {thinking.answer_tokens} make completions of up to {total} tokens, more than "
            f"config.sampling.max_tokens = {sampling.max_tokens}: raise that to {total} (with "
            "config.sampling.max_prompt_tokens it has to stay within the model's context), or lower high or "
            "answer_tokens"
        )
    never = thinking.end_of_thinking == ""
    return Interruption(
        low=thinking.low,
        high=thinking.high,
        answer_tokens=thinking.answer_tokens,
        phrase=phrase,
        thought=_thinks_on if never else thought_before(thinking.end_of_thinking, _decode(tokenizer)),
    )


def calculator_turns(sampling: SamplingConfig, tokenizer: Tokenizer) -> ToolTurns:
    """Calls of the calculator (`sampling.tool`)."""
    tool = sampling.tool
    try:
        stop = tokenizer.encode_within(calculator.STOP)
        tokenizer.encode_within("0123456789+-,")
    except InputError as error:
        raise InputError(f"config.sampling.tool.name = 'calculator': {error}; take another tokenizer") from None
    if len(stop) != 1:
        raise InputError(
            f"config.sampling.tool.name = 'calculator': the tokenizer writes {calculator.STOP!r} as {len(stop)} "
            "tokens, and engines stop at a single one; take another tokenizer"
        )
    longest = calculator.LONGEST_ANSWER  # in characters, and so in tokens
    total = (tool.calls + 1) * tool.call_tokens + tool.calls * longest
    if total > sampling.max_tokens:
        raise InputError(
            f"config.sampling.tool: {tool.calls + 1} turns of call_tokens = {tool.call_tokens} and {tool.calls} "
            f"answers of up to {longest} tokens make completions of up to {total} tokens, more than "
            f"config.sampling.max_tokens = {sampling.max_tokens}: raise that to {total}, or lower calls or call_tokens"
        )

    def answer(text: str) -> np.ndarray | None:
        found = calculator.answer(text)
        return None if found is None else tokenizer.encode_within(found)

    return ToolTurns(
        answer=answer,
        decode=_decode(tokenizer),
        stop_token=int(stop[0]),
        calls=tool.calls,
        call_tokens=tool.call_tokens,
        longest_answer=longest,
    )


def _thinks_on(tokens: np.ndarray) -> None:
    """Nothing ends its thinking."""
    del tokens


def _decode(tokenizer: Tokenizer):
    def decode(ids: list[int]) -> str:
        return tokenizer.decode([ids])[0]

    return decode
