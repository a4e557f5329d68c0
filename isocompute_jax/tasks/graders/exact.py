"""`exact`: equality of the final answers as text."""

from __future__ import annotations

import unicodedata
from typing import Literal

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import final_answer
from isocompute_jax.tasks.graders.protocol import Grade


class Exact:
    """Equality of the final answers as text, once normalised (`normalise`)."""

    name: str = "exact"
    runs: Literal["inline"] = "inline"

    def grade(self, problem: Problem, text: str) -> Grade:
        """1.0 if the normalised final answers of completion and problem are equal, else 0.0."""
        return Grade(float(normalise(final_answer(text)) == normalise(final_answer(problem.answer))))

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is normalised."""
        if normalise(final_answer(problem.answer)):
            return None
        return f"answer: {problem.answer!r} has a marker of the final answer and nothing behind it; write the answer"


def normalise(text: str) -> str:
    """Unicode NFC, white space as single spaces, without `$` or `*` at the ends or a final full stop; keeps case."""
    spaced = " ".join(unicodedata.normalize("NFC", text).split())
    return spaced.lstrip("$* ").rstrip("$*. ") or spaced
