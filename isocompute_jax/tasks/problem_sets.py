"""Problem sets in JSONL and Parquet: `id, prompt, answer, task`, and measured rates such as `avg@16`.

A row without `id` gets one from the file's name and its line (Parquet: row), so that it is the same in every run.
Other columns are left alone: they are neither read nor kept.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks.protocol import get_task

SUFFIXES = (".jsonl", ".parquet")
PARQUET_ROWS = 1024
"""Rows of a Parquet file that are in memory at a time."""
COLUMNS = ("id", "prompt", "answer", "task")

_MEASURED = re.compile(r"avg@[1-9][0-9]*")


class _Number(str):
    """A number's text as it stands in the file, so that an answer of 3 stays `3` and one of 2.50 stays `2.50`."""


def read_problems(path: str | os.PathLike[str], *, default_task: str | None = None) -> list[Problem]:
    """Reads a problem set.

    Args:
      path: a .jsonl or .parquet file.
      default_task: task of the rows that name none.

    Raises:
      InputError: the file is missing, empty or not what its name says, or a row is at fault; names file, line (Parquet:
        row, counted from 1) and field, and what to do.
    """
    return list(ProblemFile(path, default_task=default_task))


@dataclasses.dataclass(frozen=True)
class ProblemFile:
    """A problem set that is read anew whenever it is iterated over, one problem in memory at a time.

    Attributes and errors are those of `read_problems`.
    """

    path: str | os.PathLike[str]
    default_task: str | None = None

    def __iter__(self) -> Iterator[Problem]:
        path = pathlib.Path(self.path)
        rows, place = (_jsonl_rows(path), "") if _suffix(path) == ".jsonl" else (_parquet_rows(path), " row ")
        seen: dict[str, int] = {}
        for number, where, row in rows:
            problem = _problem(row, where, default_id=f"{path.stem}-{number}", default_task=self.default_task)
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
      InputError: no problems, the same id twice (neither could be read back), or another extension.
    """
    path = pathlib.Path(path)
    suffix = _suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows(problems, path)
    if suffix == ".jsonl":
        write_atomic(path, (f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n".encode() for row in rows))
    else:
        write_atomic(path, _parquet_bytes(list(rows)))


def _rows(problems: Iterable[Problem], path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The columns of each problem."""
    seen: set[str] = set()
    for p in problems:
        if p.id in seen:
            raise InputError(f"{path}: two problems have the same id; ids must differ within a set")
        seen.add(p.id)
        yield {"id": p.id, "prompt": p.prompt, "answer": p.answer, "task": p.task, **dict(sorted(p.measured.items()))}
    if not seen:
        raise InputError(f"{path}: no problems to write; an empty problem set cannot be used")


def split(problems: Sequence[Problem], *, validation: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Splits into (train, validation), disjoint by prompt; both keep the order of `problems`.

    Which prompts go where depends on the set of prompts and the seed, not on their order. Where prompts repeat,
    validation may hold up to one prompt's repetitions more than asked for.

    Raises:
      InputError: nothing would be left on one side.
    """
    count: dict[str, int] = {}
    for problem in problems:
        count[problem.prompt] = count.get(problem.prompt, 0) + 1
    prompts = sorted(count)
    held_out: set[str] = set()
    held_out_rows = 0
    for index in np.random.default_rng(seed).permutation(len(prompts)):
        if held_out_rows >= validation:
            break
        held_out.add(prompts[index])
        held_out_rows += count[prompts[index]]
    if not 0 < len(held_out) < len(prompts):
        raise InputError(
            f"validation = {validation}: cannot split {len(problems)} problems ({len(prompts)} distinct prompts) so "
            "that both sides have some; ask for fewer, and at least 1"
        )
    train = [problem for problem in problems if problem.prompt not in held_out]
    return train, [problem for problem in problems if problem.prompt in held_out]


def _suffix(path: pathlib.Path) -> str:
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown extension {path.suffix!r}; problem sets are {' or '.join(SUFFIXES)} files")
    return path.suffix


Row = tuple[int, str, dict[str, Any]]
"""Number (from 1), place for messages, and columns of a row."""


def _jsonl_rows(path: pathlib.Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line.decode(), parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON in UTF-8 ({error}); fix or delete the line") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}: not a JSON object; write one object with prompt, answer and task per line")
        yield number, where, row


def _parquet_rows(path: pathlib.Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with _open(path) as source:
            file = pyarrow.parquet.ParquetFile(source)
            names = file.schema_arrow.names
            kept = [name for name in names if name in COLUMNS or _is_measured(name)]
            repeated = [name for name in kept if names.count(name) > 1]
            if repeated:
                raise InputError(f"{path}: the column {repeated[0]!r} occurs twice; rename one")
            batches = file.iter_batches(PARQUET_ROWS, columns=kept) if kept else []
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, row in enumerate(rows, 1):
                yield number, f"{path}: row {number}", {name: _from_parquet(value) for name, value in row.items()}
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file that can be read ({error}); write it again") from error


def _from_parquet(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None  # how data frames mark a missing cell
    return _Number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({
        name: pyarrow.array([row.get(name) for row in rows], pyarrow.float64() if _is_measured(name) else None)
        for name in names
    })  # fmt: skip
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


def _lines(path: pathlib.Path) -> Iterator[bytes]:
    """Lines of a file, without a byte-order mark."""
    with _open(path) as file:
        for number, line in enumerate(file):
            yield line if number else line.removeprefix(b"\xef\xbb\xbf")


def _open(path: pathlib.Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such problem set; check the path") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a readable file") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _is_measured(name: str) -> bool:
    return _MEASURED.fullmatch(name) is not None


def _problem(row: dict[str, Any], where: str, *, default_id: str, default_task: str | None) -> Problem:
    """Checks one row."""
    task = _text(row, "task", where, numbers=False) or default_task
    if task is None:
        raise InputError(f'{where}: task: missing; add the field (such as "task": "numeric"), or name a default task')
    problem = Problem(
        id=_text(row, "id", where, numbers=True) or default_id,
        prompt=_required(row, "prompt", where, numbers=False),
        answer=_required(row, "answer", where, numbers=True),
        task=task,
        measured={name: _rate(row, name, where) for name in row if _is_measured(name) and row[name] is not None},
    )
    try:
        fault = get_task(task).fault(problem)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if fault is not None:
        raise InputError(f"{where}: {fault}")
    return problem


def _text(row: dict[str, Any], field: str, where: str, *, numbers: bool) -> str | None:
    """A field's text, None where it is missing, null or empty; `numbers` says whether a bare number will do."""
    value = row.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or (isinstance(value, _Number) and not numbers):
        kind = "number" if isinstance(value, _Number) else type(value).__name__
        raise InputError(f"{where}: {field}: is a {kind}, not text; put it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: {field}: has half of a surrogate pair, which is not text; fix the line") from None
    return str(value) if value.strip() else None


def _required(row: dict[str, Any], field: str, where: str, *, numbers: bool) -> str:
    value = _text(row, field, where, numbers=numbers)
    if value is None:
        raise InputError(f"{where}: {field}: missing or empty; add it, or delete the row")
    return value


def _rate(row: dict[str, Any], field: str, where: str) -> float:
    value = row[field]
    if not isinstance(value, _Number) or not 0.0 <= float(value) <= 1.0:
        raise InputError(f"{where}: {field}: is {value!r}, not a rate in [0, 1]; measure it again or delete the field")
    return float(value)
