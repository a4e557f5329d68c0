"""The answer for a terminal, in the manner of lmfit's report: parameters, switches, recommendations, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isocompute_jax.fit.curves.forms import FORMS
from isocompute_jax.fit.report.findings import headline
from isocompute_jax.fit.report.findings.answers import Answer, answers
from isocompute_jax.fit.report.sections.curve_sections import symbol
from isocompute_jax.fit.report.wording import (
    TERMINAL_WIDTH,
    Summary,
    aligned,
    amount,
    between,
    figures,
    parameter,
    shortened,
    unit,
    wrapped,
)

LEAST_NAME = 10


def headline_table(summary: Summary) -> str:
    """What was fitted, at most `TERMINAL_WIDTH` columns wide."""
    form = FORMS[summary["curves"][0]["form"]]
    levels, shape = form.params[:2], form.params[2:]
    count = len(summary["inputs"])
    parts = [
        f"{summary['frontier']['metric']} ({summary['flags']['eval_set']})  configurations {len(summary['curves'])}  "
        f"runs {count}  compute in {unit(summary)}",
        f"{form.name}: {form.equation}",
        "",
        *_fits(summary, ("asymptote", *(name for name in levels if name != "asymptote")), ("seeds", "points")),
        "",
        *_fits(summary, shape, ("r2", "AICc", "status")),
        *_switches(summary),
        *_law(summary["allocation"]),
        *(line for answer in answers(summary) for line in _answer(answer)),
        "",
        *(line for sentence in headline(summary) for line in wrapped(sentence)),
    ]
    return "\n".join(parts)


def _fits(summary: Summary, names: Sequence[str], more: Sequence[str]) -> list[str]:
    """One line per configuration; the interval of the asymptote is given even where it is identified."""
    columns = {
        "seeds": lambda c: str(len(c["seeds"])),
        "points": lambda c: str(c["num_points"]),
        "r2": lambda c: "-" if c["r2"] is None else f"{c['r2']:z.4f}",
        "AICc": lambda c: "-" if c["aicc"] is None else f"{c['aicc']:z.1f}",
        "status": lambda c: c["status"],
    }
    head = ("configuration", *(symbol(name) for name in names), *more)
    rows = [
        (
            *(parameter(curve, n, sign="+-", to=" .. ", interval=n == "asymptote") for n in names),
            *(columns[name](curve) for name in more),
        )
        for curve in summary["curves"]
    ]
    return _named(head, [(curve["run"],) for curve in summary["curves"]], rows)


def _switches(summary: Summary) -> list[str]:
    found = [switch for switch in summary["frontier"]["switches"] if switch["cause"] == "crossing"]
    if not found:
        return []
    rows = [
        (
            amount(s["compute"]),
            between(s["interval95"], amount, " .. ") or "-",
            "-" if s["share"] is None else f"{s['share']:.0%}",
            figures(s["epochs"]),
        )
        for s in found
    ]
    head = ("frontier passes", "at compute", "95% interval", "replicates", "epochs")
    return ["", *_named(head, [(s["from_run"], s["to_run"]) for s in found], rows)]


def _law(allocation: dict[str, Any]) -> list[str]:
    """The law of n*(C) where it is established; the findings say why where it is not."""
    if allocation["status"] != "ok":
        return []
    law = allocation["law"] | {"saturation": allocation["saturation"]}
    names = {"span": "L", "slope": "k", "midpoint": "log10 C0", "floor": "b", "saturation": "2^(L + b)"}
    rows = [("n*(C)", "value", "95% interval")]
    rows += [
        (text, figures(law[name]), between(allocation["interval95"].get(name), to=" .. ") or "-")
        for name, text in names.items()
    ]
    return ["", "log2 n* = L / (1 + exp(-k (log10 C - log10 C0))) + b", *aligned(rows)]


def _answer(answer: Answer) -> list[str]:
    text = f"{answer.question}: {', '.join(answer.choice)}. {answer.expectation} {' '.join(answer.reasons)}"
    return ["", *wrapped(text, indent="  ")]


def _named(
    head: Sequence[str], names: Sequence[tuple[str, ...]], rows: Sequence[tuple[str, ...]], gap: str = " -> "
) -> list[str]:
    """Rows that begin with the names of one or two configurations, cut as far as the other columns require."""
    widths = [max(map(len, column)) + 2 for column in zip(head[1:], *rows, strict=True)]
    many = len(names[0])
    room = max(LEAST_NAME, (TERMINAL_WIDTH - sum(widths) - len(gap) * (many - 1)) // many)
    cut = [gap.join(shortened(name, room, "..") for name in each) for each in names]
    return aligned([tuple(head), *((name, *row) for name, row in zip(cut, rows, strict=True))])
