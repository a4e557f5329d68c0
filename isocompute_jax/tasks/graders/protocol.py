"""What a grader is, and what it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, Protocol

from isocompute_jax.records.rollout import Problem


@dataclasses.dataclass(frozen=True)
class Grade:
    """What one completion earned: its reward, and further numbers by name."""

    reward: float
    metrics: Mapping[str, float]


class Grader(Protocol):
    """How the completions of one kind of problem are graded.

    Attributes:
      name: what problems carry in `Problem.task`.
      runs: `inline` returns at once, whatever the text; `process` belongs in a worker process with a deadline.
    """

    name: str
    runs: Literal["inline", "process"]

    def grade(self, problem: Problem, text: str) -> Grade:
        """The grade of `text`, the completion without its end-of-sequence token."""
        ...

    def fault(self, problem: Problem) -> str | None:
        """Why no completion could solve `problem`, and what to do; None if one can."""
        ...
