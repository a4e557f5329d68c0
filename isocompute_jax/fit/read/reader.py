"""Everything --runs names, read in order: sources, then each run directory and table, then seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import itertools
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import rich.console
import rich.progress

from isocompute_jax.fit.read.checked_rows import read_runs
from isocompute_jax.fit.read.csv_tables import open_csv
from isocompute_jax.fit.read.json_tables import open_jsonl
from isocompute_jax.fit.read.notices import MAX_REPEATED, Notices
from isocompute_jax.fit.read.read_options import ReadOptions
from isocompute_jax.fit.read.run_curve import UNITS, Readings, RunCurve, make_curve
from isocompute_jax.fit.read.sources import (
    TRAIN_REWARD,
    find_sources,
    group_sizes,
    read_config,
    run_names,
    training_reward,
)
from isocompute_jax.fit.read.table_layout import (
    EVERY_OTHER,
    missing_axis,
    missing_metric,
    numeric,
    plan,
)
from isocompute_jax.fit.read.tables import (
    READ_ERRORS,
    Advance,
    MemoryTable,
    Table,
    TableError,
    TableFile,
    open_parquet,
    reason,
)
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import FACTS as IDENTITY_FACTS
from isocompute_jax.records.identity import SCHEDULE
from isocompute_jax.records.printing import printable
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL, METRICS

LARGE_BYTES = 50_000_000
"""Inputs above this size show their progress even when stderr is not a terminal."""


def read_curves(
    sources: Sequence[str] | MemoryTable, options: ReadOptions, *, progress: bool = False
) -> tuple[list[RunCurve], list[str]]:
    """Reads every run that `sources` name and that has evaluations of the metric.

    A table is read whole, with all of its numeric columns, and one above `tables.MAX_BYTES` is refused. A run of more
    than `MAX_POINTS` evaluations is averaged into bins. A run of unknown seed gets the next free number among
    the runs of its configuration, in order of their names.

    Args:
      sources: run directories, folders, .csv / .tsv / .jsonl / .parquet files (.gz but for the last), or globs; or a
        table in memory.
      options: what the columns mean.
      progress: show the bytes read on stderr.

    Returns:
      The runs in order of sources, and a warning for each thing that was left out or is to be known.

    Raises:
      InputError: a source does not exist, nothing usable was found, or a finding under `options.strict`.
    """
    notices = Notices()
    reader = _Reader(options, notices)
    if isinstance(sources, MemoryTable):
        where = str(sources.path)
        reader.in_memory(sources)
    else:
        where = ", ".join(map(str, sources))
        directories, tables = find_sources(sources, notices)
        with _progress_bar([*(path / EVAL for path in directories), *tables], show=progress) as advance:
            for path in directories:
                reader.directory(path, advance)
            for path, name in run_names(tables).items():
                reader.table(path, advance, name)
    reader.report_unused_columns()
    curves = _number_seeds(reader.curves, reader.seeded, notices)
    details = "".join(f"\n  {text}" for text in notices.texts()[:MAX_REPEATED])
    if options.strict and notices.findings:
        raise InputError(f"--strict: {notices.findings} findings in {where}{details}")
    if not curves:
        raise InputError(f"--runs: no usable run with {options.metric} on {options.eval_set} in {where}{details}")
    return curves, notices.texts()


class _Reader:
    """Reads run directories and tables into `curves` [R]; `seeded` [R] says whose seed is known."""

    def __init__(self, options: ReadOptions, notices: Notices) -> None:
        self.curves: list[RunCurve] = []
        self.seeded: list[bool] = []
        self._options, self._notices = options, notices
        self._headers: set[str] = set()
        self._tables = 0

    def directory(self, path: pathlib.Path, advance: Advance) -> None:
        """Adds the curve of a run directory; of metrics.jsonl, which can be large, the reward of training alone."""
        try:
            facts, identity, schedule = read_config(path / CONFIG)
        except InputError as error:
            self._notices.finding(path, "run directory", str(error))
            return
        name, finished = path.name or path.resolve().name, (path / DONE).exists()
        for readings in self._runs_of_file(path / EVAL, advance, name=name, facts=facts):
            curve = make_curve(readings, self._options, self._notices, identity=identity, finished=finished)
            self.curves.append(self._with_training(dataclasses.replace(curve, schedule=schedule), path / METRICS))
            self.seeded.append(True)
            if not finished:
                text = f"run {name} is not finished: used up to {curve.compute[-1]:g}"
                self._notices.note("--runs", "run that is not finished", text)

    def _with_training(self, curve: RunCurve, log: pathlib.Path) -> RunCurve:
        """The curve with the reward of training as a column, and a schedule's n; without where its log is damaged."""
        step = curve.columns.get("step", np.array([np.nan]))
        if not log.exists() or not np.isfinite(step).all():
            return curve
        try:
            reward = training_reward(log, step)
            sizes = group_sizes(log) if curve.schedule else None
        except (TableError, OSError) as error:
            self._notices.finding(log, "log of training", f"{log}: {error}")
            return curve
        known = {TRAIN_REWARD: reward} if np.isfinite(reward).any() else {}
        return dataclasses.replace(curve, columns=curve.columns | known, group_sizes=sizes)

    def table(self, path: pathlib.Path, advance: Advance, name: str) -> None:
        """Adds the curves of a table in a file; `name` is the run's where the table names none."""
        self._add(self._runs_of_file(path, advance, name=name, facts=None))

    def in_memory(self, given: MemoryTable) -> None:
        """Adds the curves of a table in memory."""
        self._add(self._runs(given, lambda _: None, name=given.path.name, facts=None))

    def _add(self, runs: Iterator[Readings]) -> None:
        """Adds the curves of a table. A run of unknown configuration is a configuration of its own."""
        self._tables += 1
        for readings in runs:
            known = readings.facts.get("group_size", 0) or readings.facts.get("problems_per_batch", 0)
            own: dict[str, object] = {} if known else {"run": printable(readings.run)}
            curve = make_curve(readings, self._options, self._notices, identity=own, finished=None)
            facts = {name: getattr(curve.facts, name) for name in IDENTITY_FACTS}
            schedule = readings.labels.get(SCHEDULE, "")
            self.curves.append(dataclasses.replace(curve, identity=facts | readings.labels | own, schedule=schedule))
            self.seeded.append("seed" in readings.facts)

    def _runs_of_file(
        self, path: pathlib.Path, advance: Advance, *, name: str, facts: Mapping[str, int] | None
    ) -> Iterator[Readings]:
        """The runs of a file; none, and a finding, when it cannot be used."""
        try:
            table = open_table(path)
        except (TableError, *READ_ERRORS) as error:
            self._notices.finding(path, "file", f"{path}: cannot be read: {reason(error)}")
            return
        yield from self._runs(table, advance, name=name, facts=facts)

    def _runs(
        self, file: TableFile, advance: Advance, *, name: str, facts: Mapping[str, int] | None
    ) -> Iterator[Readings]:
        """The runs of a table; none, and a finding, when it cannot be used."""
        try:
            table = self._long_table(file, advance)
            if table is not None:
                runs = read_runs(table, file, self._options, self._notices, name=name, facts=facts)
                del table  # its cells go as they become numbers
                yield from runs
        except TableError as error:
            self._notices.finding(file.path, "file", f"{file.path}: left out: {error}")

    def _long_table(self, file: TableFile, advance: Advance) -> Table | None:
        """The table in long form under our names; None, and a finding, where it lacks what every table must have."""
        whole = file.read((), self._notices, advance) if file.headers is None else None
        headers = tuple(whole.columns) if whole is not None else file.headers or ()
        self._headers |= set(headers)
        layout = plan(headers, self._options)
        ours, unit = layout.ours(), UNITS[self._options.compute]
        measured = unit in ours or (unit == "compute" and "step" in ours) or whole is not None
        if (self._options.metric not in ours or not measured) and (whole is None or len(whole.lines)):
            named = [name for name in dict.fromkeys(headers) if name]
            numbers = numeric(whole or file.read(named, Notices(), advance))
            if self._options.metric not in ours:
                text = missing_metric(numbers, self._options)
            else:
                text = missing_axis([name for name in numbers if name not in layout.shared], self._options)
            self._notices.finding(file.path, "table", f"{file.path}: {text}")
            return None
        layout = layout.with_others(headers)
        for name in dict.fromkeys(layout.headers()):
            if headers.count(name) > 1:
                text = f"{file.path}: its header has {name} {headers.count(name)} times; the first is used"
                self._notices.finding(file.path, "repeated header", text)
        return layout.long(whole or file.read(layout.headers(), self._notices, advance))

    def report_unused_columns(self) -> None:
        """Renamed columns that no table has."""
        for theirs in self._options.columns:
            panel = any(header.endswith(f" - {theirs}") for header in self._headers)
            if self._tables and self._headers and theirs not in self._headers and theirs != EVERY_OTHER and not panel:
                near = difflib.get_close_matches(theirs, sorted(self._headers), n=3, cutoff=0.5)
                hint = f"; near it are {', '.join(near)}" if near else ""
                self._notices.finding("--columns", "columns", f"--columns: no table has a column {theirs!r}{hint}")


