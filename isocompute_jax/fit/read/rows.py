"""The rows of a table in long form are checked, reported where they are wrong, and become numbers, run by run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.layout import LABELS, OURS, is_measured, is_setting
from isocompute_jax.fit.read.notices import Notices, shown
from isocompute_jax.fit.read.read_options import FACTS, RATE, ReadOptions, facts_of_name, is_whole
from isocompute_jax.fit.read.run_curve import CLOCK, UNITS, Readings
from isocompute_jax.fit.read.tables import Table, TableError
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable

ROUNDING = 1e-9
"""A reward outside of the range by this share of its width is taken as its end."""
MOST_OUTSIDE = 0.05
"""A table of which a larger share of the rewards lies outside of the range was written in another one."""
MAX_RUNS = 10_000
"""More runs in one table mean that its `run` column is something else."""
JUMP = 10.0
"""Factor between neighbouring rewards that no training gives: their units differ."""
USUAL_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 2.0), (0.0, 3.0), (0.0, 100.0), (-100.0, 100.0))
"""Ranges that are proposed where the rewards fit in."""

MEASURES = ("compute", "step", "tokens", "gpu_hours")
IDENTITY = (*(name for name in FACTS if name != "num_steps"), *LABELS)
"""Columns that tell runs apart in a table without a `run` column."""

ROUNDED, LEAST_ROUNDED = ("model_params", "problem_set_size"), 1000
"""Facts that tables may give with a fraction, where they were computed and are large: 1.5 parameters are billions."""

WITH_COMMAS = re.compile(r"\s*[+-]?[0-9]*(?:,[0-9]+)+(?:\.[0-9]*)?\s*")
"""A number as people write it."""

MOST_SETTINGS = 8
"""Values of one setting that a sweep has at most, where a column may have been measured."""
IN_NAMES = {
    "group_size": r"(?:n|g|group|rollouts?|gen)[-_=]?", "problems_per_batch": r"(?:b|bs|batch|prompts)[-_=]?",
    "seed": r"(?:s|seed)[-_=]?",
}  # fmt: skip
"""How names of runs begin a fact: what a pattern that is proposed looks for."""
HINTS = {
    "group_size": {
        "n",
        "g",
        "k",
        "group",
        "rollouts",
        "num_rollouts",
        "n_rollouts",
        "samples",
        "num_samples",
        "n_samples",
    },
    "problems_per_batch": {"b", "bs", "batch", "batch_size", "prompts", "num_prompts", "problems", "train_batch_size"},
}
"""Names of columns that may be a fact, and that nobody's program gives it alone."""
SIZE = r"(?:^|[-_/ ])(?P<model_params>\d+(?:\.\d+)?[bB])$"
"""A run whose name ends with its model's size, where all names of a table do."""
VARIES = object()
"""Stands for a setting of a run that does not stay the same within it."""


