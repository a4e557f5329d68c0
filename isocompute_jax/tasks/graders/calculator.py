"""The grader of the two-turn sums, which a calculator may have done."""

from __future__ import annotations

from typing import Literal

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.calculator import NAME, STOP, answer
from isocompute_jax.tasks.graders.protocol import Grade


class Calculator:
    """What stands behind the last comma must be the sum, whoever did it."""

    name: str = NAME
    runs: Literal["inline"] = "inline"

    def grade(self, problem: Problem, text: str) -> Grade:
        """1.0 if what stands behind the last comma of the text is the sum, else 0.0."""
        return Grade(float(text.rpartition(",")[2] == problem.answer))

    def fault(self, problem: Problem) -> str | None:
        """A message if the prompt is no sum, or the answer is another."""
        expected = answer(problem.text.removesuffix(",") + STOP)
        if expected is None or not problem.text.endswith(","):
            return f"prompt: {problem.text!r} is not a sum such as '384+579,'"
        if problem.answer + "," != expected:
            return f"answer: {problem.answer!r} is not the sum {problem.text!r}; write {expected.rstrip(',')!r}"
        return None
