"""How a table is laid out: which of its columns are ours, and whether runs stand below each other or side by side.

Long form has a row per evaluation of a run. Two wide forms become long on the way in:

    Step, NAME - METRIC, NAME - METRIC__MIN, NAME - METRIC__MAX, ...   W&B's export of a panel
    Step, NAME, NAME, ...                                              with `--columns=*:METRIC`

A column of a wide table whose header is one of ours, renamed or not, is shared by its runs (`step`, `compute`, ...).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.read_options import FACTS, ReadOptions
from isocompute_jax.fit.read.run_curve import UNITS
from isocompute_jax.fit.read.tables import Table
from isocompute_jax.records.identity import SCHEDULE

SEPARATOR = " - "
EVERY_OTHER = "*"
LABELS = ("model", "train_set", SCHEDULE)
"""Columns of words that are a part of a run's identity, as the fields of these names in config.json are."""
OURS = ("run", "eval_set", *LABELS, *FACTS, "compute", "step", "tokens", "gpu_hours", "learning_rate")
ALIASES = {
    "step": (
        "Step",
        "training_step",
        "global_step",
        "train/global_step",
        "training/global_step",
        "trainer/global_step",
    ),
    "gpu_hours": ("device_hours",),
    "learning_rate": ("actor/lr", "data.actor/lr", "train/learning_rate", "optim/lr", "lr"),
}
"""Other names for a column of ours, used where it is neither present nor renamed. Not `_step`: it counts log calls.

`training_step` comes before `global_step`: open-instruct, which has both, calls rollouts the second. Rates are those of
verl (W&B and its files), TRL, prime-rl and open-instruct.
"""

MAX_LISTED = 12


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is to be read of a table."""

    shared: Mapping[str, str]  # header -> our name, of the columns in long form
    runs: Mapping[
        str, Mapping[str, str]
    ]  # run -> {header: our name} of its columns in a wide table; empty in long form
    metric: str  # what a row of a wide table must have

    def ours(self) -> set[str]:
        """Our names of all columns that are read."""
        return {*self.shared.values(), *(name for run in self.runs.values() for name in run.values())}

    def headers(self) -> list[str]:
        """Of all columns that are read."""
        return [*self.shared, *(name for run in self.runs.values() for name in run)]

    def with_others(self, headers: Sequence[str]) -> Layout:
        """In long form, the table's other columns too: those that hold numbers come along under their own names."""
        taken = {"", *self.shared, *self.shared.values()}
        others = {} if self.runs else {name: name for name in headers if name not in taken}
        return dataclasses.replace(self, shared={**self.shared, **others})

    def long(self, table: Table) -> Table:
        """The table in long form under our names."""
        shared = Table(table.lines, _renamed(table, self.shared))
        if not self.runs or not len(table.lines):
            return shared
        return _unpivot(shared, {run: _renamed(table, names) for run, names in self.runs.items()}, self.metric)


def plan(headers: Sequence[str], options: ReadOptions) -> Layout:
    """The layout of a table with these headers."""
    shared = long_names(headers, options)
    others = [name for name in dict.fromkeys(headers) if name and name not in shared]
    if options.metric in shared.values():
        return Layout(shared, {}, options.metric)
    if EVERY_OTHER in options.columns:
        ours = options.columns[EVERY_OTHER]
        return Layout(shared, {name: {name: ours} for name in others}, options.metric)
    runs: dict[str, dict[str, str]] = {}
    rates = dict.fromkeys(ALIASES["learning_rate"], "learning_rate")
    names = {options.metric: options.metric, **{name: name for name in OURS}, **rates, **options.columns}
    for header in others:
        theirs = next((name for name in names if header.endswith(f"{SEPARATOR}{name}")), None)
        if theirs is not None:
            run = header.removesuffix(f"{SEPARATOR}{theirs}")
            runs.setdefault(run, {})[header] = names[theirs]
    with_metric = {run: columns for run, columns in runs.items() if options.metric in columns.values()}
    return Layout(shared, with_metric, options.metric)


