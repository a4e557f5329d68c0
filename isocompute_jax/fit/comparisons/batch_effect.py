"""How much B_problem matters at equal n and equal compute, and from which B_problem on no seed collapses.

The IsoCompute Playbook (arXiv 2603.12151) claims that B_problem matters little at fixed n. Its effect and that of n are
measured alike, by the evaluations and without a fit: at a compute C, the variance of mean rewards over B_problem among
the configurations with one n, averaged over n; and the variance over n at one B_problem, averaged over B_problem. Both
are averaged over matched budgets; the effect is the square root, a standard deviation in units of reward.

Noise adds its own variance to that of means. The bootstrap adds it once more: seeds are drawn again, each with its
whole curve, and what the variance grows by is taken off (basic bootstrap, Davison and Hinkley 1997, section 5.2), which
leaves a variance without bias. Deviations of S seeds from their mean are scaled by sqrt(S / (S - 1)), so that few seeds
do not look surer than they are. In simulated sweeps of 3 n, 2 B_problem and 2, 3 or 5 seeds (150 of each), whose effect
of n was 0 or as large as the noise of a seed, the 95% intervals of the difference held the truth in 89% to 100%.

A collapse is looked for in every seed by itself, for a mean hides one that others do not share, and counts also where
the run recovers, which the test for falling curves (`curves.falls`) leaves aside.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.comparisons.alike import Groups, parts, rewards_at, several_by
from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    standard_error,
)
from isocompute_jax.fit.curves.seeds import Curve, average_seeds, covered
from isocompute_jax.fit.frontier.bootstrap import PERCENTILES
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import amount, unit
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.sweep_results import SweepResult

BUDGETS = 16
"""Matched budgets, even in log C."""
REPLICATES = 2000
LOST = 0.5
"""A run collapses where it loses this share of what it had learned, or falls to this share of the base model's."""
LEAST_DROP = 0.05
"""A loss below this share of the reward range is none: what has hardly been learned may be noise."""
LEAST_BASE = 0.02
"""A base model below this share of the reward range is too near to 0 to fall from."""


@dataclasses.dataclass(frozen=True, eq=False)
class Effect:
    """A standard deviation of rewards over one field, noise taken off."""

    # over the matched budgets; below 0 where noise happens to be small, and holds it where a configuration has one seed
    variance: float
    interval95: tuple[float, float] | None  # of `sd`; None where a configuration has one seed
    octaves: float  # standard deviation of log2 of the field, over the same configurations
    by_budget: np.ndarray  # [P] `sd` at each budget
    low: np.ndarray  # [P] ends of its 95% intervals, NaN without
    high: np.ndarray

    @property
    def sd(self) -> float:
        """In units of reward."""
        return float(_root(self.variance))

    @property
    def per_octave(self) -> float:
        """Reward for a factor of two in the field, if it were linear in log2."""
        return self.sd / self.octaves

    @property
    def as_value(self) -> Value:
        """`0.021 (95%: 0.010 to 0.032)`."""
        ends = "" if self.interval95 is None else f" (95%: {self.interval95[0]:.3f} to {self.interval95[1]:.3f})"
        return Value.within(self.sd, self.interval95, f"{self.sd:.3f}{ends}")


@dataclasses.dataclass(frozen=True, eq=False)
class BatchEffect:
    """The effects of B_problem and of n in one part of a sweep."""

    part: str  # what tells it from the others of the sweep; empty for the only one
    configurations: tuple[Configuration, ...]  # [K]
    compute: np.ndarray  # [P] matched budgets
    reward: np.ndarray  # [K, P] means over seeds; NaN where a configuration has no data
    stderr: np.ndarray  # [K, P] their standard errors; NaN with one seed
    batch: Effect  # of B_problem at fixed n
    group: Effect  # of n at fixed B_problem
    # 95% interval of the variance over n less that over B_problem; None where a configuration has one seed
    difference95: tuple[float, float] | None

    @property
    def larger(self) -> Literal["n", "B_problem", ""]:
        """Which effect is larger beyond its interval; empty where that cannot be told."""
        ends = self.difference95
        if ends is None or ends[0] <= 0 <= ends[1]:
            return ""
        return "n" if ends[0] > 0 else "B_problem"


