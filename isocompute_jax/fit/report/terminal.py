"""The answer for a terminal, in the manner of lmfit's report: parameters, switches, recommendations, findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.frontier_results import AllocationLaw
from isocompute_jax.fit.report.findings import headline
from isocompute_jax.fit.report.findings.answers import AnswerText, answer_text
from isocompute_jax.fit.report.sections.curve_sections import symbol
from isocompute_jax.fit.report.wording import (
    TERMINAL_WIDTH,
    aligned,
    amount,
    between,
    figures,
    parameter,
    shortened,
    unit,
    wrapped,
)
from isocompute_jax.fit.sweep_results import SweepResult

LEAST_NAME = 10


def headline_table(result: SweepResult) -> str:
    """What was fitted, at most `TERMINAL_WIDTH` columns wide."""
    form = FORMS[result.curves[0].fit.form]
    levels, shape = form.params[:2], form.params[2:]
    count = len(result.runs)
    parts = [
        f"{result.metric} ({result.options.read.eval_set})  configurations {len(result.curves)}  "
        f"runs {count}  compute in {unit(result)}",
        f"{form.name}: {form.equation}",
        "",
        *_fits(result, ("asymptote", *(name for name in levels if name != "asymptote")), ("seeds", "points")),
        "",
        *_fits(result, shape, ("r2", "AICc", "status")),
        *_switches(result),
        *_law(result.allocation.law),
        *(line for found in result.asked for line in _answer(answer_text(result, found))),
        "",
        *(line for sentence in headline(result) for line in wrapped(sentence)),
    ]
    return "\n".join(parts)


def _fits(result: SweepResult, names: Sequence[str], more: Sequence[str]) -> list[str]:
    """One line per configuration; the interval of the asymptote is given even where it is identified."""
    columns = {
        "seeds": lambda c: str(len(c.seeds)),
        "points": lambda c: str(c.fit.num_points),
        "r2": lambda c: f"{c.fit.r2:z.4f}" if math.isfinite(c.fit.r2) else "-",
        "AICc": lambda c: f"{c.fit.aicc:z.1f}" if math.isfinite(c.fit.aicc) else "-",
        "status": lambda c: c.fit.status,
    }
    head = ("configuration", *(symbol(name) for name in names), *more)
    rows = [
        (
            *(parameter(curve, n, sign="+-", to=" .. ", interval=n == "asymptote") for n in names),
            *(columns[name](curve) for name in more),
        )
        for curve in result.curves
    ]
    return _named(head, [(curve.run,) for curve in result.curves], rows)


def _switches(result: SweepResult) -> list[str]:
    found = result.frontier.crossings
    if not found:
        return []
    rows = [
        (
            amount(s.row.compute),
            between(s.interval95, amount, " .. ") or "-",
            "-" if s.share is None else f"{s.share:.0%}",
            figures(s.row.epochs),
        )
        for s in found
    ]
    head = ("frontier passes", "at compute", "95% interval", "replicates", "epochs")
    return ["", *_named(head, [(s.row.from_run, s.row.to_run) for s in found], rows)]


def _law(found: AllocationLaw) -> list[str]:
    """The law of n*(C) where it is established; the findings say why where it is not."""
    if found.status != "ok":
        return []
    law = found.law
    values = {
        "span": ("L", law.span), "slope": ("k", law.slope), "midpoint": ("log10 C0", law.midpoint),
        "floor": ("b", law.floor), "saturation": ("2^(L + b)", found.saturation),
    }  # fmt: skip
    rows = [("n*(C)", "value", "95% interval")]
    rows += [
        (text, figures(value), between(found.interval95.get(name), to=" .. ") or "-")
        for name, (text, value) in values.items()
    ]
    return ["", "log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b", *aligned(rows)]


def _answer(text: AnswerText) -> list[str]:
    parts = [
        f"{text.question}: {text.pick}.",
        *filter(None, [text.label and f"{text.label}. {text.certainty}", text.plan and f"{text.plan}."]),
        text.expectation,
        *text.against,
        *filter(None, [text.fixed]),
        *text.reasons,
    ]
    return ["", *wrapped(" ".join(parts), indent="  ")]


def _named(
    head: Sequence[str], names: Sequence[tuple[str, ...]], rows: Sequence[tuple[str, ...]], gap: str = " -> "
) -> list[str]:
    """Rows that begin with the names of one or two configurations, cut as far as the other columns require."""
    widths = [max(map(len, column)) + 2 for column in zip(head[1:], *rows, strict=True)]
    many = len(names[0])
    room = max(LEAST_NAME, (TERMINAL_WIDTH - sum(widths) - len(gap) * (many - 1)) // many)
    cut = [gap.join(shortened(name, room, "..") for name in each) for each in names]
    return aligned([tuple(head), *((name, *row) for name, row in zip(cut, rows, strict=True))])
