"""How the n, or the B_problem, of the leader moves over compute: at each n, for each target, by number of problems.

Leaders are the upper envelope of the fitted curves with its bootstrap replicates (IsoCompute Playbook, arXiv
2603.12151), among configurations that differ in the fields in question alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.comparisons.alike import (
    LeaderCourse,
    SweepPart,
    course,
    fits_of,
    leaders,
    members_by,
    parts,
    tones,
)
from isocompute_jax.fit.comparisons.comparison import ComparisonResult, Panel, Picture, Value, common_verdict
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.bootstrap import Bootstrap, replicate_rewards
from isocompute_jax.fit.intervals import percentile_interval
from isocompute_jax.fit.metric_analysis import MetricAnalysis
from isocompute_jax.fit.report.wording import amount, listed, spent, unit
from isocompute_jax.fit.results import AllocationFit
from isocompute_jax.fit.sweep_results import SweepResult


def best_batches(result: SweepResult) -> list[ComparisonResult]:
    """B_problem*(C) at each n and with n free, in each part of a sweep that has several B_problem at one n."""
    found = []
    for part in parts(result.runs, "group_size", "problems_per_batch"):
        if any(len(own) > 1 for own in members_by(part.configurations, "group_size").values()):
            found += _best_batches(result, part)
    return found


def _best_batches(result: SweepResult, part: SweepPart) -> list[ComparisonResult]:
    ((main, resampled),) = fits_of(result, part, [result.metric])
    configurations = [curve.configuration for curve in main.curves]
    batches = [configuration.problems_per_batch for configuration in configurations]
    several = {size: own for size, own in members_by(configurations, "group_size").items() if len(own) > 1}
    courses = {size: course(leaders(main, resampled, own), batches) for size, own in several.items()}
    courses = {size: each for size, each in courses.items() if len(each.compute)}
    if not courses:
        return []
    free = course(leaders(main, resampled, range(len(configurations))), batches)
    run = {size: sorted(batches[i] for i in several[size]) for size in courses}
    rows = [{"group_size": size, "run": listed(run[size]), **_course_cells(each)} for size, each in courses.items()]
    colours = tones(courses)
    series = [each.drawn(f"n = {size}", colours[size]) for size, each in courses.items()]
    if len(free.compute):
        every = sorted({c.problems_per_batch for c in part.configurations})
        rows.append({"group_size": "free", "run": listed(every), **_course_cells(free)})
        series.append(free.drawn("n free", "ink", look="wide steps"))
    return [
        ComparisonResult(
            question="best_batches",
            part=part.label,
            verdict=common_verdict(map(_move, courses.values())),
            findings=tuple(_of_batches(result, courses, free)),
            columns={
                "group_size": "n", "run": "B_problem run", "first": "B_problem* first",
                "last": "last (95% of replicates)", "changes": f"changes at ({unit(result)})",
            },
            rows=tuple(rows),
            series=tuple(series),
            title=f"The best B_problem at each n{part.label}",
            about="Among configurations with the same n, a larger B_problem means fewer steps at the same compute. The "
            "leader is read off the fitted curves, at the budgets where no configuration without data would lead.",
            picture=Picture(
                "Best B_problem against compute, for each n",
                "A line for each n, the thick one over all n; lines that coincide are drawn a little apart.",
                Panel("B_problem*", [c.problems_per_batch for c in part.configurations]),
            ),
        )
    ]  # fmt: skip


def _course_cells(found: LeaderCourse) -> dict[str, int | Value | str | None]:
    changes = ", ".join(f"{amount(compute)} (to {value})" for compute, value in found.switches[1:])
    return {"first": int(found.value[0]), "last": found.last, "changes": changes or None}


def _of_batches(result: SweepResult, courses: Mapping[int, LeaderCourse], free: LeaderCourse) -> list[str]:
    moves: dict[str, list[int]] = {"rises": [], "falls": [], "stays": [], "moves both ways": []}
    for size, each in courses.items():
        moves[_move(each)].append(size)
    parts_of = "; ".join(f"{word} at n = {listed(sizes)}" for word, sizes in moves.items() if sizes)
    sentences = [f"Over compute the best B_problem {parts_of}."]
    ends = [each.last95 for each in courses.values() if each.last95]
    if ends:
        one = sum(low == high for low, high in ends)
        sentences.append(f"At the largest budget 95% of replicates have one B_problem in {one} of {len(courses)} n.")
    if len(free.compute):
        steps = listed(f"{value} from {amount(compute)}" for compute, value in free.switches)
        sentences.append(f"With n free it is {steps} {unit(result)}.")
    return sentences


def _move(found: LeaderCourse) -> str:
    change = np.diff(found.value)
    if not np.any(change):
        return "stays"
    return "rises" if np.all(change >= 0) else "falls" if np.all(change <= 0) else "moves both ways"


def batch_targets(result: SweepResult) -> list[ComparisonResult]:
    """n*(C) of avg@k, best@k and worst@k at each B_problem: does what a larger n buys depend on B_problem?

    The Playbook reads n*(C) off each target over all B_problem together; here every B_problem has its own envelopes.
    """
    found = []
    for part in parts(result.runs, "group_size", "problems_per_batch") if len(result.targets) > 1 else []:
        sizes = members_by(part.configurations, "problems_per_batch")
        several = [batch for batch, own in sizes.items() if len(own) > 1]
        if len(several) > 1:
            found.append(_batch_targets(result, part, several))
    return found


def _batch_targets(result: SweepResult, part: SweepPart, batches: Sequence[int]) -> ComparisonResult:
    sizes = {b: max(c.group_size for c in part.configurations if c.problems_per_batch == b) for b in batches}
    courses: dict[int, dict[str, LeaderCourse]] = {batch: {} for batch in batches}
    for name, (analysis, resampled) in zip(result.targets, fits_of(result, part, result.targets), strict=True):
        configurations = [curve.configuration for curve in analysis.curves]
        values = [configuration.group_size for configuration in configurations]
        by_batch = members_by(configurations, "problems_per_batch")
        for batch in batches:
            found = course(leaders(analysis, resampled, by_batch.get(batch, [])), values)
            if len(found.compute):
                courses[batch][name] = found
    larger = {batch: wants_larger(by_target) for batch, by_target in courses.items()}
    places = dict(zip(result.targets, np.linspace(0.05, 0.95, len(result.targets)).tolist(), strict=True))
    each_one = [(batch, name, each) for batch, by_target in courses.items() for name, each in by_target.items()]
    return ComparisonResult(
        question="batch_targets",
        part=part.label,
        verdict=common_verdict(filter(None, larger.values())),
        findings=tuple(_of_targets(result, courses, larger)),
        columns={
            "problems_per_batch": "B_problem", "target": "target", "first": "n* first",
            "last": "n* last (95% of replicates)", "largest": "largest n*", "last_is": "n* last is",
        },
        rows=tuple(
            {
                "problems_per_batch": batch,
                "target": name,
                "first": int(each.value[0]),
                "last": each.last,
                "largest": int(each.value.max()),
                "last_is": "the largest that was run" if each.value[-1] == sizes[batch] else None,
                "wants_larger": larger[batch] or None,
            }
            for batch, name, each in each_one
        ),
        series=tuple(each.drawn(name, places[name], f"B_problem = {batch}") for batch, name, each in each_one),
        title=f"n* of each target at each B_problem{part.label}",
        about="best@k asks for coverage (one of k samples correct), worst@k for sharpening (all k correct). n* is read "
        "off the fitted curves of each target, among configurations with the same B_problem.",
        picture=Picture(
            "Optimal group size against compute for each target, one panel for each number of problems per batch",
            "One panel for each B_problem (at most 6), a line for each target; lines that coincide are drawn a little "
            "apart.",
            Panel("n*", [c.group_size for c in part.configurations]),
            most=6,
            height=1.7,
        ),
    )  # fmt: skip


def wants_larger(courses: Mapping[str, LeaderCourse]) -> str:
    """Which of `best` and `worst` has the larger n* at the last budget that both have; empty where one lacks it.

    `same` where the n of 95% of replicates overlap, or are equal without a bootstrap.

    Args:
      courses: target, such as `best@4` -> its n*(C).
    """
    by_kind = {name.partition("@")[0]: found for name, found in courses.items()}
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


def _ends(found: LeaderCourse, compute: float) -> tuple[int, int]:
    """The interval of the value at one budget; the value itself without a bootstrap."""
    i = int(np.searchsorted(found.compute, compute))
    if found.low is None or found.high is None:
        return int(found.value[i]), int(found.value[i])
    return int(found.low[i]), int(found.high[i])


def _of_targets(
    result: SweepResult, courses: Mapping[int, Mapping[str, LeaderCourse]], larger: Mapping[int, str]
) -> list[str]:
    sentences = []
    for batch, by_target in courses.items():
        if by_target:
            moves = listed(f"{name} {int(each.value[0])} to {int(each.value[-1])}" for name, each in by_target.items())
            end = min(each.compute[-1] for each in by_target.values())
            sentences.append(f"At B_problem = {batch} n* goes, up to {spent(result, end)}: {moves}.")
    words = {
        "best": "best@k wants the larger n",
        "worst": "worst@k wants the larger n",
        "same": "the n of best@k and worst@k cannot be told apart",
    }
    verdicts = {key: [batch for batch, verdict in larger.items() if verdict == key] for key in words}
    each_verdict = [f"{words[key]} at B_problem = {listed(own)}" for key, own in verdicts.items() if own]
    return [*sentences, f"At the largest budget {'; '.join(each_verdict)}."] if each_verdict else sentences


class DataSize(NamedTuple):
    """The runs on one number of problems: n*(C) and its sigmoid, and the best up to the compute that all sizes reach.

    Attributes:
      largest_run: the largest n that was run.
      course: n*(C), as far as the runs go.
      law: its sigmoid.
      octaves: log2 of the largest n*.
      reward: the highest reward.
      best_run: who has it.
      drawn: [R] the replicates of `octaves` and of `reward`; None without.
    """

    largest_run: int
    course: LeaderCourse
    law: AllocationFit
    octaves: float
    reward: float
    best_run: str
    drawn: tuple[np.ndarray, np.ndarray] | None


def data_sizes(result: SweepResult) -> list[ComparisonResult]:
    """n*(C) by the number of training problems D, in each part of a sweep with several n on several D at one B_problem.

    The Playbook finds that fewer problems lower the n at which n* saturates, because they are over-fitted sooner. n*
    rises with compute, so sizes are compared up to the compute that the runs of all of them reach.
    """
    found = []
    for part in parts(result.runs, "group_size", "problem_set_size"):
        if len(_several_sizes(members_by(part.configurations, "problem_set_size"))) < 2:
            continue
        ((main, resampled),) = fits_of(result, part, [result.metric])
        members = members_by([curve.configuration for curve in main.curves], "problem_set_size")
        fitted = {size: [i for i in own if main.fits[i].status != "failed"] for size, own in members.items()}
        several = _several_sizes(fitted)
        if len(several) < 2:
            continue
        shared = min(max(float(main.curves[i].compute[-1]) for i in own) for own in several.values())
        window = result.options.smoothing
        each = {size: _data_size(main, resampled, own, shared, window=window) for size, own in several.items()}
        sizes = {size: one for size, one in each.items() if one is not None}
        if len(sizes) > 1:
            found.append(_of_sizes(result, part, shared, sizes))
    return found


def _several_sizes(members: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """The numbers of problems with several configurations."""
    return {size: own for size, own in members.items() if size and len(own) > 1}


def _data_size(
    main: MetricAnalysis, resampled: Bootstrap | None, members: Sequence[int], shared: float, *, window: int
) -> DataSize | None:
    """One number of problems; None where nobody leads before the shared compute."""
    values = np.array([curve.configuration.group_size for curve in main.curves])
    led = leaders(main, resampled, members)
    inside = led.compute <= shared
    if not inside.any():
        return None
    replicates = None if led.replicates is None else values[led.replicates].astype(float)
    found, largest = course(led, values.tolist()), int(values[list(members)].max())
    law = fit_allocation(led.compute, found.value, window=window, replicates=replicates, largest=largest)
    ends = {i: min(main.fits[i].window[1], shared) for i in members if main.fits[i].window[0] <= shared}
    rewards = {i: float(main.fits[i].reward(end)) for i, end in ends.items()}
    best = max(rewards, key=lambda i: rewards[i])
    drawn = None
    if resampled is not None and replicates is not None:
        at_end = [replicate_rewards(main.fits[i], resampled.at[:, i], np.array([end]))[:, 0] for i, end in ends.items()]
        drawn = np.log2(replicates[:, inside].max(axis=1)), np.max(at_end, axis=0)
    octaves = float(np.log2(found.value[inside].max()))
    return DataSize(largest, found, law, octaves, rewards[best], main.curves[best].configuration.name, drawn)


def _value(number: float, draws: np.ndarray | None) -> Value:
    """With its interval, where the replicates hold it."""
    return Value.within(number, None if draws is None else percentile_interval(draws, number, method="nearest"))


def _of_sizes(result: SweepResult, part: SweepPart, shared: float, sizes: Mapping[int, DataSize]) -> ComparisonResult:
    fewest, most = sizes[min(sizes)], sizes[max(sizes)]
    drawn: tuple[np.ndarray, np.ndarray] | tuple[None, None] = None, None
    if most.drawn is not None and fewest.drawn is not None:
        drawn = most.drawn[0] - fewest.drawn[0], most.drawn[1] - fewest.drawn[1]
    octaves, reward = _value(most.octaves - fewest.octaves, drawn[0]), _value(most.reward - fewest.reward, drawn[1])
    verdict = None if math.isnan(octaves.low) else {1: "larger", -1: "smaller", 0: "open"}[octaves.sign]
    colours = tones(sizes)
    return ComparisonResult(
        question="data_sizes",
        part=part.label,
        verdict=verdict,
        findings=tuple(_of_data_sizes(result, shared, sizes, octaves, reward)),
        numbers={
            "shared_compute": shared,
            "ratio_of_largest_n": Value(2.0**octaves.value, 2.0**octaves.low, 2.0**octaves.high),
            "difference_of_highest_reward": reward,
        },
        columns={
            "problem_set_size": "D", "first": "n* first", "largest": "largest n*", "largest_is": "which is",
            "saturation": "saturation of the sigmoid", "reward": f"highest {result.metric}", "run": "reached by",
        },
        rows=tuple(
            {
                "problem_set_size": size,
                "first": int(each.course.value[0]),
                "largest": round(2**each.octaves),
                "largest_is": "the largest that was run" if _at_edge(each) else f"runs go to {each.largest_run}",
                "saturation": Value(each.law.saturation, text=f"n = {each.law.saturation:.3g}")
                if each.law.status == "ok" else "not established",
                "reward": _value(each.reward, None if each.drawn is None else each.drawn[1]),
                "run": each.best_run,
            }
            for size, each in sizes.items()
        ),
        series=tuple(each.course.drawn(f"D = {size:,}", colours[size]) for size, each in sizes.items()),
        title=f"n* and the number of training problems{part.label}",
        about="With fewer problems each is seen more often at the same compute, C / (n D) times, and is over-fitted "
        f"sooner. Largest n* and highest reward: of the fitted curves up to {spent(result, shared)}, which the runs on "
        "every number of problems reach.",
        picture=Picture(
            "Optimal group size against compute for each number of training problems",
            "A line for each number of problems D; lines that coincide are drawn a little apart.",
            Panel("optimal group size n*", [c.group_size for c in part.configurations]),
        ),
    )  # fmt: skip


def _at_edge(found: DataSize) -> bool:
    """Whether its largest n* is the largest n that was run, so that a larger one might lead."""
    return round(2**found.octaves) == found.largest_run


def _of_data_sizes(
    result: SweepResult, shared: float, sizes: Mapping[int, DataSize], octaves: Value, reward: Value
) -> list[str]:
    moves = listed(
        f"{'at least ' if _at_edge(each) else ''}{round(2**each.octaves)} with {size:,}" for size, each in sizes.items()
    )
    text = f"Up to {spent(result, shared)} the largest n* is {moves} problems."
    if math.isfinite(octaves.low):
        ratio, low, high = (f"{2.0**number:.3g}" for number in (octaves.value, octaves.low, octaves.high))
        apart = f"{ratio} (95%: {low} to {high})"
        order = "larger" if octaves.sign > 0 else "smaller"
        text += (
            f" The most problems have a {order} n* than the fewest: the ratio is {apart}."
            if octaves.sign
            else f" Whether the number of problems moves it cannot be told: the ratio of most to fewest is {apart}."
        )
    interval = f" (95%: {reward.ends()})" if math.isfinite(reward.low) else ""
    return [
        text,
        f"{max(sizes):,} problems reach {sizes[max(sizes)].reward:.3f}, {min(sizes):,} {sizes[min(sizes)].reward:.3f}: "
        f"a difference of {reward.value:z.3f}{interval}.",
    ]