def _number_seeds(curves: list[RunCurve], seeded: Sequence[bool], notices: Notices) -> list[RunCurve]:
    """Runs of unknown seed get the seeds that are free in their configuration, in order of their names."""
    groups: dict[str, list[int]] = {}
    for i, curve in enumerate(curves):
        facts = dataclasses.replace(curve.facts, seed=0, num_steps=0)
        groups.setdefault(repr((facts, sorted(curve.identity.items(), key=str))), []).append(i)
    numbered = list(curves)
    for members in groups.values():
        unknown = sorted((i for i in members if not seeded[i]), key=lambda i: curves[i].run)
        if not unknown or len(members) == 1:
            continue
        taken = {curves[i].facts.seed for i in members if seeded[i]}
        free = (seed for seed in itertools.count() if seed not in taken)
        for i, seed in zip(unknown, free, strict=False):
            numbered[i] = dataclasses.replace(curves[i], facts=dataclasses.replace(curves[i].facts, seed=seed))
        listed = ", ".join(f"{curves[i].run}: {numbered[i].facts.seed}" for i in unknown[:MAX_REPEATED])
        more = f" and {len(unknown) - MAX_REPEATED} more" if len(unknown) > MAX_REPEATED else ""
        notices.note(
            "--runs",
            "configuration with runs of unknown seed",
            f"{len(members)} runs have one configuration and nothing tells the seed of {len(unknown)} of them: these "
            f"were numbered in order of their names ({listed}{more})",
        )
    return numbered


def open_table(path: pathlib.Path) -> TableFile:
    """Reads the header of a table.

    Raises:
      TableError: the file is empty or too large, or not what its name says.
      READ_ERRORS: it cannot be read.
    """
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return open_parquet(path, sha256)
    return open_jsonl(path, sha256) if name.endswith(".jsonl") else open_csv(path, sha256)


@contextlib.contextmanager
def _progress_bar(files: Sequence[pathlib.Path], *, show: bool) -> Iterator[Advance]:
    """A bar on stderr, and what moves it."""
    total = sum(path.stat().st_size for path in files if path.exists())
    if not show or not (sys.stderr.isatty() or total > LARGE_BYTES):
        yield lambda _: None
        return
    columns = (
        rich.progress.TextColumn("reading"), rich.progress.BarColumn(), rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(), rich.progress.TimeRemainingColumn(),
    )  # fmt: skip
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        state = {"done": 0, "last": 0}

        def advance(position: int) -> None:
            state["done"] += state["last"] if position < state["last"] else 0  # the next file has begun
            state["last"] = position
            bar.update(task, completed=state["done"] + position)

        yield advance
        bar.update(task, completed=total)
