"""The number of training problems D against n*: n*(C) for each D, where it saturates, and the highest reward.

The IsoCompute Playbook (arXiv 2603.12151) finds that fewer problems lower the n at which n* saturates, because they are
over-fitted sooner. n* rises with compute, so sizes are compared up to the compute that the runs of all of them reach.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.comparisons.alike import Course, Part, course, leaders, parts, picture, stages_of
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, replicate_rewards
from isocompute_jax.fit.intervals import percentile_interval
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.report.figures.by_configuration import compute_label, size_axis
from isocompute_jax.fit.report.figures.style import in_style, legend, log_axis, panels, save_figure, shades
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import listed, spent
from isocompute_jax.fit.results import AllocationFit
from isocompute_jax.fit.sweep_results import SweepResult

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Largest:
    """The largest value up to the shared compute.

    Attributes:
      value: of the fitted curves.
      replicates: [R] of the bootstrap's; None without.
    """

    value: float
    replicates: np.ndarray | None

    @property
    def interval95(self) -> Interval | None:
        """Of the replicates; None where they do not hold the value."""
        return None if self.replicates is None else _interval(self.replicates, self.value)


@dataclasses.dataclass(frozen=True, eq=False)
class DataSize:
    """The runs on one number of problems.

    Attributes:
      problem_set_size: D.
      group_sizes: the n that were run.
      course: n*(C), as far as the runs go.
      law: its sigmoid; `saturation` is quoted where its status is `ok`.
      octaves: log2 of the largest n* up to the shared compute.
      reward: the highest reward up to there.
      best_run: who has it.
    """

    problem_set_size: int
    group_sizes: list[int]
    course: Course
    law: AllocationFit
    octaves: Largest
    reward: Largest
    best_run: str

    @property
    def largest(self) -> int:
        """The largest n* up to the shared compute."""
        return round(2**self.octaves.value)

    @property
    def at_edge(self) -> bool:
        """Whether it is the largest n that was run, so that a larger one might lead."""
        return self.largest == max(self.group_sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class DataSizes:
    """One part of a sweep, by number of problems.

    Attributes:
      part: its configurations.
      shared: compute that the runs on every number of problems reach.
      sizes: by D, two or more.
    """

    part: Part
    shared: float
    sizes: tuple[DataSize, ...]

    @property
    def octaves_gained(self) -> tuple[float, Interval | None]:
        """log2 of the largest n* with the most problems less that with the fewest, and its 95% interval."""
        return _difference(self.sizes[-1].octaves, self.sizes[0].octaves)

    @property
    def reward_gained(self) -> tuple[float, Interval | None]:
        """The highest reward with the most problems less that with the fewest, and its 95% interval."""
        return _difference(self.sizes[-1].reward, self.sizes[0].reward)


def _difference(more: Largest, fewer: Largest) -> tuple[float, Interval | None]:
    """Of independent replicates."""
    ends = None
    if more.replicates is not None and fewer.replicates is not None:
        ends = _interval(more.replicates - fewer.replicates, more.value - fewer.value)
    return more.value - fewer.value, ends


def _interval(replicates: np.ndarray, value: float) -> Interval | None:
    ends = percentile_interval(replicates, value, method="nearest")
    return None if math.isnan(ends[0]) else ends


def data_sizes(result: SweepResult) -> tuple[DataSizes, ...]:
    """Each part of a sweep that has two or more numbers of problems, several n on each, at one B_problem.

    Args:
      result: of the analysis; curves are fitted, and resampled, as its options say.
    """
    found = (_sizes(result, part) for part in parts(result.runs, "group_size", "problem_set_size"))
    return tuple(each for each in found if each is not None)


def _sizes(result: SweepResult, part: Part) -> DataSizes | None:
    members: dict[int, list[int]] = {}
    for i, configuration in enumerate(part.configurations):
        members.setdefault(configuration.problem_set_size, []).append(i)
    if sum(len(own) > 1 for size, own in members.items() if size) < 2:
        return None
    stages = stages_of(result, part)
    main = stages.metric(result.metric, intervals=True, profiles=False)
    resampled = stages.bootstrap(main)
    members = {}
    for i, curve in enumerate(main.curves):
        if main.fits[i].status != "failed":
            members.setdefault(curve.configuration.problem_set_size, []).append(i)
    several = {size: own for size, own in sorted(members.items()) if size and len(own) > 1}
    if len(several) < 2:
        return None
    shared = min(max(float(main.curves[i].compute[-1]) for i in own) for own in several.values())
    window = result.options.smoothing
    found = [_size(main, resampled, size, own, shared, window=window) for size, own in several.items()]
    sizes = tuple(one for one in found if one is not None)
    return DataSizes(part, shared, sizes) if len(sizes) > 1 else None


def _size(
    main: MetricAnalysis, resampled: Bootstrap | None, size: int, members: Sequence[int], shared: float, *, window: int
) -> DataSize | None:
    """One number of problems; None where nobody leads before the shared compute."""
    values = np.array([curve.configuration.group_size for curve in main.curves])
    led = leaders(main, resampled, members)
    inside = led.compute <= shared
    if not inside.any():
        return None
    replicates = None if led.replicates is None else values[led.replicates].astype(float)
    found, group_sizes = course(led, values.tolist()), sorted({int(values[i]) for i in members})
    law = fit_allocation(led.compute, found.value, window=window, replicates=replicates, largest=max(group_sizes))
    octaves = Largest(
        float(np.log2(found.value[inside].max())),
        None if replicates is None else np.log2(replicates[:, inside].max(axis=1)),
    )
    begun = [i for i in members if main.fits[i].window[0] <= shared]
    ends = {i: min(main.fits[i].window[1], shared) for i in begun}
    rewards = {i: float(main.fits[i].reward(end)) for i, end in ends.items()}
    best = max(rewards, key=lambda i: rewards[i])
    drawn = None
    if resampled is not None and replicates is not None:
        drawn = np.max(
            [replicate_rewards(main.fits[i], resampled.at[:, i], np.array([end]))[:, 0] for i, end in ends.items()],
            axis=0,
        )
    reward = Largest(rewards[best], drawn)
    return DataSize(size, group_sizes, found, law, octaves, reward, main.curves[best].configuration.name)


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section for each part of the sweep that has several numbers of problems."""
    return [_section(result, found, figures, i) for i, found in enumerate(data_sizes(result))]


