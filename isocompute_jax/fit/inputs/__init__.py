"""Learning curves in: run directories, and CSV or JSONL tables in long form, become one `RunCurve` per run.

A table has the columns `run, group_size, problems_per_batch, compute, <metric...>` and optionally `seed, eval_set,
problem_set_size` and more. A bad row is reported with its file and line and left out; the rest goes on.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL, RunFacts, find_runs

TABLE_SUFFIXES = (".csv", ".jsonl")
NOT_SWEPT = frozenset({
    "seed", "num_steps", "versions", "version", "commit", "devices", "device", "workdir", "out", "run", "name", "title",
    "host", "hostname", "created", "started", "command", "checkpoint_every_s",
})  # fmt: skip
"""Names in config.json that say which run it is, or how far it went, and not which configuration it belongs to."""

SOLVE_SHARES = ("never_solved", "rarely_solved", "often_solved", "always_solved")
"""Shares of problems by solve rate: 0, below one half, one half or more, 1."""

Row = tuple[str, dict[str, Any]]
"""A row, with where it stands: `path:line`."""


@dataclasses.dataclass(frozen=True, eq=False)
class RunCurve:
    """One run's evaluations on one evaluation set, in order of compute.

    Attributes:
      run: its name.
      source: file that it was read from.
      sha256: hash of that file.
      facts: group_size, problems_per_batch, seed, ... (0 where a table does not say).
      swept: flattened config.json without what identifies the run; equal for the seeds of one configuration.
      finished: whether the run is done.
      compute: [E] rollouts; 0 is the base model.
      columns: name -> [E] float64, NaN where a row has no number; with `SOLVE_SHARES` where rows have a histogram.
    """

    run: str
    source: str
    sha256: str
    facts: RunFacts
    swept: dict[str, Any]
    finished: bool
    compute: np.ndarray
    columns: dict[str, np.ndarray]


def load_runs(roots: Sequence[str], *, eval_set: str, metric: str) -> tuple[list[RunCurve], list[str]]:
    """Reads every run below `roots` that has evaluations of `metric` on `eval_set`.

    Args:
      roots: run directories, folders that hold them at any depth, or .csv / .jsonl files.
      eval_set: rows of other evaluation sets are left out; rows without the field belong to every set.
      metric: a row without a number in [0, 1] in this column is reported and left out.

    Returns:
      The runs, and a warning for each thing that was left out.

    Raises:
      InputError: a root does not exist, or nothing usable was found.
    """
    warnings: list[str] = []
    runs: list[RunCurve] = []
    for root in roots:
        path = pathlib.Path(root)
        if not path.exists():
            raise InputError(f"--runs: {root} does not exist; give run directories, folders of them, or tables")
        readings = _table_runs(path, warnings) if path.is_file() else _directory_runs(path, warnings)
        runs += [run for reading in readings if (run := _curve(reading, eval_set, metric, warnings)) is not None]
    if not runs:
        details = "".join(f"\n  {warning}" for warning in warnings[:20])
        raise InputError(f"--runs: no usable run with {metric} on {eval_set} in {', '.join(roots)}{details}")
    return runs, warnings


@dataclasses.dataclass(frozen=True)
class _Reading:
    """A run as it stands in its files: unchecked rows, and what is known about the run."""

    run: str
    source: pathlib.Path
    sha256: str
    facts: RunFacts
    swept: dict[str, Any]
    finished: bool
    rows: list[Row]


def _directory_runs(root: pathlib.Path, warnings: list[str]) -> Iterator[_Reading]:
    """Run directories at or below `root`. Only config.json and eval.jsonl are read: metrics.jsonl can be large."""
    found = find_runs(root)
    if not found:
        warnings.append(f"{root}: no run directory (a folder with {CONFIG} and {EVAL}) at or below it")
    for path in found:
        try:
            config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
            facts = _facts(config, str(path / CONFIG))
        except (ValueError, InputError) as error:
            warnings.append(f"{path / CONFIG}: run left out: {error}")
            continue
        log = path / EVAL
        yield _Reading(
            run=path.name if path != root else path.resolve().name,
            source=log,
            sha256=_sha256(log),
            facts=facts,
            swept={key: value for key, value in _flatten(config) if not NOT_SWEPT & set(key.split("."))},
            finished=(path / DONE).exists(),
            rows=list(_json_rows(log, warnings)),
        )


def _table_runs(path: pathlib.Path, warnings: list[str]) -> Iterator[_Reading]:
    """The runs of a table in long form, grouped by its `run` column."""
    if path.suffix not in TABLE_SUFFIXES:
        raise InputError(f"--runs: {path} is neither a directory nor a {' or '.join(TABLE_SUFFIXES)} table")
    rows = list(_csv_rows(path, warnings) if path.suffix == ".csv" else _json_rows(path, warnings))
    named: dict[str, list[Row]] = {}
    for where, row in rows:
        if row.get("run") in (None, ""):
            warnings.append(f"{where}: row left out: it has no `run`")
            continue
        named.setdefault(str(row["run"]), []).append((where, row))
    for run, own in named.items():
        where, first = own[0]
        try:
            facts = _facts({"num_steps": 0, "problem_set_size": 0, "model_params": 0, "seed": 0} | first, where)
        except InputError as error:
            warnings.append(f"{where}: run {run} left out: {error}")
            continue
        yield _Reading(run, path, _sha256(path), facts, _configuration_facts(facts), True, own)


def _configuration_facts(facts: RunFacts) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(facts).items() if key not in NOT_SWEPT}


def _facts(config: Any, where: str) -> RunFacts:
    if not isinstance(config, dict):
        raise InputError(f"{where}: not a JSON object")
    values = {}
    for field in dataclasses.fields(RunFacts):
        value = _number(config.get(field.name))
        if value is None or value != int(value) or value < 0:
            raise InputError(f"field {field.name} is {config.get(field.name)!r}, not a whole number")
        values[field.name] = int(value)
    if min(values["group_size"], values["problems_per_batch"]) < 1:
        raise InputError("group_size and problems_per_batch must be at least 1")
    return RunFacts(**values)


def _curve(reading: _Reading, eval_set: str, metric: str, warnings: list[str]) -> RunCurve | None:
    """Checks the rows of a run, sorts them by compute, and turns them into columns."""
    kept: dict[float, Row] = {}
    for where, row in reading.rows:
        if row.get("eval_set", eval_set) != eval_set:
            continue
        compute, value = _number(row.get("compute")), _number(row.get(metric))
        if compute is None or compute < 0:
            warnings.append(f"{where}: row left out: compute is {row.get('compute')!r}")
        elif value is None or not 0.0 <= value <= 1.0:
            warnings.append(f"{where}: row left out: {metric} is {row.get(metric)!r}, not a number in [0, 1]")
        elif compute in kept:
            warnings.append(f"{where}: row left out: compute {compute:g} was already given at {kept[compute][0]}")
        else:
            kept[compute] = (where, row)
    if not kept:
        warnings.append(f"{reading.source}: run {reading.run} left out: no evaluation of {metric} on {eval_set}")
        return None
    if not reading.finished:
        warnings.append(f"run {reading.run} is not finished: used up to compute {max(kept):g}")
    rows = [kept[compute][1] for compute in sorted(kept)]
    names = sorted({key for row in rows for key, value in row.items() if _number(value) is not None})
    shares = np.array([_solve_shares(row.get("solve_rate_histogram")) for row in rows])
    columns = {name: np.array([_or_nan(_number(row.get(name))) for row in rows]) for name in names}
    return RunCurve(
        run=reading.run,
        source=str(reading.source),
        sha256=reading.sha256,
        facts=reading.facts,
        swept=reading.swept,
        finished=reading.finished,
        compute=np.array(sorted(kept)),
        columns=columns | dict(zip(SOLVE_SHARES, shares.T, strict=True)),
    )


def _solve_shares(histogram: Any) -> list[float]:
    """Shares of problems (`SOLVE_SHARES`) from the counts of problems with 0..m correct samples; NaN without them."""
    counts = [_number(x) for x in histogram] if isinstance(histogram, list) else []
    known = [x for x in counts if x is not None and x >= 0]
    if len(known) < 2 or len(known) < len(counts) or sum(known) == 0:
        return [float("nan")] * len(SOLVE_SHARES)
    rates = np.arange(len(known)) / (len(known) - 1)
    masks = (rates == 0, (rates > 0) & (rates < 0.5), (rates >= 0.5) & (rates < 1), rates == 1)
    return [float(np.sum(np.array(known)[mask]) / sum(known)) for mask in masks]


def _number(value: Any) -> float | None:
    """A finite float from a JSON number or a CSV cell; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _json_rows(path: pathlib.Path, warnings: list[str]) -> Iterator[Row]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                warnings.append(f"{path}:{line}: row left out: not JSON ({error})")
                continue
            if not isinstance(row, dict):
                warnings.append(f"{path}:{line}: row left out: not a JSON object")
                continue
            yield f"{path}:{line}", row


def _csv_rows(path: pathlib.Path, warnings: list[str]) -> Iterator[Row]:
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        for number in itertools.count(2):
            try:
                row = next(reader, None)
            except csv.Error as error:
                warnings.append(f"{path}:{reader.line_num or number}: table read up to here: {error}")
                return
            if row is None:
                return
            if None in row or None in row.values():
                warnings.append(f"{path}:{reader.line_num}: row left out: its cells do not match the header")
                continue
            yield f"{path}:{reader.line_num}", row


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, leaf) of nested dicts; lists are leaves, as text so that they can be compared."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value) if isinstance(value, list) else value


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
