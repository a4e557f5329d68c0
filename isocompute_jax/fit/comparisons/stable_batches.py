"""The smallest B_problem at which no seed collapses, at each n.

Every seed is looked at by itself, for a mean hides a collapse that others do not share, and a collapse counts also
where the run recovers, which the test for falling curves (`curves.falls`) leaves aside. That test is about the mean
curve's end, and about any clear fall; what it says is given beside this one.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D

from isocompute_jax.fit.comparisons.alike import Part, parts, picture
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.figures.by_configuration import size_axis
from isocompute_jax.fit.report.figures.style import INK, PALETTE, in_style, legend, panels, save_figure
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import amount, listed, unit
from isocompute_jax.fit.results import Configuration
from isocompute_jax.fit.sweep_results import SweepResult

LOST = 0.5
"""A run collapses where it loses this share of what it had learned, or falls to this share of the base model's."""
LEAST_DROP = 0.05
"""A loss below this share of the reward range is none: what has hardly been learned may be noise."""
LEAST_BASE = 0.02
"""A base model below this share of the reward range is too near to 0 to fall from."""


@dataclasses.dataclass(frozen=True)
class Collapse:
    """Of one run.

    Attributes:
      seed: which one.
      best: level that it had reached: two neighbouring evaluations, or the base model, are at least as high.
      compute: of the first of two neighbouring evaluations that lie far below it.
      reward: of the higher of these two.
    """

    seed: int
    best: float
    compute: float
    reward: float


