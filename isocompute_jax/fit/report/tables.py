"""Tables as text, of --tables and of the page; one without rows has nothing to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import scale
from isocompute_jax.fit.laws import LawResult
from isocompute_jax.fit.report import facts
from isocompute_jax.fit.report.wording import EN_DASH, Section, amount, cell, figures, say, short, words
from isocompute_jax.fit.results import BudgetAnswer, SweepResult

MOST_BUDGETS = 9
"""Of the prepared answers, whose choices are listed in text."""

Columns = Mapping[str, Callable[[Any], str]]
"""Name of a heading -> the text of a cell."""


def every_table(result: SweepResult) -> list[Section]:
    """Returns every table of a sweep that has something to say, in the order of --tables."""
    found = (make(result) for make in (asked, ranges, choices, switches, next_runs, schedules, paper))
    return [table for table in found if table.rows or (table.paragraphs and not table.columns)]


def _table(title: str, columns: Columns, records: Iterable[Any], *about: str) -> Section:
    headings = words()["headings"]
    rows = [[text(record) for text in columns.values()] for record in records]
    return Section(words()[title], about, columns=tuple(headings[name.rstrip("_")] for name in columns), rows=rows)


def asked(result: SweepResult) -> Section:
    """Lists the answers to the budgets that were asked for."""
    columns: Columns = {
        "budget": lambda f: f["budget"],
        "advised": lambda f: ", ".join(filter(None, [f["pick"], say("plan", f)])),
        "stop": lambda f: f["stop"],
        "verdict": lambda f: say("verdict_word", f),
        "reward": lambda f: f["reward"],
        "interval95": lambda f: f["interval"],
        "run95": lambda f: f["run_interval"],
    }
    return _table("asked", columns, [facts.answer_facts(result, answer) for answer in result.asked])


def ranges(result: SweepResult) -> Section:
    """Lists which configuration is advised from where to where."""
    text, rises = facts.rewards_of(result), result.data.trend == "rise"
    columns: Columns = {
        "from": lambda r: amount(r.start),
        "to": lambda r: amount(r.end),
        "advised": lambda r: short(r.advised.name),
        "reward": lambda r: " to ".join(dict.fromkeys(map(text.value, r.reward))),
        "verdict": lambda r: say("verdict_word", {"rises": rises, "verdict": r.verdict}),
        "named": lambda r: facts.names(r.named) if len(r.named) > 1 else "",
    }
    return _table("ranges", columns, result.ranges)


def choices(result: SweepResult) -> Section:
    """Lists every configuration at some of the budgets, those that were asked for included."""
    text, every = facts.rewards_of(result), facts.budgets_of(result)
    places = set(np.linspace(0, len(every) - 1, MOST_BUDGETS).round().astype(int).tolist())
    shown: list[BudgetAnswer] = [each for place, each in enumerate(every) if place in places or each in result.asked]
    columns: Columns = {
        "budget": lambda r: amount(r[0].budget),
        "configuration": lambda r: short(r[1].configuration.name),
        "stop": lambda r: amount(r[1].stop),
        "num_steps": lambda r: EN_DASH if r[1].num_steps is None else f"{r[1].num_steps:,}",
        "reward": lambda r: text.value(r[1].reward),
        "interval95": lambda r: text.interval(r[1].interval95),
        "run95": lambda r: text.interval(r[1].run95, like=r[1].interval95),
        "cost": lambda r: EN_DASH if r[1] is r[0].advised else text.difference(r[1].cost),
        "cost95": lambda r: EN_DASH if r[1] is r[0].advised else text.interval(r[1].cost95),
        "near_share": lambda r: f"{r[1].near_share:.0%}",
        "data_end": lambda r: amount(r[1].data_end),
    }
    return _table("choices", columns, [(answer, choice) for answer in shown for choice in answer.choices])


def switches(result: SweepResult) -> Section:
    """Lists where the advised configuration changes, in compute and in epochs."""
    columns: Columns = {
        "before": lambda s: short(s.before.name),
        "after": lambda s: short(s.after.name),
        "compute": lambda s: amount(s.compute),
        "cost95": lambda s: " to ".join(map(amount, s.interval95)),
        "share": lambda s: f"{s.share:.0%}",
        "epochs": lambda s: figures(s.epochs),
        "cost95_": lambda s: " to ".join(map(figures, s.epoch_interval95)) if np.isfinite(s.epochs) else EN_DASH,
    }
    return _table("switches", columns, result.switches, say("switches"))


def next_runs(result: SweepResult) -> Section:
    """Lists the runs to add."""
    columns: Columns = {
        "configuration": lambda f: say("next_run", f),
        "total": lambda f: f["cost"],
        "loss_before": lambda f: f["before"],
        "loss_after": lambda f: f["after"],
    }
    return _table("next", columns, [facts.next_facts(result, run) for run in result.next_runs])


def schedules(result: SweepResult) -> Section:
    """Says how each schedule compares with the best fixed n."""
    said = (say("schedule", facts.schedule_facts(result, each)) for each in result.scheduled)
    return Section(words()["scheduled"], tuple(said))


def paper(result: SweepResult) -> Section:
    """Lists parameters of the curves as in the paper, and says where their envelope switches."""
    found = result.paper
    if found is None:
        return Section(words()["paper"])
    by_name: dict[str, dict[str, Any]] = {}
    for row in paper_rows(result):
        ends = " to ".join(map(scale, row["interval95"] or ()))
        by_name.setdefault(row["name"], {})[row["parameter"]] = scale(row["value"]) + (f" ({ends})" if ends else "")
    parameters = list(dict.fromkeys(name for row in by_name.values() for name in row))
    passes = [
        say("paper_switch", {"before": short(s.before.name), "after": short(s.after.name), "compute": amount(s.compute)}
            | {"epochs": figures(s.epochs) if np.isfinite(s.epochs) else ""})
        for s in found.switches if s.cause == "crossing"
    ]  # fmt: skip
    law = found.allocation if found.allocation and found.allocation.status != "failed" else None
    largest = max(each.group_size for each in found.configurations)
    about = (say("paper", {"form": result.options.form}), " ".join([*passes, say("law", law, largest)]).strip())
    rows = [[short(name), *(row.get(each, EN_DASH) for each in parameters)] for name, row in by_name.items()]
    return Section(words()["paper"], about, columns=(words()["headings"]["configuration"], *parameters), rows=rows)


def paper_rows(result: SweepResult) -> list[dict[str, Any]]:
    """Makes a row for each parameter of each curve; one that is not identified has an interval and no value.

    Those of ScaleRL's grid, where it was asked for, follow as `asymptote (grid)`, and have no intervals.
    """
    found = result.paper
    if found is None:
        return []
    pairs = [(*pair, True) for pair in zip(found.configurations, found.fits, strict=True)]
    pairs += [(*pair, False) for pair in zip(found.configurations, found.grid, strict=False)]
    return [
        {"name": configuration.name, "form": fit.form, "parameter": name if free else f"{name} (grid)"}
        | {"status": fit.status, "value": value if fit.identified.get(name, not free) else None}
        | {"interval95": fit.interval95.get(name)}
        for configuration, fit, free in pairs
        for name, value in fit.params.items()
    ]


def law_tables(result: LawResult) -> list[Section]:
    """Returns the tables of a law."""
    found = []
    for name in ("parameters", *result.tables):
        rows = result.rows(name)
        columns = tuple(dict.fromkeys(key for row in rows for key in row))
        text = [[cell(row.get(column)) for column in columns] for row in rows]
        headings = tuple(column.replace("_", " ") for column in columns)
        found += [Section(words()["law_tables"].get(name, name), columns=headings, rows=text)] if rows else []
    return found
