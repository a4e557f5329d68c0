"""Everything --runs names, read in order: run directories, tables, then what tells configurations and seeds apart.

Of a run directory, config.json says which run it is, eval.jsonl has its evaluations, and the reward of training comes
out of metrics.jsonl: what a run's own problems gave, between its evaluations.
"""

from __future__ import annotations

import dataclasses
import difflib
import glob
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from isocompute_jax.fit.read import rewards
from isocompute_jax.fit.read.forms import (
    NAMES,
    TABLES,
    Form,
    events,
    form_of,
    found_in_folder,
    is_table,
    json_logs,
    read_table,
)
from isocompute_jax.fit.read.forms.melted import pivoted
from isocompute_jax.fit.read.layout import EVERY_OTHER, SEPARATOR, has_metric, in_long_form, is_measured
from isocompute_jax.fit.read.notices import Notes, Notices
from isocompute_jax.fit.read.read_options import FACTS, ReadOptions, is_whole
from isocompute_jax.fit.read.rows import VARIES, read_runs
from isocompute_jax.fit.read.run_curve import Readings, RunCurve, learning_rate_of, make_curve
from isocompute_jax.fit.read.samples import settled, spread, with_ends
from isocompute_jax.fit.read.tables import READ_ERRORS, MemoryTable, Table, TableError, reason
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import FACTS as IDENTITY_FACTS
from isocompute_jax.records.identity import SCHEDULE, curve_identity_of, schedule_of
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL, HISTORY, METRICS, find_runs

SUFFIXES = TABLES
PASSED = re.compile(r"checkpoint-(\d+)|runs|logs|tensorboard|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.*")
"""Folders that name no run; the number is the step of a trainer's checkpoint."""

TRAIN_REWARD = "train/reward"
"""Column of a run's evaluations: mean reward of the rollouts since the evaluation before; NaN at the base model's."""

ALIKE = 1.01
"""Highest learning rates of two runs within this factor are one: each is the highest of those that were logged."""


def read_curves(sources: Sequence[str] | MemoryTable, options: ReadOptions) -> tuple[list[RunCurve], Notes]:
    """Reads every run that `sources` name and that has evaluations of the metric.

    Sources are run directories, folders, .csv / .tsv / .jsonl / .parquet files (.gz but for the last) or globs of all
    these, or a table in memory. A table is read whole, and one above `tables.MAX_BYTES` is refused. A run of more than
    `MAX_POINTS` evaluations is averaged into bins. A run of unknown seed gets the next free number among the runs of
    its configuration, in order of their names.

    Returns:
      The runs in order of sources, and what was left out, averaged or numbered.

    Raises:
      InputError: a source does not exist, nothing usable was found, or a finding under `options.strict`.
    """
    notices = Notices()
    reader = _Reader(options, notices)
    if isinstance(sources, MemoryTable):
        where = str(sources.path)
        reader.table(sources, sources.path.name)
    else:
        where = ", ".join(map(str, sources))
        directories, tables = _find_sources(sources, notices)
        names = _run_names(tables)
        for path in [*directories, *tables]:
            if path in names:
                reader.table(path, names[path])
            else:
                reader.directory(path)
    reader.read_pending()
    reader.report_unused_columns()
    options = reader.options
    curves = _number_seeds(_with_settings(reader.curves, reader.settings), reader.seeded, notices)
    notes = dataclasses.replace(notices.notes(len(curves)), read=options)
    details = "".join(f"\n  {text}" for text in notes.texts)
    if options.strict and notices.findings:
        raise InputError(f"--strict: {notices.findings} findings in {where}{details}")
    if not curves:
        raise InputError(f"--runs: no usable run with {options.metric} on {options.eval_set} in {where}{details}")
    return curves, notes


