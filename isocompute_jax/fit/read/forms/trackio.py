"""trackio's store: an SQLite file for each project, with metrics and configs as JSON, a row a call of `log`.

Read where it lies, so that what is still in its log of writes is seen; nothing is written.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import sqlite3
from typing import Any

from isocompute_jax.fit.read.layout import ALIASES, is_ours
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.tables import DigestedFile, Table, TableError, columns_of, flat

MAGIC = b"SQLite format 3\0"


def read(path: pathlib.Path, notices: Notices) -> Table:
    """The metrics of all runs, with what their configs say of facts and settings.

    Raises:
      TableError: it is not trackio's, or damaged.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            rows, configs = _tables(store)
    except sqlite3.Error as error:
        raise TableError(f"an SQLite file that is not trackio's, or damaged: {error}") from None
    runs = {key: name for key, name, *_ in rows}
    shared = {name for name, count in collections.Counter(runs.values()).items() if count > 1}
    found = []
    for i, (key, name, step, text) in enumerate(rows, 1):
        values = _object(text)
        own = {column: number for column, number in values.items() if not isinstance(number, list | dict)}
        counted = "_step" if any(alias in own for alias in ("step", *ALIASES["step"])) else "step"
        named = f"{name} ({key[:8]})" if name in shared else name
        found.append((i, {"run": named, counted: step} | configs.get(key, {}) | own))
    if not found:
        raise TableError("trackio's store has no metrics")
    notices.changed("file", "read as trackio's store", [f"{path}, {len(found)} rows of {len(runs)} runs"])
    headers, lines, columns = columns_of(iter(found), path, notices)
    # SQLite reads pages in an order of its own, so that the digest is a reading of its own.
    return Table(path, DigestedFile(path).sha256(), "row ", headers, lines, columns)


def _tables(store: sqlite3.Connection) -> tuple[list[tuple[str, str, int, Any]], dict[str, dict[str, Any]]]:
    """Rows of metrics: id of the run (its name in stores without ids), name, step, JSON; and configs by id."""
    names = [row[1] for row in store.execute("PRAGMA table_info(metrics)")]
    key = "run_id" if "run_id" in names else "run_name"
    rows = store.execute(f"SELECT {key}, run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    if not store.execute("PRAGMA table_info(configs)").fetchall():
        return rows, {}
    configs = {}
    for run, text in store.execute(f"SELECT {key}, config FROM configs"):
        given = flat(_object(text)).items()
        configs[run] = {
            name: value for name, value in given if is_ours(name) and not isinstance(value, list | dict | bool)
        }
    return rows, configs


def _object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}
