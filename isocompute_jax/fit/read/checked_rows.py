"""Rows in long form are checked one block at a time and gathered by run; what is kept is numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.blocks import Block, TableError
from isocompute_jax.fit.read.decimal_commas import comma_remedy
from isocompute_jax.fit.read.labels import Labels, label_codes
from isocompute_jax.fit.read.notices import Notices, shown
from isocompute_jax.fit.read.read_options import FACTS, ReadOptions, facts_of_name
from isocompute_jax.fit.read.run_curve import CLOCK, SOLVE_SHARES, UNITS, Readings, Source, solve_shares
from isocompute_jax.fit.read.table_layout import OURS
from isocompute_jax.records.errors import InputError

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
IDENTITY = tuple(name for name in FACTS if name != "num_steps")
"""Facts that tell runs apart in a table without a `run` column."""

ROUNDED = frozenset({"model_params", "problem_set_size"})
"""Facts that tables may give with a fraction, where they were computed ..."""
LEAST_ROUNDED = 1000
"""... and that are large: 1.5 parameters are billions, which is for their writer to say."""

HISTOGRAM = "solve_rate_histogram"


class _Rewards:
    """Which rewards of a table lie in the range, and how many do not."""

    def __init__(self, options: ReadOptions) -> None:
        self._metric, (self._low, self._high) = options.metric, options.reward_range
        width = self._high - self._low
        self._rounding = ROUNDING * (width if math.isfinite(width) else 1.0)
        self._count = self._outside = 0
        self._least, self._most = math.inf, -math.inf

    def inside(self, values: np.ndarray) -> np.ndarray:
        """[n] bool: rewards in the range; counts those that are numbers."""
        found = (values >= self._low - self._rounding) & (values <= self._high + self._rounding)
        numbers = values[np.isfinite(values)]
        self._count += len(numbers)
        self._outside += len(numbers) - int(np.count_nonzero(found))
        if len(numbers):
            self._least, self._most = min(self._least, numbers.min()), max(self._most, numbers.max())
        return found

    def check(self, source: Source) -> None:
        """Refuses a table that was written in another range.

        Raises:
          InputError: more than `MOST_OUTSIDE` of the rewards lie outside.
        """
        if self._outside <= MOST_OUTSIDE * self._count:
            return
        guess = next((ends for ends in USUAL_RANGES if ends[0] <= self._least and self._most <= ends[1]), None)
        ends = f"{guess[0]:g},{guess[1]:g}" if guess else "LEAST,MOST"
        share = f"{self._outside / self._count:.1%}, above {MOST_OUTSIDE:.0%}"
        raise InputError(
            f"--reward_range={self._low:g},{self._high:g}: {source.path}: {self._outside} of {self._count} values of "
            f"{self._metric} lie outside ({share}); they go from {self._least:g} to {self._most:g}. Give the "
            f"least and the largest possible reward, e.g. --reward_range={ends}"
        )


class Collector:
    """Gathers the runs of one table.

    Args:
      source: the table.
      options: as given.
      notices: where bad rows are reported.
      name: the run's name when a table says nothing about runs.
      facts: what is known about every row (a run directory's config.json).
    """

    def __init__(
        self,
        source: Source,
        options: ReadOptions,
        notices: Notices,
        *,
        name: str,
        facts: Mapping[str, int] | None,
    ) -> None:
        self.rows_with_metric = 0
        self._rewards = _Rewards(options)
        self._source, self._options, self._notices = source, options, notices
        self._name, self._given = name, facts
        self._runs: dict[str, int] = {}
        self._eval_sets: dict[str, None] = {}
        self._labels = Labels()
        self._facts = np.empty((0, len(FACTS)))
        self._chunks: list[dict[str, np.ndarray]] = []
        self._left_out: dict[str, list[tuple[str, int]]] = {}
        self._rates: dict[int, tuple[float, float]] = {}

    def add(self, block: Block) -> None:
        """Takes the rows that have the metric and belong to the evaluation set; reports those that are wrong."""
        metric = self._options.metric
        self._note_rates(block)
        if metric not in block.columns:
            return
        block = block.keep(~cells.blank(block.columns[metric]))
        block = block.keep(self._in_eval_set(block))
        self.rows_with_metric += len(block.lines)
        for check in (self._without_run, self._wrong_facts, self._wrong_metric, self._wrong_axis):
            if len(block.lines):
                block = block.keep(~check(block))
        if not len(block.lines):
            return
        runs, facts = self._codes(block), self._fact_numbers(block)
        good = ~(self._changed_facts(block, runs, facts) | self._changed_labels(block, runs))
        block, runs = block.keep(good), runs[good]
        self._chunks.append({"": runs.astype(np.int16), "line": block.lines} | self._numbers(block))

    def _note_rates(self, block: Block) -> None:
        """Least and largest learning rate of each run, of all its rows: training logs it on rows of its own."""
        if RATE not in block.columns:
            return
        block = block.keep(cells.numbers(block.columns[RATE]) > 0)
        if self._given is None and "run" in block.columns:
            block = block.keep(cells.texts(block.columns["run"])[0] >= 0)
        if not len(block.lines):
            return
        codes, rates = self._codes(block), cells.numbers(block.columns[RATE])
        for code in np.unique(codes).tolist():
            own = rates[codes == code]
            least, most = self._rates.get(code, (math.inf, 0.0))
            self._rates[code] = min(least, float(own.min())), max(most, float(own.max()))

    def _in_eval_set(self, block: Block) -> np.ndarray:
        if "eval_set" not in block.columns:
            return np.ones(len(block.lines), dtype=bool)
        codes, names = cells.texts(block.columns["eval_set"])
        self._eval_sets |= dict.fromkeys(names[code] for code in np.unique(codes) if code >= 0)
        return np.array([name == self._options.eval_set for name in names] + [True], dtype=bool)[codes]

    def _without_run(self, block: Block) -> np.ndarray:
        if self._given is not None or "run" not in block.columns:
            return np.zeros(len(block.lines), dtype=bool)
        bad = cells.texts(block.columns["run"])[0] < 0
        self._report(block, "row left out without a run", bad, lambda i: "it has no `run`")
        return bad

    def _wrong_facts(self, block: Block) -> np.ndarray:
        wrong = np.zeros(len(block.lines), dtype=bool)
        if self._given is not None:
            return wrong
        for name, values in self._fact_numbers(block).items():
            given = block.columns[name]
            whole = (values >= 0) & (values < 2**63) & (values == np.floor(values))
            bad = ~cells.blank(given) & ~whole
            self._report(
                block,
                f"row left out for its {name}",
                bad & ~wrong,
                lambda i, name=name, given=given: f"{name} is {shown(cells.cell(given, i))}, not a whole number",
            )
            wrong |= bad
        return wrong

    def _wrong_metric(self, block: Block) -> np.ndarray:
        name, (low, high) = self._options.metric, self._options.reward_range
        given = block.columns[name]
        values = cells.numbers(given)
        bad = ~self._rewards.inside(values)
        wanted = f"in [{low:g}, {high:g}{']' if math.isfinite(high) else ')'}"
        self._report(
            block,
            f"row left out for its {name}",
            bad,
            lambda i: f"{name} is {shown(cells.cell(given, i))}, not a number {wanted}{comma_remedy(given, i)}",
        )
        return bad

    def _wrong_axis(self, block: Block) -> np.ndarray:
        name = UNITS[self._options.compute]
        if name not in block.columns:
            return np.zeros(len(block.lines), dtype=bool)
        given = block.columns[name]
        bad = ~(cells.numbers(given) >= 0) & ~cells.blank(given)
        self._report(
            block,
            f"row left out for its {name}",
            bad,
            lambda i: f"{name} is {shown(cells.cell(given, i))}, not a number of at least 0{comma_remedy(given, i)}",
        )
        return bad

    def _changed_facts(self, block: Block, runs: np.ndarray, facts: dict[str, np.ndarray]) -> np.ndarray:
        """[n] bool: rows that contradict what the run's earlier rows said; takes note of what is new."""
        wrong = np.zeros(len(runs), dtype=bool)
        for name, values in facts.items():
            column = FACTS.index(name)
            known = np.flatnonzero(np.isfinite(values))
            codes, first = np.unique(runs[known], return_index=True)
            unset = np.isnan(self._facts[codes, column])
            self._facts[codes[unset], column] = values[known[first[unset]]]
            before = self._facts[runs, column]
            bad = np.isfinite(values) & (values != before)
            self._report(
                block,
                f"row left out for its {name}",
                bad & ~wrong,
                lambda i, name=name, values=values, before=before: (
                    f"{name} is {values[i]:g}, but the run began with {before[i]:g}"
                ),
            )
            wrong |= bad
        return wrong

    def _changed_labels(self, block: Block, runs: np.ndarray) -> np.ndarray:
        """[n] bool: the same of the words that tables say of runs; a run directory's stand in its config.json."""
        wrong = np.zeros(len(runs), dtype=bool)
        for name, bad in self._labels.changed(block, runs) if self._given is None else ():
            given, of_run = block.columns[name], [self._labels.of(run).get(name) for run in range(len(self._runs))]
            self._report(
                block,
                f"row left out for its {name}",
                bad & ~wrong,
                lambda i, name=name, given=given, of_run=of_run: (
                    f"{name} is {shown(cells.cell(given, i))}, but the run began with {shown(of_run[runs[i]])}"
                ),
            )
            wrong |= bad
        return wrong

    def _fact_numbers(self, block: Block) -> dict[str, np.ndarray]:
        if self._given is not None:
            return {}
        found = {name: cells.numbers(block.columns[name]) for name in FACTS if name in block.columns}
        for name in ROUNDED & found.keys():
            found[name] = np.where(found[name] >= LEAST_ROUNDED, np.round(found[name]), found[name])
        return found

    def _codes(self, block: Block) -> np.ndarray:
        """[n] number of each row's run."""
        count = len(block.lines)
        if self._given is None and "run" in block.columns:
            codes, names = cells.texts(block.columns["run"])
            return np.array([self._code(name) for name in names])[codes]
        facts = {name: values for name, values in self._fact_numbers(block).items() if name in IDENTITY}
        labels = label_codes(block)
        if not facts and not labels:
            return np.full(count, self._code(self._name))
        columns = {**facts, **{name: codes for name, (codes, _) in labels.items()}}
        rows = np.nan_to_num(np.stack(list(columns.values()), axis=1), nan=-1.0)
        distinct, codes = np.unique(rows, axis=0, return_inverse=True)
        told = [
            [
                f"{name}={labels[name][1][int(value)] if name in labels else f'{value:.0f}'}"
                for name, value in zip(columns, row, strict=True)
                if value >= 0
            ]
            for row in distinct
        ]
        return np.array([self._code(", ".join([self._name, *parts])) for parts in told])[codes.reshape(-1)]

    def _code(self, run: str) -> int:
        code = self._runs.setdefault(run, len(self._runs))
        if code >= MAX_RUNS:
            raise TableError(f"it has more than {MAX_RUNS} runs; is its `run` column the name of a run?")
        if code >= len(self._facts):
            more = np.full((len(self._facts) + 16, len(FACTS)), np.nan)
            self._facts = np.concatenate([self._facts, more])
        return code

    def _numbers(self, block: Block) -> dict[str, np.ndarray]:
        metric = self._options.metric
        wanted = [metric, *(name for name in MEASURES if name in block.columns)]
        wanted += [name for name in block.columns if name not in (*wanted, *OURS, HISTOGRAM)]
        found = {name: cells.numbers(block.columns[name]) for name in wanted}
        found[metric] = np.clip(found[metric], *self._options.reward_range)
        if HISTOGRAM in block.columns:
            values = block.columns[HISTOGRAM]
            counts = [solve_shares(cells.cell(values, i)) for i in range(len(values))]
            found |= dict(zip(SOLVE_SHARES, np.array(counts).T, strict=True))
        return {name: values for name, values in found.items() if name in MEASURES or np.isfinite(values).any()}

    def _report(self, block: Block, kind: str, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        self._notices.rows(
            str(self._source.path),
            kind,
            bad,
            lambda i: f"{self._source.where(block.lines[i])}: row left out: {reason(i)}",
        )

    def runs(self) -> Iterator[Readings]:
        """The runs in order of their first rows, with compute on every row; empties the collector.

        Raises:
          InputError: more than `MOST_OUTSIDE` of the rewards lie outside of the range.
        """
        self._rewards.check(self._source)
        if not self._chunks:
            return
        sizes = [len(chunk[""]) for chunk in self._chunks]
        names = list(dict.fromkeys(name for chunk in self._chunks for name in chunk))
        columns = {
            name: np.concatenate([
                chunk.pop(name) if name in chunk else np.full(size, np.nan)
                for chunk, size in zip(self._chunks, sizes, strict=True)
            ])
            for name in names
        }  # fmt: skip
        self._chunks = []
        codes, lines = columns.pop(""), columns.pop("line")
        if np.any(np.diff(codes) < 0):  # else the rows of each run stand together, and slices need no copies
            order = np.argsort(codes, kind="stable")
            lines, columns = lines[order], {name: columns.pop(name)[order] for name in list(columns)}
        ends = np.cumsum(np.bincount(codes, minlength=len(self._runs)))
        for run, code in self._runs.items():
            rows = slice(ends[code - 1] if code else 0, ends[code])
            if rows.start < rows.stop:
                own = {name: values[rows] for name, values in columns.items()}
                readings = self._readings(run, code, lines[rows], own)
                if readings is not None:
                    yield readings
        self._report_left_out()

    def _report_left_out(self) -> None:
        """Runs without compute: one message for all that lack the same."""
        for remedy, found in self._left_out.items():
            run, line = found[0]
            which = f"run {run}" if len(found) == 1 else f"{len(found)} runs, the first of them {run},"
            text = f"{self._source.where(line)}: {which} left out: {remedy}"
            self._notices.finding(self._source.path, "run left out without compute", text)

    def _known(self, run: str, code: int) -> dict[str, int]:
        """The facts of a run: config.json or the table, else its name, else the constants."""
        if self._given is not None:
            return dict(self._given)
        known = {name: int(value) for name, value in zip(FACTS, self._facts[code], strict=True) if value == value}
        known = {name: value for name, value in known.items() if value > 0 or name == "seed"}
        named = facts_of_name(run, self._options.run_pattern) if self._options.run_pattern else {}
        if named is None:
            text = f"{self._source.path}: run {run}: --run_pattern={self._options.run_pattern} does not fit its name"
            self._notices.finding(self._source.path, "run whose name --run_pattern does not fit", text)
        constants = {name: int(value) for name, value in self._options.constants.items()}
        return constants | (named or {}) | known

    def _readings(self, run: str, code: int, lines: np.ndarray, columns: dict[str, np.ndarray]) -> Readings | None:
        """Derives rollouts where a table gives none, by C = B_problem n M (docs/method.md, Compute)."""
        facts = self._known(run, code)
        nothing = np.full(len(lines), np.nan)
        per_step = facts.get("problems_per_batch", 0) * facts.get("group_size", 0)
        step = columns.get("step", nothing)
        if self._given is None and per_step and not np.isfinite(columns.get("compute", nothing)).any():
            with np.errstate(over="ignore"):
                derived = step * per_step
            columns["compute"] = np.where(np.isfinite(derived), derived, np.nan)
        axis = columns.get(UNITS[self._options.compute], nothing)
        if self._options.compute == CLOCK:  # what passed until then has trained nothing
            base = (columns.get("compute", nothing) == 0) | (step == 0)
            axis = np.where(base & np.isfinite(axis), 0.0, axis)
        known = axis >= 0
        if not known.any():
            self._left_out.setdefault(self._remedy(facts, step), []).append((run, int(lines[0])))
            return None
        name = UNITS[self._options.compute]
        self._notices.rows(
            str(self._source.path),
            f"row left out without {name}",
            ~known,
            lambda i: f"{self._source.where(lines[i])}: row left out: its {name} is neither given nor can be derived",
        )
        if not known.all():
            lines, axis, columns = lines[known], axis[known], {key: values[known] for key, values in columns.items()}
        columns = {key: values for key, values in columns.items() if np.isfinite(values).any()}
        labels, sets = self._labels.of(code), tuple(self._eval_sets)
        return Readings(run, facts, lines, axis, columns, labels, sets, self._rates.get(code))

    def _remedy(self, facts: dict[str, int], step: np.ndarray) -> str:
        name = UNITS[self._options.compute]
        if name != "compute":
            return f"no row has its {name} (--compute={self._options.compute}); say --columns=THEIRS:{name}"
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