def batch_effect(runs: Sequence[RunCurve], metric: str, *, seed: int = 0) -> tuple[BatchEffect, ...]:
    """The effects in each part of a sweep that has several B_problem at one n and several n at one B_problem.

    Args:
      runs: all runs of the sweep (`SweepResult.runs`).
      metric: column of the rewards.
      seed: of the bootstrap.
    """
    found = (_effects(*part, metric, seed) for part in parts(runs, "group_size", "problems_per_batch"))
    return tuple(effect for effect in found if effect is not None)


def _effects(part: str, groups: Groups, metric: str, seed: int) -> BatchEffect | None:
    curves = [curve for group in groups if (curve := average_seeds(group, metric)) is not None]
    configurations = tuple(curve.configuration for curve in curves)
    over_batch = list(several_by(curves, "group_size").values())
    over_size = list(several_by(curves, "problems_per_batch").values())
    compute = _budgets(curves, over_batch, over_size)
    if not len(compute):
        return None
    levels = [rewards_at(curve, compute) for curve in curves]
    reward = np.stack([level.mean(axis=0) for level in levels])
    rng, drawn = np.random.default_rng(seed), None
    if all(len(level) > 1 for level in levels):
        drawn = np.stack([drawn_means(level, REPLICATES, rng) for level in levels], axis=1)
    batch, over_batches = _effect(reward, drawn, configurations, "problems_per_batch", over_batch)
    group, over_sizes = _effect(reward, drawn, configurations, "group_size", over_size)
    ends = None
    if over_batches is not None and over_sizes is not None:
        low, high = np.percentile(over_sizes - over_batches, PERCENTILES)
        ends = float(low), float(high)
    stderr = np.stack([standard_error(level) for level in levels])
    return BatchEffect(part, configurations, compute, reward, stderr, batch, group, ends)


def _budgets(curves: Sequence[Curve], *kinds: list[list[int]]) -> np.ndarray:
    """[P] budgets at which a line of each kind has two configurations or more, all of their seeds evaluated."""
    ends = [covered(curve) for curve in curves]
    stretches = []
    for lines in kinds:
        pairs = [(ends[i], ends[j]) for line in lines for i in line for j in line if i < j]
        common = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs if a and b]
        common = [(low, high) for low, high in common if low < high]
        if not common:
            return np.array([])
        stretches.append((min(low for low, _ in common), max(high for _, high in common)))
    low, high = max(start for start, _ in stretches), min(end for _, end in stretches)
    if not low < high:
        return np.array([])
    grid = np.geomspace(low, high, BUDGETS)
    grid[[0, -1]] = low, high  # rounding would put the ends outside of the data
    reward = np.stack([rewards_at(curve, grid).mean(axis=0) for curve in curves])
    known = np.isfinite(reward)
    both = [np.any([known[line].sum(axis=0) > 1 for line in lines], axis=0) for lines in kinds]
    return grid[np.all(both, axis=0)]