def _section(result: SweepResult, found: DataSizes, figures: pathlib.Path, number: int) -> Section:
    rows = []
    for each in found.sizes:
        saturation = f"n = {each.law.saturation:.3g}" if each.law.status == "ok" else "not established"
        edge = "the largest that was run" if each.at_edge else f"runs go to {max(each.group_sizes)}"
        ends = each.reward.interval95
        reward = f"{each.reward.value:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")
        rows.append((each.problem_set_size, int(each.course.value[0]), each.largest, edge, saturation, reward,
                     each.best_run))  # fmt: skip
    return Section(
        title=f"n* and the number of training problems{found.part.label}",
        paragraphs=(
            "With fewer problems each is seen more often at the same compute, C / (n D) times, and is over-fitted "
            f"sooner. Largest n* and highest reward: of the fitted curves up to {spent(result, found.shared)}, which "
            "the runs on every number of problems reach.",
        ),
        figure=_draw(result, found, picture(figures, "data_sizes", number)),
        alt="Optimal group size against compute for each number of training problems",
        how_to_read="A line for each number of problems D; lines that coincide are drawn a little apart.",
        findings=tuple(_sentences(result, found)),
        table=ReportTable(
            ("D", "n* first", "largest n*", "which is", "saturation of the sigmoid", f"highest {result.metric}",
             "reached by"),
            tuple(rows),
        ),
    )  # fmt: skip


def _sentences(result: SweepResult, found: DataSizes) -> list[str]:
    fewest, most = found.sizes[0], found.sizes[-1]
    moves = listed(
        f"{'at least ' if each.at_edge else ''}{each.largest} with {each.problem_set_size:,}" for each in found.sizes
    )
    octaves, ends = found.octaves_gained
    said = [f"Up to {spent(result, found.shared)} the largest n* is {moves} problems.{_told(octaves, ends)}"]
    reward, ends = found.reward_gained
    interval = f" (95%: {ends[0]:z.3f} to {ends[1]:z.3f})" if ends else ""
    said.append(
        f"{most.problem_set_size:,} problems reach {most.reward.value:.3f}, {fewest.problem_set_size:,} "
        f"{fewest.reward.value:.3f}: a difference of {reward:z.3f}{interval}."
    )
    return said


def _told(octaves: float, ends: Interval | None) -> str:
    """Whether the data set moves n*."""
    if ends is None:
        return ""
    ratio, low, high = (f"{2.0**value:.3g}" for value in (octaves, *ends))
    apart = f"{ratio} (95%: {low} to {high})"
    if ends[0] > 0 or ends[1] < 0:
        order = "larger" if ends[0] > 0 else "smaller"
        return f" The most problems have a {order} n* than the fewest: the ratio is {apart}."
    return f" Whether the number of problems moves it cannot be told: the ratio of most to fewest is {apart}."


def _draw(result: SweepResult, found: DataSizes, path: pathlib.Path) -> pathlib.Path:
    with in_style():
        figure, (axes,) = panels(height=3.4)
        colours = shades(each.problem_set_size for each in found.sizes)
        apart = np.linspace(-0.12, 0.12, len(found.sizes))
        shown = []
        for shift, each in zip(apart, found.sizes, strict=True):
            shown += axes.plot(
                each.course.compute, np.log2(each.course.value) + shift, color=colours[each.problem_set_size],
                drawstyle="steps-mid", linewidth=2.0, label=f"D = {each.problem_set_size:,}",
            )  # fmt: skip
        axes.set(xlabel=compute_label(result), ylabel="optimal group size n*")
        size_axis(axes, [c.group_size for c in found.part.configurations])
        log_axis(axes)
        legend(figure, shown)
        return save_figure(figure, path)