class _Reader:
    """Reads run directories and tables into `curves` [R].

    `seeded` [R] says whose seed is known, `settings` [R] what a table says of a run beside facts and labels.
    """

    def __init__(self, options: ReadOptions, notices: Notices) -> None:
        self.curves: list[RunCurve] = []
        self.seeded: list[bool] = []
        self.settings: list[Mapping[str, Any]] = []
        self.options, self._notices = options, notices
        self._headers: set[str] = set()
        self._pending: list[tuple[Table, str]] = []  # those that wait for the metric

    def directory(self, path: pathlib.Path) -> None:
        """Adds the curve of a run directory; of metrics.jsonl, which can be large, the reward of training alone."""
        try:
            facts, identity, schedule = _read_config(path / CONFIG)
        except InputError as error:
            self._notices.left_out("run", "as unusable", [str(error)])
            return
        name, finished = path.name or path.resolve().name, (path / DONE).exists()
        for readings in self._runs(path / EVAL, name, facts):
            curve = make_curve(readings, self.options, self._notices, identity=identity, finished=finished)
            rate = learning_rate_of(identity, facts["group_size"] * facts["problems_per_batch"])
            curve = dataclasses.replace(curve, schedule=schedule, learning_rate=rate)
            self._add(self._with_training(curve, path / METRICS), seeded=True)
            if not finished:
                place = f"{name}, which ends at {curve.compute[-1]:g}"
                self._notices.changed("run", "not finished, and used as far as it goes", [place])

    def table(self, given: pathlib.Path | Table, name: str) -> None:
        """Adds the curves of a table; `name` is the run's where the table names none.

        One without the metric waits for the others, where no metric was named.
        """
        table = self._opened(given)
        if table is None:
            return
        self._headers |= set(table.headers)
        if rewards.is_named(self.options) or has_metric(table, self.options) or not len(table.lines):
            self._add_table(table, name)
        else:
            self._pending.append((table, name))

    def read_pending(self) -> None:
        """Chooses the metric where no source has the usual one, and adds the tables that waited for it."""
        if self._pending and not self.curves:
            self.options = rewards.choose([table for table, _ in self._pending], self.options, self._notices)
        for table, name in self._pending:
            self._add_table(table, name)

    def _opened(self, given: pathlib.Path | Table) -> Table | None:
        """A table, with a column for each metric; None, and a finding, when it cannot be read."""
        path = given if isinstance(given, pathlib.Path) else given.path
        try:
            table = read_table(given, self._notices) if isinstance(given, pathlib.Path) else given
            return pivoted(table, self.options, self._notices)
        except (TableError, *READ_ERRORS) as error:
            self._notices.left_out("file", "as unusable", [f"{path}: {reason(error)}"])
            return None

    def _add_table(self, table: Table, name: str) -> None:
        for readings in self._runs(table, name, None):
            readings = settled(readings, self.options, self._notices)
            curve = make_curve(readings, self.options, self._notices, identity={}, finished=None)
            facts = {fact: getattr(curve.facts, fact) for fact in IDENTITY_FACTS}
            schedule = readings.labels.get(SCHEDULE, "")
            curve = dataclasses.replace(curve, identity=facts | readings.labels, schedule=schedule)
            self._add(curve, seeded="seed" in readings.facts, settings=readings.settings)

    def _add(self, curve: RunCurve, *, seeded: bool, settings: Mapping[str, Any] | None = None) -> None:
        self.curves.append(curve)
        self.seeded.append(seeded)
        self.settings.append(settings or {})

    def _with_training(self, curve: RunCurve, log: pathlib.Path) -> RunCurve:
        """The curve with the reward of training as a column, and a schedule's n; without where its log is damaged."""
        step = curve.columns.get("step", np.array([np.nan]))
        if not log.exists() or not np.isfinite(step).all():
            return curve
        try:
            reward = training_reward(log, step)
            sizes = _group_sizes(log) if curve.schedule else None
        except (TableError, OSError) as error:
            self._notices.changed("log", "passed over", [f"{log}: {error}"], finding=True)
            return curve
        known = {TRAIN_REWARD: reward} if np.isfinite(reward).any() else {}
        return dataclasses.replace(curve, columns=curve.columns | known, group_sizes=sizes)

    def _runs(self, given: pathlib.Path | Table, name: str, facts: Mapping[str, int] | None) -> Iterator[Readings]:
        """The runs of a table; none, and a finding, when it cannot be used."""
        path = given if isinstance(given, pathlib.Path) else given.path
        try:
            table = read_table(given, self._notices) if isinstance(given, pathlib.Path) else given
            if len(table.lines) and not has_metric(table, self.options):
                raise TableError(rewards.missing(table, self.options))
            table = with_ends(spread(table, self.options, self._notices), self.options, self._notices)
            table = in_long_form(table, self.options, self._notices)
            yield from read_runs(table, self.options, self._notices, name=name, facts=facts)
        except InputError:
            raise
        except (TableError, *READ_ERRORS) as error:
            self._notices.left_out("file", "as unusable", [f"{path}: {reason(error)}"])

    def report_unused_columns(self) -> None:
        """Names the renamed columns that no table has."""
        for theirs in self.options.columns:
            panel = any(header.endswith(f"{SEPARATOR}{theirs}") for header in self._headers)
            if self._headers and theirs not in self._headers and theirs != EVERY_OTHER and not panel:
                near = difflib.get_close_matches(theirs, sorted(self._headers), n=3, cutoff=0.5)
                hint = f"; near it are {', '.join(near)}" if near else ""
                self._notices.say(f"--columns: no table has a column {theirs!r}{hint}.")


