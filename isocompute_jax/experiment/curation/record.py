"""The record of a measurement: one line for each group of rollouts, appended as it is graded.

    {"measurement": {...}}                                           once: what was measured, and how
    {"problem": "p7", "asked": "3f...", "first": 16, "rewards": [1, 0, ...], "lengths": [512, ...], "truncated": [3]}
    {..., "rewards": [1, null, ...], ..., "failures": {"1": "hung: no answer within 30 s"}}

A reward that failed is `null`. Of a group all of whose rewards failed there is no line: it was not measured.

A line holds rollouts `first`, `first` + 1, ... of its problem; `asked` stands for all columns of its row. What a kill
leaves half-written is cut off when the file is opened again, and its rollouts are drawn again: the same ones, as their
random numbers are keyed. With `part` and `end` a line says how far its completions reach in completions/PART.jsonl:
what lies beyond belongs to no line, and goes too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.experiment.curation.config import COMPLETIONS
from isocompute_jax.experiment.rollouts import make_requests
from isocompute_jax.records.checksums import model_digest
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.tasks import Prompts, RewardConfig

LOG = logging.getLogger(__name__)

COUNTS = "counts.jsonl"
PART_BYTES = 2**28
"""A file of completions that is as long as this is followed by another."""
LONGEST_REASON = 300
"""Characters of a failure that are recorded."""
MOST_FAILED = 0.5
"""Share of all rollouts that may be without a reward."""
NAMED = 5
"""Problems that are named where rewards failed."""


BLOCK = 16
"""Rollouts of a problem are drawn in blocks of so many, whatever k is: what is drawn next does not depend on it."""

DIGEST_BYTES = 8


@dataclasses.dataclass(frozen=True)
class RolloutOrder:
    """How rollouts are asked for, of any problem."""

    prompts: Prompts  # renders them, with the model's tokenizer
    sampling: SamplingConfig  # temperature and lengths
    seed: int  # of the random numbers

    def request(self, problem: Problem, *, first: int, count: int) -> SampleRequest:
        """Asks for `count` rollouts of the block that begins with rollout `first`, from there on."""
        [request] = make_requests(
            [problem], self.prompts, self.sampling, group_size=count, seed=self.seed, step=first // BLOCK
        )
        return request


def first_rollout(group: RolloutGroup) -> int:
    """Index of a group's first rollout among all of its problem's."""
    return group.step * BLOCK


def identity_of(
    model_directory: str | os.PathLike[str], order: RolloutOrder, *, dtype: str, reward: RewardConfig
) -> dict[str, Any]:
    """What two calls must have in common to use each other's samples, as JSON has it; prompts are compared one by one.

    Where the model is computed, and where its directory lies, does not matter.
    """
    thinking = order.sampling.thinking
    return {
        "model": model_digest(model_directory),
        "dtype": dtype,
        "temperature": order.sampling.temperature,
        "top_p": order.sampling.top_p,
        "max_tokens": order.sampling.max_tokens,
        "stop_tokens": list(order.prompts.tokenizer.eos_ids),
        "seed": order.seed,
        **({"top_k": order.sampling.top_k} if order.sampling.top_k else {}),
        **({"thinking": dataclasses.asdict(thinking)} if thinking.high else {}),
        **({"reward": reward.function} if reward.function else {}),
        **({"tasks": reward.tasks} if reward.tasks else {}),
        **({"marked": True} if reward.marked else {}),
    }


@dataclasses.dataclass(frozen=True)
class Survey:
    """The problems of a measurement without their texts."""

    rows: dict[str, int]  # id -> row, in the order of the set
    digests: bytes  # what each problem asks, and which answer counts, by row

    def digest(self, row: int) -> str:
        """That of one problem, as text."""
        return self.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES].hex()


def survey(problems: Iterable[Problem], order: RolloutOrder) -> Survey:
    """Looks at every problem once, before anything costly.

    Raises:
      InputError: an id twice, no problems, or a prompt that is too long; names the problem.
    """
    rows: dict[str, int] = {}
    digests = bytearray()
    for problem in problems:
        if problem.id in rows:
            raise InputError(f"problem {problem.id!r} is there twice; ids must differ")
        request = order.request(problem, first=0, count=1)
        request.check_prompt(order.sampling.max_prompt_tokens, "--max_prompt_tokens")
        rows[problem.id] = len(rows)
        asked = problem.digest + request.prompt_tokens.tobytes()  # what the model is shown depends on its tokenizer
        digests += hashlib.blake2b(asked, digest_size=DIGEST_BYTES).digest()
    if not rows:
        raise InputError("there is no problem to measure")
    return Survey(rows, bytes(digests))


class Store:
    """The record of one directory, and of each problem the rewards of its first k rollouts.

    Args:
      directory: where `counts.jsonl` is, or will be.
      identity: what is measured, and how.
      survey: the problems.
      samples: k. Rollouts beyond stay in the file, and are not looked at.
      keep_completions: whether texts are kept too.

    Attributes:
      rows: id of a problem -> its row.
      rewards: [P, k] float32, of the rollouts that are known; 0 where a reward failed.
      known: [P, k] which are.
      failed: [P, k] of these, those whose reward failed.
      reasons: id -> why, of every problem with a reward that failed, in the record or in this call.
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
        self.failed = np.zeros(self.rewards.shape, bool)
        self.reasons: dict[str, str] = {}
        self.tokens = self.truncated = 0
        self._path = directory / COUNTS
        self.rows = survey.rows
        self._survey = survey
        self._part, self._end = 0, 0
        self._foreign = 0
        self._identity = identity
        self._size = self._load(identity)
        if self._foreign:
            LOG.info("%s: %d groups are of problems that are not in this set", self._path, self._foreign)
        self._file: BinaryIO | None = None
        self._completions: BinaryIO | None = None
        self._keep_completions = keep_completions
        self._directory = directory / COMPLETIONS

    def __enter__(self) -> Store:
        """Opens the files to go on; before nothing is written."""
        self._file = open(self._path, "ab", buffering=0)
        self._file.truncate(self._size)
        if not self._size:
            self._write(self._file, {"measurement": self._identity})
        self._cut_completions()
        if self._keep_completions:
            self._directory.mkdir(exist_ok=True)
            self._open_part()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._completions is not None:
            self._completions.close()

    @property
    def measured(self) -> np.ndarray:
        """[P] whether all k rollouts of a problem are known."""
        return np.asarray(self.known.all(axis=1))

    @property
    def mean_rewards(self) -> np.ndarray:
        """[P] float64 mean reward of each problem."""
        return self.rewards.mean(axis=1, dtype=np.float64)

    def solved(self, reward: float) -> np.ndarray:
        """[P] how many rollouts of each problem have this reward or more."""
        return ((self.rewards >= reward) & ~self.failed).sum(axis=1)

    def check_failures(self) -> None:
        """Holds a measurement to what sets can be cut by.

        Raises:
          RunError: of more than half of all rollouts no reward is recorded, or no problem is measured.
        """
        without = int((~self.known | self.failed).sum())
        if without > MOST_FAILED * self.known.size or not self.measured.any():
            ids = self._ids(~self.measured | self.failed.any(axis=1))
            raise RunError(
                f"no reward is recorded of {without} of {self.known.size} rollouts (problems {ids}; {self._reason()}): "
                "no set is cut by such a measurement. See to what gives rewards; the same command draws again what is "
                'not recorded, and a line of counts.jsonl with "failures" is drawn again once it is deleted'
            )

    def failures(self) -> str:
        """How many rewards failed, on which problems, and why; empty where none did."""
        failed, left_out = int(self.failed.sum()), ~self.measured
        parts = []
        if failed:
            ids = self._ids(np.asarray(self.failed.any(axis=1)))
            parts.append(f"{failed} of {self.known.size} rollouts count as wrong (problems {ids})")
        if left_out.any():
            ids, count = self._ids(left_out), int(left_out.sum())
            parts.append(f"{count} of {len(left_out)} problems are in no set ({ids}), the same command measures them")
        return f"rewards failed: {'; '.join(parts)}; {self._reason()}" if parts else ""

    def _ids(self, rows: np.ndarray) -> str:
        """The first ids of the problems in `rows` [P]."""
        ids = [id for id, row in self.rows.items() if rows[row]]
        return ", ".join(ids[:NAMED]) + (", ..." if len(ids) > NAMED else "")

    def _reason(self) -> str:
        """Why, of the first problem of which that is known."""
        id, why = next(iter(self.reasons.items()), ("", "no reason is recorded"))
        return f"{id}: {why}" if id else why

    def missing(self, problem_id: str) -> Iterator[tuple[int, int]]:
        """(first rollout of a block, how many of it are wanted) for each block that is not there whole."""
        known = self.known[self.rows[problem_id]]
        for first in range(0, len(known), BLOCK):
            block = known[first : first + BLOCK]
            if not block.all():
                yield first, len(block)

    def add(self, group: RolloutGroup, first: int, texts: Sequence[str] = ()) -> int:
        """Records a graded group whose first rollout is `first`; what of it is known already is left out.

        A group that is dropped, or all of whose rewards failed, is not recorded. `texts` are those of its completions;
        they are needed where completions are kept.

        Returns:
          How many rollouts are new.
        """
        assert group.rewards is not None and self._file is not None
        row = self.rows[group.problem_id]
        end = min(first + len(group.completions), self.known.shape[1])
        skip = int(self.known[row, first:end].sum())  # a block is filled from its beginning
        kept = slice(skip, end - first)
        completions = group.completions[kept]
        failures = {i - skip: why[:LONGEST_REASON] for i, why in group.failures.items() if skip <= i < end - first}
        if failures and (group.dropped or len(failures) == len(completions)):
            self.reasons.setdefault(group.problem_id, next(iter(failures.values())))
            return len(completions)
        rewards = [None if i in failures else _number(reward) for i, reward in enumerate(group.rewards[kept].tolist())]
        line: dict[str, Any] = {
            "problem": group.problem_id,
            "asked": self._survey.digest(row),
            "first": first + skip,
            "rewards": rewards,
            "lengths": [len(completion.tokens) for completion in completions],
            "truncated": [i for i, completion in enumerate(completions) if completion.finish_reason == "length"],
        }
        if failures:
            line["failures"] = {str(i): why for i, why in failures.items()}
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
        self.rewards[place] = [reward or 0.0 for reward in rewards[:count]]
        self.failed[place] = [reward is None for reward in rewards[:count]]
        self.known[place] = True
        why = line.get("failures", {})
        if self.failed[place].any() and why:
            self.reasons.setdefault(line["problem"], next(iter(why.values())))
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
        row = self.rows.get(line["problem"])
        if "part" in line:
            self._part, self._end = line["part"], line["end"]
        if row is None:
            self._foreign += 1
            return
        if line["asked"] != self._survey.digest(row):
            raise InputError(
                f"problem {line['problem']!r} was measured with another prompt, answer, task or other column: its "
                "samples cannot be used. Give it another id, or choose another --out"
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
        self._completions = open(path, "ab")  # noqa: SIM115 (closed by `__exit__`)

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


def check_same(directory: pathlib.Path, identity: dict[str, Any]) -> None:
    """Looks at the first line of a directory's record, if it has one, before anything that takes long.

    Raises:
      InputError: it is another measurement's. What is no record at all is found when it is read.
    """
    path = directory / COUNTS
    theirs = None
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError), open(path, "rb") as file:
        theirs = json.loads(file.readline())["measurement"]
    if isinstance(theirs, dict):
        try:
            _check_same(theirs, identity, path)
        except InputError as error:
            raise InputError(f"{path}:1: {error}") from None


def _check_same(theirs: dict[str, Any], ours: dict[str, Any], path: pathlib.Path) -> None:
    """Raises InputError where samples are another measurement's."""
    differing = [name for name in dict.fromkeys((*ours, *theirs)) if theirs.get(name) != ours.get(name)]
    if not differing:
        return
    changed = [f"{name}: {_said(name, theirs)} there, {_said(name, ours)} here" for name in differing]
    remedy = "Choose another --out"
    if "reward" in differing:
        again = f"Pass --reward={theirs['reward']} again" if theirs.get("reward") else "Leave --reward out"
        remedy = f"{again}, choose another --out"
    raise InputError(
        f"another measurement ({'; '.join(changed)}): its samples cannot be used. {remedy}, or remove {path.parent} to "
        "start anew"
    )


def _said(name: str, identity: dict[str, Any]) -> str:
    """A value of a measurement, in words where it has none."""
    if name == "reward" and not identity.get(name):
        return "the problems' own tasks"
    return repr(identity.get(name))
