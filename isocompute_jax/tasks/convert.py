"""Any file of problems to ours: rows are read, adapted or renamed, checked, and written without repetitions."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import logging
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from isocompute_jax.options import described, option, unknown_word
from isocompute_jax.records.columns import parse_columns
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.adapters import ADAPTERS, Adapter
from isocompute_jax.tasks.graders.registry import check_named_by_file
from isocompute_jax.tasks.problem_sets import is_extra, problem_of
from isocompute_jax.tasks.rows import SUFFIXES, Row, read_rows, renamed

LOG = logging.getLogger(__name__)

ALL = "all"
SHOWN = 5
"""Rows that are named one by one where many are left out."""


@described
@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """How the rows of a file become problems."""

    adapter: str = option("", f"Layout of a published data set: {', '.join(ADAPTERS)}; see docs/problems.md.")
    columns: Mapping[str, str] = option(
        default_factory=dict,
        help="theirs:ours,...: renames columns, such as question:prompt,reward_model.ground_truth:answer; a path leads "
        "into nested ones. Ours are id, prompt, prompt_tokens, answer, task, avg@k; others are kept under that name.",
        parse=functools.partial(parse_columns, example="such as question:prompt"),
    )
    task: str = option("", "Task of the rows that name none, in place of the adapter's own.")
    extra: tuple[str, ...] = option(
        (),
        "Other columns to keep for reward functions: their names, all, or none. By default all of them, or those that "
        "the adapter keeps. Worked solutions take most of a file's memory: name what you need.",
    )
    skip_bad_rows: bool = option(False, "Leave out rows that are at fault, and say which; else the first is an error.")

    def __post_init__(self) -> None:
        if self.adapter and self.adapter not in ADAPTERS:
            raise InputError(unknown_word("--adapter", self.adapter, ADAPTERS))
        if self.adapter and self.columns:
            raise InputError("--adapter and --columns: an adapter knows its columns; give one of the two")
        if len(self.extra) > 1 and {ALL, "none"} & set(self.extra):
            raise InputError(f"--extra={','.join(self.extra)}: give names, or all, or none")


@dataclasses.dataclass(frozen=True)
class Converted:
    """Problems, and what was left out.

    Attributes:
      problems: in the order of the file.
      repeated: rows that repeat an earlier one.
      bad: the messages of rows that are at fault.
    """

    problems: list[Problem]
    repeated: int
    bad: list[str]


def convert(sources: Iterable[pathlib.Path], options: ConvertOptions) -> Converted:
    """Reads files of problems, one after the other.

    Rows that repeat an earlier one, prompt and answer, are dropped and counted.

    Raises:
      InputError: names file, line and column, and what to do; also where two different problems have one id.
    """
    adapter = ADAPTERS.get(options.adapter)
    kept: dict[str, Problem] = {}
    seen: set[bytes] = set()
    used: collections.Counter[str] = collections.Counter()
    repeated, bad = 0, []
    files = list(_files(sources))
    for path in files:
        for row in read_rows(path, wanted=_wanted(adapter, options)):
            try:
                ours = _our_columns(row, adapter, options, used)
                key = _content(ours)
                if key in seen:
                    repeated += 1
                    continue
                seen.add(key)
                problem = _problem(ours, row, path, options)
                if problem.id in kept:
                    raise InputError(f"{row.where}: id: {problem.id!r} is that of another problem; ids must differ")
            except InputError as error:
                if not options.skip_bad_rows:
                    raise
                bad.append(str(error))
                continue
            kept[problem.id] = problem
    _check_used(options.columns, used, files)
    if not kept:
        first = f"; the first row that is at fault: {bad[0]}" if bad else ""
        raise InputError(f"{', '.join(map(str, files))}: no problems in it{first}")
    return Converted(list(kept.values()), repeated, bad)


def log_left_out(converted: Converted) -> None:
    """One line for what was left out, and the first rows that are at fault."""
    if converted.repeated:
        LOG.info("%d rows repeat an earlier one and were dropped", converted.repeated)
    if converted.bad:
        LOG.warning("%d rows are at fault and were left out (--skip_bad_rows):", len(converted.bad))
        for message in converted.bad[:SHOWN]:
            LOG.warning("  %s", message)


def _our_columns(
    row: Row, adapter: Adapter | None, options: ConvertOptions, used: collections.Counter[str]
) -> dict[str, Any]:
    """A row under our names; counts which columns of `--columns` it has."""
    if adapter is None:
        ours, found = renamed(row.columns, options.columns)
        used.update(found)
        return ours
    try:
        ours = adapter.convert(row.columns)
    except InputError as error:
        raise InputError(f"{row.where}: {error}") from None
    others = {name: value for name, value in row.columns.items() if is_extra(name) and name in options.extra}
    return (row.columns | ours if options.extra == (ALL,) else ours | others) | _ours_alone(ours)


def _problem(ours: Mapping[str, Any], row: Row, path: pathlib.Path, options: ConvertOptions) -> Problem:
    adapter = ADAPTERS.get(options.adapter)
    return problem_of(
        ours,
        row.where,
        default_id=f"{path.stem}-{row.number}",
        default_task=options.task or (adapter.task if adapter else None),
        extra=_extra_names(options),
        grader_name=functools.partial(
            check_named_by_file,
            allowed=(options.task,),
            remedy="say it yourself, by --task; else --skip_bad_rows leaves such rows out",
        ),
    )


def _ours_alone(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Ours, empty where the adapter gave none: the file's own columns of these names mean something else."""
    return {name: ours.get(name) for name in ("id", "prompt", "answer", "task", "prompt_tokens")}


def _extra_names(options: ConvertOptions) -> Collection[str] | None:
    """Which columns without a meaning of their own are kept; None for all."""
    if options.extra == ("none",):
        return ()
    if options.extra in ((), (ALL,)) or options.adapter:
        return None
    return {*options.extra, *options.columns.values()}


def _wanted(adapter: Adapter | None, options: ConvertOptions) -> Callable[[str], bool]:
    """Whether a column of the file is read at all."""
    if options.extra == (ALL,) or (adapter is None and not options.extra):
        return lambda name: True
    if adapter is not None:
        named = {*adapter.columns, *options.extra}
    else:
        paths = [path.split(".") for path in options.columns]
        named = {*options.extra, *(".".join(path[:end]) for path in paths for end in range(1, len(path) + 1))}
    return lambda name: name in named or (adapter is None and not is_extra(name))


def _files(sources: Iterable[pathlib.Path]) -> Iterator[pathlib.Path]:
    """The files themselves, and of directories all that can be read, in order of their names."""
    for source in sources:
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
            if not files:
                raise InputError(f"{source}: has no {', '.join(SUFFIXES)} file in it")
            yield from files
        elif source.suffix not in SUFFIXES:
            raise InputError(
                f"{source}: unknown extension {source.suffix!r}; what can be read is {', '.join(SUFFIXES)}"
            )
        else:
            yield source


def _check_used(columns: Mapping[str, str], used: Mapping[str, int], files: Sequence[pathlib.Path]) -> None:
    never = [theirs for theirs in columns if not used.get(theirs)]
    covered = {ours for theirs, ours in columns.items() if used.get(theirs)}
    for theirs in never:
        if columns[theirs] not in covered:
            raise InputError(f"--columns: no row of {', '.join(map(str, files))} has {theirs!r}; check its name")


def _content(ours: Mapping[str, Any]) -> bytes:
    """What makes two rows the same problem."""
    content = repr([ours.get(name) for name in ("prompt", "prompt_tokens", "answer", "task")])
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
