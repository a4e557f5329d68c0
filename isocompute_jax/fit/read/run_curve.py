"""A run's readings become its learning curve: without abandoned branches, sorted, and at most `MAX_POINTS` long.

Of what a file gives twice the later row counts, because a run that is resumed writes its steps again. See `abandoned`
for how a resumed run differs from rows that are merely out of order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.read_options import ReadOptions
from isocompute_jax.fit.read.tables import Table
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable
from isocompute_jax.records.run_files import RunFacts

MAX_POINTS = 2000
"""A run with more evaluations is averaged into at most so many bins of neighbouring evaluations."""
MAX_BRANCHES = 100
"""A run whose compute falls more often was not resumed so many times: its rows are out of order."""
LEAST_REPEATED = 0.5
"""Share of the earlier steps in its range that a resumed branch gives again (see `abandoned`)."""

UNITS = {"rollouts": "compute", "tokens": "tokens", "gpu_hours": "gpu_hours", "steps": "step"}
"""Unit of compute -> its column."""
CLOCK = "gpu_hours"
"""The unit that is measured and not counted: a run's start-up costs of it too, and a restarted clock shows."""

RATE_RULE = ("base_lr", "base_batch", "lr_scaling_exponent")
"""Fields of a run's config from which the learning rate follows: base_lr (n B_problem / base_batch)^exponent."""
RATES = ("learning_rate", "lr")
"""Fields of other programs' configs that are the learning rate."""


def is_rate_field(field: str) -> bool:
    """Whether the learning rate is, or follows from, a field of this dotted name."""
    return field.rsplit(".", 1)[-1] in (*RATE_RULE, *RATES)


