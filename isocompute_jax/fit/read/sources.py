"""What --runs names: run directories, folders of them or of tables, tables, and globs of all these."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, EVAL, HISTORY, find_runs

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz")
"""Of tables."""


def is_table(path: pathlib.Path) -> bool:
    """Whether the name is one of a table."""
    return path.name.lower().endswith(SUFFIXES)


@dataclasses.dataclass(frozen=True)
class Sources:
    """What is to be read, each once and in the order given: [R] run directories and [T] tables."""

    directories: tuple[pathlib.Path, ...]
    tables: tuple[pathlib.Path, ...]


def find_sources(given: Sequence[str], notices: Notices) -> Sources:
    """Expands globs and folders.

    Raises:
      InputError: something does not exist, a glob has no match, or a file is no table.
    """
    if not given:
        raise InputError("--runs is empty; give run directories, folders of them, tables, or globs")
    found: dict[pathlib.Path, pathlib.Path] = {}
    for path in (path for text in given for path in _expand(str(text), notices)):
        found.setdefault(pathlib.Path(os.path.realpath(path)), path)
    directories = tuple(path for path in found.values() if path.is_dir())
    return Sources(directories, tuple(path for path in found.values() if not path.is_dir()))


def run_names(tables: Sequence[pathlib.Path]) -> dict[pathlib.Path, str]:
    """What a run is called whose table does not say: its file, or of files of one name the folders that differ."""
    folders: dict[str, dict[pathlib.Path, tuple[str, ...]]] = {}
    for path in tables:
        stem = path.name.removesuffix(".gz").rpartition(".")[0]
        folders.setdefault(stem, {})[path] = path.absolute().parent.parts
    names = {}
    for stem, alike in folders.items():
        start = _shared(alike.values())
        end = _shared([parts[start:][::-1] for parts in alike.values()])
        names |= {path: "/".join(parts[start : len(parts) - end]) or stem for path, parts in alike.items()}
    return {path: names[path] for path in tables}


def _shared(paths: Iterable[tuple[str, ...]]) -> int:
    """How many of their first parts all paths have in common."""
    return sum(1 for _ in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _expand(text: str, notices: Notices) -> Iterator[pathlib.Path]:
    path = pathlib.Path(text)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if exists:
        if not path.is_dir() and not is_table(path):
            raise InputError(f"--runs: {path} is neither a directory nor a table ({', '.join(SUFFIXES)})")
        yield from _below(path, notices)
        return
    if not glob.has_magic(text):
        raise InputError(f"--runs: {text} does not exist; give run directories, folders of them, tables, or globs")
    matches = [pathlib.Path(match) for match in sorted(glob.glob(text, recursive=True))]
    folders = {match for match in matches if match.is_dir()}
    usable = [match for match in matches if match in folders or is_table(match)]
    usable = [match for match in usable if not folders & set(match.parents)]
    if not usable:
        raise InputError(
            f"--runs: nothing that could be read matches {text}; quote it if the shell should not expand it"
        )
    for match in usable:
        yield from _below(match, notices)


def _below(path: pathlib.Path, notices: Notices) -> Iterator[pathlib.Path]:
    """A table; the run directory of an eval.jsonl; the run directories, or else the tables, of a folder."""
    if not path.is_dir():
        yield path.parent if path.name == EVAL and (path.parent / CONFIG).exists() else path
        return
    files = (file for file in path.rglob("*") if is_table(file) and file.is_file() and file.name != HISTORY)
    found = find_runs(path) or sorted(files)
    if not found:
        notices.finding(
            path,
            "folder without runs",
            f"{path}: neither a run directory (a folder with {CONFIG} and {EVAL}) nor a table at or below it",
        )
    yield from found