@dataclasses.dataclass(frozen=True)
class CellStability:
    """How the runs of one configuration went: how many there are, and those that collapsed."""

    configuration: Configuration
    seeds: int
    collapses: tuple[Collapse, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class StableBatches:
    """One part of a sweep, with the stability of each configuration."""

    part: Part
    cells: tuple[CellStability, ...]

    @property
    def smallest(self) -> dict[int, int | None]:
        """n -> the smallest B_problem from which on no seed collapses; None where one does at the largest."""
        found: dict[int, int | None] = {}
        for size in sorted({cell.configuration.group_size for cell in self.cells}):
            own = [cell for cell in self.cells if cell.configuration.group_size == size]
            found[size] = None
            for cell in sorted(own, key=lambda cell: -cell.configuration.problems_per_batch):
                if cell.collapses:
                    break
                found[size] = cell.configuration.problems_per_batch
        return found

    @property
    def collapsed(self) -> list[CellStability]:
        """Those in which a seed collapsed."""
        return [cell for cell in self.cells if cell.collapses]


def find_collapse(
    compute: np.ndarray, reward: np.ndarray, *, base: float, reward_range: tuple[float, float], seed: int = 0
) -> Collapse | None:
    """The first collapse of one run; None without.

    It is where two neighbouring evaluations lie below the best level before them by half of what had been learned
    since the base model, or at half of the base model's reward or less. Two, so that one outlier is neither a level nor
    a collapse.

    Args:
      compute: [E] increasing; the base model's evaluation at 0 is left out.
      reward: [E].
      base: reward of the base model.
      reward_range: its bounds.
      seed: of the run.
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
            return Collapse(seed, before, float(compute[j]), float(fallen[j]))
    return None


def stable_batches(
    runs: Sequence[RunCurve], metric: str, *, reward_range: tuple[float, float] = (0.0, 1.0)
) -> tuple[StableBatches, ...]:
    """The stability of every configuration, in each part of a sweep that has several B_problem at one n.

    Args:
      runs: all runs of the sweep (`SweepResult.runs`).
      metric: column of the rewards.
      reward_range: its bounds.
    """
    found = []
    for part in parts(runs, "group_size", "problems_per_batch"):
        sizes = [configuration.group_size for configuration in part.configurations]
        if len(set(sizes)) == len(sizes):
            continue
        base, cells = _base(part, metric, reward_range[0]), []
        for group in part.groups:
            own = [run for run in group.runs if metric in run.columns]
            told = [
                find_collapse(r.compute, r.columns[metric], base=base, reward_range=reward_range, seed=r.facts.seed)
                for r in own
            ]
            cells.append(CellStability(group.configuration, len(own), tuple(one for one in told if one is not None)))
        found.append(StableBatches(part, tuple(cells)))
    return tuple(found)


def _base(part: Part, metric: str, low: float) -> float:
    """Mean reward of the base model over every run that was evaluated before its first step; `low` without any."""
    runs = [run for group in part.groups for run in group.runs if metric in run.columns]
    starts = np.concatenate([np.empty(0), *(run.columns[metric][run.compute == 0] for run in runs)])
    starts = starts[np.isfinite(starts)]
    return float(starts.mean()) if len(starts) else low


def most_often(seeds: int) -> float:
    """Largest probability of a collapse with which `seeds` runs without one are seen in 5% of cases: 1 - 0.05^(1/S)."""
    return 1.0 - 0.05 ** (1.0 / seeds)


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section for each part of the sweep that has several B_problem at one n."""
    found = stable_batches(result.runs, result.metric, reward_range=result.options.read.reward_range)
    return [_section(result, each, figures, i) for i, each in enumerate(found)]


def _section(result: SweepResult, found: StableBatches, figures: pathlib.Path, number: int) -> Section:
    falls = {curve.run for curve in result.curves if curve.fit.fall}
    rows = tuple(
        (
            cell.configuration.group_size,
            cell.configuration.problems_per_batch,
            f"{len(cell.collapses)} of {cell.seeds}",
            amount(min(one.compute for one in cell.collapses)) if cell.collapses else None,
            "yes" if cell.configuration.name in falls else "no",
        )
        for cell in found.cells
    )
    return Section(
        title=f"The smallest stable B_problem{found.part.label}",
        paragraphs=(
            "A seed collapses where two neighbouring evaluations lie below its best level before them by half of what "
            "it had learned (and 0.05 of the reward range), or at half of the base model's reward, whether it recovers "
            "or not. A slower fall, as where problems are learned by heart, is told by the last column.",
        ),
        figure=_draw(found, picture(figures, "stable_batches", number)),
        alt="Share of seeds that collapse for each n and B_problem",
        how_to_read="A dot for each configuration, filled by the share of its seeds that collapsed.",
        findings=tuple(_sentences(found)),
        table=ReportTable(
            ("n", "B_problem", "seeds that collapse", f"first at ({unit(result)})", "mean falls after its peak"), rows
        ),
    )


def _sentences(found: StableBatches) -> list[str]:
    fewest = min(cell.seeds for cell in found.cells)
    bound = f"{most_often(fewest):.0%}" if fewest else "100%"
    seeds = f"{fewest} {'seed' if fewest == 1 else 'seeds'}"
    rare = f"With {seeds} a configuration that shows none may still collapse in up to {bound} of runs (95%)."
    if not found.collapsed:
        return [f"No seed collapses at any B_problem that was run, at any n. {rare}"]
    by_batch: dict[int | None, list[int]] = {}
    for size, batch in found.smallest.items():
        by_batch.setdefault(batch, []).append(size)
    stable = [f"B_problem = {batch} at n = {listed(sizes)}" for batch, sizes in by_batch.items() if batch is not None]
    said = [f"The smallest B_problem from which on no seed collapses: {'; '.join(stable)}."] if stable else []
    if None in by_batch:
        said.append(f"At n = {listed(by_batch[None])} a seed collapses even at the largest B_problem that was run.")
    return [*said, rare]


def _draw(found: StableBatches, path: pathlib.Path) -> pathlib.Path:
    """n over B_problem, filled where seeds collapsed."""
    with in_style():
        figure, (axes,) = panels(height=3.2)
        batches = sorted({cell.configuration.problems_per_batch for cell in found.cells})
        sizes = [cell.configuration.group_size for cell in found.cells]
        for cell in found.cells:
            share = len(cell.collapses) / max(cell.seeds, 1)
            place = np.log2([cell.configuration.problems_per_batch]), np.log2([cell.configuration.group_size])
            axes.scatter(*place, s=150, facecolors="white", edgecolors=INK, linewidths=1.0, zorder=2)
            axes.scatter(*place, s=150 * share, color=PALETTE(0.3), linewidths=0, zorder=3)
        axes.set_xticks(np.log2(batches), [str(batch) for batch in batches])
        axes.set(xlabel="B_problem", ylabel="n")
        axes.margins(x=0.15)
        size_axis(axes, sizes)
        round_one = {"marker": "o", "linestyle": "", "markersize": 10}
        shown = [
            Line2D([], [], color="white", markeredgecolor=INK, label="no seed collapses", **round_one),
            Line2D([], [], color=PALETTE(0.3), markeredgecolor=INK, label="every seed collapses", **round_one),
        ]
        legend(figure, shown)
        return save_figure(figure, path)
