"""n*(C) for avg@k, best@k and worst@k at each B_problem: does what a larger n buys depend on B_problem?

The IsoCompute Playbook (arXiv 2603.12151) reads n*(C) off each target over all B_problem together; here every B_problem
has envelopes of its own.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Literal

import numpy as np

from isocompute_jax.fit.comparisons.alike import Course, Part, course, leaders, parts, picture, stages_of
from isocompute_jax.fit.report.figures.by_configuration import compute_label, size_axis
from isocompute_jax.fit.report.figures.style import (
    PALETTE,
    in_style,
    labels,
    legend,
    log_axis,
    multiples,
    picked,
    save_figure,
)
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import listed, spent
from isocompute_jax.fit.sweep_results import SweepResult

MOST_PANELS = 6


@dataclasses.dataclass(frozen=True, eq=False)
class BatchTargets:
    """n*(C) of each target at each B_problem, in one part of a sweep.

    Attributes:
      part: its configurations.
      courses: B_problem -> target -> n*(C), where the data give it.
      sizes: B_problem -> the n that were run.
    """

    part: Part
    courses: Mapping[int, Mapping[str, Course]]
    sizes: Mapping[int, list[int]]

    def wants_larger(self, batch: int) -> Literal["best", "worst", "same", ""]:
        """Which of best@k and worst@k has the larger n* at the last budget that both have; empty where one lacks it.

        `same` where the n of 95% of replicates overlap, or are equal without a bootstrap.
        """
        by_kind = {name.partition("@")[0]: found for name, found in self.courses[batch].items()}
        if not {"best", "worst"} <= by_kind.keys():
            return ""
        best, worst = by_kind["best"], by_kind["worst"]
        shared = np.intersect1d(best.compute, worst.compute)
        if not len(shared):
            return ""
        (b_low, b_high), (w_low, w_high) = (_ends(each, shared[-1]) for each in (best, worst))
        if b_low <= w_high and w_low <= b_high:
            return "same"
        return "best" if b_low > w_high else "worst"


def _ends(found: Course, compute: float) -> tuple[int, int]:
    """The interval of the value at one budget; the value itself without a bootstrap."""
    i = int(np.searchsorted(found.compute, compute))
    if found.low is None or found.high is None:
        return int(found.value[i]), int(found.value[i])
    return int(found.low[i]), int(found.high[i])


def batch_targets(result: SweepResult) -> tuple[BatchTargets, ...]:
    """n*(C) of each target at each B_problem, in each part of a sweep with several n at each of several B_problem.

    Args:
      result: of the analysis; curves are fitted, and resampled, as its options say.
    """
    if len(result.targets) < 2:
        return ()
    found = (_targets(result, part) for part in parts(result.runs, "group_size", "problems_per_batch"))
    return tuple(each for each in found if each is not None)


def _targets(result: SweepResult, part: Part) -> BatchTargets | None:
    sizes: dict[int, list[int]] = {}
    for configuration in part.configurations:
        sizes.setdefault(configuration.problems_per_batch, []).append(configuration.group_size)
    several = {batch: own for batch, own in sorted(sizes.items()) if len(own) > 1}
    if len(several) < 2:
        return None
    stages, courses = stages_of(result, part), {batch: {} for batch in several}
    for name in result.targets:
        analysis = stages.metric(name, intervals=True, profiles=False)
        resampled = stages.bootstrap(analysis)
        configurations = [curve.configuration for curve in analysis.curves]
        values = [configuration.group_size for configuration in configurations]
        for batch in several:
            members = [i for i, c in enumerate(configurations) if c.problems_per_batch == batch]
            found = course(leaders(analysis, resampled, members), values)
            if len(found.compute):
                courses[batch][name] = found
    return BatchTargets(part, courses, several)


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section for each part of the sweep with several n at each of several B_problem, and several targets."""
    return [_section(result, found, figures, i) for i, found in enumerate(batch_targets(result))]


def _section(result: SweepResult, found: BatchTargets, figures: pathlib.Path, number: int) -> Section:
    rows = []
    for batch, by_target in found.courses.items():
        for name, each in by_target.items():
            ends = each.last95
            interval = None if ends is None else " to ".join(str(end) for end in dict.fromkeys(ends))
            edge = "the largest that was run" if each.value[-1] == max(found.sizes[batch]) else None
            largest = int(each.value.max())
            rows.append((batch, name, int(each.value[0]), int(each.value[-1]), interval, largest, edge))
    return Section(
        title=f"n* of each target at each B_problem{found.part.label}",
        paragraphs=(
            "best@k asks for coverage (one of k samples correct), worst@k for sharpening (all k correct). n* is read "
            "off the fitted curves of each target, among configurations with the same B_problem.",
        ),
        figure=_draw(result, found, picture(figures, "batch_targets", number)),
        alt="Optimal group size against compute for each target, one panel for each number of problems per batch",
        how_to_read=f"One panel for each B_problem (at most {MOST_PANELS}), a line for each target; lines that "
        "coincide are drawn a little apart.",
        findings=tuple(_sentences(result, found)),
        table=ReportTable(
            ("B_problem", "target", "n* first", "n* last", "95% of replicates", "largest n*", "n* last is"),
            tuple(rows),
        ),
    )


def _sentences(result: SweepResult, found: BatchTargets) -> list[str]:
    said = []
    for batch, by_target in found.courses.items():
        if not by_target:
            continue
        moves = listed(f"{name} {int(each.value[0])} to {int(each.value[-1])}" for name, each in by_target.items())
        end = min(each.compute[-1] for each in by_target.values())
        said.append(f"At B_problem = {batch} n* goes, up to {spent(result, end)}: {moves}.")
    verdicts: dict[str, list[int]] = {}
    for batch in found.courses:
        verdicts.setdefault(found.wants_larger(batch), []).append(batch)
    words = {
        "best": "best@k wants the larger n",
        "worst": "worst@k wants the larger n",
        "same": "the n of best@k and worst@k cannot be told apart",
    }
    told = [f"{text} at B_problem = {listed(verdicts[key])}" for key, text in words.items() if key in verdicts]
    return [*said, f"At the largest budget {'; '.join(told)}."] if told else said


def _draw(result: SweepResult, found: BatchTargets, path: pathlib.Path) -> pathlib.Path:
    """n*(C), a panel for each B_problem, a line for each target."""
    with in_style():
        shown = picked([(batch, own) for batch, own in found.courses.items() if own], MOST_PANELS)
        names = list(result.targets)
        places = np.linspace(0.05, 0.95, len(names))
        apart = np.linspace(-0.12, 0.12, len(names))
        figure, axes = multiples(len(shown), panel=1.7)
        lines = {}
        for panel, (batch, by_target) in zip(axes, shown, strict=True):
            for name, place, shift in zip(names, places, apart, strict=True):
                if name in by_target:
                    each = by_target[name]
                    (lines[name],) = panel.plot(
                        each.compute, np.log2(each.value) + shift, color=PALETTE(place), drawstyle="steps-mid",
                        label=name,
                    )  # fmt: skip
            panel.set_title(f"B_problem = {batch}", loc="left", fontweight="bold")
            size_axis(panel, [c.group_size for c in found.part.configurations], most=6)
            log_axis(panel)
        labels(figure, axes, compute_label(result), "n*")
        legend(figure, [lines[name] for name in names if name in lines])
        return save_figure(figure, path)
