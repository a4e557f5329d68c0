"""How much B_problem matters at equal n and equal compute, beside how much n matters at equal B_problem.

The IsoCompute Playbook (arXiv 2603.12151) claims that B_problem matters little at fixed n. Both effects are measured
alike, by the evaluations and without a fit: at a compute C, the variance of mean rewards over B_problem among the
configurations with one n, averaged over n; and the variance over n at one B_problem, averaged over B_problem. Both are
averaged over matched budgets; the effect is the square root, a standard deviation in units of reward.

Noise adds its own variance to that of means. The bootstrap adds it once more: seeds are drawn again, each with its
whole curve, and what the variance grows by is taken off (basic bootstrap, Davison and Hinkley 1997, section 5.2), which
leaves a variance without bias. Deviations of S seeds from their mean are scaled by sqrt(S / (S - 1)), so that few seeds
do not look surer than they are. In simulated sweeps of 3 n, 2 B_problem and 2, 3 or 5 seeds (150 of each), whose effect
of n was 0 or as large as the noise of a seed, the 95% intervals of the difference held the truth in 89% to 100%.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.comparisons.alike import Part, parts, picture, rewards_at
from isocompute_jax.fit.curves.seeds import Curve, average_seeds
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.figures.by_configuration import compute_label
from isocompute_jax.fit.report.figures.style import INK, PALETTE, in_style, legend, log_axis, panels, save_figure
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import amount, listed, spent
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.sweep_results import SweepResult

BUDGETS = 16
"""Matched budgets, even in log C."""
REPLICATES = 2000


@dataclasses.dataclass(frozen=True, eq=False)
class Effect:
    """A standard deviation of rewards over one field, noise taken off.

    Attributes:
      variance: over the matched budgets; below 0 where noise happens to be small, noise and all where a configuration
        has one seed.
      interval95: of `sd`; None where a configuration has one seed.
      octaves: standard deviation of log2 of the field, over the same configurations.
      by_budget: [P] `sd` at each budget.
      low: [P] ends of its 95% intervals, NaN without.
      high: [P].
    """

    variance: float
    interval95: tuple[float, float] | None
    octaves: float
    by_budget: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def sd(self) -> float:
        """In units of reward."""
        return float(_root(self.variance))

    @property
    def per_octave(self) -> float:
        """Reward for a factor of two in the field, if it were linear in log2."""
        return self.sd / self.octaves


@dataclasses.dataclass(frozen=True, eq=False)
class BatchEffect:
    """The effects of B_problem and of n in one part of a sweep.

    Attributes:
      part: its configurations [K].
      compute: [P] matched budgets.
      reward: [K, P] means over seeds; NaN where a configuration has no data.
      stderr: [K, P] their standard errors; NaN with one seed.
      batch: of B_problem at fixed n.
      group: of n at fixed B_problem.
      difference95: 95% interval of the variance over n less that over B_problem; None where a configuration has one
        seed.
    """

    part: Part
    compute: np.ndarray
    reward: np.ndarray
    stderr: np.ndarray
    batch: Effect
    group: Effect
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
    found = (_effects(part, metric, seed) for part in parts(runs, "group_size", "problems_per_batch"))
    return tuple(effect for effect in found if effect is not None)


def _effects(part: Part, metric: str, seed: int) -> BatchEffect | None:
    averaged = [(group, average_seeds(group, metric)) for group in part.groups]
    known = [(group, curve) for group, curve in averaged if curve is not None]
    part, curves = dataclasses.replace(part, groups=tuple(group for group, _ in known)), [curve for _, curve in known]
    configurations = part.configurations
    over_batch, over_size = _lines(configurations, "group_size"), _lines(configurations, "problems_per_batch")
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
        low, high = np.percentile(over_sizes - over_batches, (2.5, 97.5))
        ends = float(low), float(high)
    stderr = np.stack([_stderr(level) for level in levels])
    return BatchEffect(part, compute, reward, stderr, batch, group, ends)


def _lines(configurations: Sequence[Configuration], fixed: str) -> list[list[int]]:
    """Numbers of the configurations that share the fixed field, where there are two or more."""
    shared: dict[int, list[int]] = {}
    for i, configuration in enumerate(configurations):
        shared.setdefault(getattr(configuration, fixed), []).append(i)
    return [line for _, line in sorted(shared.items()) if len(line) > 1]


def _budgets(curves: Sequence[Curve], *kinds: list[list[int]]) -> np.ndarray:
    """[P] budgets at which a line of each kind has two configurations or more, all of their seeds evaluated."""
    ends = [_covered(curve) for curve in curves]
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


def _covered(curve: Curve) -> tuple[float, float] | None:
    """First and last compute that all seeds reach; None where there is no such stretch."""
    own = [compute[compute > 0] for compute, _ in map(curve.of_seed, range(len(curve.seeds)))]
    if not all(len(compute) for compute in own):
        return None
    low, high = max(float(c[0]) for c in own), min(float(c[-1]) for c in own)
    return (low, high) if low < high else None


def drawn_means(level: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """[R, P] means of S seeds [S, P] drawn again with replacement, as far from their mean as S seeds would lie."""
    seeds = len(level)
    mean = level.mean(axis=0)
    drawn = rng.integers(seeds, size=(count, seeds))
    return mean + np.sqrt(seeds / (seeds - 1)) * (level[drawn].mean(axis=1) - mean)


def _stderr(level: np.ndarray) -> np.ndarray:
    """[P] of the mean of seeds [S, P]."""
    return level.std(axis=0, ddof=1) / np.sqrt(len(level)) if len(level) > 1 else np.full(level.shape[1], np.nan)


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
    low, high = _root(np.percentile(several, (2.5, 97.5), axis=0))
    means = several.mean(axis=1)
    ends = _root(np.percentile(means, (2.5, 97.5)))
    return Effect(
        float(means.mean()), (float(ends[0]), float(ends[1])), octaves, _root(several.mean(axis=0)), low, high
    ), means


def _root(variance: np.ndarray | float) -> np.ndarray:
    """Standard deviation; 0 where more than all is noise."""
    return np.sqrt(np.maximum(variance, 0.0))


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section for each part of the sweep with several n and several B_problem."""
    return [_section(result, found, figures, i) for i, found in enumerate(batch_effect(result.runs, result.metric))]


