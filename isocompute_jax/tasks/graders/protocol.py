"""What a grader is, and what it says of a completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from isocompute_jax.records.rollout import Problem

WORKER = "ISOCOMPUTE_GRADING_WORKER"
"""Environment variable that is set in worker processes: there a grader may bound what the process uses."""


@dataclass(frozen=True)
class Grade:
    """What one completion is worth.

    Attributes:
      reward: any finite number; verifiers give 1.0 for solved and 0.0 for not.
      metrics: further numbers by name, whose means are logged.
    """

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Grader(Protocol):
    """How the completions of one kind of problem are verified.

    Attributes:
      name: what problems carry in `Problem.task`.
      runs: `inline` graders return at once, whatever text they are given, and run within the training loop; `process`
        graders run in a worker process, which is killed when a call takes longer than its deadline.
    """

    @property
    def name(self) -> str:
        """What problems carry in `Problem.task`."""
        ...

    @property
    def runs(self) -> Literal["inline", "process"]:
        """Where it runs."""
        ...

    def grade(self, problem: Problem, text: str) -> Grade:
        """What `text`, the completion without its end-of-sequence token, is worth as an answer to `problem`."""
        ...

    def fault(self, problem: Problem) -> str | None:
        """The reason why no completion could ever solve `problem`, and what to do; None if one can."""
        ...


class BatchGrader(Protocol):
    """A `process` grader that is given the distinct completions of a group at once; see `Grader` for the rest."""

    @property
    def name(self) -> str:
        """What problems carry in `Problem.task`."""
        ...

    @property
    def runs(self) -> Literal["batch"]:
        """Where it runs."""
        ...

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """As many grades as texts, in their order; text i answers problem i."""
        ...

    def fault(self, problem: Problem) -> str | None:
        """See `Grader`."""
        ...


class AsyncGrader(Protocol):
    """A grader that waits for others (a judge, a reward model): it runs on an event loop, many calls at once.

    Attributes:
      name: what problems carry in `Problem.task`.
      runs: always `loop`.
      batch: the most completions of one call; 0 for all distinct ones of a group.
    """

    @property
    def name(self) -> str:
        """What problems carry in `Problem.task`."""
        ...

    @property
    def runs(self) -> Literal["loop"]:
        """Where it runs."""
        ...

    @property
    def batch(self) -> int:
        """The most completions of one call; 0 for all distinct ones of a group."""
        ...

    async def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """As many grades as texts, in their order; text i answers problem i."""
        ...

    async def close(self) -> None:
        """Gives back what it holds; called on the loop that it ran on."""
        ...

    def fault(self, problem: Problem) -> str | None:
        """See `Grader`."""
        ...


AnyGrader = Grader | BatchGrader | AsyncGrader