def _with_settings(curves: Sequence[RunCurve], settings: Sequence[Mapping[str, Any]]) -> list[RunCurve]:
    """The runs with those settings in their identity that are constant in every run and differ between some.

    A column that may have been measured is a setting where several runs share a value, or every run had the chance to
    change it.
    """
    found: dict[str, list[tuple[int, Any]]] = {}
    for i, own in enumerate(settings):
        for name, value in own.items():
            found.setdefault(name, []).append((i, value))
    identities = [dict(curve.identity) for curve in curves]
    for name, given in found.items():
        values = {value for _, value in given}
        numbers = all(isinstance(value, int | float) for value in values)
        chance = len(values) < len(given) or min(len(curves[i].compute) for i, _ in given) > 1
        if VARIES not in values and len(values) > 1 and (chance or not (numbers and is_measured(name))):
            for i, value in given:
                identities[i][name] = value
    rates = sorted({curve.learning_rate for curve in curves})
    return [
        dataclasses.replace(
            curve,
            identity=identity,
            learning_rate=max(rate for rate in rates if rate <= curve.learning_rate * ALIKE),
        )
        for curve, identity in zip(curves, identities, strict=True)
    ]


def _number_seeds(curves: list[RunCurve], seeded: Sequence[bool], notices: Notices) -> list[RunCurve]:
    """Runs of unknown seed get the seeds that are free in their configuration, in order of their names."""
    groups: dict[tuple, list[int]] = {}
    for i, curve in enumerate(curves):
        groups.setdefault((curve.schedule, *curve.key), []).append(i)
    numbered, places = list(curves), []
    for members in groups.values():
        unknown = sorted((i for i in members if not seeded[i]), key=lambda i: curves[i].run)
        if not unknown or len(members) == 1:
            continue
        taken = {curves[i].facts.seed for i in members if seeded[i]}
        free = (seed for seed in itertools.count() if seed not in taken)
        for i, seed in zip(unknown, free, strict=False):
            numbered[i] = dataclasses.replace(curves[i], facts=dataclasses.replace(curves[i].facts, seed=seed))
            places.append(f"{curves[i].run}: {seed}")
    what = "numbered as seeds in order of their names, because nothing tells their seeds"
    notices.changed("run", what, places, count=len(places))
    return numbered


def _find_sources(given: Sequence[str], notices: Notices) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """The run directories and the tables to read, each once and in the order given; globs and folders are expanded."""
    if not given:
        raise InputError("--runs is empty; give run directories, folders of them, tables, or globs")
    found: dict[pathlib.Path, pathlib.Path] = {}
    for path in (path for text in given for path in _expand(str(text), notices)):
        found.setdefault(pathlib.Path(os.path.realpath(path)), path)
    paths = _of_one_run_once(list(found.values()), notices)
    return [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]


def _of_one_run_once(paths: Sequence[pathlib.Path], notices: Notices) -> list[pathlib.Path]:
    """The paths with one event file of each folder, and of a run's checkpoints the last one's state, which has all."""
    best: dict[tuple[str, pathlib.Path], tuple[float, int]] = {}
    kept: dict[int, tuple[str, pathlib.Path]] = {}
    for i, path in enumerate(paths):
        step = PASSED.fullmatch(path.parent.name)
        if events.IN_NAME in path.name:
            kept[i] = (events.IN_NAME, path.parent)
            best.setdefault(kept[i], (0, i))
        elif path.name == json_logs.TRAINER_STATE:
            ended = float(step[1]) if step and step[1] else math.inf
            kept[i] = (path.name, path.parent if ended == math.inf else path.parent.parent)
            best[kept[i]] = max(best.get(kept[i], (-1.0, i)), (ended, i))
    lost = [i for i, key in kept.items() if best[key][1] != i]
    earlier = [str(paths[i]) for i in lost if paths[i].name == json_logs.TRAINER_STATE]
    what = "passed over, because a later checkpoint of its run has its rows too"
    notices.changed("file", what, earlier, count=len(earlier))
    return [path for i, path in enumerate(paths) if i not in lost]


