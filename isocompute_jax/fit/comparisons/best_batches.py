"""B_problem*(C): the B_problem that leads at each compute, at each n and over all n.

The upper envelope of the fitted curves (IsoCompute Playbook, arXiv 2603.12151), over B_problem in place of n, with its
bootstrap replicates.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from isocompute_jax.fit.comparisons.alike import Course, Part, course, leaders, parts, picture, stages_of
from isocompute_jax.fit.report.figures.by_configuration import compute_label, size_axis
from isocompute_jax.fit.report.figures.style import INK, in_style, legend, log_axis, panels, save_figure, shades
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import amount, listed, unit
from isocompute_jax.fit.sweep_results import SweepResult


@dataclasses.dataclass(frozen=True, eq=False)
class BestBatches:
    """B_problem*(C) in one part of a sweep.

    Attributes:
      part: its configurations.
      at_size: n -> its course, for each n that was run with several B_problem.
      overall: over all configurations, n free.
      batches: n -> the B_problem that were run.
    """

    part: Part
    at_size: dict[int, Course]
    overall: Course
    batches: dict[int, list[int]]


def best_batches(result: SweepResult) -> tuple[BestBatches, ...]:
    """B_problem*(C) in each part of a sweep that has several B_problem at one n.

    Args:
      result: of the analysis; curves are fitted, and resampled, as its options say.
    """
    found = (_best(result, part) for part in parts(result.runs, "group_size", "problems_per_batch"))
    return tuple(best for best in found if best is not None and best.at_size)


def _best(result: SweepResult, part: Part) -> BestBatches | None:
    sizes = [configuration.group_size for configuration in part.configurations]
    if len(set(sizes)) == len(sizes):
        return None
    stages = stages_of(result, part)
    main = stages.metric(result.metric, intervals=True, profiles=False)
    resampled = stages.bootstrap(main)
    configurations = [curve.configuration for curve in main.curves]
    values = [configuration.problems_per_batch for configuration in configurations]
    members: dict[int, list[int]] = {}
    for i, configuration in enumerate(configurations):
        members.setdefault(configuration.group_size, []).append(i)
    several = {size: own for size, own in members.items() if len(own) > 1}
    courses = {size: course(leaders(main, resampled, own), values) for size, own in sorted(several.items())}
    return BestBatches(
        part=part,
        at_size={size: found for size, found in courses.items() if len(found.compute)},
        overall=course(leaders(main, resampled, range(len(configurations))), values),
        batches={size: sorted(values[i] for i in own) for size, own in several.items()},
    )


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section for each part of the sweep that has several B_problem at one n."""
    return [_section(result, found, figures, i) for i, found in enumerate(best_batches(result))]


def _section(result: SweepResult, found: BestBatches, figures: pathlib.Path, number: int) -> Section:
    rows = [(str(size), listed(found.batches[size]), *_cells(each)) for size, each in found.at_size.items()]
    if len(found.overall.compute):
        every = sorted({c.problems_per_batch for c in found.part.configurations})
        rows.append(("free", listed(every), *_cells(found.overall)))
    return Section(
        title=f"The best B_problem at each n{found.part.label}",
        paragraphs=(
            "Among configurations with the same n, a larger B_problem means fewer steps at the same compute. The "
            "leader is read off the fitted curves, at the budgets where no configuration without data would lead.",
        ),
        figure=_draw(result, found, picture(figures, "best_batches", number)),
        alt="Best B_problem against compute, for each n",
        how_to_read="A line for each n, the thick one over all n; lines that coincide are drawn a little apart.",
        findings=tuple(_sentences(result, found)),
        table=ReportTable(
            ("n", "B_problem run", "B_problem* first", "last", "95% of replicates", f"changes at ({unit(result)})"),
            tuple(rows),
        ),
    )


def _cells(found: Course) -> tuple[int, int, str | None, str | None]:
    """First and last value, the last one's interval, and the changes."""
    ends = found.last95
    interval = None if ends is None else " to ".join(str(end) for end in dict.fromkeys(ends))
    changes = ", ".join(f"{amount(compute)} (to {value})" for compute, value in found.switches[1:])
    return int(found.value[0]), int(found.value[-1]), interval, changes or None


def _sentences(result: SweepResult, found: BestBatches) -> list[str]:
    moves: dict[str, list[int]] = {"rises": [], "falls": [], "stays": [], "moves both ways": []}
    for size, each in found.at_size.items():
        moves[_move(each)].append(size)
    said = "; ".join(f"{word} at n = {listed(sizes)}" for word, sizes in moves.items() if sizes)
    sentences = [f"Over compute the best B_problem {said}."]
    sure = [size for size, each in found.at_size.items() if each.last95 and each.last95[0] == each.last95[1]]
    if any(each.last95 for each in found.at_size.values()):
        sentences.append(
            f"At the largest budget 95% of replicates have one B_problem in {len(sure)} of {len(found.at_size)} n."
        )
    if len(found.overall.compute):
        steps = listed(f"{value} from {amount(compute)}" for compute, value in found.overall.switches)
        sentences.append(f"With n free it is {steps} {unit(result)}.")
    return sentences


def _move(found: Course) -> str:
    values = found.value
    if len(set(values.tolist())) == 1:
        return "stays"
    change = np.diff(values)
    return "rises" if np.all(change >= 0) else "falls" if np.all(change <= 0) else "moves both ways"


def _draw(result: SweepResult, found: BestBatches, path: pathlib.Path) -> pathlib.Path:
    with in_style():
        figure, (axes,) = panels(height=3.4)
        colours, shown = shades(found.at_size), []
        apart = np.linspace(-0.12, 0.12, len(found.at_size)) if len(found.at_size) > 1 else [0.0]
        for shift, (size, each) in zip(apart, found.at_size.items(), strict=True):
            shown += axes.plot(
                each.compute,
                np.log2(each.value) + shift,
                color=colours[size],
                drawstyle="steps-mid",
                label=f"n = {size}",
            )
        if len(found.overall.compute):
            shown += axes.plot(
                found.overall.compute, np.log2(found.overall.value), color=INK, linewidth=3.0, alpha=0.4,
                drawstyle="steps-mid", label="n free",
            )  # fmt: skip
        axes.set(xlabel=compute_label(result), ylabel="B_problem*")
        size_axis(axes, [c.problems_per_batch for c in found.part.configurations])
        log_axis(axes)
        legend(figure, shown)
        return save_figure(figure, path)