def drawn_means(level: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """[R, P] means of S seeds [S, P] drawn again with replacement, as far from their mean as S seeds would lie."""
    seeds = len(level)
    mean = level.mean(axis=0)
    drawn = rng.integers(seeds, size=(count, seeds))
    return mean + np.sqrt(seeds / (seeds - 1)) * (level[drawn].mean(axis=1) - mean)


def _variances(values: np.ndarray, known: np.ndarray, lines: Sequence[Sequence[int]]) -> np.ndarray:
    """[..., P] variance of values [..., K, P] over each line that has two known [K, P] or more, averaged over lines."""
    total, count = 0.0, np.zeros(known.shape[-1])
    for line in lines:
        own = known[line]
        number = own.sum(axis=0)
        given = np.where(own, values[..., line, :], 0.0)
        mean = given.sum(axis=-2, keepdims=True) / np.maximum(number, 1)
        squares = np.where(own, (given - mean) ** 2, 0.0).sum(axis=-2)
        total = total + np.where(number > 1, squares / np.maximum(number - 1, 1), 0.0)
        count += number > 1
    return total / count


def _effect(
    reward: np.ndarray, drawn: np.ndarray | None, configurations: Sequence[Configuration], field: str,
    lines: list[list[int]],
) -> tuple[Effect, np.ndarray | None]:  # fmt: skip
    """An effect, and [R] draws of its variance, mirrored about the estimate (basic bootstrap)."""
    known = np.isfinite(reward)
    values = np.log2([[getattr(c, field)] * reward.shape[1] for c in configurations])
    octaves = float(np.sqrt(_variances(values, known, lines).mean()))
    raw = _variances(reward, known, lines)
    if drawn is None:
        nothing = np.full(len(raw), np.nan)
        return Effect(float(raw.mean()), None, octaves, np.sqrt(raw), nothing, nothing), None
    several = 2 * raw - _variances(drawn, known, lines)
    low, high = _root(np.percentile(several, PERCENTILES, axis=0))
    means = several.mean(axis=1)
    ends = _root(np.percentile(means, PERCENTILES))
    return Effect(
        float(means.mean()), (float(ends[0]), float(ends[1])), octaves, _root(several.mean(axis=0)), low, high
    ), means


def _root(variance: np.ndarray | float) -> np.ndarray:
    """Standard deviation; 0 where more than all is noise."""
    return np.sqrt(np.maximum(variance, 0.0))


def compare_batches(result: SweepResult) -> Iterator[ComparisonResult]:
    """The effect of B_problem beside that of n, for each part of the sweep with several of both."""
    for found in batch_effect(result.runs, result.metric, seed=0):
        batches = sorted({c.problems_per_batch for c in found.configurations})
        sizes = sorted({c.group_size for c in found.configurations})
        yield answer(
            result,
            "batch_effect",
            part=found.part,
            verdict=None if found.difference95 is None else found.larger or "open",
            numbers={
                "sd_over_problems_per_batch": found.batch.as_value,
                "sd_over_group_size": found.group.as_value,
                "per_octave_of_problems_per_batch": found.batch.per_octave,
                "per_octave_of_group_size": found.group.per_octave,
                "difference_of_variances": Value.within(
                    found.group.variance - found.batch.variance, found.difference95
                ),
                "compute": float(found.compute[-1]),
            },
            columns={"group_size": "n"} | {_column(batch): f"B_problem = {batch}" for batch in batches},
            rows=_last_rewards(found, sizes),
            series=[
                DrawnSeries(name, found.compute, effect.by_budget, low=effect.low, high=effect.high, tone=tone)
                for effect, name, tone in (
                    (found.group, "over n, at fixed B_problem", "ink"),
                    (found.batch, "over B_problem, at fixed n", 0.6),
                )
            ],
            picture=Picture(Panel(f"sd of {result.metric}", zero=True)),
            found=found,
            sizes=sizes,
            batches=batches,
        )


def _last_rewards(found: BatchEffect, sizes: Sequence[int]) -> list[dict[str, int | Value]]:
    """Each n with its mean reward and standard error at each B_problem, at the last budget."""
    rows: dict[int, dict[str, int | Value]] = {n: {"group_size": n} for n in sizes}
    for c, reward, error in zip(found.configurations, found.reward[:, -1], found.stderr[:, -1], strict=True):
        if np.isfinite(reward):
            rows[c.group_size][_column(c.problems_per_batch)] = Value.with_error(float(reward), float(error))
    return list(rows.values())


def _column(batch: int) -> str:
    """The key of a B_problem's rewards in a table."""
    return f"problems_per_batch_{batch}"


def find_collapse(
    compute: np.ndarray, reward: np.ndarray, *, base: float, reward_range: tuple[float, float]
) -> float | None:
    """The compute at which one run first collapses; None where it does not.

    It is where two neighbouring evaluations lie below the best level before them by half of what had been learned
    since the base model, or at half of the base model's reward or less. Two, so that one outlier is neither a level nor
    a collapse.

    Args:
      compute: [E] increasing; the base model's evaluation at 0 is left out.
      reward: [E].
      base: reward of the base model.
      reward_range: bounds of a reward.
    """
    known = (compute > 0) & np.isfinite(reward)
    compute, reward = compute[known], reward[known]
    low, width = reward_range[0], reward_range[1] - reward_range[0]
    reached, fallen = np.minimum(reward[:-1], reward[1:]), np.maximum(reward[:-1], reward[1:])
    best = np.maximum.accumulate(np.concatenate([[base], reached]))
    for j in range(len(fallen)):
        before = float(best[max(j - 1, 0)])  # pairs that end before this one begins
        limit = before - max(LOST * (before - base), LEAST_DROP * width)
        if base - low >= LEAST_BASE * width:
            limit = max(limit, low + (1 - LOST) * (base - low))
        if fallen[j] <= limit:
            return float(compute[j])
    return None


def stable_batches(
    runs: Sequence[RunCurve], metric: str, *, reward_range: tuple[float, float] = (0.0, 1.0)
) -> list[tuple[str, dict[Configuration, list[float | None]]]]:
    """How the runs of every configuration went, in each part of a sweep that has several B_problem at one n.

    Args:
      runs: all runs of the sweep (`SweepResult.runs`).
      metric: column of the rewards.
      reward_range: their bounds.

    Returns:
      What tells the part from the others, and configuration -> of each run the compute at which it collapses, or None.
    """
    every = parts(runs, "group_size", "problems_per_batch")
    several = [(part, groups) for part, groups in every if several_by(groups, "group_size")]
    return [(part, _collapses(groups, metric, reward_range)) for part, groups in several]


def _collapses(
    groups: Groups, metric: str, reward_range: tuple[float, float]
) -> dict[Configuration, list[float | None]]:
    """Every run against the base model: the mean over all that evaluated it, or else the least reward there is."""
    own = {group.configuration: [run for run in group.runs if metric in run.columns] for group in groups}
    starts = [run.columns[metric][run.compute == 0] for runs in own.values() for run in runs]
    known = np.concatenate([np.empty(0), *starts])
    known = known[np.isfinite(known)]
    base = float(known.mean()) if len(known) else reward_range[0]
    return {
        configuration: [
            find_collapse(run.compute, run.columns[metric], base=base, reward_range=reward_range) for run in runs
        ]
        for configuration, runs in own.items()
    }


def smallest_stable(collapses: Mapping[Configuration, Sequence[float | None]]) -> dict[int, int | None]:
    """n -> the smallest B_problem from which on no seed collapses; None where one does at the largest."""
    smallest: dict[int, int | None] = {}
    largest_first = sorted(collapses, key=lambda each: (each.group_size, -each.problems_per_batch))
    for size, own in itertools.groupby(largest_first, key=lambda each: each.group_size):
        stable = itertools.takewhile(lambda each: not any(collapses[each]), own)
        smallest[size] = min((each.problems_per_batch for each in stable), default=None)
    return smallest


def most_often(seeds: int) -> float:
    """Largest probability of a collapse with which `seeds` runs without one are seen in 5% of cases: 1 - 0.05^(1/S)."""
    return 1.0 - 0.05 ** (1.0 / seeds)


def compare_stability(result: SweepResult) -> Iterator[ComparisonResult]:
    """Which configurations collapse, for each part of the sweep that has several B_problem at one n."""
    reward_range = result.options.read.reward_range
    for part, collapses in stable_batches(result.runs, result.metric, reward_range=reward_range):
        yield _stability(result, part, collapses)


def _stability(
    result: SweepResult, part: str, collapses: Mapping[Configuration, Sequence[float | None]]
) -> ComparisonResult:
    falls = {curve.run for curve in result.curves if curve.fit.fall}
    rows, shares = [], []
    for c, runs in collapses.items():
        fallen = [compute for compute in runs if compute is not None]
        shares.append(len(fallen) / max(len(runs), 1))
        rows.append({
            "group_size": c.group_size,
            "problems_per_batch": c.problems_per_batch,
            "collapsed": Value(shares[-1], text=f"{len(fallen)} of {len(runs)}"),
            "compute": Value(min(fallen), text=amount(min(fallen))) if fallen else None,
            "falls": c.name in falls,
        })  # fmt: skip
    batches, sizes = [row["problems_per_batch"] for row in rows], [row["group_size"] for row in rows]
    place = np.array(batches), np.array(sizes)
    smallest, fewest = smallest_stable(collapses), min(map(len, collapses.values()))
    return answer(
        result,
        "stable_batches",
        part=part,
        verdict="collapses" if any(shares) else "stable",
        numbers={f"smallest_stable_at_{size}": batch for size, batch in smallest.items()},
        columns={
            "group_size": "n", "problems_per_batch": "B_problem", "collapsed": "seeds that collapse",
            "compute": f"first at ({unit(result)})", "falls": "mean falls after its peak",
        },
        rows=rows,
        series=(
            DrawnSeries("no seed collapses", *place, look="rings"),
            DrawnSeries("every seed collapses", *place, shade=np.array(shares), look="discs", tone=0.3),
        ),
        picture=Picture(Panel("n", sizes, "B_problem", batches)),
        collapses=any(shares),
        stable={b: [n for n in smallest if smallest[n] == b] for b in dict.fromkeys(smallest.values()) if b},
        unstable=[size for size, batch in smallest.items() if batch is None],
        seeds=fewest,
        most_often=most_often(fewest) if fewest else 1.0,
    )  # fmt: skip
