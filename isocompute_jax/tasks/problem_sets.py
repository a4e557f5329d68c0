"""Problem sets in JSONL and Parquet: `id, prompt, answer, task`, and measured rates such as `avg@16`.

A prompt is a text, a list of messages, or a list of token ids (which may also stand in `prompt_tokens`). A row without
`id` gets one from the file's name and its line (Parquet: row), so that it is the same in every run. Other columns are
kept as they are (`Problem.extra`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks.graders.gym import PREFIX as GYM
from isocompute_jax.tasks.graders.gym import read_gym
from isocompute_jax.tasks.graders.registry import check_named_by_file
from isocompute_jax.tasks.problem_fields import COLUMNS, is_extra, is_measured, problem_of
from isocompute_jax.tasks.rows import parquet_bytes, read_rows

SUFFIXES = (".jsonl", ".parquet")


def read_problems(
    path: str | os.PathLike[str],
    *,
    default_task: str | None = None,
    extra: Collection[str] | None = None,
    grader_name: Callable[[str], str] = check_named_by_file,
) -> list[Problem]:
    """Reads a problem set.

    Args:
      path: a .jsonl or .parquet file, or problems of reasoning-gym (see `graders.gym.read_gym`).
      default_task: task of the rows that name none.
      extra: names of the columns without a meaning of their own that are kept; None for all of them, which of a file
        with long columns, such as worked solutions, takes their memory.
      grader_name: task -> the name of what grades its problems; it refuses what no file may name, which by default is
        every function and address (see `graders.registry`).

    Raises:
      InputError: the file is missing, empty or not what its name says, or a row is at fault; names file, line (Parquet:
        row, counted from 1) and field, and what to do.
    """
    return list(ProblemFile(path, default_task=default_task, extra=extra, grader_name=grader_name))


@dataclasses.dataclass(frozen=True)
class ProblemFile:
    """A problem set that is read anew whenever it is iterated over, one problem in memory at a time.

    Attributes and errors are those of `read_problems`.
    """

    path: str | os.PathLike[str]
    default_task: str | None = None
    extra: Collection[str] | None = None
    grader_name: Callable[[str], str] = check_named_by_file

    def __iter__(self) -> Iterator[Problem]:
        if str(self.path).startswith(GYM):
            yield from read_gym(str(self.path))
            return
        path = pathlib.Path(self.path)
        _check_suffix(path)
        place = "" if path.suffix == ".jsonl" else " row "
        seen: dict[str, int] = {}
        for number, where, row in read_rows(path):
            problem = problem_of(
                row,
                where,
                default_id=f"{path.stem}-{number}",
                default_task=self.default_task,
                extra=self.extra,
                grader_name=self.grader_name,
            )
            if problem.id in seen:
                first = f"{path}:{place}{seen[problem.id]}"
                raise InputError(f"{where}: id: {problem.id!r} was already given at {first}; ids must differ")
            seen[problem.id] = number
            yield problem
        if not seen:
            raise InputError(f"{path}: the problem set is empty; give at least one problem")


def write_problems(path: str | os.PathLike[str], problems: Iterable[Problem]) -> None:
    """Writes a problem set; the file appears whole or not at all. Of a .jsonl file one problem is in memory at a time.

    Raises:
      InputError: no problems, the same id twice, an extra column that could not be read back, or another extension.
    """
    path = pathlib.Path(path)
    _check_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        write_atomic(path, (_line(row).encode() for row in _rows(problems, path)))
        return
    rows = list(_rows(problems, path))
    try:
        write_atomic(path, parquet_bytes(rows, floats={name for row in rows for name in row if is_measured(name)}))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _rows(problems: Iterable[Problem], path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The columns of each problem."""
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise InputError(f"{path}: two problems have the same id; ids must differ within a set")
        seen.add(problem.id)
        yield _row(problem, path)
    if not seen:
        raise InputError(f"{path}: no problems to write; an empty problem set cannot be used")


def _check_suffix(path: pathlib.Path) -> None:
    if path.suffix not in SUFFIXES:
        where = "" if path.suffix or path.is_file() else " of this machine"  # NAME/DATA_SET of the Hugging Face Hub
        raise InputError(
            f"{path}: unknown extension {path.suffix!r}; problem sets are {' or '.join(SUFFIXES)} files{where}, which "
            "`python -m isocompute_jax.convert` makes of others"
        )


def _row(problem: Problem, path: pathlib.Path) -> dict[str, Any]:
    """The columns of a problem, empty ones left out."""
    wrong = next((name for name in problem.extra if not is_extra(name)), None)
    if wrong is not None:
        raise InputError(f"{path}: problem {problem.id!r}: {wrong!r} is no name for an extra column; rename it")
    row: dict[str, Any] = {
        "id": problem.id,
        "prompt": problem.prompt if isinstance(problem.prompt, str) else [dict(m) for m in problem.prompt],
        "answer": problem.answer,
        "task": problem.task,
        **dict(sorted(problem.measured.items())),
        "prompt_tokens": list(problem.prompt_tokens),
    }
    row = {name: value for name, value in row.items() if name not in COLUMNS or value}
    try:
        _line(dict(problem.extra))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: problem {problem.id!r}: extra columns hold what JSON has not ({error})") from None
    return row | dict(problem.extra)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
