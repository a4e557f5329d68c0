"""What was trained on beside what was evaluated on: the train-test gap, and training sets against evaluation sets.

A group size that wins on its own training problems may do so by heart. The reward of training between two evaluations,
at C1 and C2, belongs to the policies in between: rollouts are spread evenly over C, so a reward that is linear in log C
takes its mean over the stretch at C1 rho^w with rho = C2 / C1 and w = rho / (rho - 1) - 1 / ln rho (a little above
1/2). There the held-out reward is read off, linear in log C, and the gap is training minus held-out.

Of several sets, rewards are those of each seed, paired with the same seed's base model (compute 0); intervals are
Student's over seeds. A set is forgotten where training ends below the base model, or below the best that training had
reached on it. That best is picked because it is high: where nothing falls, a fall from it is still a little above 0.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from isocompute_jax.fit.analysis import frontier_budgets
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    common_verdict,
    n_star_series,
    over_seeds,
)
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, aligned, average_seeds, group_runs
from isocompute_jax.fit.read import TRAIN_REWARD, ReadOptions, RunCurve, read_curves
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import cell, shortened, unit
from isocompute_jax.fit.results import Configuration, OfConfiguration
from isocompute_jax.fit.stages import Stages
from isocompute_jax.fit.sweep_results import FrontierBudget, SweepResult
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import printable

HELD_OUT = "held-out reward"
LEAST_STRETCHES = 3
"""Fewer say nothing of a course over compute."""
MIXTURE, MIXED = "curriculum.train_sets.", " + "
"""The fields that name the sets of a mixture, and what stands between their names."""
UNNAMED = "an unnamed set"


@dataclasses.dataclass(frozen=True, eq=False)
class GapCurve(OfConfiguration):
    """The two rewards of one configuration over compute, seed by seed."""

    configuration: Configuration
    compute: np.ndarray  # [E] where the means of the stretches between evaluations stand
    train: np.ndarray  # [S, E] mean reward of the training rollouts of each stretch
    held_out: np.ndarray  # [S, E] held-out reward there

    @property
    def gap(self) -> list[Value]:
        """[E] training minus held-out reward."""
        return [over_seeds(values) for values in (self.train - self.held_out).T]

    @property
    def grows(self) -> bool:
        """Whether the gap does from the first stretch to the last, beyond its interval."""
        return over_seeds((self.train - self.held_out)[:, [0, -1]] @ [-1.0, 1.0]).sign > 0


def train_test_gaps(runs: Sequence[RunCurve], options: AnalysisOptions) -> tuple[GapCurve, ...]:
    """Training beside held-out reward, without a fit.

    Args:
      runs: with a column `train/reward`: the mean reward of the rollouts since the evaluation before. Run directories
        have it (`read.training_log`), tables where they give it.
      options: of the analysis; `metric` is the held-out reward.

    Returns:
      One for each configuration; () where runs have no training reward, too few evaluations, or one outside of
      `reward_range`.
    """
    curves = (_gap_curve(group) for group in _stretched(runs, options))
    return tuple(curve for curve in curves if curve is not None)


def _stretched(runs: Sequence[RunCurve], options: AnalysisOptions) -> list[ConfigurationRuns]:
    """The configurations with training reward, by stretches; none where it is in other units."""
    stretches = [found for run in runs if (found := _stretches(run, options.metric)) is not None]
    low, high = options.read.reward_range
    if any(np.any((reward := run.columns[TRAIN_REWARD]) < low) or np.any(reward > high) for run in stretches):
        return []
    return group_runs(stretches)[0]


def _stretches(run: RunCurve, metric: str) -> RunCurve | None:
    """A run with a row for each stretch between two evaluations, but that which the base model begins."""
    train, reward = run.columns.get(TRAIN_REWARD), run.columns[metric]
    if train is None:
        return None
    first = np.flatnonzero((run.compute[:-1] > 0) & np.isfinite(train[1:] + reward[1:] + reward[:-1]))
    if len(first) < LEAST_STRETCHES:
        return None
    ratio = run.compute[first + 1] / run.compute[first]
    weight = ratio / (ratio - 1) - 1 / np.log(ratio)
    held_out = reward[first] + weight * (reward[first + 1] - reward[first])
    columns = {TRAIN_REWARD: train[first + 1], HELD_OUT: held_out}
    if "compute" in run.columns:
        rollouts = run.columns["compute"]
        columns["compute"] = rollouts[first] + weight * (rollouts[first + 1] - rollouts[first])
    return dataclasses.replace(run, compute=run.compute[first] * ratio**weight, columns=columns)


def _gap_curve(group: ConfigurationRuns) -> GapCurve | None:
    """The seeds of a configuration on one grid."""
    train, held_out = (average_seeds(group, name) for name in (TRAIN_REWARD, HELD_OUT))
    if train is None or held_out is None:
        return None
    (compute, ours), (_, theirs) = aligned(train), aligned(held_out)
    return GapCurve(group.configuration, compute, ours, theirs) if len(compute) else None


def best_by_training(runs: Sequence[RunCurve], options: AnalysisOptions) -> tuple[FrontierBudget, ...]:
    """n*(C) of the training reward, from the same fits, envelope and bootstrap as the metric's; () where none leads.

    Args:
      runs: those of `train_test_gaps`.
      options: of the analysis.
    """
    by_training = dataclasses.replace(
        options, read=dataclasses.replace(options.read, metric=TRAIN_REWARD), stderr_column=""
    )
    stages = Stages(by_training, _stretched(runs, options))
    main = stages.metric(TRAIN_REWARD, intervals=True, profiles=False)
    if not main.frontier.segments or not all(each.group_size for each in main.configurations):
        return ()
    return frontier_budgets(main, stages.bootstrap(main))


def compare_training(result: SweepResult) -> Iterator[ComparisonResult]:
    """One; none without training reward, and none for best@k and worst@k, which it is not compared with."""
    apart = result.metric.startswith(("best@", "worst@"))
    curves = () if apart else train_test_gaps(result.runs, result.options)
    if not curves:
        return
    best = best_by_training(result.runs, result.options)
    held_out = [row for row in result.frontier.budgets if best and row.compute >= best[0].compute]
    both = result.several_sizes and bool(best)
    series = [_gap_series(curve) for curve in curves]
    stacked = {"gap": Panel("training minus held-out reward", zero=True)}
    if both:
        series += [n_star_series("n*, held-out", held_out, "ink"), n_star_series("n*, training", best, "quiet")]
        stacked["n*"] = Panel("optimal group size n*", result.group_sizes)
    pairs = [(row, min(best, key=lambda each: abs(math.log(each.compute / row.compute)))) for row in held_out if both]
    known = [(a.interval95, b.interval95) for a, b in pairs if a.interval95 and b.interval95]
    last = sorted(((curve.run, curve.gap[-1]) for curve in curves), key=lambda pair: -pair[1].value)
    yield answer(
        result,
        "train_test",
        verdict=common_verdict("grows" if curve.grows else "open" for curve in curves),
        columns={
            "run": "run", "compute": unit(result), "training": "training", "held_out": "held-out",
            "gap": "gap (95% interval)",
        },
        rows=[
            {
                "run": curve.run,
                "compute": float(curve.compute[-1]),
                "training": float(curve.train[:, -1].mean()),
                "held_out": float(curve.held_out[:, -1].mean()),
                "gap": _four_figures(curve.gap[-1]),
                "grows": curve.grows,
            }
            for curve in curves
        ],
        series=series,
        picture=Picture(stacked=stacked),
        largest=last[0],
        least=last[-1] if len(last) > 1 else None,
        grows=sum(curve.grows for curve in curves) if any(math.isfinite(gap.low) for _, gap in last) else None,
        pairs=pairs,
        num_known=len(known),
        num_apart=sum(a[1] < b[0] or b[1] < a[0] for a, b in known),
    )  # fmt: skip


def _four_figures(gap: Value) -> Value:
    """As tables show a number."""
    ends = f" ({gap.ends()})" if math.isfinite(gap.low) else ""
    return dataclasses.replace(gap, text=f"{cell(gap.value)}{ends}")


def _gap_series(curve: GapCurve) -> DrawnSeries:
    gap = curve.gap
    mean, low, high = np.array([(each.value, each.low, each.high) for each in gap]).T
    hover = (f"{curve.run}: {gap[-1]} at the end",)
    return DrawnSeries(curve.run, curve.compute, mean, "gap", low, high, tone=curve.run, hover=hover)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedOn(OfConfiguration):
    """One configuration, trained on one set and evaluated on one."""

    train_set: str
    eval_set: str
    configuration: Configuration
    compute: np.ndarray  # [E] of the evaluations that all seeds have; 0 is the base model
    reward: np.ndarray  # [S, E]

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

    @property
    def pairs(self) -> dict[tuple[str, str], list[TrainedOn]]:
        """(training set, evaluation set) -> the configurations that have both, in order of n."""
        found: dict[tuple[str, str], list[TrainedOn]] = {
            (train_set, eval_set): [] for train_set in self.train_sets for eval_set in self.eval_sets
        }
        for each in self.cells:
            found[each.train_set, each.eval_set].append(each)
        return {pair: cells for pair, cells in found.items() if cells}

    @property
    def at_best_n(self) -> list[TrainedOn]:
        """Of each pair of sets the configuration with the highest final reward: picked, so a little high."""
        return [max(cells, key=lambda cell: cell.final.value) for cells in self.pairs.values()]

    @property
    def crossed(self) -> bool:
        """Whether a training set has two evaluation sets, or an evaluation set two training sets."""
        return len(self.pairs) > min(len(self.train_sets), len(self.eval_sets))


def cross_sets(trained: Mapping[str, Mapping[str, Sequence[RunCurve]]], metric: str) -> CrossSets:
    """The matrix of training sets and evaluation sets.

    Args:
      trained: training set -> evaluation set -> the runs that were trained on the one, as they fared on the other
        (`other_eval_sets` reads the other sets of a sweep, `by_training_set` makes the mapping of several together).
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