def read_runs(
    table: Table, options: ReadOptions, notices: Notices, *, name: str, facts: Mapping[str, int] | None
) -> Iterator[Readings]:
    """The runs of a table, with compute on every row; rows that are wrong are reported.

    Runs come in order of their first rows; without a `run` column, of the facts that tell them apart. A table that
    says nothing about runs is one of this `name`; the `facts` of a run directory hold for every row.

    Raises:
      TableError: it has too many runs, or none with the metric.
      InputError: more than `MOST_OUTSIDE` of the rewards lie outside of the range.
    """
    every = np.zeros(len(table.lines), dtype=np.int64)
    codes, names = _runs(table, options.metric, name) if facts is None else (every, [name])
    given, eval_sets = _evaluations(table, options)
    if facts is None and "run" not in table.columns:
        codes, names = _begun_again(table, codes, names, given, notices)
    known = _settings(table, codes, len(names)) if facts is None else {}
    rows = _Rows(table.keep(given), codes[given], options, notices)
    if not len(rows.codes):
        raise TableError(f"no row has {options.metric} on {options.eval_set}")
    without = np.setdiff1d(codes, np.append(rows.codes, -1))
    places = (f"{names[code]} of {table.path}" for code in without)
    notices.left_out("run", f"without {options.metric} on {options.eval_set}", places, count=len(without))
    rows.check_metric()
    rows.check_axis()
    identity = rows.check_runs(len(names)) if facts is None else {}
    numbers = rows.numbers()
    lost = np.setdiff1d(rows.codes, np.append(numbers[0], -1))
    places = (f"{names[code]} of {table.path}" for code in lost)
    notices.left_out("run", "because every row is wrong", places, count=len(lost))
    sized = all(re.search(SIZE, name) for name in names)
    for code, lines, columns in _by_run(*numbers, by_first_row="run" in table.columns):
        run, said = names[code], identity.get(code, {})
        own = dict(facts) if facts is not None else _facts_of_run(run, said, table, options, notices, sized=sized)
        settings = dict(known.get(code, {}))
        rate = settings.pop(RATE, 0.0) or own.pop(RATE, 0.0)
        own.pop(RATE, None)
        readings = Readings(
            run=run,
            source=table,
            facts={fact: int(value) for fact, value in own.items()},
            lines=lines,
            axis=np.empty(0),
            columns=columns,
            labels={label: printable(said[label]) for label in LABELS if label in said},
            eval_sets=eval_sets,
            learning_rate=rate,
            settings=settings,
        )
        with_axis = _with_axis(readings, options, notices, derive=facts is None)
        if isinstance(with_axis, str):
            notices.left_out("run", f"because {with_axis}", [f"{run} of {table.where(int(lines[0]))}"])
        else:
            yield with_axis


def _evaluations(table: Table, options: ReadOptions) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows [n] with the metric, on the evaluation set or on one without a name, and the names of all sets."""
    found = ~cells.blank(table.columns[options.metric]) if options.metric in table.columns else table.lines < 0
    if "eval_set" not in table.columns:
        return found, ()
    codes, names = cells.distinct(table.columns["eval_set"])
    wanted = np.array([name == options.eval_set for name in names] + [True], dtype=bool)[codes]
    return found & wanted, tuple(names[code] for code in np.unique(codes[found]).tolist() if code >= 0)


def _by_run(
    codes: np.ndarray, lines: np.ndarray, columns: dict[str, np.ndarray], *, by_first_row: bool
) -> Iterator[tuple[int, np.ndarray, dict[str, np.ndarray]]]:
    """The rows of each run, in order of first rows or of codes: its code, their lines [E] and columns [E]."""
    present, first = np.unique(codes, return_index=True)
    if len(present) > MAX_RUNS:
        raise TableError(f"it has more than {MAX_RUNS} runs; is its `run` column the name of a run?")
    if np.any(codes[1:] < codes[:-1]):  # else the rows of each run stand together, and slices need no copies
        order = np.argsort(codes, kind="stable")
        codes, lines, columns = codes[order], lines[order], {name: values[order] for name, values in columns.items()}
    starts = np.searchsorted(codes, present)
    ends = np.append(starts[1:], len(codes))
    for k in np.argsort(first).tolist() if by_first_row else range(len(present)):
        rows = slice(starts[k], ends[k])
        yield int(present[k]), lines[rows], {name: values[rows] for name, values in columns.items()}


def _distinct(name: str, column: cells.Column) -> tuple[np.ndarray, list[Any]]:
    """Codes [n] of a column's distinct values, -1 where blank, and the values: numbers, or texts of words."""

    def value(cell: Any) -> Any:
        number = math.nan if name in LABELS else cells.number(cell)
        if math.isnan(number) and name not in FACTS:
            return cells.text(cell)
        rounded = number.is_integer() or (name in ROUNDED and number >= LEAST_ROUNDED)
        return round(number) if rounded else number

    return cells.distinct(column, value)


