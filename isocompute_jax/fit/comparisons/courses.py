"""How the n, or the B_problem, of the leader moves: at each n, for each target, by number of problems, over steps.

Leaders are the upper envelope of the fitted curves with its bootstrap replicates (IsoCompute Playbook, arXiv
2603.12151), among configurations that differ in the fields in question alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from isocompute_jax.fit.comparisons.alike import Groups, fits_of, members_by, parts, several_by
from isocompute_jax.fit.comparisons.comparison import (
    Cell,
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Tone,
    Value,
    common_verdict,
)
from isocompute_jax.fit.frontier.allocation import StepsLaw, fit_allocation, fit_steps_law
from isocompute_jax.fit.frontier.bootstrap import (
    PERCENTILES,
    Bootstrap,
    leaders_among,
    percentile_interval,
    replicate_rewards,
    whole_or_none,
)
from isocompute_jax.fit.frontier.envelope import frontier
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import amount, listed, unit
from isocompute_jax.fit.results import SliceResult
from isocompute_jax.fit.stages import MetricAnalysis
from isocompute_jax.fit.sweep_results import SweepResult

DIRECTIONS = {
    (True, False): "rises", (False, True): "falls", (False, False): "stays", (True, True): "moves both ways",
}  # fmt: skip
"""(whether a value rises, whether it falls) over compute -> how it goes."""
LARGEST_RUN = "the largest that was run"
"""What is said of an n* beyond which none was run: a larger one might lead."""

MOST_PANELS = 6
"""Of n*(M), one for each number of rollouts per step."""
LEAST_SIZES, LEAST_BUDGETS = 3, 5
"""Of n*(M): n that were run, and budgets at which n* is told."""


@dataclasses.dataclass(frozen=True, eq=False)
class Course:
    """How one field of the leader moves over compute, as n* or B_problem* does."""

    compute: np.ndarray  # [P] budgets, increasing: those where none without data would lead
    value: np.ndarray  # [P] of the leader
    replicates: np.ndarray | None  # [R, P] of the leaders of bootstrap replicates; None without

    @property
    def interval95(self) -> np.ndarray | None:
        """[2, P] of the value, over replicates; None without."""
        if self.replicates is None:
            return None
        return np.percentile(self.replicates, PERCENTILES, axis=0, method="nearest")

    @property
    def switches(self) -> list[tuple[float, int]]:
        """The first value and every other one, with the budget that has it first."""
        new = [0, *(np.flatnonzero(np.diff(self.value)) + 1)] if len(self.value) else []
        return [(float(self.compute[i]), int(self.value[i])) for i in new]

    @property
    def direction(self) -> str:
        """How the value goes over compute: a word."""
        change = np.diff(self.value)
        rises, falls = bool(np.any(change > 0)), bool(np.any(change < 0))
        return DIRECTIONS[rises, falls]

    @property
    def last95(self) -> tuple[int, int] | None:
        """The interval at the last budget; None where it does not hold the value."""
        ends = self.interval95
        return None if ends is None else whole_or_none((int(ends[0, -1]), int(ends[1, -1])), self.value[-1])

    @property
    def cells(self) -> dict[str, int | Value]:
        """The first value, and the last one with its interval: `16 (8 to 32)`."""
        return {"first": int(self.value[0]), "last": Value.whole(int(self.value[-1]), self.last95)}

    def drawn(self, name: str, tone: Tone, panel: str = "") -> DrawnSeries:
        """For a picture."""
        low, high = (None, None) if self.interval95 is None else self.interval95
        return DrawnSeries(name, self.compute, self.value, panel, low, high, look="steps", tone=tone)


def course(analysis: MetricAnalysis, resampled: Bootstrap | None, members: Sequence[int], field: str) -> Course:
    """The course of a field of the upper envelope of some configurations, and of its replicates.

    Args:
      analysis: of one metric.
      resampled: bootstrap of its curves; None without.
      members: numbers of the configurations.
      field: of `Configuration`.
    """
    configurations = [curve.configuration for curve in analysis.curves]
    fits = [fit if i in members else dataclasses.replace(fit, status="failed") for i, fit in enumerate(analysis.fits)]
    led = analysis.uncontested(frontier(fits, configurations), members)
    compute = np.array([compute for compute, _ in led])
    values = np.array([getattr(configuration, field) for configuration in configurations])
    drawn = replicate_leaders(analysis, resampled, members, compute)
    leaders = np.array([i for _, i in led], dtype=int)
    return Course(compute, values[leaders], None if drawn is None else values[drawn])


def replicate_leaders(
    analysis: MetricAnalysis, resampled: Bootstrap | None, members: Sequence[int], compute: np.ndarray
) -> np.ndarray | None:
    """[R, P] numbers of the leaders of bootstrap replicates among some configurations; None where nothing tells."""
    fitted = [i for i in members if analysis.fits[i].status != "failed"]
    if resampled is None or not len(compute) or not all(resampled.tells(analysis.fits[i], i) for i in fitted):
        return None
    budgets: list[float] = compute.tolist()
    return np.stack([leaders_among(resampled, analysis.fits, dict.fromkeys(fitted, c)) for c in budgets], axis=1)


def tones(values: Iterable[float]) -> dict[float, float]:
    """value > 0 -> share of the palette, in the order of its logarithm."""
    every = sorted(set(values))
    first, span = math.log(every[0]), math.log(every[-1] / every[0]) or 1.0
    return {value: (math.log(value) - first) / span for value in every}


def best_batches(result: SweepResult) -> Iterator[ComparisonResult]:
    """B_problem*(C) at each n and with n free, in each part of a sweep that has several B_problem at one n."""
    for label, groups in parts(result.runs, "group_size", "problems_per_batch"):
        if several_by(groups, "group_size"):
            yield from _best_batches(result, label, groups)


def _best_batches(result: SweepResult, part: str, groups: Groups) -> Iterator[ComparisonResult]:
    ((main, resampled),) = fits_of(result, groups, [result.metric])
    several = several_by(main.curves, "group_size")
    courses = {size: course(main, resampled, own, "problems_per_batch") for size, own in several.items()}
    courses = {size: each for size, each in courses.items() if len(each.compute)}
    if not courses:
        return
    colours = tones(courses)
    rows, series = [], []
    for size, each in courses.items():
        run = sorted(main.configurations[i].problems_per_batch for i in several[size])
        rows.append({"group_size": size, "run": listed(run), **each.cells, "changes": _changes(each)})
        series.append(each.drawn(f"n = {size}", colours[size]))
    free = course(main, resampled, range(len(main.curves)), "problems_per_batch")
    batches = sorted({group.configuration.problems_per_batch for group in groups})
    if len(free.compute):
        rows.append({"group_size": "free", "run": listed(batches), **free.cells, "changes": _changes(free)})
        series.append(dataclasses.replace(free.drawn("n free", "ink"), look="wide steps"))
    directions = {word: [size for size in courses if courses[size].direction == word] for word in DIRECTIONS.values()}
    ends = [each.last95 for each in courses.values() if each.last95]
    yield answer(
        result,
        "best_batches",
        part=part,
        verdict=common_verdict(each.direction for each in courses.values()),
        columns={
            "group_size": "n", "run": "B_problem run", "first": "B_problem* first",
            "last": "last (95% of replicates)", "changes": f"changes at ({unit(result)})",
        },
        rows=rows,
        series=series,
        picture=Picture(Panel("B_problem*", batches)),
        directions={word: sizes for word, sizes in directions.items() if sizes},
        num_sizes=len(courses),
        num_settled=sum(low == high for low, high in ends) if ends else None,
        free=free.switches,
    )  # fmt: skip


def _changes(found: Course) -> str | None:
    return ", ".join(f"{amount(compute)} (to {value})" for compute, value in found.switches[1:]) or None


def batch_targets(result: SweepResult) -> Iterator[ComparisonResult]:
    """n*(C) of avg@k, best@k and worst@k at each B_problem: does what a larger n buys depend on B_problem?

    The Playbook reads n*(C) off each target over all B_problem together; here every B_problem has its own envelopes.
    """
    every = parts(result.runs, "group_size", "problems_per_batch") if len(result.targets) > 1 else []
    for label, groups in every:
        if len(several_by(groups, "problems_per_batch")) > 1:
            yield _batch_targets(result, label, groups)


def _batch_targets(result: SweepResult, part: str, groups: Groups) -> ComparisonResult:
    members = several_by(groups, "problems_per_batch")
    largest = {batch: max(groups[i].configuration.group_size for i in own) for batch, own in members.items()}
    courses: dict[int, dict[str, Course]] = {batch: {} for batch in members}
    for name, (analysis, resampled) in zip(result.targets, fits_of(result, groups, result.targets), strict=True):
        by_batch = members_by(analysis.curves, "problems_per_batch")
        for batch in members:
            each = course(analysis, resampled, by_batch.get(batch, []), "group_size")
            if len(each.compute):
                courses[batch][name] = each
    larger = {batch: wants_larger(by_target) for batch, by_target in courses.items()}
    places = dict(zip(result.targets, np.linspace(0.05, 0.95, len(result.targets)).tolist(), strict=True))
    each_one = [(batch, name, each) for batch, by_target in courses.items() for name, each in by_target.items()]
    return answer(
        result,
        "batch_targets",
        part=part,
        verdict=common_verdict(filter(None, larger.values())),
        columns={
            "problems_per_batch": "B_problem", "target": "target", "first": "n* first",
            "last": "n* last (95% of replicates)", "largest": "largest n*", "last_is": "n* last is",
        },
        rows=[
            {
                "problems_per_batch": batch,
                "target": name,
                **each.cells,
                "largest": int(each.value.max()),
                "last_is": LARGEST_RUN if each.value[-1] == largest[batch] else None,
                "wants_larger": larger[batch] or None,
            }
            for batch, name, each in each_one
        ],
        series=[each.drawn(name, places[name], f"B_problem = {batch}") for batch, name, each in each_one],
        picture=Picture(Panel("n*", [group.configuration.group_size for group in groups]), most=6, height=1.7),
        courses={batch: by_target for batch, by_target in courses.items() if by_target},
        ends={b: min(each.compute[-1] for each in own.values()) for b, own in courses.items() if own},
        wanted={word: [b for b in larger if larger[b] == word] for word in ("best", "worst", "same")},
    )  # fmt: skip


def wants_larger(courses: Mapping[str, Course]) -> str:
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


def _ends(found: Course, compute: float) -> tuple[int, int]:
    """The interval of the value at one budget; the value itself without a bootstrap."""
    i = int(np.searchsorted(found.compute, compute))
    low, high = [found.value] * 2 if found.interval95 is None else found.interval95
    return int(low[i]), int(high[i])


def data_sizes(result: SweepResult) -> Iterator[ComparisonResult]:
    """n*(C) by the number of training problems D, in each part of a sweep with several n on several D at one B_problem.

    The Playbook finds that fewer problems lower the n at which n* saturates, because they are over-fitted sooner. n*
    rises with compute, so sizes are compared up to the compute that the runs of all of them reach.
    """
    for label, groups in parts(result.runs, "group_size", "problem_set_size"):
        if len(several_by(groups, "problem_set_size")) > 1:
            yield from _data_sizes(result, label, groups)


def _data_sizes(result: SweepResult, part: str, groups: Groups) -> Iterator[ComparisonResult]:
    ((main, resampled),) = fits_of(result, groups, [result.metric])
    members = members_by(main.curves, "problem_set_size")
    fitted = {size: [i for i in own if main.fits[i].status != "failed"] for size, own in members.items()}
    several = {size: own for size, own in fitted.items() if len(own) > 1}
    if len(several) < 2:
        return
    shared = min(max(float(main.curves[i].compute[-1]) for i in own) for own in several.values())
    courses = {size: course(main, resampled, own, "group_size") for size, own in several.items()}
    courses = {size: each for size, each in courses.items() if (each.compute <= shared).any()}
    if len(courses) < 2:
        return
    fewest, most, colours = min(courses), max(courses), tones(courses)
    largest = {size: _largest(each, shared) for size, each in courses.items()}
    highest, rows = {}, []
    for size, each in courses.items():
        best, highest[size] = _highest(main, resampled if each.replicates is not None else None, several[size], shared)
        reached = round(2 ** largest[size][0])
        most_run = max(main.configurations[i].group_size for i in several[size])
        rows.append({
            "problem_set_size": size,
            "first": int(each.value[0]),
            "largest": reached,
            "largest_is": LARGEST_RUN if reached == most_run else f"runs go to {most_run}",
            "saturation": _saturation(result, each, most_run),
            "reward": _value(highest[size]),
            "run": best,
        })  # fmt: skip
    octaves, reward = _difference(largest[most], largest[fewest]), _difference(highest[most], highest[fewest])
    ratio = Value(2.0**octaves.value, 2.0**octaves.low, 2.0**octaves.high)
    verdict = None if math.isnan(octaves.low) else {1: "larger", -1: "smaller", 0: "open"}[octaves.sign]
    yield answer(
        result,
        "data_sizes",
        part=part,
        verdict=verdict,
        numbers={"shared_compute": shared, "ratio_of_largest_n": ratio, "difference_of_highest_reward": reward},
        columns={
            "problem_set_size": "D", "first": "n* first", "largest": "largest n*", "largest_is": "which is",
            "saturation": "saturation of the sigmoid", "reward": f"highest {result.metric}", "run": "reached by",
        },
        rows=rows,
        series=[each.drawn(f"D = {size:,}", colours[size]) for size, each in courses.items()],
        picture=Picture(Panel("optimal group size n*", [group.configuration.group_size for group in groups])),
        verdict_on_n=verdict,
        ratio=ratio,
        difference=reward,
        shared=shared,
        at_least=[row["problem_set_size"] for row in rows if row["largest_is"] == LARGEST_RUN],
        fewest=rows[0],
        most=rows[-1],
    )  # fmt: skip


def _saturation(result: SweepResult, found: Course, largest_run: int) -> Value | str:
    """Of the sigmoid of n*(C), where the data establish it."""
    replicates = None if found.replicates is None else found.replicates.astype(float)
    window = result.options.smoothing
    law = fit_allocation(found.compute, found.value, window=window, replicates=replicates, largest=largest_run)
    return Value(law.saturation, text=f"n = {law.saturation:.3g}") if law.status == "ok" else "not established"


def _largest(found: Course, shared: float) -> np.ndarray:
    """[1 + R] log2 of the largest n* up to a compute: of the fitted curves, and of their replicates."""
    inside = found.compute <= shared
    every = [found.value[None], *([] if found.replicates is None else [found.replicates])]
    return np.log2(np.concatenate(every)[:, inside].max(axis=1).astype(float))


def _highest(
    main: MetricAnalysis, resampled: Bootstrap | None, members: Sequence[int], shared: float
) -> tuple[str, np.ndarray]:
    """The configuration with the highest reward up to a compute; [1 + R] that reward, and that of the replicates."""
    ends = {i: min(main.fits[i].window[1], shared) for i in members if main.fits[i].window[0] <= shared}
    rewards = {i: float(main.fits[i].reward(end)) for i, end in ends.items()}
    best = max(rewards, key=lambda i: rewards[i])
    drawn = np.empty(0)
    if resampled is not None:
        at_end = [replicate_rewards(main.fits[i], resampled.at[:, i], np.array([end]))[:, 0] for i, end in ends.items()]
        drawn = np.max(at_end, axis=0)
    return main.curves[best].configuration.name, np.array([rewards[best], *drawn])


def _difference(one: np.ndarray, other: np.ndarray) -> Value:
    """Of two numbers, each before its replicates; without an interval where one has none."""
    known = slice(None) if len(one) == len(other) else slice(1)
    return _value(one[known] - other[known])


def _value(found: np.ndarray) -> Value:
    """A number with the interval of the replicates after it, where they hold it."""
    number = float(found[0])
    return Value.within(number, percentile_interval(found[1:], number, method="nearest"))


def steps_laws(result: SweepResult) -> dict[str, StepsLaw]:
    """B = n B_problem, with a label of the part of the sweep -> n*(M) in that slice (`SweepResult.slices`).

    A slice can where its configurations differ in n and B_problem alone, have three n or more, and five budgets at
    which n* is told and moves.

    Args:
      result: of the analysis; curves are fitted, and resampled, as its options say.
    """
    slices = [each for each in result.slices_of("rollouts_per_step") if _shows(each)]
    laws = {}
    for label, groups in parts(result.runs, "group_size", "problems_per_batch") if slices else []:
        names = {group.configuration.name for group in groups}
        own = [each for each in slices if set(each.runs) <= names]
        if not own:
            continue
        ((main, resampled),) = fits_of(result, groups, [result.metric])
        number = {configuration.name: i for i, configuration in enumerate(main.configurations)}
        sizes = np.array([configuration.group_size for configuration in main.configurations])
        for each in own:
            members = [number[run] for run in each.runs]
            if len(set(sizes[members])) < LEAST_SIZES:
                continue
            compute = np.array([row.compute for row in each.budgets])
            drawn = replicate_leaders(main, resampled, members, compute)
            laws[f"{each.value}{label}"] = fit_steps_law(
                np.array([row.num_steps for row in each.budgets], float),
                np.array([row.group_size for row in each.budgets]),
                sizes=sizes[members].tolist(),
                replicates=None if drawn is None else sizes[drawn],
            )
    return laws


def _shows(part: SliceResult) -> bool:
    """Whether a slice has enough budgets."""
    known = all(row.num_steps is not None for row in part.budgets)
    return known and len({row.group_size for row in part.budgets}) > 1 and len(part.budgets) >= LEAST_BUDGETS


def compare_shapes(result: SweepResult) -> Iterator[ComparisonResult]:
    """One where a slice of fixed B has three n or more."""
    laws = steps_laws(result)
    if not laws:
        return
    sizes = sorted({n for law in laws.values() for n in law.sizes})
    yield answer(
        result,
        "steps_law",
        verdict=common_verdict(law.against("line") for law in laws.values()),
        columns={
            "rollouts_per_step": "B", "sizes": "n run", "line_less_sigmoid": "AICc: line less sigmoid",
            "share_line": "replicates", "cut_line_less_sigmoid": "cut line less sigmoid",
            "share_cut_line": "replicates", "midpoint": "midpoint (steps), 95%",
            "at_ends": "budgets at an end of the n run",
        },
        rows=[_shape_row(name, law) for name, law in laws.items()],
        series=[series for name, law in laws.items() for series in _shape_series(f"B = {name}", law)],
        picture=Picture(Panel("n*", sizes, x="steps M"), most=MOST_PANELS),
        laws=laws,
        most=MOST_PANELS,
    )  # fmt: skip


def _shape_row(name: str, law: StepsLaw) -> dict[str, Cell]:
    ends = f" ({amount(law.midpoint95[0])} to {amount(law.midpoint95[1])})" if law.midpoint95 else ""
    shares = {key: law.shares.get(other) for key, other in (("share_line", "line"), ("share_cut_line", "cut line"))}
    return {
        "rollouts_per_step": name,
        "sizes": listed(law.sizes),
        "line_less_sigmoid": law.ahead("line"),
        "cut_line_less_sigmoid": law.ahead("cut line"),
        **{key: None if share is None else Value(share, text=f"{share:.0%}") for key, share in shares.items()},
        "midpoint": Value.within(law.midpoint, law.midpoint95, f"{amount(law.midpoint)}{ends}"),
        "at_ends": f"{law.at_ends} of {len(law.steps)}",
        "against_line": law.against("line"),
        "against_cut_line": law.against("cut line"),
    }


def _shape_series(panel: str, law: StepsLaw) -> list[DrawnSeries]:
    grid = np.geomspace(law.steps[0], law.steps[-1], 60)
    return [
        DrawnSeries("n* read off", law.steps, law.group_size, panel, look="dots", tone=0.3),
        DrawnSeries("sigmoid", grid, 2.0 ** law.octaves("sigmoid", grid), panel),
        DrawnSeries("line", grid, 2.0 ** law.octaves("line", grid), panel, look="dashed", tone="quiet"),
        DrawnSeries("cut line", grid, 2.0 ** law.octaves("cut line", grid), panel, look="dotted", tone="quiet"),
    ]
