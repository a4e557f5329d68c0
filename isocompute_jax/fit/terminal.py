"""The answer for a terminal, in the manner of lmfit's report: parameters, switches, recommendations, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isocompute_jax.fit.findings import headline
from isocompute_jax.fit.findings.budgets import Answer, answers
from isocompute_jax.fit.forms import FORMS
from isocompute_jax.fit.sections.fits import symbol
from isocompute_jax.fit.wording import Summary, aligned, amount, between, figures, listed, parameter, unit, wrapped

LONGEST_NAME = 24


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
        "r2": lambda c: "-" if c["r2"] is None else f"{c['r2']:.4f}",
        "AICc": lambda c: "-" if c["aicc"] is None else f"{c['aicc']:.1f}",
        "status": lambda c: c["status"],
    }
    rows = [("configuration", *(symbol(name) for name in names), *more)]
    for curve in summary["curves"]:
        cells = [parameter(curve, n, sign="+-", to=" .. ", interval=n == "asymptote") for n in names]
        rows.append((_name(curve["run"]), *cells, *(columns[name](curve) for name in more)))
    return aligned(rows)


def _switches(summary: Summary) -> list[str]:
    found = [switch for switch in summary["frontier"]["switches"] if switch["cause"] == "crossing"]
    if not found:
        return []
    rows = [("frontier passes", "at compute", "95% interval", "replicates", "epochs")]
    rows += [
        (
            f"{_name(s['from_run'])} -> {_name(s['to_run'])}",
            amount(s["compute"]),
            between(s["interval95"], amount, " .. ") or "-",
            "-" if s["share"] is None else f"{s['share']:.0%}",
            figures(s["epochs"]),
        )
        for s in found
    ]
    return ["", *aligned(rows)]


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
    text = f"{answer.question}: {listed(answer.choice)}. {answer.expectation} {' '.join(answer.reasons)}"
    return ["", *wrapped(text, indent="  ")]


def _name(run: Any) -> str:
    """A configuration's name, cut where it would push the table over the edge."""
    return run if len(run) <= LONGEST_NAME else f"{run[: LONGEST_NAME - 2]}.."
