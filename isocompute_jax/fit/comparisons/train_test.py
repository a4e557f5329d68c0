"""Training reward beside held-out reward: which n each of the two asks for, and the gap between them.

A group size that wins on its own training problems may do so by heart. The reward of training between two evaluations,
at C1 and C2, belongs to the policies in between: rollouts are spread evenly over C, so a reward that is linear in log C
takes its mean over the stretch at C1 rho^w with rho = C2 / C1 and w = rho / (rho - 1) - 1 / ln rho (a little above
1/2). There the held-out reward is read off, linear in log C, and the gap is training minus held-out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.comparisons.alike import aligned
from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Tone,
    Value,
    common_verdict,
    over_seeds,
)
from isocompute_jax.fit.curves.seeds import ConfigurationRuns, average_seeds, group_runs
from isocompute_jax.fit.frontier.bootstrap import group_size_interval
from isocompute_jax.fit.frontier_results import FrontierBudget, OfConfiguration
from isocompute_jax.fit.intervals import whole_or_none
from isocompute_jax.fit.metric_analysis import optimal_group_size
from isocompute_jax.fit.read import TRAIN_REWARD, RunCurve
from isocompute_jax.fit.report.wording import amount, cell, unit
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.stages import Stages
from isocompute_jax.fit.sweep_results import SweepResult

HELD_OUT = "held-out reward"
LEAST_STRETCHES = 3
"""Fewer say nothing of a course over compute."""


@dataclasses.dataclass(frozen=True, eq=False)
class GapCurve(OfConfiguration):
    """The two rewards of one configuration over compute, seed by seed.

    Attributes:
      configuration: which one.
      compute: [E] where the means of the stretches between evaluations stand.
      train: [S, E] mean reward of the training rollouts of each stretch.
      held_out: [S, E] held-out reward there.
    """

    configuration: Configuration
    compute: np.ndarray
    train: np.ndarray
    held_out: np.ndarray

    @property
    def gap(self) -> list[Value]:
        """[E] training minus held-out reward."""
        return [over_seeds(values) for values in (self.train - self.held_out).T]

    @property
    def grows(self) -> bool:
        """Whether the gap does from the first stretch to the last, beyond its interval."""
        return over_seeds((self.train - self.held_out)[:, [0, -1]] @ [-1.0, 1.0]).sign > 0


class BestOnTraining(NamedTuple):
    """n* by the reward of training at a compute; `interval95` over replicates, None where they do not hold it."""

    compute: float
    group_size: int
    interval95: tuple[int, int] | None


@dataclasses.dataclass(frozen=True, eq=False)
class TrainTest:
    """What training reward says of a sweep: the gap of each configuration, and n*(C) by it alone."""

    curves: tuple[GapCurve, ...]
    best: tuple[BestOnTraining, ...]

    def best_near(self, compute: float) -> BestOnTraining:
        """The nearest of `best`."""
        return min(self.best, key=lambda row: abs(math.log(row.compute / compute)))


def train_test(runs: Sequence[RunCurve], options: AnalysisOptions) -> TrainTest | None:
    """Compares training with held-out reward, and finds n* by either.

    Args:
      runs: with a column `train/reward`: the mean reward of the rollouts since the evaluation before. Run directories
        have it (`read.training_log`), tables where they give it.
      options: of the analysis; `metric` is the held-out reward.

    Returns:
      None where runs have no training reward, too few evaluations, or one outside of `reward_range`.
    """
    groups = _groups(runs, options)
    curves = _gap_curves(groups)
    return TrainTest(curves, tuple(_best(groups, options))) if curves else None


def train_test_gaps(runs: Sequence[RunCurve], options: AnalysisOptions) -> tuple[GapCurve, ...]:
    """The gaps alone, without a fit; () where `train_test` is None."""
    return _gap_curves(_groups(runs, options))


def _groups(runs: Sequence[RunCurve], options: AnalysisOptions) -> list[ConfigurationRuns]:
    """The configurations with training reward, by stretches; none where it is in other units."""
    stretches = [found for run in runs if (found := _stretches(run, options.metric)) is not None]
    low, high = options.read.reward_range
    if any(np.any((reward := run.columns[TRAIN_REWARD]) < low) or np.any(reward > high) for run in stretches):
        return []
    return group_runs(stretches)[0]


def _gap_curves(groups: Sequence[ConfigurationRuns]) -> tuple[GapCurve, ...]:
    return tuple(curve for group in groups if (curve := _gap_curve(group)) is not None)


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


def _best(groups: Sequence[ConfigurationRuns], options: AnalysisOptions) -> list[BestOnTraining]:
    """n*(C) of the training reward, from the same fits, envelope and bootstrap as the metric's."""
    options = dataclasses.replace(
        options, read=dataclasses.replace(options.read, metric=TRAIN_REWARD), stderr_column=""
    )
    stages = Stages(options, groups)
    main = stages.metric(TRAIN_REWARD, intervals=True, profiles=False)
    if not main.frontier.segments or not all(curve.configuration.group_size for curve in main.curves):
        return []
    resampled = stages.bootstrap(main)
    told = resampled is not None and all(resampled.tells(f, i) for i, f in enumerate(main.fits) if f.search)
    names = [curve.configuration for curve in main.curves]
    compute, sizes = optimal_group_size(main, main.frontier)
    found = []
    for c, n in zip(compute.tolist(), sizes, strict=True):
        ends = group_size_interval(resampled, names, c)[0] if resampled and told else None
        found.append(BestOnTraining(c, int(n), whole_or_none(ends, n)))
    return found


