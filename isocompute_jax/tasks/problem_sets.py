"""Problem sets in JSONL and Parquet: `id, prompt, answer, task`, and measured rates such as `avg@16`.

A prompt is a text, a list of messages, or a list of token ids (which may also stand in `prompt_tokens`). A row without
`id` gets one from the file's name and its line (Parquet: row), so that it is the same in every run. Other columns are
kept as they are (`Problem.extra`).
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Message, Problem
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks.graders.gym import PREFIX as GYM
from isocompute_jax.tasks.graders.gym import read_gym
from isocompute_jax.tasks.graders.registry import check_named_by_file, get_grader
from isocompute_jax.tasks.rows import Number, as_in_file, checked_text, parquet_bytes, plain, read_rows
from isocompute_jax.tasks.word_problems import PREFIX as WORDS
from isocompute_jax.tasks.word_problems import read_words

SUFFIXES = (".jsonl", ".parquet")
COLUMNS = ("id", "prompt", "answer", "task", "prompt_tokens")
"""Columns with a meaning of their own, beside measured rates."""
NO_GRADER = "environment"
"""The task of problems that name none, where no grader says what completions are worth."""

GENERATED: Mapping[str, Callable[[str], list[Problem]]] = {GYM: read_gym, WORDS: read_words}
"""What stands where a file's path may, by how it begins; several are joined by commas."""

_MEASURED = re.compile(r"avg@[1-9][0-9]*")
_MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](role|content|from)["']\s*:""")


def is_generated(path: str | os.PathLike[str]) -> bool:
    """Whether it names what makes problems, in place of a file."""
    return str(path).startswith(tuple(GENERATED))


def read_problems(
    path: str | os.PathLike[str],
    *,
    default_task: str | None = None,
    extra: Collection[str] | None = None,
    grader_name: Callable[[str], str] | None = check_named_by_file,
) -> list[Problem]:
    """Reads a problem set.

    Args:
      path: a .jsonl or .parquet file, or what makes problems: reasoning-gym's (see `graders.gym.read_gym`), or small
        arithmetic in words (see `word_problems.read_words`); `words:400,gym:chain_sum:200` is both.
      default_task: task of the rows that name none.
      extra: names of the columns without a meaning of their own that are kept; None for all of them, which of a file
        with long columns, such as worked solutions, takes their memory.
      grader_name: task -> the name of what grades its problems; it refuses what no file may name, which by default is
        every function and address (see `graders.registry`). None where no grader does: then answer and task may be
        missing.

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
    grader_name: Callable[[str], str] | None = check_named_by_file

    def __iter__(self) -> Iterator[Problem]:
        if is_generated(self.path):
            yield from _generated(str(self.path))
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


def _generated(source: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for part in source.split(","):
        prefix = part.partition(":")[0] + ":"
        if prefix not in GENERATED:
            known = " or ".join(GENERATED)
            raise InputError(f"{source}: {part!r} does not begin with {known}; only these are joined by commas")
        for problem in GENERATED[prefix](part):
            if problem.id in seen:
                raise InputError(f"{source}: {problem.id!r} comes twice; name what makes it once")
            seen.add(problem.id)
            yield problem


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


# --- one row


def is_measured(name: str) -> bool:
    """Whether a column is a measured rate, such as `avg@16`."""
    return _MEASURED.fullmatch(name) is not None


def is_extra(name: str) -> bool:
    """Whether a column has no meaning of its own, and is kept for reward functions."""
    return name not in COLUMNS and not is_measured(name)


def problem_of(
    row: Mapping[str, Any],
    where: str,
    *,
    default_id: str,
    default_task: str | None,
    extra: Collection[str] | None = None,
    grader_name: Callable[[str], str] | None = check_named_by_file,
) -> Problem:
    """Checks one row.

    Args:
      row: its columns.
      where: its place, for messages.
      default_id: its id, where it has none.
      default_task: its task, where it names none; without that, what grades problems of no task.
      extra: names of the columns without a meaning of their own that are kept; None for all.
      grader_name: task -> the name of what grades its problems; it refuses what no file may name. None for no grader.

    Raises:
      InputError: names the place, the column and what to do.
    """
    prompt, prompt_tokens = _prompt(row, where)
    if grader_name is None:
        answer = _text(row, "answer", where, numbers=True) or ""
        task = _text(row, "task", where, numbers=False) or default_task or NO_GRADER
    else:
        answer = _required(row, "answer", where, numbers=True)
        task = _text(row, "task", where, numbers=False) or default_task or grader_name("")
    if not task:
        raise InputError(
            f"{where}: task: missing; add the field, or name what grades all problems, such as numeric or your own "
            "MODULE:FUNCTION: train --config.reward=NAME, curate --reward=NAME, convert and split --task=NAME"
        )
    problem = Problem(
        id=_text(row, "id", where, numbers=True) or default_id,
        prompt=prompt,
        answer=answer,
        task=task,
        measured={name: _rate(row, name, where) for name in row if is_measured(name) and row[name] is not None},
        prompt_tokens=prompt_tokens,
        extra={
            name: plain(value, f"{where}: {name}")
            for name, value in row.items()
            if value is not None and is_extra(name) and (extra is None or name in extra)
        },
    )
    if grader_name is None:
        return problem
    try:
        fault = get_grader(grader_name(task)).fault(problem)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if fault is not None:
        raise InputError(f"{where}: {fault}")
    return problem


def _prompt(row: Mapping[str, Any], where: str) -> tuple[str | tuple[Message, ...], tuple[int, ...]]:
    """Text or messages, and token ids; one of the two may be empty."""
    value, tokens = row.get("prompt"), _token_ids(row.get("prompt_tokens"), f"{where}: prompt_tokens")
    if isinstance(value, str) and _MESSAGES_AS_TEXT.match(value):
        value = _messages_in(value, f"{where}: prompt")
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return _messages(value, f"{where}: prompt"), tokens
    if isinstance(value, list):
        if tokens:
            raise InputError(f"{where}: prompt: is a list beside prompt_tokens; keep the text, or one of the two")
        tokens = _token_ids(value, f"{where}: prompt")
        value = None
    if tokens:
        return _text({"prompt": value}, "prompt", where, numbers=False) or "", tokens
    return _required({**row, "prompt": value}, "prompt", where, numbers=False), ()


def _messages_in(text: str, where: str) -> list[Any]:
    """The list that a text writes out, in JSON or, as data frames write CSV files, in Python."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return list(read(text.strip()))
    remedy = "write them as JSON (a text that is no messages: begin it with a word)"
    raise InputError(f"{where}: begins as messages written out do, and is neither JSON nor Python: {remedy}")