def other_eval_sets(runs: Sequence[RunCurve], options: ReadOptions) -> tuple[dict[str, list[RunCurve]], list[str]]:
    """The same runs as they fared on their other evaluation sets.

    Args:
      runs: as read from files, on `options.eval_set`.
      options: they were read with.

    Returns:
      Evaluation set -> runs, and the warnings of reading; a set that cannot be read is named there.
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


def compare_sets(result: SweepResult) -> Iterator[ComparisonResult]:
    """One, where runs were evaluated on several sets, or trained on several; the other sets are read for it."""
    others, warnings = other_eval_sets(result.runs, result.options.read)
    found = cross_sets(by_training_set({result.options.read.eval_set: result.runs, **others}), result.metric)
    if not found.crossed:
        return
    forgotten = [lost for cells in found.pairs.values() if (lost := _forgotten(cells))]
    based = all(cell.has_base for cell in found.cells)
    columns = min(3, max(2, len(found.eval_sets)))
    at_best = [[cell for cell in found.at_best_n if cell.eval_set == eval_set] for eval_set in found.eval_sets]
    yield answer(
        result,
        "cross_sets",
        verdict="forgets" if forgotten else "keeps",
        columns={
            "train_set": "trained on", "eval_set": "evaluated on", "run": "best", "final": "at the end",
            "best": "best reward", "compute": f"at, {unit(result)}", "change": "change",
        },
        rows=[
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
        ],
        series=[cell.drawn for cells in found.pairs.values() for cell in cells] if based else [],
        picture=Picture(Panel(f"change of {result.metric}", zero=True), columns=columns) if based else None,
        rivals=[sorted(cells, key=lambda cell: -cell.final.value) for cells in at_best if len(cells) > 1],
        forgotten=forgotten,
        remarks=[text for text in warnings if text not in result.warnings],
    )  # fmt: skip


def _forgotten(cells: Sequence[TrainedOn]) -> dict[str, object]:
    """What a pair of sets lost, for the sentences: below the base model, and from its own best; {} for nothing."""
    lost = [(cell, change) for cell in cells if (change := cell.change) is not None and change.value < 0]
    falls = [(cell, fall) for cell in cells if (fall := cell.fall).sign > 0]
    if not lost and not falls:
        return {}
    return {
        "cells": cells,
        "lost": lost,
        "surely_lost": sum(change.sign < 0 for _, change in lost),
        "lost_most": min(lost, key=lambda pair: pair[1].value, default=None),
        "falls": falls,
        "fell_most": max(falls, key=lambda pair: pair[1].value, default=None),
    }
