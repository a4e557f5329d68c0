"""Which checkpoints of a run are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Mark:
    """Why a checkpoint may outlive those that follow it."""

    milestone: bool = False  # whether it is kept for good
    score: float | None = None  # how good its weights are, the higher the better; None where that was not measured


UNMARKED = Mark()


class Retention:
    """Keeps the last `keep_last`, the best `keep_best` of those with a score, and every milestone.

    It is a preservation policy of orbax, which deletes the others as soon as a new checkpoint is whole. Of equal scores
    the later is better. `marks` are those of the checkpoints that exist, by name.
    """

    def __init__(self, *, keep_last: int, keep_best: int = 0):
        self._keep_last, self._keep_best = keep_last, keep_best
        self.marks: Mapping[int, Mark] = {}

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any = None) -> list[bool]:
        """Whether each of the checkpoints, which have a `step` each and come in their order, is kept."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        marks = {step: self.marks.get(step, UNMARKED) for step in steps}
        scored = sorted((mark.score, step) for step, mark in marks.items() if mark.score is not None)
        kept = set(steps[-self._keep_last :]) | {step for step, mark in marks.items() if mark.milestone}
        kept |= {step for _, step in scored[max(len(scored) - self._keep_best, 0) :]}
        return [step in kept for step in steps]