def _run_names(tables: Sequence[pathlib.Path]) -> dict[pathlib.Path, str]:
    """What a run is called whose table does not say: its file, or of files of one name the folders that differ.

    A trainer's state and event files are called by their folders.
    """
    folders: dict[str, dict[pathlib.Path, tuple[str, ...]]] = {}
    for path in tables:
        stem, parts = path.name.removesuffix(".gz").rpartition(".")[0] or path.name, path.absolute().parent.parts
        if events.IN_NAME in path.name or path.name == json_logs.TRAINER_STATE:
            parts = tuple(part for part in parts if not PASSED.fullmatch(part))
            stem = events.IN_NAME if events.IN_NAME in path.name else stem
        folders.setdefault(stem, {})[path] = parts
    names = {}
    for stem, alike in folders.items():
        start = shared_length(alike.values())
        end = shared_length([parts[start:][::-1] for parts in alike.values()])
        generic = stem in (events.IN_NAME, json_logs.TRAINER_STATE.removesuffix(".json"))
        for path, parts in alike.items():
            names[path] = "/".join(parts[start : len(parts) - end]) or (parts[-1] if generic else stem)
    return {path: names[path] for path in tables}


def shared_length(paths: Iterable[Sequence[str]]) -> int:
    """How many of their first parts all paths have in common."""
    return sum(1 for _ in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _has_form(path: pathlib.Path) -> bool:
    try:
        return form_of(path) is not None
    except READ_ERRORS as error:
        raise InputError(f"--runs: {path}: {reason(error)}") from None


def _expand(text: str, notices: Notices) -> Iterator[pathlib.Path]:
    path = pathlib.Path(text)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if exists:
        if not path.is_dir() and not is_table(path) and not _has_form(path):
            kinds = ", ".join([*SUFFIXES, *NAMES.values()])
            raise InputError(f"--runs: {path} is neither a directory nor a table ({kinds})")
        yield from _below(path, notices)
        return
    if not glob.has_magic(text):
        raise InputError(f"--runs: {text} does not exist; give run directories, folders of them, tables, or globs")
    matches = [pathlib.Path(match) for match in sorted(glob.glob(text, recursive=True))]
    folders = {match for match in matches if match.is_dir()}
    usable = [match for match in matches if match in folders or is_table(match) or found_in_folder(match)]
    usable = [match for match in usable if not folders & set(match.parents)]
    if not usable:
        raise InputError(
            f"--runs: nothing that could be read matches {text}; quote it if the shell should not expand it"
        )
    for match in usable:
        yield from _below(match, notices)


def _below(path: pathlib.Path, notices: Notices) -> Iterator[pathlib.Path]:
    """A table; the run directory of an eval.jsonl; of a folder the run directories, else tables, else other logs."""
    if not path.is_dir():
        yield path.parent if path.name == EVAL and (path.parent / CONFIG).exists() else path
        return
    files = (file for file in path.rglob("*") if is_table(file) and file.is_file() and file.name != HISTORY)
    found = find_runs(path) or sorted(files) or _other_logs(path, notices)
    if not found:
        text = f"{path} has neither a run directory (a folder with {CONFIG} and {EVAL}) nor a table at or below it"
        notices.changed("folder", "without runs", [text], finding=True)
    yield from found


def _other_logs(path: pathlib.Path, notices: Notices) -> list[pathlib.Path]:
    """The files below a folder of the first form in `NAMES` that it has: the others would be of the same runs."""
    forms: dict[Form, list[pathlib.Path]] = {}
    for file in sorted(path.rglob("*")):
        if form := found_in_folder(file):
            forms.setdefault(form, []).append(file)
    given = sorted(forms, key=[*NAMES].index)
    if len(given) > 1:
        others = ", ".join(f"{len(forms[form])} of {NAMES[form]}" for form in given[1:])
        notices.changed("folder", f"read for its {NAMES[given[0]]} alone", [f"{path}, where {others} were passed over"])
    return forms[given[0]] if given else []


def _read_config(path: pathlib.Path) -> tuple[dict[str, int], dict[str, Any], str]:
    """The facts, the identity and the schedule of a run (as in `RunCurve`), from its config.json."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return _facts(config), curve_identity_of(config), schedule_of(config)
    except (InputError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None


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
    Of lines of metrics.jsonl that have one step the last counts; the last of all may be unfinished.

    Returns:
      [E] at the steps of the evaluations, NaN where no step with a reward lies in between.
    """
    steps, before, compute, reward = _steps(log, "reward")
    rollouts = compute - before
    after = np.searchsorted(step, steps)  # the first evaluation at or after a step
    counted = np.isfinite(reward) & (after < len(step))
    weight = np.bincount(after[counted], rollouts[counted], len(step))
    total = np.bincount(after[counted], (rollouts * reward)[counted], len(step))
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def _group_sizes(log: pathlib.Path) -> np.ndarray | None:
    """[K, 2] compute at which the steps of another n begin, and that n; None where no line has one."""
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