def _runs(table: Table, metric: str, name: str) -> tuple[np.ndarray, list[str]]:
    """Number of each row's run [n], -1 where blank, and the names; without a `run` column, facts tell runs apart."""
    if "run" in table.columns:
        return cells.distinct(table.columns["run"])
    settings = [own for own in table.columns if own == RATE or is_setting(own)]
    told: dict[str, tuple[np.ndarray, list[Any]]] = {}
    codes = np.zeros(len(table.lines), dtype=np.int64)
    for own in (*(own for own in IDENTITY if own in table.columns), *settings):
        ids, values = _distinct(own, table.columns[own])
        if own in settings and (_was_measured(own, ids, values) or not _tells_apart(table, metric, codes, ids)):
            continue
        told[own] = ids, values
        numeric = all(isinstance(value, int | float) for value in values)
        keys = np.nan_to_num(np.array(values, np.float64), nan=-1.0) if numeric else np.arange(float(len(values)))
        ranks = np.unique(np.append(keys, -1.0), return_inverse=True)[1]
        codes = np.unique(codes * len(ranks) + ranks[ids], return_inverse=True)[1]
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    names = []
    for i in first.tolist():
        values = {own: values[ids[i]] for own, (ids, values) in told.items() if ids[i] >= 0}
        texts = (f"{own}={cells.text(value)}" for own, value in values.items() if isinstance(value, str) or value >= 0)
        names.append(", ".join([name, *texts]))
    return codes, names if len(names) > 1 else [name]


def _was_measured(name: str, ids: np.ndarray, values: list[Any]) -> bool:
    """Whether a column that is named like a setting has more numbers than a sweep has settings."""
    numeric = all(isinstance(value, int | float) for value in values)
    return is_measured(name) and numeric and len(values) > min(MOST_SETTINGS, int(np.count_nonzero(ids >= 0)) / 2)


def _begun_again(
    table: Table, codes: np.ndarray, names: list[str], given: np.ndarray, notices: Notices
) -> tuple[np.ndarray, list[str]]:
    """Runs of a table that names none, where steps that begin again begin another run; says where.

    A run begins again where steps fall to its first one or below, after two steps or more, and then come to steps that
    it had. What falls to a later step is a resumed run (`run_curve.abandoned`), and what gives no step twice, in
    stretches of one or two rows, is merely out of order.
    """
    axis = next((own for own in ("step", "compute") if own in table.columns), None)
    if axis is None:
        return codes, names
    codes, names, steps = codes.copy(), list(names), cells.numbers(table.columns[axis])
    for code in range(len(names)):
        rows = np.flatnonzero((codes == code) & given & np.isfinite(steps))
        own = steps[rows]
        falls = np.flatnonzero(np.diff(own) < 0) + 1
        if not len(falls) or (len(np.unique(own)) == len(own) and 3 * len(falls) > len(own)):
            continue
        stretches = np.split(np.arange(len(own)), falls)
        first, starts = own[0], [0]
        for before, after in itertools.pairwise(stretches):
            if own[after[0]] <= first and own[before[0]] < own[before[-1]] and own[after].max() >= first:
                starts.append(int(after[0]))
                first = own[after[0]]
        for number, (start, end) in enumerate(itertools.pairwise([*starts[1:], None]), 2):
            at = int(rows[start])
            until = len(codes) if end is None else int(rows[end])
            codes[at:until][codes[at:until] == code] = len(names)
            names.append(f"{names[code]} ({number})")
            place = f"{names[-1]} at {table.where(int(table.lines[at]))}, where {axis} falls to {steps[at]:g}"
            what = f"begun where {axis} begins again in a file that names no run (a column `run` says otherwise)"
            notices.changed("run", what, [place])
    return codes, names


def _tells_apart(table: Table, metric: str, codes: np.ndarray, ids: np.ndarray) -> bool:
    """Whether a setting differs between rows of equal facts and step, so that these are of several runs.

    A learning rate that falls within a run has one value at each step.
    """
    axis = next((own for own in ("step", "compute") if own in table.columns), None)
    if axis is None or metric not in table.columns:
        return False
    rows = ~cells.blank(table.columns[metric])
    places = np.unique(cells.numbers(table.columns[axis])[rows], return_inverse=True)[1]
    ids, codes = ids[rows], codes[rows]
    if not len(ids) or ids.min() < 0:
        return False
    at = codes * (places.max() + 1) + places
    return len(np.unique(at * (ids.max() + 1) + ids)) > len(np.unique(at))


