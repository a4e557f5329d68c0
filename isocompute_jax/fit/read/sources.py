"""What --runs names: run directories, folders of them or of tables, tables, and globs of all these.

Of a run directory, config.json says which run it is, eval.jsonl has its evaluations, and the reward of training comes
out of metrics.jsonl: what a run's own problems gave, between its evaluations.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.read_options import FACTS, is_whole
from isocompute_jax.fit.read.tables import TableError
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import curve_identity_of, schedule_of
from isocompute_jax.records.run_files import CONFIG, EVAL, HISTORY, find_runs

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz")
"""Of tables."""

TRAIN_REWARD = "train/reward"
"""Column of a run's evaluations: mean reward of the rollouts since the evaluation before; NaN at the base model's."""


def is_table(path: pathlib.Path) -> bool:
    """Whether the name is one of a table."""
    return path.name.lower().endswith(SUFFIXES)


def find_sources(given: Sequence[str], notices: Notices) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """The run directories and the tables to read, each once and in the order given; globs and folders are expanded.

    Raises:
      InputError: something does not exist, a glob has no match, or a file is no table.
    """
    if not given:
        raise InputError("--runs is empty; give run directories, folders of them, tables, or globs")
    found: dict[pathlib.Path, pathlib.Path] = {}
    for path in (path for text in given for path in _expand(str(text), notices)):
        found.setdefault(pathlib.Path(os.path.realpath(path)), path)
    paths = list(found.values())
    return [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]


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


def read_config(path: pathlib.Path) -> tuple[dict[str, int], dict[str, Any], str]:
    """The facts, the identity and the schedule of a run (as in `RunCurve`), from its config.json.

    Raises:
      InputError: it cannot be read, or lacks a fact.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return _facts(config), curve_identity_of(config), schedule_of(config)
    except (InputError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: run left out: {error}") from None


def _facts(config: Any) -> dict[str, int]:
    if not isinstance(config, dict):
        raise InputError("not a JSON object")
    facts = {}
    for name in FACTS:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_whole(value):
            raise InputError(f"field {name} is {value!r}, not a whole number")
        facts[name] = int(value)
    if min(facts["group_size"], facts["problems_per_batch"]) < 1:
        raise InputError("group_size and problems_per_batch must be at least 1")
    return facts


def training_reward(log: pathlib.Path, step: np.ndarray) -> np.ndarray:
    """Mean reward of the rollouts that were sampled for training since the evaluation before.

    Every rollout that training paid for counts once: those of groups without signal too, which the update may drop,
    and those that dynamic sampling drew beyond its batch. Rewards that failed do not: a step's line leaves out the
    groups that `config.reward.on_failure = "drop_group"` dropped, while its other groups stand for all of its rollouts.

    Args:
      log: metrics.jsonl; its last line may be unfinished. Of lines of one step the last counts.
      step: [E] of the evaluations, not falling.

    Returns:
      [E], NaN where no step with a reward lies in between.

    Raises:
      TableError: a line is damaged.
    """
    steps, before, compute, reward = _steps(log, "reward")
    rollouts = compute - before
    after = np.searchsorted(step, steps)  # the first evaluation at or after a step
    counted = np.isfinite(reward) & (after < len(step))
    weight = np.bincount(after[counted], rollouts[counted], len(step))
    total = np.bincount(after[counted], (rollouts * reward)[counted], len(step))
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def group_sizes(log: pathlib.Path) -> np.ndarray | None:
    """[K, 2] compute at which the steps of another n begin, and that n; None where no line has one.

    Raises:
      TableError: a line is damaged.
    """
    _, before, _, size = _steps(log, "group_size")
    known = np.isfinite(size)
    before, size = before[known], size[known]
    if not len(size):
        return None
    first = np.append(True, size[1:] != size[:-1])
    return np.stack([before[first], size[first]], axis=1)


def _steps(log: pathlib.Path, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each step, in order: its number, compute before and after it, and a column of its line, each [M]."""
    text = log.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    if not text.strip():
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    line = pa.schema([("step", pa.int64()), ("compute", pa.float64()), (column, pa.float64())])
    read = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    parse = pa_json.ParseOptions(explicit_schema=line, newlines_in_values=False, unexpected_field_behavior="ignore")
    try:
        table = pa_json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse)
    except pa.ArrowException as error:
        raise TableError(f"its {column} of training cannot be read: {str(error).splitlines()[0]}") from None
    found = [table[name].to_numpy().astype(np.float64) for name in line.names]
    step, compute, values = (values[np.isfinite(found[0])] for values in found)
    last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
    return step[last], np.append(0.0, compute[last])[: len(last)], compute[last], values[last]
