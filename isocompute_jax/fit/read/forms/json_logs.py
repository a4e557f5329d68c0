"""JSON that is no line a row: trainer_state.json, arrays of logs, series and traces, nested some levels.

What says where a row stands is kept from the objects around it: names of runs, facts and settings. A list of objects
are rows; a list of numbers is a column, by position where no list beside it has steps; an object of such objects are
runs, called by their keys.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from isocompute_jax.fit.read.layout import ALIASES, is_ours
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.tables import DigestedFile, Table, TableError, check_text, columns_of, flat

TRAINER_STATE = "trainer_state.json"
LOGS = "log_history"
CURVES = re.compile(rb'"(log_history|_?step|global_step|training_step|iteration|series|[\w/]*reward[\w/]*)"\s*:')
RUN_KEYS = ("run", *ALIASES["run"], "experiment_id", "id", "name", "label")
"""Keys of what an object with curves is called."""
LISTS = (
    "series", "data", "runs", "results", "history", "logs", "log", "metrics", "points", "values", "experiments", "rows",
    "records", "curves", "steps", "evaluations", "trace", "traces",
)  # fmt: skip
"""Keys that say what a list is, and not what a run is called ..."""
PARTS = ("train", "training", "eval", "evaluation", "val", "valid", "validation", "test")
"""... or on what problems was measured."""
SETTINGS_KEYS = ("config", "args", "params", "hparams", "hyperparameters")
STEP_KEYS = ("step", *ALIASES["step"], "_step", "x")

Row = dict[str, Any]


def has_curves(start: bytes) -> bool:
    """Whether JSON that begins like this may have curves: a folder has other JSON, too."""
    return CURVES.search(start) is not None


def read(path: pathlib.Path, notices: Notices) -> Table:
    """The rows of a JSON file, numbered from 1.

    Raises:
      TableError: it is no JSON, or has no rows.
    """
    check_text(path)
    source = DigestedFile(path)
    with source.open() as stream:
        content = stream.read()
    try:
        value = json.loads(content.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise TableError(f"it is not JSON ({str(error)[:100]})") from None
    rows = [_stepped(row) for row in _rows({"value": value} if _is_pairs(value) else value, {}) if row]
    if not rows:
        raise TableError("it is JSON without rows: no list of objects, and no list of numbers")
    headers, lines, columns = columns_of(iter(enumerate(rows, 1)), path, notices)
    state = isinstance(value, dict) and LOGS in value
    what = f"read as {LOGS} of a trainer's state" if state else "read as JSON"
    runs = f" of {len({row['run'] for row in rows if 'run' in row})} runs" if "run" in headers else ""
    notices.changed("file", what, [f"{path}, {len(rows)} rows{runs}"])
    return Table(path, source.sha256(), "row ", headers, lines, columns)


def _rows(value: Any, around: Row) -> Iterator[Row]:
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield from _rows(each, around)
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get(LOGS), list):  # what stands beside it is the trainer's state
        yield from _rows(value[LOGS], around)
        return
    pairs = {key: each for key, each in value.items() if _is_pairs(each)}
    columns = {key: each for key, each in value.items() if _is_column(each)}
    inner = {key: each for key, each in value.items() if _has_rows(each) and key not in SETTINGS_KEYS}
    if any(not isinstance(value.get(key, []), list) for key in STEP_KEYS) or not (pairs or columns or inner):
        yield around | flat(value)
        return
    known = around | _known(value)
    yield from (known | row for row in _zipped(columns))
    yield from (known | {"step": step, key: number} for key, points in pairs.items() for step, number in points)
    runs = [key for key in inner if key.lower() not in (*LISTS, *PARTS)]
    for key, each in inner.items():
        name = "/".join(str(part) for part in (known.get("run"), key) if part)
        rows = _rows(each, known | ({"run": name} if key in runs and (len(runs) > 1 or "run" not in known) else {}))
        part = f"{key}/" if key.lower() in PARTS else ""
        for row in map(_stepped, rows):
            yield {(own if is_ours(own) else part + own): cell for own, cell in row.items()}


def _stepped(row: Row) -> Row:
    """A row whose x, where no other of its fields is one, is its step."""
    if "x" not in row or any(key in row for key in STEP_KEYS[:-1]):
        return row
    return {("step" if key == "x" else key): value for key, value in row.items()}


def _is_column(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and not any(isinstance(each, dict | list) for each in value)


def _is_pairs(value: Any) -> bool:
    """Whether a list has a step and a number in each of its cells."""
    return isinstance(value, list) and len(value) > 1 and all(_is_column(each) and len(each) == 2 for each in value)


def _has_rows(value: Any) -> bool:
    """Whether rows are somewhere below."""
    if isinstance(value, list):
        return any(isinstance(each, dict) for each in value)
    return isinstance(value, dict) and any(
        _is_column(each) or _is_pairs(each) or _has_rows(each) for each in value.values()
    )


def _known(value: Mapping[str, Any]) -> Row:
    """What an object around rows says of them: its name, facts and settings, also of an object `config` in it."""
    plain = {key: each for key, each in flat(dict(value)).items() if not isinstance(each, list | dict)}
    found = {key: each for key, each in plain.items() if is_ours(key) and key not in STEP_KEYS}
    name = next((plain[key] for key in RUN_KEYS if plain.get(key) not in (None, "")), None)
    return {key: each for key, each in found.items() if key not in RUN_KEYS} | ({} if name is None else {"run": name})


def _zipped(columns: Mapping[str, list[Any]]) -> Iterator[Row]:
    """Rows of lists side by side: those as long as the one of steps, or by position, with blanks below shorter ones."""
    steps = next((key for key in STEP_KEYS if key in columns), None)
    if steps is not None:
        columns = {key: each for key, each in columns.items() if len(each) == len(columns[steps])}
    elif columns:
        columns = {"step": list(range(1, max(map(len, columns.values())) + 1)), **columns}
    yield from (dict(zip(columns, row, strict=True)) for row in itertools.zip_longest(*columns.values()))