def _settings(table: Table, codes: np.ndarray, count: int) -> dict[int, dict[str, Any]]:
    """Run -> its highest learning rate, and its settings; of all rows, for training logs them on rows of its own."""
    found: dict[int, dict[str, Any]] = {}
    for name in table.columns:
        if name == RATE:
            rates = cells.numbers(table.columns[name])
            known = (rates > 0) & (codes >= 0)
            highest = np.zeros(count)
            np.maximum.at(highest, codes[known], rates[known])
            values = {run: float(highest[run]) for run in np.flatnonzero(highest).tolist()}
        elif is_setting(name):
            ids, distinct = _distinct(name, table.columns[name])
            known = (ids >= 0) & (codes >= 0)
            least, most = np.full(count, len(distinct)), np.full(count, -1)
            np.minimum.at(least, codes[known], ids[known])
            np.maximum.at(most, codes[known], ids[known])
            same = least == most
            values = {run: distinct[most[run]] if same[run] else VARIES for run in np.flatnonzero(most >= 0).tolist()}
        else:
            continue
        for run, value in values.items():
            found.setdefault(run, {})[name] = value
    return found


class _Rows:
    """Rows in long form that have the metric, their runs `codes` [n], and which of them are sound so far."""

    def __init__(self, table: Table, codes: np.ndarray, options: ReadOptions, notices: Notices) -> None:
        self.codes = codes
        self._table, self._columns = table, table.columns
        self._sound = np.ones(len(codes), dtype=bool)
        self._numbers: dict[str, np.ndarray] = {}
        self._options, self._notices = options, notices
        notices.rows_seen += len(codes)

    def _leave_out(self, why: str, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        """Reports the sound rows where `bad` [n] is set, each with its reason; they are sound no more."""
        where = np.flatnonzero(bad & self._sound).tolist()
        places = (f"{self._table.where(self._table.lines[i])}: {reason(i)}" for i in where)
        self._notices.left_out("row", why, places, count=len(where))
        self._sound &= ~bad

    def check_metric(self) -> None:
        """Rewards lie in their range; where many do not, the table was written in another one: InputError."""
        name, (low, high) = self._options.metric, self._options.reward_range
        given = self._columns[name]
        values = cells.numbers(given)
        rounding = ROUNDING * (high - low if math.isfinite(high - low) else 1.0)
        inside = (values >= low - rounding) & (values <= high + rounding)
        self._check_range(values[np.isfinite(values)], int(np.count_nonzero(inside)))
        wanted = f"in [{low:g}, {high:g}{']' if math.isfinite(high) else ')'}"
        self._leave_out(
            f"because of {name}",
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
        self._check_units()
        guess = next((ends for ends in USUAL_RANGES if ends[0] <= least and most <= ends[1]), None)
        ends = f"{guess[0]:g},{guess[1]:g}" if guess else "LEAST,MOST"
        share = f"{outside / len(rewards):.1%}, above {MOST_OUTSIDE:.0%}"
        raise InputError(
            f"--reward_range={low:g},{high:g}: {self._table.path}: {outside} of {len(rewards)} values of "
            f"{self._options.metric} lie outside ({share}); they go from {least:g} to {most:g}. Give the "
            f"least and the largest possible reward, e.g. --reward_range={ends}"
        )

    def _check_units(self) -> None:
        """Refuses shares beside percent: values up to 1 lie far below those above, or runs have one kind each."""
        name = self._options.metric
        every = cells.numbers(self._columns[name])
        rows = np.flatnonzero((every > 0) & (every <= 100))
        rows = rows[np.argsort(self.codes[rows], kind="stable")]
        values, runs = every[rows], self.codes[rows]
        share = values <= 1
        change = np.flatnonzero(share[1:] != share[:-1]) + 1
        inside = change[runs[change] == runs[change - 1]]
        high, low = np.maximum(values[inside], values[inside - 1]), np.minimum(values[inside], values[inside - 1])
        few = [np.count_nonzero(kind & (runs == run)) == 1 for kind in (share, ~share) for run in np.unique(runs)]
        if self._options.reward_range != (0.0, 1.0) or not len(change) or np.any(high < JUMP * low) or any(few):
            return
        i = change[0]
        raise InputError(
            f"--runs: {self._table.where(int(self._table.lines[rows[i]]))}: {name} is {values[i]:g} after "
            f"{values[i - 1]:g}: {np.count_nonzero(~share)} of {len(every)} values look like percent, and the others "
            "like shares; write all of them in one unit (if all are percent: --reward_range=0,100)"
        )

    def check_axis(self) -> None:
        """Compute, where given, is a number of at least 0."""
        name = UNITS[self._options.compute]
        if name not in self._columns:
            self._check_step()
            return
        given = self._columns[name]
        values = self._numbers[name] = cells.numbers(given)
        bad = ~(values >= 0)
        self._leave_out(
            f"because of {name}",
            bad & ~cells.blank(given) if bad.any() else bad,
            lambda i: f"{name} is {shown(cells.cell(given, i))}, not a number of at least 0{_comma_remedy(given, i)}",
        )

    def _check_step(self) -> None:
        """A step, where compute follows from it, is a number and no date."""
        given = self._columns.get("step")
        if given is not None:
            bad = ~np.isfinite(cells.numbers(given))
            self._leave_out(
                "because of step",
                bad & ~cells.blank(given) if bad.any() else bad,
                lambda i: f"step is {shown(cells.cell(given, i))}, not a number{_comma_remedy(given, i)}",
            )

    def check_runs(self, count: int) -> dict[int, dict[str, Any]]:
        """Run -> its facts and labels: rows name their run, facts are whole, and rows agree with the run's first."""
        self._leave_out("without a run", self.codes < 0, lambda i: "it has no `run`")
        found: dict[int, dict[str, Any]] = {}
        for name in (name for name in (*FACTS, *LABELS) if name in self._columns):
            column = self._columns[name]
            ids, values = _distinct(name, column)
            if name not in LABELS:
                self._leave_out(
                    f"because of {name}",
                    np.array([*(not is_whole(value) for value in values), False])[ids],
                    lambda i, name=name, column=column: (
                        f"{name} is {shown(cells.cell(column, i))}, not a whole number"
                        f"{' of at least 1' * (cells.number(cells.cell(column, i)) < 0)}"
                    ),
                )
            rows = np.flatnonzero(self._sound & (ids >= 0))[::-1]
            began = np.full(max(count, 1), -1)
            began[self.codes[rows]] = ids[rows]  # of a run that comes several times the last counts: its first row
            text = shown if name in LABELS else "{:g}".format
            self._leave_out(
                f"because of {name}",
                (ids >= 0) & (ids != began[self.codes]),
                lambda i, name=name, ids=ids, values=values, began=began, text=text: (
                    f"{name} is {text(values[ids[i]])}, but the run began with {text(values[began[self.codes[i]]])}"
                ),
            )
            for run in np.flatnonzero(began >= 0).tolist():
                found.setdefault(run, {})[name] = values[began[run]]
        return found

    def numbers(self) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Of the sound rows: their runs, lines and numbers by column."""
        others = [name for name in self._columns if name not in OURS]
        for name in (*MEASURES, *others):
            if name in self._columns and name not in self._numbers:
                self._numbers[name] = cells.numbers(self._columns[name])
        found = {name: values[self._sound] for name, values in self._numbers.items()}
        known = {name: values for name, values in found.items() if np.isfinite(values).any()}
        return self.codes[self._sound], self._table.lines[self._sound], known


def _comma_remedy(column: cells.Column, i: int) -> str:
    """What to do about a cell that is no number because of its comma or percent sign; empty for any other cell."""
    found = cells.cell(column, i)
    if isinstance(found, str) and found.rstrip().endswith("%"):
        return "; write it without a percent sign, and give --reward_range=0,100"
    if not isinstance(found, str) or not WITH_COMMAS.fullmatch(found):
        return ""
    return "; write it with a decimal point and without marks of thousands"


def _facts_of_run(
    run: str, said: Mapping[str, Any], table: Table, options: ReadOptions, notices: Notices, *, sized: bool
) -> dict[str, float]:
    """The facts of a run: what its table says, else its name, else the constants."""
    known = {name: said[name] for name in FACTS if said.get(name, 0) > 0 or (name == "seed" and name in said)}
    named = facts_of_name(run, options.run_pattern) if options.run_pattern else {}
    if named is None:
        why = f"without facts from their names, which --run_pattern={options.run_pattern} does not fit"
        notices.changed("run", f"read {why}", [f"{run} of {table.path}"], finding=True)
    size = facts_of_name(run, SIZE) or {} if sized and "model_params" not in known else {}
    return dict(options.constants) | size | (named or {}) | known


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
    hint = "" if facts.get("group_size") else _hint(readings, "group_size")
    if hint and known.any():
        what = f"read without n, which a column may be: --columns={hint}:group_size"
        notices.changed("run", what, [f"{readings.run} of {readings.source.path}"])
    if not known.any():
        return _remedy(readings, facts, step, options)
    lost = np.flatnonzero(~known).tolist()
    notices.left_out("row", f"without {name}, given or derived", map(readings.where, lost), count=len(lost))
    columns = {key: values for key, values in columns.items() if np.isfinite(values[known]).any()}
    found = dataclasses.replace(readings, axis=axis, columns=columns)
    return found if known.all() else found.keep(np.flatnonzero(known))


def _remedy(readings: Readings, facts: Mapping[str, int], step: np.ndarray, options: ReadOptions) -> str:
    name = UNITS[options.compute]
    if name != "compute":
        return f"no row has its {name} (--compute={options.compute}); say --columns=THEIRS:{name}"
    if not np.isfinite(step).any():
        return "neither compute nor step is given; say --columns=THEIRS:compute or --columns=THEIRS:step"
    unknown = [fact for fact in ("group_size", "problems_per_batch") if not facts.get(fact)]
    if not unknown:
        return "no row's step is a number of at least 0"
    ways = " and ".join(
        f"{fact} by --columns={_hint(readings, fact) or 'THEIRS'}:{fact}, --constants={fact}=N or "
        f"(?P<{fact}>\\d+) in --run_pattern"
        for fact in unknown
    )
    pattern = "" if options.run_pattern else _pattern_for(readings.run)
    named = f" (names of runs may have it: --run_pattern='{pattern}')" if pattern else ""
    return (
        f"compute is not given, and step x problems_per_batch x group_size lacks {' and '.join(unknown)}; "
        f"give --columns=THEIRS:compute, or {ways}{named}, or fit curves over steps by --compute=steps"
    )


def _hint(readings: Readings, fact: str) -> str:
    """A column that may be the fact; empty where none is called so."""
    return next((name for name in readings.columns if name.lower() in HINTS[fact]), "")


def _pattern_for(run: str) -> str:
    """A pattern for the facts that a run's name seems to have, in its order; empty without n."""
    found = {}
    for fact, begin in IN_NAMES.items():
        match = re.search(rf"(?<![A-Za-z])({begin})\d+(?![\d.]*[A-Za-z])", run)
        if match:
            found[match.start()] = f"(?<![A-Za-z]){re.escape(match[1]).replace(chr(92) + '-', '-')}(?P<{fact}>\\d+)"
    pattern = ".*".join(found[place] for place in sorted(found))
    return pattern if "<group_size>" in pattern else ""