def long_names(headers: Sequence[str], options: ReadOptions) -> dict[str, str]:
    """header -> our name: renamed columns first, then those that have our names, then `ALIASES`."""
    present = dict.fromkeys(headers)
    found: dict[str, str] = {}
    for theirs, ours in options.columns.items():
        if theirs in present and ours not in found.values():
            found[theirs] = ours
    for name in (*OURS, options.metric):
        choices = (name, *ALIASES.get(name, ()))
        theirs = next((choice for choice in choices if choice in present and choice not in found), None)
        if theirs is not None and name not in found.values():
            found[theirs] = name
    return found


def numeric(table: Table) -> list[str]:
    """Headers of the columns that hold a number somewhere."""
    return [name for name, column in table.columns.items() if np.isfinite(cells.numbers(column)).any()]


def missing_metric(numbers: Sequence[str], options: ReadOptions) -> str:
    """The finding about a table without the metric; `numbers` are its columns that hold numbers."""
    suffixes = [name.rpartition(SEPARATOR)[2] for name in numbers if SEPARATOR in name]
    panel = [name for name in suffixes if not name.endswith(("__MIN", "__MAX")) and name != "_step"]
    return f"no column {options.metric}. " + _choices(panel or numbers, options.metric, options)


def missing_axis(numbers: Sequence[str], options: ReadOptions) -> str:
    """The finding about a table that has neither compute in the unit that was asked for nor what it follows from."""
    name = UNITS[options.compute]
    wanted = f"{name} nor step" if name == "compute" else name
    flag = f" (--compute={options.compute})"
    return f"no column {wanted}{flag}. " + _choices(numbers, "step" if name == "compute" else name, options)


def _choices(numbers: Sequence[str], ours: str, options: ReadOptions) -> str:
    free = [name for name in dict.fromkeys(numbers) if name not in FACTS and name not in options.columns]
    if not free:
        return "The table has no other column with numbers"
    ranked = sorted(free, key=lambda name: -nearness(name, ours))
    more = f" and {len(ranked) - MAX_LISTED} more" if len(ranked) > MAX_LISTED else ""
    return (
        f"Its columns with numbers are {', '.join(ranked[:MAX_LISTED])}{more}; say which one is meant, "
        f"e.g. --columns={ranked[0]}:{ours}"
    )


def nearness(theirs: str, ours: str) -> float:
    """How alike two names are, 0..1: the better of the whole name and any part of it between slashes."""
    parts = [theirs, *theirs.split("/")]
    return max(difflib.SequenceMatcher(None, part.lower(), ours.lower()).ratio() for part in parts)


def _unpivot(shared: Table, runs: Mapping[str, Mapping[str, cells.Column]], metric: str) -> Table:
    """The rows of all runs that have the metric, one run below the other, with the run's name in each."""
    count = len(shared.lines)
    nothing = pa.chunked_array([pa.nulls(count)])
    names = dict.fromkeys(name for own in runs.values() for name in own)
    columns = {name: cells.stack([own.get(name, nothing) for own in runs.values()]) for name in names}
    given = np.flatnonzero(~cells.blank(columns[metric]))
    run, row = np.divmod(given, max(count, 1))
    own = {name: cells.take(column, given) for name, column in columns.items()}
    below = {name: cells.take(column, row) for name, column in shared.columns.items()}
    of_row = pa.DictionaryArray.from_arrays(pa.array(run, pa.int32()), pa.array(list(runs), pa.string()))
    return Table(shared.lines[row], below | own | {"run": pa.chunked_array([of_row])})


def _renamed(table: Table, names: Mapping[str, str]) -> dict[str, cells.Column]:
    return {ours: table.columns[theirs] for theirs, ours in names.items() if theirs in table.columns}