def _token_ids(value: Any, where: str) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(_is_id(token) for token in value):
        raise InputError(f"{where}: is no list of token ids, whole numbers from 0; write [151644, 872, ...]")
    return tuple(int(token) for token in value)


def _is_id(token: Any) -> bool:
    """Lists in Parquet hold integers, lists in JSON the texts of numbers."""
    if isinstance(token, Number):
        return token.isdecimal()
    return isinstance(token, int) and not isinstance(token, bool) and token >= 0


def _messages(values: list[Any], where: str) -> tuple[Message, ...]:
    messages = []
    for number, value in enumerate(values, 1):
        here = f"{where}: message {number}"
        if not isinstance(value, Mapping):
            raise InputError(f'{here}: is no message; write {{"role": "user", "content": "..."}}')
        message = {name: plain(inner, here) for name, inner in value.items() if inner is not None}
        for name in ("role", "content"):
            if not isinstance(message.get(name), str):
                raise InputError(f"{here}: {name}: missing, or no text; only text can be read")
        messages.append(message)
    if messages[-1]["role"] == "assistant":
        raise InputError(
            f"{where}: its last message is the assistant's, whose turn it is: leave it out (how every answer begins is "
            "config.prompts.generation_prefix)"
        )
    if not any(message["content"].strip() for message in messages):
        raise InputError(f"{where}: all its messages are empty; write one, or delete the row")
    return tuple(messages)


def _text(row: Mapping[str, Any], field: str, where: str, *, numbers: bool) -> str | None:
    """A field's text, None where it is missing, null or empty; `numbers` says whether a bare number will do."""
    value = as_in_file(row.get(field))
    if value is None:
        return None
    if not isinstance(value, str) or (isinstance(value, Number) and not numbers):
        kind = "number" if isinstance(value, Number) else type(value).__name__
        raise InputError(f"{where}: {field}: is a {kind}, not text; put it in quotes")
    checked_text(value, f"{where}: {field}")
    return str(value) if value.strip() else None


def _required(row: Mapping[str, Any], field: str, where: str, *, numbers: bool) -> str:
    value = _text(row, field, where, numbers=numbers)
    if value is None:
        others = ", ".join(name for name in row if is_extra(name))
        renamed = (
            f" (is it {others}? python -m isocompute_jax.convert --columns=theirs:{field} renames it)" if others else ""
        )
        raise InputError(f"{where}: {field}: missing or empty; add it, or delete the row{renamed}")
    return value


def _rate(row: Mapping[str, Any], field: str, where: str) -> float:
    value = as_in_file(row[field])
    try:
        rate = float(value)  # of a text too: cells of a CSV file are nothing else
    except (TypeError, ValueError):
        rate = math.nan
    if isinstance(value, bool) or not 0.0 <= rate <= 1.0:
        raise InputError(f"{where}: {field}: is {value!r}, not a rate in [0, 1]; measure it again or delete the field")
    return rate
