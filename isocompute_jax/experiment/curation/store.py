r"""The record of a measurement: one line for each group of rollouts, appended as it is graded.

    {"measurement": {...}}                                           once: what was measured, and how
    {"problem": "p7", "asked": "3f...", "first": 16, "rewards": [1, 0, ...], "lengths": [512, ...], "truncated": [3]}

A line holds rollouts `first`, `first` + 1, ... of its problem; `asked` stands for prompt, answer and task. What a kill
leaves half-written is cut off when the file is opened again, and its rollouts are drawn again: the same ones, as their
random numbers are keyed. With `part` and `end` a line says how far its completions reach in completions/PART.jsonl:
what lies beyond belongs to no line, and goes too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import types
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from isocompute_jax.experiment.curation.config import COMPLETIONS
from isocompute_jax.experiment.curation.measurement import BLOCK, Survey
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import RolloutGroup

LOG = logging.getLogger(__name__)

COUNTS = "counts.jsonl"
PART_BYTES = 2**28
"""A file of completions that is as long as this is followed by another."""


class Store:
    """The record of one directory, and of each problem the rewards of its first k rollouts.

    Args:
      directory: where `counts.jsonl` is, or will be.
      identity: what is measured, and how.
      survey: the problems.
      samples: k. Rollouts beyond stay in the file, and are not looked at.
      keep_completions: whether texts are kept too.

    Attributes:
      rewards: [P, k] float32, of the rollouts that are known.
      known: [P, k] which are.
      tokens: how many tokens these have.
      truncated: how many of them were cut.

    Raises:
      InputError: the file holds another measurement, or a line that is none.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        identity: dict[str, Any],
        survey: Survey,
        samples: int,
        keep_completions: bool = False,
    ):
        self.rewards = np.zeros((len(survey.rows), samples), np.float32)
        self.known = np.zeros(self.rewards.shape, bool)
        self.tokens = self.truncated = 0
        self._path = directory / COUNTS
        self._survey = survey
        self._part, self._end = 0, 0
        self._foreign = 0
        size = self._load(identity)
        if self._foreign:
            LOG.info("%s: %d groups are of problems that are not in this set", self._path, self._foreign)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
        self._file.truncate(size)
        if not size:
            self._write(self._file, {"measurement": identity})
        self._completions: BinaryIO | None = None
        self._directory = directory / COMPLETIONS
        self._cut_completions()
        if keep_completions:
            self._directory.mkdir(exist_ok=True)
            self._open_part()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._completions is not None:
            self._completions.close()

    def missing(self, problem_id: str) -> Iterator[tuple[int, int]]:
        """(first rollout of a block, how many of it are wanted) for each block that is not there whole."""
        known = self.known[self._survey.rows[problem_id]]
        for first in range(0, len(known), BLOCK):
            block = known[first : first + BLOCK]
            if not block.all():
                yield first, len(block)

    def add(self, group: RolloutGroup, first: int, texts: Sequence[str] = ()) -> int:
        """Records a graded group whose first rollout is `first`; what of it is known already is left out.

        `texts` are those of its completions; they are needed where completions are kept.

        Returns:
          How many rollouts are new.
        """
        assert group.rewards is not None
        row = self._survey.rows[group.problem_id]
        end = min(first + len(group.completions), self.known.shape[1])
        skip = int(self.known[row, first:end].sum())  # a block is filled from its beginning
        kept = slice(skip, end - first)
        completions = group.completions[kept]
        line = {
            "problem": group.problem_id,
            "asked": self._survey.digest(row),
            "first": first + skip,
            "rewards": [_number(reward) for reward in group.rewards[kept].tolist()],
            "lengths": [len(completion.tokens) for completion in completions],
            "truncated": [i for i, completion in enumerate(completions) if completion.finish_reason == "length"],
        }
        if self._completions is not None:
            rollouts = zip(completions, texts[kept], line["rewards"], strict=True)
            self._keep(
                [
                    {
                        "problem": group.problem_id,
                        "rollout": first + skip + i,
                        "text": text,
                        "reward": reward,
                        "tokens": len(completion.tokens),
                        "finish_reason": completion.finish_reason,
                    }
                    for i, (completion, text, reward) in enumerate(rollouts)
                ]
            )
            line |= {"part": self._part, "end": self._end}
        self._write(self._file, line)
        self._book(row, line)
        return len(completions)

    def _book(self, row: int, line: dict[str, Any]) -> None:
        """Takes a line into account."""
        first, rewards = line["first"], line["rewards"]
        count = max(0, min(len(rewards), self.known.shape[1] - first))
        place = (row, slice(first, first + count))
        if self.known[place].any():
            raise ValueError("rollouts that stand there already")
        self.rewards[place] = rewards[:count]
        self.known[place] = True
        self.tokens += sum(line["lengths"][:count])
        self.truncated += sum(i < count for i in line["truncated"])

    def _write(self, file: BinaryIO, line: dict[str, Any]) -> int:
        data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="replace")
        file.write(data)
        return len(data)

    def _load(self, identity: dict[str, Any]) -> int:
        """Reads the record; returns how many bytes of it are whole lines."""
        size = 0
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    break  # the write was cut off
                size += len(text)
                where = f"{self._path}:{number}"
                try:
                    line = json.loads(text)
                    if number == 1:
                        _check_same(line["measurement"], identity, self._path)
                    else:
                        self._read(line)
                except InputError as error:
                    raise InputError(f"{where}: {error}") from None
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise InputError(
                        f"{where}: not a line of this record ({error!r}); correct it, or delete the line, and its "
                        "rollouts are drawn again"
                    ) from None
        return size

    def _read(self, line: dict[str, Any]) -> None:
        row = self._survey.rows.get(line["problem"])
        if "part" in line:
            self._part, self._end = line["part"], line["end"]
        if row is None:
            self._foreign += 1
            return
        if line["asked"] != self._survey.digest(row):
            raise InputError(
                f"problem {line['problem']!r} was measured with another prompt, answer or task: its samples cannot be "
                "used. Give it another id, or choose another --out"
            )
        self._book(row, line)

    def _cut_completions(self) -> None:
        """Removes the completions that no line knows of."""
        for path in sorted(self._directory.glob("*.jsonl")):
            part = int(path.stem) if path.stem.isdigit() else -1
            if part > self._part or (part == self._part and not self._end):
                path.unlink()
            elif part == self._part and path.stat().st_size > self._end:
                with open(path, "ab") as file:
                    file.truncate(self._end)

    def _open_part(self) -> None:
        path = self._directory / f"{self._part:05d}.jsonl"
        if self._end and (not path.exists() or path.stat().st_size != self._end):  # taken away by its reader
            self._part, self._end = self._part + 1, 0
            path = self._directory / f"{self._part:05d}.jsonl"
        self._completions = open(path, "ab")  # noqa: SIM115 (closed by `close`)

    def _keep(self, lines: Sequence[dict[str, Any]]) -> None:
        """Writes completions, so that they are there before the line that says so."""
        assert self._completions is not None
        if self._end >= PART_BYTES:
            self._completions.close()
            self._part, self._end = self._part + 1, 0
            self._open_part()
        self._end += sum(self._write(self._completions, line) for line in lines)
        self._completions.flush()


def _number(reward: float) -> float | int:
    """0 and 1 as such."""
    return int(reward) if reward.is_integer() else reward


def _check_same(theirs: dict[str, Any], ours: dict[str, Any], path: pathlib.Path) -> None:
    """Raises InputError where samples are another measurement's."""
    changed = [
        f"{name}: {theirs.get(name)!r} there, {ours.get(name)!r} here"
        for name in dict.fromkeys((*ours, *theirs))
        if theirs.get(name) != ours.get(name)
    ]
    if changed:
        raise InputError(
            f"another measurement ({'; '.join(changed)}): its samples cannot be used. Choose another --out, or remove "
            f"{path.parent} to start anew"
        )
