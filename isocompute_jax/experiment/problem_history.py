"""What a run has seen of each of its problems: compact arrays, which its checkpoints carry."""

from __future__ import annotations

import base64
import dataclasses
import io
import os
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.learner import rewards_of
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.records.run_files import write_atomic

COLUMNS: Mapping[str, type[np.generic]] = {
    "attempts": np.int32,
    "solves": np.int32,
    "last_rate": np.float32,
    "last_step": np.int32,
    "recent_attempts": np.float32,
    "recent_solves": np.float32,
}
"""The arrays of a history, in the order in which they are written."""

_EARLIER = 4
"""How many of them earlier releases wrote, without saying how many."""

FADING = 0.5
"""What each group leaves of the weight of its problem's earlier ones in `recent_attempts`: rates move as the model
learns, so that two groups' worth of rollouts speak of a problem, the last one for half of it. A count of visits needs
no time scale of the run's own: between two of them lies an epoch, however many steps that is."""


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Of D problems, what their rollouts came to.

    Every rollout that training paid for counts, those of groups that were not trained on included; evaluations and
    agreement checks do not.
    """

    attempts: np.ndarray  # [D] int32 rollouts
    solves: np.ndarray  # [D] int32 those of them whose reward was 1 or more
    last_rate: np.ndarray  # [D] float32 share of solves in the last group; 0 before the first
    last_step: np.ndarray  # [D] int32 step of the last group; -1 before the first
    recent_attempts: np.ndarray  # [D] float32 rollouts, those of earlier groups at `FADING` for each later one
    recent_solves: np.ndarray  # [D] float32 solves, likewise

    @classmethod
    def empty(cls, size: int) -> History:
        """Of `size` problems, none of them tried."""
        arrays = {name: np.zeros(size, kind) for name, kind in COLUMNS.items()}
        return cls(**arrays | {"last_step": np.full(size, -1, np.int32)})

    @property
    def rates(self) -> np.ndarray:
        """[D] float64 solves / attempts, 0 without attempts."""
        return self.solves / np.maximum(self.attempts, 1)

    def updated(self, groups: Sequence[RolloutGroup], places: Mapping[str, int]) -> History:
        """The history after one step.

        Args:
          groups: what the step sampled, graded; no problem twice.
          places: problem id -> its place in the arrays.
        """
        where = np.array([places[group.problem_id] for group in groups])
        sizes = np.array([len(group.completions) for group in groups], np.int32)
        solved = np.array([int(np.sum(rewards_of(group) >= 1.0)) for group in groups], np.int32)
        new = History(*(getattr(self, name).copy() for name in COLUMNS))
        new.attempts[where] += sizes
        new.solves[where] += solved
        new.last_rate[where] = solved / sizes
        new.last_step[where] = [group.step for group in groups]
        new.recent_attempts[where] = FADING * new.recent_attempts[where] + sizes
        new.recent_solves[where] = FADING * new.recent_solves[where] + solved
        return new

    def retired(self, *, rate: float, attempts: int) -> np.ndarray:
        """[D] bool: problems that were tried so often, and solved at least at this rate; none for a rate of 0."""
        if not rate:
            return np.zeros(len(self.attempts), bool)
        # In whole numbers: 9 of 10 is 0.9, however 0.9 is rounded.
        return (self.attempts >= attempts) & (self.solves >= np.ceil(rate * self.attempts - 1e-9))

    def to_text(self) -> str:
        """The arrays as one line of text, for a checkpoint's JSON: 0.4 MB and 14 ms for 50,000 problems."""
        arrays = (getattr(self, name).astype(_little(kind)) for name, kind in COLUMNS.items())
        raw = b"".join(array.tobytes() for array in arrays)
        return f"{len(COLUMNS)}:{base64.b64encode(zlib.compress(raw, 1)).decode()}"

    @classmethod
    def from_text(cls, text: str | None, size: int) -> History:
        """What `to_text` wrote, of `size` problems; of None, an empty one: an earlier release kept none.

        Of a release that did not let earlier groups fade, all rollouts count as recent: they fade from now on.

        Raises:
          InputError: it is of another number of problems.
        """
        if text is None:
            return cls.empty(size)
        number, _, coded = text.rpartition(":")
        columns = dict(list(COLUMNS.items())[: int(number or _EARLIER)])
        raw = zlib.decompress(base64.b64decode(coded))
        if len(raw) != 4 * len(columns) * size:
            raise InputError(
                f"the checkpoint remembers {len(raw) // (4 * len(columns))} training problems, and the problem set has "
                f"{size}: bring back the file that the run began with, or choose another --workdir"
            )
        parts = zip(columns.items(), np.split(np.frombuffer(raw, np.uint8), len(columns)), strict=True)
        arrays = {name: part.view(_little(kind)).astype(kind) for (name, kind), part in parts}
        arrays.setdefault("recent_attempts", arrays["attempts"].astype(np.float32))
        arrays.setdefault("recent_solves", arrays["solves"].astype(np.float32))
        return cls(**arrays)

    def write(self, path: str | os.PathLike[str], problems: Sequence[Problem], retired: np.ndarray) -> None:
        """Writes a row per problem as Parquet: `id`, the arrays, `rate` (null before the first attempt), `retired`."""
        import pyarrow
        import pyarrow.parquet

        columns: dict[str, Any] = {"id": [problem.id for problem in problems]}
        columns |= {name: getattr(self, name) for name in COLUMNS}
        columns["rate"] = pyarrow.array(self.rates, mask=self.attempts == 0)
        columns["retired"] = retired
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        write_atomic(pathlib.Path(path), buffer.getvalue())


def _little(kind: type[np.generic]) -> np.dtype:
    """The type as it is written, whatever the machine."""
    return np.dtype(kind).newbyteorder("<")
