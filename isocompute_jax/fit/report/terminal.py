"""The answer for a terminal: the budgets that were asked for, parameters, switches, the law, and what the data say."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isocompute_jax.fit.frontier_results import AllocationLaw
from isocompute_jax.fit.report.answers import AnswerText, answer_text
from isocompute_jax.fit.report.templating import said, told
from isocompute_jax.fit.report.wording import (
    TERMINAL_WIDTH,
    amount,
    between,
    figures,
    parameter,
    spent,
    symbol,
    unit,
    wrapped,
)
from isocompute_jax.fit.results import NextRuns
from isocompute_jax.fit.sweep_results import SweepResult


def headline_table(result: SweepResult) -> str:
    """What was fitted, at most `TERMINAL_WIDTH` columns wide."""
    form = result.form
    levels, shape = sorted(form.params[:2], key="asymptote".__ne__), form.params[2:]
    parts = [
        f"{result.metric} ({result.options.read.eval_set})  configurations {len(result.curves)}  "
        f"runs {len(result.runs)}  compute in {unit(result)}",
        f"{form.name}: {form.equation}",
        "",
        *_fits(result, levels, ("seeds", "points")),
        "",
        *_fits(result, shape, ("r2", "AICc", "status")),
        *_switches(result),
        *_law(result.allocation.law),
        *(line for found in result.asked for line in _answer(answer_text(result, found))),
        *(line for asked in result.next_runs for line in _next(result, asked)),
        "",
        *(line for sentence in told("headline", result) for line in wrapped(sentence)),
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
            s.row.from_run,
            s.row.to_run,
            amount(s.row.compute),
            between(s.interval95, amount, " .. ") or "-",
            "-" if s.share is None else f"{s.share:.0%}",
            figures(s.row.epochs),
        )
        for s in found
    ]
    head = ("frontier passes from", "to", "at compute", "95% interval", "replicates", "epochs")
    return ["", *table(head, rows, names=2)]


def _law(found: AllocationLaw) -> list[str]:
    """The law of n*(C) where it is established; the findings say why where it is not."""
    if found.status != "ok":
        return []
    law = found.law
    values = {
        "span": ("L", law.span), "slope": ("k", law.slope), "midpoint": ("log10 C0", law.midpoint),
        "floor": ("b", law.floor), "saturation": ("2^(L + b)", found.saturation),
    }  # fmt: skip
    rows = [
        (text, figures(value), between(found.interval95.get(name), to=" .. ") or "-")
        for name, (text, value) in values.items()
    ]
    head = ("n*(C)", "value", "95% interval")
    return ["", "log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b", *table(head, rows)]


def _answer(text: AnswerText) -> list[str]:
    parts = [
        f"{text.question}: {text.pick}.",
        text.label and f"{text.label}. {text.certainty}",
        text.plan and f"{text.plan}.",
        text.expectation,
        *text.against,
        text.fixed,
        *text.reasons,
    ]
    return ["", *wrapped(" ".join(filter(None, parts)), indent="  ")]


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
