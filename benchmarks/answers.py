"""`python -m benchmarks.answers`: what the answer to a budget is worth, on recorded sweeps with seeds left out.

    python -m benchmarks.answers                                        # 13 sweeps of gallery/, four choices of seeds
    python -m benchmarks.answers --choices=all --sweeps=problems_64     # every choice of 3 of 5 (2 of 4, 2 of 3) seeds
    python -m benchmarks.answers --tool_at=../older                     # beside them the answers of a checkout
                                                                        # whose `analyze` has `recommendations`
    python -m benchmarks.answers --sweeps=schedules/hard_64,llm         # schedules count as configurations

The seeds of a choice are fitted and asked for six budgets, from C/32 to the sweep's C. The answer's configuration,
trained to where the answer stops, is held against the mean of the k seeds left out. The plain rule averages the seeds,
then three neighbouring evaluations, and takes the highest (configuration, stop) up to the budget; it stops at
evaluations, and in a second row at the budget too, as the tool may. Intervals of differences are of a bootstrap over
sweeps. `older` holds the methods that answer without a predictive interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import flags

from benchmarks import older
from benchmarks.harness import analysed
from benchmarks.recorded_sweeps import SWEEPS, Recorded, by_sweep, got, mean_of, over_sweeps, recorded_sweep
from benchmarks.shared import names, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.frontier.answers import MATERIAL, answer
from isocompute_jax.fit.results import BudgetAnswer

INSIDE = (
    "problems_64", "again_64", "problems_16", "problems_256", "easy_64", "base_600", "batch_2", "keep_64", "rate_half",
    "rate_sqrt", "rate_linear", "wide_64", "steps_64",
)  # fmt: skip
MORE = (
    "llm",
    *(f"schedules/{name}" for name in ("easy_64", "hard_256", "hard_64", "hard_all", "mixture_64", "wide_64")),
)
CHOICES = flags.DEFINE_enum("choices", "four", ["four", "all"], "Which choices of seeds are fitted.")
TOOL_AT = flags.DEFINE_string("tool_at", "", "A checkout of an older version, to answer the same questions.")
BUDGETS = 6
LEVELS = (0.95, 0.8, 0.5)
Ends = tuple[float, float]


class Question(NamedTuple):
    """What is told, and what was left out."""

    sweep: Recorded
    seeds: tuple[int, ...]  # that are fitted
    budget: float

    @property
    def left(self) -> tuple[int, ...]:
        """The k seeds left out."""
        return tuple(seed for seed in self.sweep.seeds if seed not in self.seeds)


class Told(NamedTuple):
    """A method's answer."""

    index: int  # of the configuration
    stop: float
    reward: float  # expected
    many: np.ndarray | None = None  # predictive draws of the mean of the seeds left out
    one: np.ndarray | None = None  # and of one run
    answer: BudgetAnswer | None = None


def main() -> None:
    """Flags -> tables."""
    wanted = [recorded_sweep(name) for name in names(SWEEPS, (*INSIDE, *MORE)) or INSIDE]
    questions = [
        [Question(sweep, seeds, budget) for budget in sweep.budgets(BUDGETS)]
        for sweep in wanted
        for seeds in choices(sweep.seeds, every=CHOICES.value == "all")
    ]
    asked = [question for group in questions for question in group]
    found: dict[str, list[Told]] = {"the tool": [told for group in questions for told in tool(group)]}
    found["the plain rule"] = [Told(*older.plain(q.sweep, q.seeds, q.budget)) for q in asked]
    found["the same, at the budget too"] = [Told(*older.plain(q.sweep, q.seeds, q.budget, between=True)) for q in asked]
    found["SciPy's Hill per curve"] = [Told(*older.scipys(q.sweep, q.seeds, q.budget)) for q in asked]
    if TOOL_AT.value:
        cases = [(group[0].sweep, group[0].seeds, [q.budget for q in group]) for group in questions]
        for name, rows in older.at_checkout(TOOL_AT.value, cases).items():
            found[name] = [Told(*row) for row in rows]
    print_worth(asked, found)
    print_intervals(asked, found)
    print_verdicts(asked, found["the tool"])


def choices(seeds: Sequence[int], *, every: bool) -> list[tuple[int, ...]]:
    """Choices of 3 of 5 seeds, of 2 of fewer; four of them even over all, or all."""
    found = list(itertools.combinations(seeds, 3 if len(seeds) >= 5 else 2))
    return found if every else [found[i] for i in np.unique(np.linspace(0, len(found) - 1, 4).round().astype(int))]


def tool(group: Sequence[Question]) -> list[Told]:
    """The tool's answers to questions with the same data."""
    sweep, seeds, left = group[0].sweep, group[0].seeds, group[0].left
    found = analysed(sweep.told(seeds), sweep.metric, [question.budget for question in group])
    number = {each: k for k, each in enumerate(found.configurations)}
    rng, rows = np.random.default_rng(1), []
    for question in group:
        told = answer(found, question.budget)
        assert told is not None
        k, stop = number[told.advised.configuration], told.advised.stop
        place = int(np.argmin(np.abs(found.draws.compute - stop)))
        mean, run = found.draws.mean[k, :, place], found.draws.run[k, :, place]
        # Draws of one run's departure are independent of the mean's and of one another, so shifted ones are more runs.
        runs = [np.roll(run - mean, i + 1) + found.draws.noise * rng.normal(size=len(mean)) for i in range(len(left))]
        rows.append(Told(k, stop, told.advised.reward, mean + np.mean(runs, axis=0), mean + runs[0], told))
    return rows


