"""`math`: symbolic equality."""

from __future__ import annotations

from typing import Literal

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import final_answer
from isocompute_jax.tasks.graders.protocol import Grade


class Math:
    """Symbolic equality."""

    name: str = "math"
    runs: Literal["process"] = "process"

    def grade(self, problem: Problem, text: str) -> Grade:
        """1.0 if equal."""
        from math_verify import parse, verify

        gold = parse("$" + problem.answer + "$", parsing_timeout=None)
        return Grade(
            float(verify(gold, parse("$" + final_answer(text) + "$", parsing_timeout=None), timeout_seconds=None))
        )

    def fault(self, problem: Problem) -> str | None:
        """None."""
        return None