def _section(result: SweepResult, found: BatchEffect, figures: pathlib.Path, number: int) -> Section:
    rows, columns = _table(found)
    return Section(
        title=f"How much B_problem matters at fixed n{found.part.label}",
        paragraphs=(
            "How far rewards lie apart over B_problem at equal n and compute, and over n at equal B_problem and "
            "compute, averaged over the lines of the grid and over matched budgets; what noise adds is taken off "
            "(bootstrap over seeds). Table: reward and standard error at the largest matched budget.",
        ),
        figure=_draw(result, found, picture(figures, "batch_effect", number)),
        alt="Standard deviation of rewards over B_problem at fixed n and over n at fixed B_problem, against compute",
        how_to_read="Shaded: 95% of the draws of seeds. The higher line is the field that matters more there.",
        findings=tuple(_sentences(result, found)),
        table=ReportTable(("n", *columns), rows),
    )


def _sentences(result: SweepResult, found: BatchEffect) -> list[str]:
    batch, group = found.batch, found.group
    sizes, batches = (
        sorted({getattr(c, name) for c in found.part.configurations}) for name in ("group_size", "problems_per_batch")
    )
    between = f"from {amount(found.compute[0])} to {spent(result, found.compute[-1])}"
    said = [
        f"At equal n and compute, {between}, the standard deviation of {result.metric} over B_problem = "
        f"{listed(batches)} is {_with(batch)}; over n = {listed(sizes)} at equal B_problem it is {_with(group)}."
    ]
    if found.difference95 is None:
        return [*said, "A configuration has one seed only, so noise is in these numbers, and how much cannot be told."]
    verdict = {
        "n": "The effect of n is the larger one: the 95% interval of the difference excludes 0.",
        "B_problem": "The effect of B_problem is the larger one: the 95% interval of the difference excludes 0.",
        "": "Which is larger cannot be told: the 95% interval of the difference has 0 in it.",
    }[found.larger]
    return [
        *said,
        f"{verdict} A factor of two moves the reward by {group.per_octave:.3f} in n, by {batch.per_octave:.3f} in "
        "B_problem.",
    ]


def _with(effect: Effect) -> str:
    """`0.021 (95%: 0.010 to 0.032)`."""
    shown = f"{effect.sd:.3f}"
    if effect.interval95 is None:
        return shown
    low, high = effect.interval95
    return f"{shown} (95%: {low:.3f} to {high:.3f})"


def _table(found: BatchEffect) -> tuple[tuple[tuple[str, ...], ...], list[str]]:
    """Rewards at the last budget: a row for each n, a column for each B_problem."""
    sizes = sorted({c.group_size for c in found.part.configurations})
    batches = sorted({c.problems_per_batch for c in found.part.configurations})
    cells = {(size, batch): "" for size in sizes for batch in batches}
    for c, reward, error in zip(found.part.configurations, found.reward[:, -1], found.stderr[:, -1], strict=True):
        if np.isfinite(reward):
            cells[c.group_size, c.problems_per_batch] = f"{reward:.3f}" + (f" ± {error:.3f}" if error >= 0 else "")
    rows = tuple((str(size), *(cells[size, batch] for batch in batches)) for size in sizes)
    return rows, [f"B_problem = {batch}" for batch in batches]


def _draw(result: SweepResult, found: BatchEffect, path: pathlib.Path) -> pathlib.Path:
    """Both effects over compute."""
    with in_style():
        figure, (axes,) = panels(height=3.4)
        shown = []
        for effect, colour, label in (
            (found.group, INK, "over n, at fixed B_problem"),
            (found.batch, PALETTE(0.6), "over B_problem, at fixed n"),
        ):
            axes.fill_between(found.compute, effect.low, effect.high, color=colour, alpha=0.15, linewidth=0)
            shown += axes.plot(found.compute, effect.by_budget, color=colour, marker="o", markersize=4, label=label)
        axes.axhline(0.0, color=INK, linewidth=0.6)
        axes.set(xlabel=compute_label(result), ylabel=f"sd of {result.metric}")
        log_axis(axes)
        legend(figure, shown)
        return save_figure(figure, path)