def learning_rate_of(identity: Mapping[str, Any], rollouts_per_step: int) -> float:
    """The highest learning rate of a run with this config; 0 where its fields do not say."""
    given = {
        name.rsplit(".", 1)[-1]: float(value)
        for name, value in identity.items()
        if is_rate_field(name) and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if all(name in given for name in RATE_RULE) and given["base_batch"] > 0 and rollouts_per_step > 0:
        return given["base_lr"] * (rollouts_per_step / given["base_batch"]) ** given["lr_scaling_exponent"]
    return next((given[name] for name in RATES if given.get(name, 0) > 0), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class RunCurve:
    """One run's evaluations on one evaluation set, in order of compute."""

    run: str
    source: str  # file that it was read from
    sha256: str  # of that file
    facts: RunFacts  # 0 where unknown
    identity: dict[str, Any]  # equal for the seeds of one configuration (`records.identity`); of a table, its facts
    finished: bool | None  # None where unknown, as of a table
    compute: np.ndarray  # [E] in the unit that was asked for, increasing; 0 is the base model
    columns: dict[str, np.ndarray]
    # [E] float64, NaN where a row has no number: the metric, every other numeric column under our names, and
    # `compute` (rollouts) where known
    eval_sets: tuple[str, ...] = ()  # that the file has rows of; empty where its rows name none
    learning_rate: float = 0.0  # the highest of the run's schedule; 0 where unknown
    schedule: str = ""  # what changes within the run (`records.identity.schedule_of`); empty where n stays
    # [K, 2] compute in rollouts, and the n of the steps from there on; None where the run's log has no n
    group_sizes: np.ndarray | None = None

    @property
    def key(self) -> tuple:
        """Equal for the seeds of one configuration; a run of unknown n is a configuration of its own."""
        name = "" if self.facts.group_size or self.schedule else self.run
        fields = tuple(sorted(self.identity.items(), key=lambda item: item[0]))
        return self.facts.group_size, self.facts.problems_per_batch, self.learning_rate, name, fields


@dataclasses.dataclass(frozen=True, eq=False)
class Readings:
    """A run as its file has it, rows in the file's order: checked values, unknown facts left out."""

    run: str
    source: Table
    facts: dict[str, int]
    lines: np.ndarray  # [E] where the rows stand in the file
    axis: np.ndarray  # [E] compute in the unit that was asked for
    columns: dict[str, np.ndarray]  # name -> [E]
    labels: dict[str, str]  # what a table says of the run in words (`layout.LABELS`)
    eval_sets: tuple[str, ...]  # as in `RunCurve`
    learning_rate: float = 0.0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # `VARIES` of what does not stay the same

    def where(self, row: int) -> str:
        """Where a row stands, for messages."""
        return self.source.where(int(self.lines[row]))

    def keep(self, rows: np.ndarray) -> Readings:
        """The rows with these numbers, in this order."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return dataclasses.replace(self, lines=self.lines[rows], axis=self.axis[rows], columns=columns)


def make_curve(
    readings: Readings, options: ReadOptions, notices: Notices, *, identity: Mapping[str, Any], finished: bool | None
) -> RunCurve:
    """Leaves out abandoned branches, sorts, keeps the last row of each compute, averages what is too long; says so."""
    readings = _current(readings, notices)
    if options.compute == CLOCK:
        _check_clock(readings)
    readings = _last_rows(_sorted(readings, notices), notices, options.metric)
    axis, columns = readings.axis, readings.columns
    if len(axis) > MAX_POINTS:
        base = int(axis[0] == 0)  # the base model stays apart
        starts = np.append(np.arange(base), np.linspace(base, len(axis), MAX_POINTS - base, endpoint=False).astype(int))
        axis, columns = (
            mean_of_bins(axis, starts),
            {name: mean_of_bins(values, starts) for name, values in columns.items()},
        )
        place = f"{readings.run} of {readings.source.path}, which has {len(readings.axis)}"
        notices.changed("run", f"averaged into {MAX_POINTS} bins of neighbouring evaluations", [place])
    return RunCurve(
        run=printable(readings.run),
        source=str(readings.source.path),
        sha256=readings.source.sha256,
        facts=RunFacts(**{field.name: readings.facts.get(field.name, 0) for field in dataclasses.fields(RunFacts)}),
        identity={printable(name): printable(of) if isinstance(of, str) else of for name, of in identity.items()},
        finished=finished,
        compute=axis,
        columns=columns,
        eval_sets=readings.eval_sets,
        learning_rate=readings.learning_rate,
    )


def abandoned(axis: np.ndarray, step: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The branches that a run left behind when it was resumed from an earlier checkpoint.

    The rows of a run, in the order of its file, are cut where their compute falls. What follows such a place is a
    resumed branch when it gives again at least half of the earlier steps between its own first and last one, and has
    two rows or more; every earlier row at or beyond its first step is then abandoned. Rows that are merely out of
    order give no step twice, and none of them is lost; nor is any but its own earlier self by a single row that is
    given once more. A run of more than `MAX_BRANCHES` such places is out of order throughout. Rows are compared by
    step [E], and by `axis` [E], their compute, where one has no step.

    Returns:
      For each resumption the number of its first row, and the numbers of the rows that it replaces, in order.
    """
    starts = np.flatnonzero(np.diff(axis) < 0) + 1
    if not 0 < len(starts) <= MAX_BRANCHES:
        return []
    place = step if np.isfinite(step).all() else axis
    found, kept = [], np.ones(len(axis), dtype=bool)
    for start, end in zip(starts, [*starts[1:], len(axis)], strict=True):
        branch, before = place[start:end], place[:start]
        beyond = kept[:start] & (before >= branch.min())
        overlap = beyond & (before <= branch.max())
        if len(branch) < 2 or not overlap.any() or np.isin(before[overlap], branch).mean() < LEAST_REPEATED:
            continue
        found.append((int(start), np.flatnonzero(beyond)))
        kept[:start] &= ~beyond
    return found


def _current(readings: Readings, notices: Notices) -> Readings:
    """The rows that a resumed run did not abandon; names each resumption."""
    gone = abandoned(readings.axis, readings.columns.get("step", np.full(len(readings.axis), np.nan)))
    for start, rows in gone:
        lines = readings.lines[rows]
        span = " to ".join(readings.source.where(int(line)) for line in dict.fromkeys((lines.min(), lines.max())))
        place = (
            f"{span} of run {readings.run}, whose compute falls from {readings.axis[start - 1]:g} to "
            f"{readings.axis[start]:g} at {readings.where(start)}, where it was resumed"
        )
        notices.left_out("row", "as replaced by a resumed run", [place], count=len(rows))
    if not gone:
        return readings
    return readings.keep(np.setdiff1d(np.arange(len(readings.axis)), np.concatenate([rows for _, rows in gone])))


def _check_clock(readings: Readings) -> None:
    """Raises InputError where hours fall while the run goes on: sorting would put later evaluations before earlier."""
    given = [readings.columns[name] for name in ("step", "compute") if name in readings.columns]
    place = next((found for found in given if np.isfinite(found).all()), np.arange(len(readings.axis)))
    order = np.argsort(place, kind="stable")
    axis = readings.axis[order]
    fall = np.flatnonzero(np.diff(axis) < 0)
    if not len(fall):
        return
    before, after = axis[fall[0]], axis[fall[0] + 1]
    raise InputError(
        f"{readings.where(int(order[fall[0] + 1]))}: run {readings.run}: {UNITS[CLOCK]} falls from "
        f"{before:g} to {after:g} while the run goes on: count the hours over all starts of a run, or fit over another "
        "--compute"
    )


def _sorted(readings: Readings, notices: Notices) -> Readings:
    """The rows in order of compute; reports the first that comes too early, and how many do."""
    fall = np.flatnonzero(np.diff(readings.axis) < 0)
    if not len(fall):
        return readings
    i = fall[0] + 1
    late = np.count_nonzero(readings.axis < np.maximum.accumulate(readings.axis))
    place = (
        f"{late} of {readings.run}, the first at {readings.where(i)}: compute {readings.axis[i]:g} comes after "
        f"{readings.axis[i - 1]:g}"
    )
    notices.changed("row", "put in order of compute", [place], count=int(late), finding=True)
    return readings.keep(np.argsort(readings.axis, kind="stable"))


def _last_rows(readings: Readings, notices: Notices, metric: str) -> Readings:
    """The last row of each compute, of rows in order of compute; reports the others."""
    axis, reward = readings.axis, readings.columns[metric]
    last = np.append(axis[1:] != axis[:-1], True)
    if last.all():
        return readings
    kept = np.flatnonzero(last)[np.cumsum(last) - last]
    differs = reward != reward[kept]
    repeated = np.flatnonzero(~last).tolist()
    places = (
        f"{readings.where(i)}: compute {axis[i]:g} of run {readings.run} is given again at {readings.where(kept[i])}"
        f"{' with another value' if differs[i] else ''}"
        for i in repeated
    )
    notices.left_out("row", "as evaluations that are given again later", places, count=len(repeated))
    return readings.keep(np.flatnonzero(last))


def mean_of_bins(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Means of bins over the rows that have a number; NaN where none has."""
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)
