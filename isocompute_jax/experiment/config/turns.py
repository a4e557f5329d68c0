"""When rollouts have more than one turn: thinking that is interrupted, and tools."""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError

END_PHRASE = "\n\nOkay, time is up. Let me stop thinking and give the final answer now.\n</think>\n\n"


@described
@dataclasses.dataclass(frozen=True)
class ThinkingConfig:
    """Forced interruption of thinking (ScaleRL, arXiv 2510.13786): off while `high` is 0."""

    low: int = option(0, "Least number of tokens after which thinking is interrupted.", low=0, flag="thinking_low")
    high: int = option(
        0,
        "Greatest number of tokens after which thinking is interrupted, drawn uniformly for each rollout; 0: never. "
        "ScaleRL: 10000 to 12000.",
        low=0,
        flag="thinking_high",
    )
    answer_tokens: int = option(
        2048,
        "Longest answer after the end of thinking of an interrupted rollout.",
        low=1,
        flag="thinking_answer_tokens",
    )
    end_phrase: str = option(
        END_PHRASE, "What is put into the context to end the thinking.", flag="thinking_end_phrase"
    )
    end_of_thinking: str = option(
        "</think>",
        "Text that ends thinking: a rollout that has it goes on without the phrase. Empty: all that is cut thinks.",
        flag="thinking_end_of_thinking",
    )
    evaluation: bool = option(True, "Interrupt the rollouts of evaluations too.", flag=None)

    def __post_init__(self) -> None:
        check(self)
        if self.high and not 1 <= self.low <= self.high:
            raise InputError(
                f"ThinkingConfig.low = {self.low} must lie in 1 .. {self.high}, ThinkingConfig.high: thinking is "
                "interrupted somewhere between the two"
            )
        if self.high and not self.end_phrase:
            raise InputError(
                "ThinkingConfig.end_phrase is empty: give the text that ends the thinking, or switch interruption off "
                "by ThinkingConfig.high = 0"
            )


@described
@dataclasses.dataclass(frozen=True)
class ToolConfig:
    """A tool that answers calls within a rollout."""

    name: Literal["none", "calculator"] = option(
        "none",
        "calculator: a turn that ends with `=` is answered by the value of the sum before it (docs/length_control.md).",
    )
    calls: int = option(1, "Calls of a rollout that are answered, at most.", low=1)
    call_tokens: int = option(16, "Longest turn, in tokens: what ends in a call, and what answers.", low=1)

    def __post_init__(self) -> None:
        check(self)
