"""For a terminal: the answer in ten lines, and what it rests on: parameters, switches, the law, what the data say."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isocompute_jax.fit.advice import BudgetRange
from isocompute_jax.fit.report.answers import AnswerText, answer_text
from isocompute_jax.fit.report.templating import said, told
from isocompute_jax.fit.report.wording import (
    MOST_LISTED,
    TERMINAL_WIDTH,
    amount,
    between,
    figures,
    listed,
    parameter,
    spent,
    symbol,
    unit,
    without_gap,
    wrapped,
)
from isocompute_jax.fit.results import AllocationFit, NextRuns
from isocompute_jax.fit.sweep_results import SweepResult

MOST_LINES = 9
"""Of the answer for one budget, or without one; the line that says where the report is makes ten."""

MOST_SCHEDULES = 2
"""Schedules with a sentence in the answer, and two lines more each; the report has all."""

FEW_LINES = 6
"""Of each answer where several budgets were asked for."""


def headline(result: SweepResult) -> str:
    """The answer: what to do with each budget, how sure that is, what to expect, and what speaks against it.

    Without a budget, what is best where the data end, and which n is best before. At most `MOST_LINES` lines of
    `TERMINAL_WIDTH` columns for one budget, and below them the runs to add, where these were asked for.
    """
    cannot = said("cannot_compare", result)
    texts = [answer_text(result, found) for found in result.asked]
    if not texts:
        return "\n".join(_lines([*said("leaders", result), *_schedules(result)], MOST_LINES))
    fixed = told("answer", result, block="fixed", answers=result.asked)
    schedules = _schedules(result)
    if len(texts) == 1:
        course = [] if result.recommendations else _course(result)
        lines = _lines([*_answer(texts[0], cannot), *course, *schedules, *fixed], MOST_LINES + 2 * len(schedules))
    else:
        lines = []
        for text in texts:
            choice, sure, reward, plan, against = _answer(text, cannot)
            lines += _lines([f"{choice} {sure}", f"{reward} {plan}", against], FEW_LINES)
        lines += wrapped(" ".join([*schedules, *fixed]), indent="  ")
    following = (" ".join(said("next_in_short", result, asked)) for asked in result.next_runs)
    return "\n".join([*lines, *(line for text in following for line in wrapped(text, indent="  "))])


def headline_tables(result: SweepResult) -> str:
    """What the answer rests on, `TERMINAL_WIDTH` columns wide: parameters, switches, law, runs to add, findings."""
    form = result.form
    levels, shape = sorted(form.params[:2], key="asymptote".__ne__), form.params[2:]
    parts = [
        f"{result.metric} ({result.options.read.eval_set})  configurations {len(result.curves)}  "
        f"runs {len(result.every_run)}  compute in {unit(result)}",
        f"{form.name}: {form.equation}",
        "",
        *_fits(result, levels, ("seeds", "points")),
        "",
        *_fits(result, shape, ("r2", "AICc", "status")),
        *_switches(result),
        *_law(result.allocation),
        *(line for asked in result.next_runs for line in _next(result, asked)),
        "",
        *(line for sentence in told("headline", result) for line in wrapped(sentence)),
        *(line for sentence in _schedules(result) for line in wrapped(sentence)),
    ]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 0) -> list[str]:
    """Lines of a table; the first `names` columns hold names, which are cut as far as the others require."""
    found = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, title in enumerate(head):
        found.add_column(title, no_wrap=place >= names)
    for row in rows:
        found.add_row(*(Text(text, no_wrap=True, overflow="ellipsis") for text in row))
    console = Console(file=io.StringIO(), width=TERMINAL_WIDTH, color_system=None, legacy_windows=False)
    with console.capture() as text:
        console.print(found)
    return [line.rstrip() for line in text.get().splitlines()]


def _fits(result: SweepResult, names: Sequence[str], more: Sequence[str]) -> list[str]:
    """One line per configuration; the interval of the asymptote is given even where it is identified."""
    columns = {
        "seeds": lambda c: str(len(c.seeds)),
        "points": lambda c: str(c.fit.num_points),
        "r2": lambda c: f"{c.fit.r2:z.4f}" if math.isfinite(c.fit.r2) else "-",
        "AICc": lambda c: f"{c.fit.aicc:z.1f}" if math.isfinite(c.fit.aicc) else "-",
        "status": lambda c: c.fit.status,
    }
    rows = [
        (
            curve.run,
            *(parameter(curve, n, sign="+-", to=" .. ", interval=n == "asymptote") for n in names),
            *(columns[name](curve) for name in more),
        )
        for curve in result.curves
    ]
    return table(("configuration", *map(symbol, names), *more), rows, names=1)


def _switches(result: SweepResult) -> list[str]:
    found = result.frontier.crossings
    if not found:
        return []
    rows = [
        (
            s.from_run,
            s.to_run,
            amount(s.compute),
            between(s.interval95, amount, " .. ") or "-",
            "-" if s.share is None else f"{s.share:.0%}",
            figures(s.epochs),
        )
        for s in found
    ]
    head = ("frontier passes from", "to", "at compute", "95% interval", "replicates", "epochs")
    return ["", *table(head, rows, names=2)]


def _law(found: AllocationFit) -> list[str]:
    """The law of n*(C) where it is established; the findings say why where it is not."""
    if found.status != "ok":
        return []
    values = {
        "span": ("L", found.span), "slope": ("k", found.slope), "midpoint": ("log10 C0", found.midpoint),
        "floor": ("b", found.floor), "saturation": ("2^(L + b)", found.saturation),
    }  # fmt: skip
    rows = [
        (text, figures(value), between(found.interval95.get(name), to=" .. ") or "-")
        for name, (text, value) in values.items()
    ]
    head = ("n*(C)", "value", "95% interval")
    return ["", "log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b", *table(head, rows)]


def _answer(text: AnswerText, cannot: Sequence[str]) -> tuple[str, str, str, str, str]:
    """An answer: what to choose, how sure that is, reward, steps, and of what speaks against it the strongest."""
    against = [*cannot, *text.against]
    count = f", first of {len(against)}" if len(against) > 1 else ""
    return (
        f"{text.question}: {text.pick}.",
        f"{text.label}. {text.certainty}" if text.label else "",
        text.expectation,
        f"{text.plan}." if text.plan else "",
        f"Against it{count}: {against[0]}" if against else "",
    )


def _schedules(result: SweepResult) -> list[str]:
    """A sentence for each of the schedules that end highest."""
    highest = sorted(result.scheduled or (), key=lambda each: -each.last.reward)[:MOST_SCHEDULES]
    return [sentence for each in highest for sentence in said("one_schedule", result, each)]


def _course(result: SweepResult) -> list[str]:
    """Which n at which budget, as far as the data go; neighbouring budgets with the same n, or one tie, are one."""
    end = result.asked[0].budget
    rows = [row for row in result.ranges if row.start < end and math.isfinite(row.rewards[0])]
    alike = itertools.groupby(rows, key=lambda row: _holders(result, row))
    parts = [(name, amount([*group][-1].end)) for name, group in alike]
    if len(parts) < 2:
        return []
    before, last = [f"{name} up to {until}" for name, until in parts[:-1]], f"then {parts[-1][0]}"
    if len(before) > MOST_LISTED:
        before[2:] = [f"{len(before) - 2} more"]
    return [f"By budget: {listed([*before, last])}."]


def _holders(result: SweepResult, row: BudgetRange) -> str:
    """The configuration of a range of budgets, or those that tie there."""
    sizes = row.tied_group_sizes
    if row.confidence != "tied" or len(sizes) < 2 or result.several_batches:
        return f"{row.run} (a tie)" if row.confidence == "tied" else row.run
    alike = len(sizes) > 2 and without_gap(sizes, result.group_sizes)
    return f"n = {f'{sizes[0]} to {sizes[-1]}' if alike else listed(sizes)} tie"


def _lines(paragraphs: Sequence[str], most: int) -> list[str]:
    """Paragraphs as lines, indented below the first; where they are more than `most`, the longest are cut."""
    told = [text for text in paragraphs if text]

    def lines(place: int, limit: int | None = None) -> list[str]:
        first, later = ("  ", "    ") if place else ("", "  ")
        return wrapped(told[place], first=first, indent=later, most=limit)

    found = [lines(place) for place in range(len(told))]
    while sum(map(len, found)) > most and max(map(len, found)) > 1:
        longest = max(range(len(found)), key=lambda place: (len(found[place]), place))
        found[longest] = lines(longest, len(found[longest]) - 1)
    return list(itertools.chain.from_iterable(found))


def _next(result: SweepResult, asked: NextRuns) -> list[str]:
    """The runs to add for a budget."""
    rows = [
        (
            f"{run.run} (not run yet)" if run.untried else run.run,
            str(run.problems_per_batch or "-"),
            str(run.seeds),
            amount(run.compute),
            "-" if run.num_steps is None else f"{run.num_steps:,}",
            amount(run.cost),
            f"{run.expected_regret:.2g}",
        )
        for run in asked.proposals
    ]
    head = ("run next", "problems", "seeds", "up to", "steps", "cost", "regret after")
    text = [line for sentence in said("next_runs", result, asked) for line in wrapped(sentence)]
    proposed = ["", *table(head, rows, names=1)] if rows else []
    return ["", f"With up to {spent(result, asked.budget)}:", *text, *proposed]
