"""The rows of a table in long form are checked, reported where they are wrong, and become numbers, run by run."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.notices import Notices, shown
from isocompute_jax.fit.read.read_options import FACTS, ReadOptions, facts_of_name
from isocompute_jax.fit.read.run_curve import CLOCK, SOLVE_SHARES, UNITS, Readings, solve_shares
from isocompute_jax.fit.read.table_layout import LABELS, OURS
from isocompute_jax.fit.read.tables import Table, TableError, TableFile
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable

ROUNDING = 1e-9
"""A reward outside of the range by this share of its width is taken as its end."""

MOST_OUTSIDE = 0.05
"""A table of which a larger share of the rewards lies outside of the range was written in another one."""

MAX_RUNS = 10_000
"""More runs in one table mean that its `run` column is something else."""

USUAL_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 100.0), (-100.0, 100.0))
"""Ranges that are proposed where the rewards fit in."""

MEASURES = ("compute", "step", "tokens", "gpu_hours")
RATE = "learning_rate"
IDENTITY = (*(name for name in FACTS if name != "num_steps"), *LABELS)
"""Columns that tell runs apart in a table without a `run` column."""

ROUNDED = frozenset({"model_params", "problem_set_size"})
"""Facts that tables may give with a fraction, where they were computed ..."""
LEAST_ROUNDED = 1000
"""... and that are large: 1.5 parameters are billions, which is for their writer to say."""

HISTOGRAM = "solve_rate_histogram"

WITH_COMMAS = re.compile(r"\s*[+-]?[0-9]*(?:,[0-9]+)+(?:\.[0-9]*)?\s*")
"""A number as people write it."""


def read_runs(
    table: Table,
    source: TableFile,
    options: ReadOptions,
    notices: Notices,
    *,
    name: str,
    facts: Mapping[str, int] | None,
) -> Iterator[Readings]:
    """The runs of a table, with compute on every row; rows that are wrong are reported.

    Runs come in order of their first rows; without a `run` column, of the facts that tell them apart.

    Args:
      table: in long form, under our names. Its columns are given up one by one, as they have become numbers.
      source: where it is from.
      options: as given.
      notices: where bad rows are reported.
      name: the run's name when a table says nothing about runs.
      facts: what is known about every row (a run directory's config.json).

    Raises:
      TableError: it has too many runs.
      InputError: more than `MOST_OUTSIDE` of the rewards lie outside of the range.
    """
    by_name = "run" in table.columns
    codes, names = _runs(table, name) if facts is None else (np.zeros(len(table.lines), dtype=np.int64), [name])
    rates = _learning_rates(table, codes)
    lacks = cells.blank(table.columns[options.metric]) if options.metric in table.columns else np.ones_like(codes, bool)
    table, codes = table.keep(~lacks), codes[~lacks]
    wanted, eval_sets = _of_eval_set(table, options.eval_set)
    rows = _Rows(table.keep(wanted), codes[wanted], source, options, notices)
    del table
    if not len(rows.codes):
        text = f"{source.path}: no row has {options.metric} on {options.eval_set}"
        notices.finding(source.path, "table", text)
        return
    if facts is None:
        rows.check_runs()
        rows.check_facts()
    rows.check_metric()
    rows.check_axis()
    identity = rows.check_changes(len(names)) if facts is None else {}
    left_out: dict[str, list[tuple[str, int]]] = {}
    for code, lines, columns in _by_run(*rows.numbers(), by_first_row=by_name):
        run, of_run = names[code], {own: values[code] for own, values in identity.items() if code in values}
        readings = Readings(
            run=run,
            source=source,
            facts=dict(facts) if facts is not None else _facts_of_run(run, of_run, source, options, notices),
            lines=lines,
            axis=np.empty(0),
            columns=columns,
            labels={own: printable(of_run[own]) for own in LABELS if own in of_run},
            eval_sets=eval_sets,
            learning_rate=rates.get(code, (0.0, 0.0))[1],
        )
        with_axis = _with_axis(readings, options, notices, derive=facts is None)
        if isinstance(with_axis, str):
            left_out.setdefault(with_axis, []).append((run, int(lines[0])))
        else:
            yield with_axis
    for remedy, found in left_out.items():  # one message for all runs that lack the same
        run, line = found[0]
        which = f"run {run}" if len(found) == 1 else f"{len(found)} runs, the first of them {run},"
        text = f"{source.where(line)}: {which} left out: {remedy}"
        notices.finding(source.path, "run left out without compute", text)


def _by_run(
    codes: np.ndarray, lines: np.ndarray, columns: dict[str, np.ndarray], *, by_first_row: bool
) -> Iterator[tuple[int, np.ndarray, dict[str, np.ndarray]]]:
    """The rows of each run, in order of first rows or of codes: its code, their lines [E] and columns [E]."""
    present, first = np.unique(codes, return_index=True)
    if len(present) > MAX_RUNS:
        raise TableError(f"it has more than {MAX_RUNS} runs; is its `run` column the name of a run?")
    if np.any(codes[1:] < codes[:-1]):  # else the rows of each run stand together, and slices need no copies
        order = np.argsort(codes, kind="stable")
        codes, lines, columns = codes[order], lines[order], {name: columns.pop(name)[order] for name in list(columns)}
    starts = np.searchsorted(codes, present)
    ends = np.append(starts[1:], len(codes))
    for k in np.argsort(first).tolist() if by_first_row else range(len(present)):
        rows = slice(starts[k], ends[k])
        yield int(present[k]), lines[rows], {name: values[rows] for name, values in columns.items()}


class _Identity:
    """A column of facts or labels: codes [n] of distinct cells, -1 where blank; the cells; their numbers or texts."""

    def __init__(self, name: str, column: cells.Column) -> None:
        self.codes, self.cells = cells.distinct(column)
        self.values: list[Any] = []
        for cell in self.cells:
            if name in LABELS:
                self.values.append(cells.text(cell))
                continue
            value = cells.number(cell)
            self.values.append(round(value) if name in ROUNDED and value >= LEAST_ROUNDED else value)

    def ids(self) -> tuple[np.ndarray, list[Any]]:
        """Codes [n] of the distinct values, -1 where blank, and the values: 8 and 8.0 are one."""
        places: dict[Any, int] = {}
        own = [places.setdefault(value, len(places)) for value in self.values]
        return np.array([*own, -1])[self.codes], list(places)


def _runs(table: Table, name: str) -> tuple[np.ndarray, list[str]]:
    """Number of each row's run [n], -1 where blank, and the names; without a `run` column, facts tell runs apart."""
    if "run" in table.columns:
        return cells.texts(table.columns.pop("run"))
    columns = {own: _Identity(own, table.columns[own]) for own in IDENTITY if own in table.columns}
    codes = np.zeros(len(table.lines), dtype=np.int64)
    for own, column in columns.items():
        ids, values = column.ids()
        keys = np.arange(len(values)) if own in LABELS else np.nan_to_num(values, nan=-1.0)
        ranks = np.unique(np.append(keys, -1.0), return_inverse=True)[1]
        codes = np.unique(codes * len(ranks) + ranks[ids], return_inverse=True)[1]
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    names = []
    for i in first.tolist():
        values = {own: column.values[column.codes[i]] for own, column in columns.items() if column.codes[i] >= 0}
        known = {own: value if own in LABELS else f"{value:.0f}" for own, value in values.items()
                 if own in LABELS or value >= 0}  # fmt: skip
        names.append(", ".join([name, *(f"{own}={text}" for own, text in known.items())]))
    return codes, names


def _learning_rates(table: Table, codes: np.ndarray) -> dict[int, tuple[float, float]]:
    """Least and largest learning rate of each run, of all its rows: training logs it on rows of its own."""
    if RATE not in table.columns:
        return {}
    rates = cells.numbers(table.columns[RATE])
    known = (rates > 0) & (codes >= 0)
    codes, rates = codes[known], rates[known]
    order = np.argsort(codes, kind="stable")
    runs, starts = np.unique(codes[order], return_index=True)
    if not len(runs):
        return {}
    least, most = np.minimum.reduceat(rates[order], starts), np.maximum.reduceat(rates[order], starts)
    return dict(zip(runs.tolist(), zip(least.tolist(), most.tolist(), strict=True), strict=True))


def _of_eval_set(table: Table, eval_set: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Rows [n] of an evaluation set, those that name none among them, and the names of all sets."""
    if "eval_set" not in table.columns:
        return np.ones(len(table.lines), dtype=bool), ()
    codes, names = cells.texts(table.columns["eval_set"])
    present = np.unique(codes)
    found = np.array([name == eval_set for name in names] + [True], dtype=bool)[codes]
    return found, tuple(names[code] for code in present.tolist() if code >= 0)


class _Rows:
    """Rows in long form that have the metric, their runs `codes` [n], and which of them are sound so far."""

    def __init__(
        self, table: Table, codes: np.ndarray, source: TableFile, options: ReadOptions, notices: Notices
    ) -> None:
        self.codes = codes
        self._lines, self._columns = table.lines, table.columns
        self._rewards = table.columns.pop(options.metric, [])
        self._sound = np.ones(len(codes), dtype=bool)
        self._numbers: dict[str, np.ndarray] = {}
        self._identity: dict[str, _Identity] = {}
        self._source, self._options, self._notices = source, options, notices

    def _leave_out(self, kind: str, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        """Reports the sound rows where `bad` [n] is set, each with its reason; they are sound no more."""
        bad = bad & self._sound
        self._notices.rows(
            str(self._source.path),
            f"row left out {kind}",
            bad,
            lambda i: f"{self._source.where(self._lines[i])}: row left out: {reason(i)}",
        )
        self._sound &= ~bad

    def check_runs(self) -> None:
        """Each row names its run, where there is a column for it."""
        self._leave_out("without a run", self.codes < 0, lambda i: "it has no `run`")

    def check_facts(self) -> None:
        """Facts are whole numbers."""
        for name in (*FACTS, *LABELS):
            if name not in self._columns:
                continue
            given = self._identity[name] = _Identity(name, self._columns.pop(name))
            if name in LABELS:
                continue
            whole = [0 <= value < 2**63 and value == math.floor(value) for value in given.values]
            self._leave_out(
                f"for its {name}",
                np.array([*(not each for each in whole), False])[given.codes],
                lambda i, name=name, given=given: f"{name} is {shown(given.cells[given.codes[i]])}, not a whole number",
            )

    def check_metric(self) -> None:
        """Rewards lie in their range.

        Raises:
          InputError: so many lie outside that the table was written in another one.
        """
        name, (low, high) = self._options.metric, self._options.reward_range
        given = self._rewards
        values = cells.numbers(given)
        rounding = ROUNDING * (high - low if math.isfinite(high - low) else 1.0)
        inside = (values >= low - rounding) & (values <= high + rounding)
        self._check_range(values[self._sound & np.isfinite(values)], int(np.count_nonzero(inside & self._sound)))
        wanted = f"in [{low:g}, {high:g}{']' if math.isfinite(high) else ')'}"
        self._leave_out(
            f"for its {name}",
            ~inside,
            lambda i: f"{name} is {shown(cells.cell(given, i))}, not a number {wanted}{_comma_remedy(given, i)}",
        )
        self._numbers[name] = np.clip(values, low, high)

    def _check_range(self, rewards: np.ndarray, inside: int) -> None:
        """Refuses a table with more than `MOST_OUTSIDE` of its rewards outside of the range."""
        outside, (low, high) = len(rewards) - inside, self._options.reward_range
        if outside <= MOST_OUTSIDE * len(rewards):
            return
        least, most = rewards.min(), rewards.max()
        guess = next((ends for ends in USUAL_RANGES if ends[0] <= least and most <= ends[1]), None)
        ends = f"{guess[0]:g},{guess[1]:g}" if guess else "LEAST,MOST"
        share = f"{outside / len(rewards):.1%}, above {MOST_OUTSIDE:.0%}"
        raise InputError(
            f"--reward_range={low:g},{high:g}: {self._source.path}: {outside} of {len(rewards)} values of "
            f"{self._options.metric} lie outside ({share}); they go from {least:g} to {most:g}. Give the "
            f"least and the largest possible reward, e.g. --reward_range={ends}"
        )

    def check_axis(self) -> None:
        """Compute, where given, is a number of at least 0."""
        name = UNITS[self._options.compute]
        if name not in self._columns:
            return
        given = self._columns.pop(name)
        values = self._numbers[name] = cells.numbers(given)
        bad = ~(values >= 0)
        self._leave_out(
            f"for its {name}",
            bad & ~cells.blank(given) if bad.any() else bad,
            lambda i: f"{name} is {shown(cells.cell(given, i))}, not a number of at least 0{_comma_remedy(given, i)}",
        )

    def check_changes(self, count: int) -> dict[str, dict[int, Any]]:
        """Rows agree with the first row of their run; returns column -> {number of run: that row's value}."""
        sound, found = self._sound.copy(), {}
        for name, column in self._identity.items():
            ids, values = column.ids()
            rows = np.flatnonzero(sound & (ids >= 0))[::-1]
            began = np.full(count, -1)
            began[self.codes[rows]] = ids[rows]  # of a run that comes several times the last counts: its first row
            text = shown if name in LABELS else "{:g}".format
            given = column.cells if name in LABELS else column.values
            self._leave_out(
                f"for its {name}",
                (ids >= 0) & (ids != began[self.codes]),
                lambda i, name=name, column=column, given=given, values=values, began=began, text=text: (
                    f"{name} is {text(given[column.codes[i]])}, but the run began with "
                    f"{text(values[began[self.codes[i]]])}"
                ),
            )
            found[name] = {run: values[began[run]] for run in np.flatnonzero(began >= 0).tolist()}
        return found

    def numbers(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Of the sound rows: their runs, lines and numbers by column; gives up the cells."""
        others = [name for name in self._columns if name not in (*OURS, HISTOGRAM)]
        for name in (*MEASURES, *others):
            if name in self._columns:
                self._numbers[name] = cells.numbers(self._columns.pop(name))
        if HISTOGRAM in self._columns:
            column = self._columns[HISTOGRAM]
            shares = [solve_shares(cells.cell(column, i)) for i in range(len(column))]
            self._numbers |= dict(zip(SOLVE_SHARES, np.array(shares).T, strict=True))
        codes, lines, found, sound = self.codes, self._lines, self._numbers, self._sound
        if not sound.all():
            codes, lines, found = codes[sound], lines[sound], {name: found[name][sound] for name in found}
        return codes, lines, {name: values for name, values in found.items() if np.isfinite(values).any()}


def _comma_remedy(column: cells.Column, i: int) -> str:
    """What to do about a cell that is no number because of its comma; empty for any other cell."""
    found = cells.cell(column, i)
    if not isinstance(found, str) or not WITH_COMMAS.fullmatch(found):
        return ""
    return "; write it with a decimal point and without marks of thousands"


def _facts_of_run(
    run: str, identity: Mapping[str, Any], source: TableFile, options: ReadOptions, notices: Notices
) -> dict[str, int]:
    """The facts of a run: what its table says, else its name, else the constants."""
    known = {name: int(identity[name]) for name in FACTS if name in identity}
    known = {name: value for name, value in known.items() if value > 0 or name == "seed"}
    named = facts_of_name(run, options.run_pattern) if options.run_pattern else {}
    if named is None:
        text = f"{source.path}: run {run}: --run_pattern={options.run_pattern} does not fit its name"
        notices.finding(source.path, "run whose name --run_pattern does not fit", text)
    constants = {name: int(value) for name, value in options.constants.items()}
    return constants | (named or {}) | known


def _with_axis(readings: Readings, options: ReadOptions, notices: Notices, *, derive: bool) -> Readings | str:
    """The run with compute in its unit on every row; what to do about it where no row has it.

    Rollouts are derived where a table gives none (`derive`), by C = B_problem n M (docs/method.md, Compute).
    """
    facts, columns, name = readings.facts, dict(readings.columns), UNITS[options.compute]
    nothing = np.full(len(readings.lines), np.nan)
    per_step = facts.get("problems_per_batch", 0) * facts.get("group_size", 0)
    step = columns.get("step", nothing)
    if derive and per_step and not np.isfinite(columns.get("compute", nothing)).any():
        with np.errstate(over="ignore"):
            derived = step * per_step
        columns["compute"] = np.where(np.isfinite(derived), derived, np.nan)
    axis = columns.get(name, nothing)
    if options.compute == CLOCK:  # what passed until then has trained nothing
        base = (columns.get("compute", nothing) == 0) | (step == 0)
        axis = np.where(base & np.isfinite(axis), 0.0, axis)
    known = axis >= 0
    if not known.any():
        return _remedy(facts, step, options)
    notices.rows(
        str(readings.source.path),
        f"row left out without {name}",
        ~known,
        lambda i: f"{readings.where(i)}: row left out: its {name} is neither given nor can be derived",
    )
    columns = {key: values for key, values in columns.items() if np.isfinite(values[known]).any()}
    found = dataclasses.replace(readings, axis=axis, columns=columns)
    return found if known.all() else found.keep(np.flatnonzero(known))


def _remedy(facts: Mapping[str, int], step: np.ndarray, options: ReadOptions) -> str:
    name = UNITS[options.compute]
    if name != "compute":
        return f"no row has its {name} (--compute={options.compute}); say --columns=THEIRS:{name}"
    if not np.isfinite(step).any():
        return "neither compute nor step is given; say --columns=THEIRS:compute or --columns=THEIRS:step"
    unknown = [fact for fact in ("group_size", "problems_per_batch") if not facts.get(fact)]
    ways = [
        f"{fact} by --columns=THEIRS:{fact}, --constants={fact}=N or (?P<{fact}>\\d+) in --run_pattern"
        for fact in unknown
    ]
    return (
        "compute is not given, and step x problems_per_batch x group_size lacks "
        f"{' and '.join(unknown)}; give --columns=THEIRS:compute, or {' and '.join(ways)}, "
        "or fit curves over steps by --compute=steps"
        if unknown
        else "no row's step is a number of at least 0"
    )
