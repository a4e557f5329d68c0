"""How a table is laid out: which of its columns are ours, and whether runs stand below each other or side by side.

Long form has a row per evaluation of a run. Two wide forms become long on the way in:

    Step, NAME - METRIC, NAME - METRIC__MIN, NAME - METRIC__MAX, ...   W&B's export of a panel
    Step, NAME, NAME, ...                                              with `--columns=*:METRIC`

A column of a wide table whose header is one of ours, renamed or not, is shared by its runs (`step`, `compute`, ...).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.blocks import Block
from isocompute_jax.fit.read.labels import LABELS
from isocompute_jax.fit.read.read_options import FACTS, ReadOptions
from isocompute_jax.fit.read.run_curve import UNITS

SEPARATOR = " - "
EVERY_OTHER = "*"
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
    """What is to be read of a table.

    Attributes:
      shared: header -> our name, of the columns in long form.
      runs: run -> {header: our name}, of the columns of each run of a wide table; empty in long form.
      metric: what a row of a wide table must have.
    """

    shared: Mapping[str, str]
    runs: Mapping[str, Mapping[str, str]]
    metric: str

    def ours(self) -> set[str]:
        """Our names of all columns that are read."""
        return {*self.shared.values(), *(name for run in self.runs.values() for name in run.values())}

    def long(self, block: Block) -> Iterator[Block]:
        """A block of the table in long form under our names; of a wide table, one for each kind of runs.

        Runs of a kind have the same columns in the same types: cells of several types do not go below each other.
        """
        shared = _renamed(block, self.shared)
        if not self.runs:
            yield Block(block.lines, shared)
        kinds: dict[object, dict[str, dict[str, cells.Values]]] = {}
        for run, names in self.runs.items():
            columns = _renamed(block, names)
            kind = frozenset((name, getattr(values, "type", None)) for name, values in columns.items())
            kinds.setdefault(kind, {})[run] = columns
        for runs in kinds.values():
            yield _unpivot(Block(block.lines, shared), runs, self.metric)


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


def unnamed(headers: Sequence[str], layout: Layout) -> list[str]:
    """Columns of a table in long form that keep their own names: they come along when they hold numbers."""
    taken = {*layout.shared, *layout.shared.values()}
    return [] if layout.runs else [name for name in dict.fromkeys(headers) if name and name not in taken]


def numeric(block: Block) -> list[str]:
    """Headers of the columns that hold a number somewhere in a block."""
    return [name for name, values in block.columns.items() if np.isfinite(cells.numbers(values)).any()]


def missing_metric(numbers: Sequence[str], options: ReadOptions) -> str:
    """What to say of a table without the metric whose columns `numbers` hold numbers."""
    suffixes = [name.rpartition(SEPARATOR)[2] for name in numbers if SEPARATOR in name]
    panel = [name for name in suffixes if not name.endswith(("__MIN", "__MAX")) and name != "_step"]
    return f"no column {options.metric}. " + _choices(panel or numbers, options.metric, options)


def missing_axis(numbers: Sequence[str], options: ReadOptions) -> str:
    """What to say of a table that gives neither compute in the unit that was asked for nor what it follows from."""
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


def _unpivot(shared: Block, runs: Mapping[str, Mapping[str, cells.Values]], metric: str) -> Block:
    """The rows of all runs that have the metric, one run below the other, with the run's name in each."""
    columns = {name: cells.join([own[name] for own in runs.values()]) for name in next(iter(runs.values()))}
    given = np.flatnonzero(~cells.blank(columns[metric])) if metric in columns else np.empty(0, np.int64)
    run, row = np.divmod(given, max(len(shared.lines), 1))
    rows = shared.take(row)
    own = {name: cells.take(values, given) for name, values in columns.items()}
    names = pa.DictionaryArray.from_arrays(pa.array(run, pa.int32()), pa.array(list(runs), pa.string()))
    return Block(rows.lines, rows.columns | own | {"run": names})


def _renamed(block: Block, names: Mapping[str, str]) -> dict[str, cells.Values]:
    return {ours: block.columns[theirs] for theirs, ours in names.items() if theirs in block.columns}