def compare_training(result: SweepResult) -> list[ComparisonResult]:
    """One; none without training reward, and none for best@k and worst@k, which it is not compared with."""
    found = None if result.metric.startswith(("best@", "worst@")) else train_test(result.runs, result.options)
    if found is None:
        return []
    held_out = [row for row in result.frontier.budgets if found.best and row.compute >= found.best[0].compute]
    both = result.several_sizes and bool(found.best)
    series = [_of_gap(curve) for curve in found.curves]
    if both:
        series += [_n_star(held_out, "n*, held-out", "ink"), _n_star(found.best, "n*, training", "quiet")]
    return [
        ComparisonResult(
            question="train_test",
            verdict=common_verdict("grows" if curve.grows else "open" for curve in found.curves),
            findings=(*_gap_sentences(found), *(_n_sentences(found, held_out, result) if both else ())),
            columns={
                "run": "run", "compute": unit(result), "training": "training", "held_out": "held-out",
                "gap": "gap (95% interval)",
            },
            rows=tuple(
                {
                    "run": curve.run,
                    "compute": float(curve.compute[-1]),
                    "training": float(curve.train[:, -1].mean()),
                    "held_out": float(curve.held_out[:, -1].mean()),
                    "gap": _four_figures(curve.gap[-1]),
                    "grows": curve.grows,
                }
                for curve in found.curves
            ),
            series=tuple(series),
            title="Training reward and the train-test gap",
            about="The reward of the training rollouts between two evaluations, groups without signal included, beside "
            f"{result.metric} on {result.options.read.eval_set} over the same stretch. The gap is training minus "
            "held-out: what a group size owes to having seen the problems, and to their being easier.",
            picture=Picture(
                "Train-test gap over compute for each configuration, and n* by training and by held-out reward",
                "Above: the gap of each configuration, its 95% interval over seeds shaded. Below: n* by held-out and "
                "by training reward, with 95% intervals.",
                stacked={"gap": Panel("training minus held-out reward", zero=True)}
                | ({"n*": Panel("optimal group size n*", result.group_sizes)} if both else {}),
            ),
        )
    ]  # fmt: skip


def _four_figures(gap: Value) -> Value:
    """As tables show a number."""
    ends = f" ({gap.ends()})" if math.isfinite(gap.low) else ""
    return dataclasses.replace(gap, text=f"{cell(gap.value)}{ends}")


def _of_gap(curve: GapCurve) -> DrawnSeries:
    gap = curve.gap
    mean, low, high = np.array([(each.value, each.low, each.high) for each in gap]).T
    hover = (f"{curve.run}: {gap[-1]} at the end",)
    return DrawnSeries(curve.run, curve.compute, mean, "gap", low, high, tone=curve.run, hover=hover)


def _n_star(rows: Sequence[BestOnTraining | FrontierBudget], name: str, tone: Tone) -> DrawnSeries:
    """n*(C), with its interval where every budget has one."""
    ends = [row.interval95 for row in rows if row.interval95]
    low, high = np.array(ends, float).T if rows and len(ends) == len(rows) else (None, None)
    sizes = np.array([row.group_size for row in rows])
    return DrawnSeries(name, np.array([row.compute for row in rows]), sizes, "n*", low, high, look="steps", tone=tone)


def _gap_sentences(found: TrainTest) -> list[str]:
    """The largest and the least gap at the end of training."""
    last = {curve.run: curve.gap[-1] for curve in found.curves}
    ordered = sorted(last, key=lambda run: -last[run].value)
    texts = [f"At the end of training the gap is largest for {ordered[0]}: {last[ordered[0]]}"]
    if len(ordered) > 1:
        texts[0] += f", and least for {ordered[-1]}: {last[ordered[-1]]}"
    if any(math.isfinite(gap.low) for gap in last.values()):
        grows = sum(curve.grows for curve in found.curves)
        texts.append(f"It grows over training, beyond its 95% interval, in {grows} of {len(last)} configurations")
    return [f"{text}." for text in texts]


def _n_sentences(found: TrainTest, held_out: Sequence[FrontierBudget], result: SweepResult) -> list[str]:
    """n* by the two rewards at the budgets that both have."""
    if not held_out:
        return []
    pairs = [(row, found.best_near(row.compute)) for row in held_out]
    (first, on_first), (last, on_last) = pairs[0], pairs[-1]
    text = (
        f"From {amount(first.compute)} to {amount(last.compute)} {unit(result)}, n* "
        f"{_moves(on_first.group_size, on_last.group_size)} by training reward and "
        f"{_moves(first.group_size, last.group_size)} by held-out reward."
    )
    known = [(a.interval95, b.interval95) for a, b in pairs if a.interval95 and b.interval95]
    if not known:
        return [text]
    apart = sum(a[1] < b[0] or b[1] < a[0] for a, b in known)
    return [f"{text} The 95% intervals of the two exclude each other at {apart} of {len(known)} budgets."]


def _moves(first: int, last: int) -> str:
    return f"goes from {first} to {last}" if first != last else f"is {first} at both ends"
