"""The grader of the embedded default task, chains of additions and subtractions."""

from __future__ import annotations

from typing import Literal

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.arithmetic import NAME, answer_to
from isocompute_jax.tasks.graders.protocol import Grade


class Arithmetic:
    """The whole completion must be the running totals; there is no partial credit."""

    name: str = NAME
    runs: Literal["inline"] = "inline"

    def grade(self, problem: Problem, text: str) -> Grade:
        """1.0 if the whole text equals the running totals, else 0.0."""
        return Grade(float(text == problem.answer))

    def fault(self, problem: Problem) -> str | None:
        """A message if the prompt is no chain, or the answer is not its running totals."""
        try:
            expected = answer_to(problem.text)
        except ValueError as error:
            return f"prompt: {error}"
        if problem.answer != expected:
            return f"answer: {problem.answer!r} is not the running totals of {problem.text!r}; write {expected!r}"
        return None
