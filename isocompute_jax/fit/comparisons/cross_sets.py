"""Training sets against evaluation sets: what training on one does to the others, and what it makes a model forget.

Rewards are those of each seed, paired with the same seed's base model (compute 0); intervals are Student's over seeds.
A set is forgotten where training ends below the base model, or below the best that training had reached on it. That
best is picked because it is high: on average a fall from it is a little above 0 where nothing falls.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from isocompute_jax.fit.comparisons.alike import aligned
from isocompute_jax.fit.comparisons.comparison import ComparisonResult, DrawnSeries, Panel, Picture, Value, over_seeds
from isocompute_jax.fit.curves.seeds import average_seeds, group_runs
from isocompute_jax.fit.frontier_results import OfConfiguration
from isocompute_jax.fit.read import ReadOptions, RunCurve, read_curves
from isocompute_jax.fit.report.wording import amount, listed, shortened, unit
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable

MIXTURE, MIXED = "curriculum.train_sets.", " + "
"""The fields that name the sets of a mixture, and what stands between their names."""
UNNAMED = "an unnamed set"


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedOn(OfConfiguration):
    """One configuration, trained on one set and evaluated on one.

    Attributes:
      train_set: what it was trained on.
      eval_set: what it was evaluated on.
      configuration: which one.
      compute: [E] of the evaluations that all seeds have; 0 is the base model.
      reward: [S, E].
    """

    train_set: str
    eval_set: str
    configuration: Configuration
    compute: np.ndarray
    reward: np.ndarray

    @property
    def final(self) -> Value:
        """Reward at the end."""
        return over_seeds(self.reward[:, -1])

    @property
    def peak(self) -> int:
        """Number of the evaluation with the highest mean."""
        return int(self.reward.mean(axis=0).argmax())

    @property
    def best(self) -> Value:
        """Reward at the peak."""
        return over_seeds(self.reward[:, self.peak])

    @property
    def fall(self) -> Value:
        """From the peak to the end."""
        return over_seeds(self.reward[:, self.peak] - self.reward[:, -1])

    @property
    def has_base(self) -> bool:
        """Whether the base model was evaluated."""
        return bool(self.compute[0] == 0)

    @property
    def change(self) -> Value | None:
        """From the base model to the end; None without its evaluation."""
        return over_seeds(self.reward[:, -1] - self.reward[:, 0]) if self.has_base else None

    @property
    def drawn(self) -> DrawnSeries:
        """The mean change from the base model over compute; empty without its evaluation."""
        kept = (self.compute > 0) & self.has_base
        change = (self.reward[:, kept] - self.reward[:, :1]).mean(axis=0)
        panel = f"{shortened(self.train_set, 14)} \N{RIGHTWARDS ARROW} {shortened(self.eval_set, 14)}"
        hover = (f"{self.run}: {change[-1]:+z.3f} at the end",) if len(change) else ()
        return DrawnSeries(self.run, self.compute[kept], change, panel, tone=self.group_size or self.run, hover=hover)


@dataclasses.dataclass(frozen=True, eq=False)
class CrossSets:
    """Every configuration on every set that it was evaluated on; `cells` in order of training set, set and n."""

    metric: str
    cells: tuple[TrainedOn, ...]

    @property
    def train_sets(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(cell.train_set for cell in self.cells))

    @property
    def eval_sets(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(cell.eval_set for cell in self.cells))

    def of(self, train_set: str, eval_set: str) -> list[TrainedOn]:
        """The configurations of a pair of sets, in order of n."""
        return [cell for cell in self.cells if (cell.train_set, cell.eval_set) == (train_set, eval_set)]

    @property
    def pairs(self) -> list[list[TrainedOn]]:
        """The configurations of each pair of sets that has some."""
        found = [self.of(train_set, eval_set) for train_set in self.train_sets for eval_set in self.eval_sets]
        return [cells for cells in found if cells]

    @property
    def at_best_n(self) -> list[TrainedOn]:
        """Of each pair of sets the configuration with the highest final reward: picked, so a little high."""
        return [max(cells, key=lambda cell: cell.final.value) for cells in self.pairs]

    @property
    def crossed(self) -> bool:
        """Whether a training set has two evaluation sets, or an evaluation set two training sets."""
        pairs = [(cells[0].train_set, cells[0].eval_set) for cells in self.pairs]
        return any(len({pair[i] for pair in pairs}) < len(pairs) for i in (0, 1))


def cross_sets(trained: Mapping[str, Mapping[str, Sequence[RunCurve]]], metric: str) -> CrossSets:
    """The matrix of training sets and evaluation sets.

    Args:
      trained: training set -> evaluation set -> the runs that were trained on the one, as they fared on the other
        (`read_eval_sets` reads the inner mapping of one sweep, `by_training_set` makes the whole of several together).
      metric: column of the rewards.
    """
    cells = []
    for train_set, evaluated in trained.items():
        for eval_set, runs in evaluated.items():
            for group in group_runs(runs)[0]:
                curve = average_seeds(group, metric)
                compute, reward = aligned(curve) if curve is not None else (np.empty(0), np.empty((0, 0)))
                if np.any(compute > 0):
                    cells.append(TrainedOn(train_set, eval_set, group.configuration, compute, reward))
    return CrossSets(metric, tuple(cells))


def read_eval_sets(sources: Sequence[str], options: ReadOptions) -> tuple[dict[str, list[RunCurve]], list[str]]:
    """Reads the runs of `sources` once for each evaluation set that they have.

    Args:
      sources: as `read_curves` takes them.
      options: how to read; `eval_set` is the first.

    Returns:
      Evaluation set -> runs, and the warnings of reading.

    Raises:
      InputError: no usable run is evaluated on `options.eval_set`, or a finding under `options.strict`.
    """
    runs, warnings = read_curves(sources, options)
    others, more = other_eval_sets(runs, options)
    return {options.eval_set: runs, **others}, list(dict.fromkeys([*warnings, *more]))


def other_eval_sets(runs: Sequence[RunCurve], options: ReadOptions) -> tuple[dict[str, list[RunCurve]], list[str]]:
    """The same of runs that were read from files on `options.eval_set`: their other sets.

    A set that cannot be read is named among the warnings.
    """
    found: dict[str, list[RunCurve]] = {}
    warnings: list[str] = []
    names = dict.fromkeys(name for run in runs for name in run.eval_sets if name != options.eval_set)
    for name in names:
        sources = dict.fromkeys(run.source for run in runs if name in run.eval_sets)
        try:
            found[name], more = read_curves(list(sources), dataclasses.replace(options, eval_set=name))
            warnings += more
        except InputError as error:
            warnings.append(f"evaluation set {name}: {error}")
    return found, warnings


def by_training_set(evaluated: Mapping[str, Sequence[RunCurve]]) -> dict[str, dict[str, list[RunCurve]]]:
    """Runs of several training sets, by evaluation set -> training set -> evaluation set -> runs.

    A training set is the run's `train_set`, or the names of its mixture. Evaluation sets of one name that are different
    files, as config.json has them, are told apart.
    """
    known = {name: dict.fromkeys(_file(run, name) for run in runs) for name, runs in evaluated.items()}
    called = {
        (name, file): printable(name if len(files) == 1 else f"{name} ({short})")
        for name, files in known.items()
        for file, short in short_names(files).items()
    }
    train_sets = {_training_set(run) for runs in evaluated.values() for run in runs}
    mixed = {name: name or UNNAMED for name in train_sets if MIXED in name or not name}
    train_names = mixed | short_names(sorted(train_sets - mixed.keys()))
    found: dict[str, dict[str, list[RunCurve]]] = {}
    for name, runs in evaluated.items():
        for run in runs:
            on_set = found.setdefault(train_names[_training_set(run)], {})
            on_set.setdefault(called[name, _file(run, name)], []).append(run)
    return dict(sorted(found.items()))


def _training_set(run: RunCurve) -> str:
    """What a run says that it was trained on; empty where it does not."""
    mixed = sorted(name.removeprefix(MIXTURE) for name in run.identity if name.startswith(MIXTURE))
    return MIXED.join(mixed) or str(run.identity.get("train_set") or "")


def _file(run: RunCurve, eval_set: str) -> str:
    """The file of an evaluation set, as config.json has it; empty for a table's."""
    return str(run.identity.get(f"evaluation.sets.{eval_set}", ""))


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its parts without those that all paths begin or end with: `hard` of `curated/hard/train.jsonl`.

    One path alone is called by its last part, without the ending of a file of problems. A path that would have no name
    keeps all of its parts.
    """
    parts = {path: path.rstrip("/").split("/") for path in paths}
    if len(parts) == 1:
        return {path: _stem(own[-1]) for path, own in parts.items()}
    start = _shared(list(parts.values()))
    end = _shared([own[start:][::-1] for own in parts.values()])
    return {path: _stem("/".join(own[start : len(own) - end])) or path for path, own in parts.items()}


def _stem(name: str) -> str:
    return name.removesuffix(".jsonl").removesuffix(".parquet")


def _shared(sequences: Sequence[Sequence[str]]) -> int:
    """How many of their first parts all have in common."""
    return sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*sequences, strict=False)))


def compare_sets(result: SweepResult) -> list[ComparisonResult]:
    """One, where runs were evaluated on several sets, or trained on several; the other sets are read for it."""
    others, warnings = other_eval_sets(result.runs, result.options.read)
    found = cross_sets(by_training_set({result.options.read.eval_set: result.runs, **others}), result.metric)
    if not found.crossed:
        return []
    new = [text for text in warnings if text not in result.warnings]
    forgotten = _of_forgetting(found, result)
    based = all(cell.has_base for cell in found.cells)
    picture = Picture(
        "Change of reward from the base model over compute, for each training set and evaluation set",
        "Each panel: trained on the first, evaluated on the second. Below the line the model does worse than it did "
        "before training.",
        Panel(f"change of {result.metric}", zero=True),
        columns=min(3, max(2, len(found.eval_sets))),
    )
    nothing = "Nothing is forgotten: no configuration ends below the base model, or clearly below its own best."
    return [
        ComparisonResult(
            question="cross_sets",
            verdict="forgets" if forgotten else "keeps",
            findings=(*_of_sets(found), *(forgotten or [nothing]), *new),
            columns={
                "train_set": "trained on", "eval_set": "evaluated on", "run": "best", "final": "at the end",
                "best": "best reward", "compute": f"at, {unit(result)}", "change": "change",
            },
            rows=tuple(
                {
                    "train_set": cell.train_set,
                    "eval_set": cell.eval_set,
                    "run": cell.run,
                    "final": cell.final,
                    "best": cell.best.value,
                    "compute": float(cell.compute[cell.peak]),
                    "change": cell.change,
                    "fall": cell.fall,
                }
                for cell in found.at_best_n
            ),
            series=tuple(cell.drawn for cells in found.pairs for cell in cells) if based else (),
            title="Training sets against evaluation sets",
            about=f"{result.metric} of each training set on each evaluation set, at the n that ends highest there, "
            "picked by its reward and so a little high. Changes are from the base model, seed by seed; intervals are "
            "95% over seeds. Best is the highest evaluation of training: it is picked too.",
            picture=picture if based else None,
        )
    ]  # fmt: skip


def _of_sets(found: CrossSets) -> list[str]:
    """Which training set ends highest on each evaluation set."""
    texts = []
    for eval_set in found.eval_sets:
        cells = sorted((c for c in found.at_best_n if c.eval_set == eval_set), key=lambda cell: -cell.final.value)
        if len(cells) > 1:
            ends = listed(f"{cell.train_set}, {cell.run}: {cell.final}" for cell in cells)
            texts.append(f"On {eval_set}, by what was trained on, the best end at {ends}.")
    return texts


def _of_forgetting(found: CrossSets, result: SweepResult) -> list[str]:
    """Where training ends below the base model, or below its own best."""
    texts = []
    for cells in found.pairs:
        where = f"Trained on {cells[0].train_set}, {cells[0].eval_set}"
        lost = [(cell, change) for cell in cells if (change := cell.change) is not None and change.value < 0]
        if lost:
            cell, change = min(lost, key=lambda pair: pair[1].value)
            sure = sum(change.sign < 0 for _, change in lost)
            texts.append(
                f"{where} ends below the base model in {len(lost)} of {len(cells)} configurations, beyond the 95% "
                f"interval in {sure}; most with {cell.run}, where it changes by {change}."
            )
        falls = [(cell, fall) for cell in cells if (fall := cell.fall).sign > 0]
        if falls:
            cell, fall = max(falls, key=lambda pair: pair[1].value)
            since = f"{amount(cell.compute[cell.peak])} {unit(result)}"
            texts.append(
                f"{where} falls from its best, beyond the 95% interval, in {len(falls)} of {len(cells)} "
                f"configurations; most with {cell.run}: by {fall} since {since}."
            )
    return texts