def print_worth(asked: Sequence[Question], found: dict[str, list[Told]]) -> None:
    """Reward that was got, beside the plain rule's, and what was said of it."""
    groups = np.array([question.sweep.name for question in asked])
    plain = np.array([worth(q, told) for q, told in zip(asked, found["the plain rule"], strict=True)])
    print(f"{len(asked)} answers on {len(set(groups))} sweeps\n")
    print_head(
        (
            "method",
            "reward got",
            "minus the plain rule's (95% over sweeps)",
            "says minus gets",
            "least and most of a sweep",
        )
    )
    for name, rows in found.items():
        values = np.array([worth(q, told) for q, told in zip(asked, rows, strict=True)])
        says = np.mean([told.reward for told in rows] - values)
        gap = by_sweep(values - plain, groups)
        low, high = over_sweeps(gap)
        each = f"{gap.min():+.4f} to {gap.max():+.4f}"
        print_row(name, f"{values.mean():.4f}", f"{gap.mean():+.4f} ({low:+.4f} to {high:+.4f})", f"{says:+.4f}", each)
    best = [max(mean_of(q.sweep, k, q.left, q.budget)[1].max() for k in q.sweep.affordable(q.budget)) for q in asked]
    print_row("the best of the seeds left out themselves", f"{np.mean(best):.4f}", "", "", "")


def worth(question: Question, told: Told) -> float:
    """Mean of the seeds left out at the answer's stop."""
    return float(got(question.sweep, told.index, question.left, told.stop).mean())


def print_intervals(asked: Sequence[Question], found: dict[str, list[Told]]) -> None:
    """How often predictive intervals hold, and the interval score at 95%: least is best."""
    print()
    print_head(("predictive interval", *(f"{level:.0%} holds" for level in LEVELS), "width", "interval score"))
    rows: dict[str, list[tuple[list[Ends], np.ndarray]]] = {"of the mean of the seeds left out": [], "of one run": []}
    rows["the plain rule's, of the mean"] = []
    for question, told, rule in zip(asked, found["the tool"], found["the plain rule"], strict=True):
        assert told.many is not None and told.one is not None
        many, one = ([interval(draws, level) for level in LEVELS] for draws in (told.many, told.one))
        single = got(question.sweep, told.index, question.left, told.stop)
        fitted = got(question.sweep, rule.index, question.seeds, rule.stop)
        by_rule = [older.rule_interval(fitted, len(question.left), level) for level in LEVELS]
        three = (many, single.mean(keepdims=True)), (one, single), (by_rule, np.array([worth(question, rule)]))
        for name, each in zip(rows, three, strict=True):
            rows[name].append(each)
    for name, pairs in rows.items():
        held = [np.mean([holds(ends[i], truth).mean() for ends, truth in pairs]) for i in range(len(LEVELS))]
        width = np.mean([ends[0][1] - ends[0][0] for ends, _ in pairs])
        mean = np.mean([score(ends[0], truth) for ends, truth in pairs])
        print_row(name, *(f"{share:.1%}" for share in held), f"{width:.4f}", f"{mean:.4f}")


def interval(draws: np.ndarray, level: float) -> Ends:
    """Ends of the middle share of draws."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holds(ends: Ends, truth: np.ndarray) -> np.ndarray:
    """Whether each value lies between them."""
    return (ends[0] <= truth) & (truth <= ends[1])


def score(ends: Ends, truth: np.ndarray) -> float:
    """Width, and 2 / 0.05 times what a value lies outside (Gneiting and Raftery 2007)."""
    outside = np.maximum(ends[0] - truth, 0) + np.maximum(truth - ends[1], 0)
    return ends[1] - ends[0] + 40 * float(outside.mean())


def print_verdicts(asked: Sequence[Question], found: Sequence[Told]) -> None:
    """Shares of the verdicts, and how they fare: a rival chosen on one seed left out, and scored on the others."""
    print()
    print_head(("verdict", "share", "advised less the rival", "it bears out"))
    for verdict in ("clear", "no matter", "open"):
        pairs = [(q, t) for q, t in zip(asked, found, strict=True) if t.answer and t.answer.verdict == verdict]
        gaps = np.array([value for q, told in pairs for value in [lead(q, told)] if np.isfinite(value)])
        right = {"clear": gaps > 0, "no matter": gaps >= -MATERIAL}.get(verdict, np.empty(0))
        mean, true = f"{gaps.mean():+.4f}" if len(gaps) else "", f"{right.mean():.0%}" if len(right) else ""
        print_row(verdict, f"{len(pairs) / len(asked):.0%}", mean, true)


def lead(question: Question, told: Told) -> float:
    """Reward of the advised (of `no matter`: of the cheapest) less that of the best rival, over the seeds left out."""
    sweep, left, index, stop = question.sweep, question.left, told.index, told.stop
    assert told.answer is not None
    if cheapest := told.answer.cheapest:
        choice = next(each for each in told.answer.choices if each.configuration == cheapest)
        index, stop = [each.configuration for each in sweep.groups].index(cheapest), choice.stop
    rivals = [k for k in sweep.affordable(question.budget) if k != index]
    gaps = []
    for chooser in left:
        others = [seed for seed in left if seed != chooser]
        if not others or not rivals:
            return float("nan")
        best = {k: mean_of(sweep, k, (chooser,), question.budget) for k in rivals}
        rival = max(best, key=lambda k: best[k][1].max())
        at = float(best[rival][0][best[rival][1].argmax()])
        gaps.append(got(sweep, index, others, stop).mean() - got(sweep, rival, others, at).mean())
    return float(np.mean(gaps))


if __name__ == "__main__":
    app.run(main)
