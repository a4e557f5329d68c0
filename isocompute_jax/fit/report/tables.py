"""Rows of what was found: of the CSV files beside the page, and as text for the page and for --tables."""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import io
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isocompute_jax import __version__
from isocompute_jax.fit.laws import LawResult
from isocompute_jax.fit.plain_data import fields_of, plain
from isocompute_jax.fit.report import facts
from isocompute_jax.fit.report.wording import EN_DASH, Rewards, amount, cell, figures, say, short, words
from isocompute_jax.fit.results import Answer, Choice, SweepResult

SCHEMA = 3
MOST_BUDGETS = 9
"""Of the prepared answers, whose choices are listed in text."""


class Shown(NamedTuple):
    """A table as text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str] = ()


def summary_of(result: SweepResult) -> dict[str, Any]:
    """The content of summary.json: dicts, lists, strings, numbers and None only."""
    found = {
        "schema": SCHEMA,
        "metric": result.metric,
        "compute_unit": result.options.read.compute,
        "options": result.options.flags(),
        "inputs": [input_row(run, result.metric) for run in result.runs],
        "versions": versions(),
        "warnings": result.data.notes,
    }
    return plain(found | fields_of(result))


def versions() -> dict[str, str]:
    """Of this package, Python and the libraries that compute."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "scipy")}
    return {"isocompute_jax": __version__, "python": platform.python_version(), **found}


def input_row(run: Any, metric: str) -> dict[str, Any]:
    """A run that was read: where it stands, its hash, and its facts."""
    values = run.columns.get(metric, np.empty(0))
    return {
        "run": run.run,
        "source": run.source,
        "sha256": run.sha256,
        "group_size": run.facts.group_size,
        "problems_per_batch": run.facts.problems_per_batch,
        "seed": run.facts.seed,
        "problem_set_size": run.facts.problem_set_size,
        "evaluations": int(np.isfinite(values).sum()),
        "compute_end": float(run.compute[-1]) if len(run.compute) else None,
    }


def table_rows(result: SweepResult) -> dict[str, list[dict[str, Any]]]:
    """Name -> rows of plain cells, of each table; an interval is two columns, a configuration its fields."""
    every = facts.budgets_of(result)
    asked = {answer.budget for answer in result.asked}
    return {
        "answers": [_flat(_answer_row(each) | {"asked": each.budget in asked}) for each in every],
        "choices": [_flat({"budget": each.budget} | fields_of(one)) for each in every for one in each.choices],
        "curves": [row for band in result.curves for row in _band_rows(band)],
        "optimal_n": _optimal_rows(result),
        "switches": [_flat(fields_of(each)) for each in result.switches],
        "paper_fits": [_flat(row) for row in paper_fits(result)],
        "next": [_flat(fields_of(each)) for each in result.next_runs],
    }


def _answer_row(answer: Answer) -> dict[str, Any]:
    row = {"budget": answer.budget, **fields_of(answer.advised)}
    kept = ("verdict", "named", "cheapest", "reason", "learning_rate", "scaled_rate", "expected_regret")
    # The rate that is advised, beside that of the configuration, which may be unknown.
    return row | {("advised_rate" if name == "learning_rate" else name): getattr(answer, name) for name in kept}


def _band_rows(band: Any) -> list[dict[str, Any]]:
    lines = {name: getattr(band, name) for name in ("compute", "mean", "low", "high", "run_low", "run_high")}
    return [
        {"name": band.configuration.name, "group_size": band.configuration.group_size}
        | dict(zip(lines, map(float, values), strict=True))
        for values in zip(*lines.values(), strict=True)
    ]


def _optimal_rows(result: SweepResult) -> list[dict[str, Any]]:
    found = result.optimal
    if found is None:
        return []
    names = ("budget", "group_size", "group_size_low", "group_size_high", "problems_per_batch", "num_steps")
    columns = (found.budgets, found.group_size, *found.interval95.T, found.problems_per_batch, found.num_steps)
    return [dict(zip(names, plain(list(values)), strict=True)) for values in zip(*columns, strict=True)]


def paper_fits(result: SweepResult) -> list[dict[str, Any]]:
    """A row for each parameter of each curve as in the paper; one that is not identified has an interval and no value."""
    rows = []
    for configuration, fit in zip(getattr(result.paper, "configurations", ()), getattr(result.paper, "fits", ())):  # noqa: B905
        for name, value in fit.params.items():
            known = fit.identified if isinstance(fit.identified, bool) else name in fit.identified
            rows.append({
                "name": configuration.name,
                "form": fit.form,
                "parameter": name,
                "value": value if known else None,
                "interval95": fit.interval95.get(name),
                "status": fit.status,
            })  # fmt: skip
    return rows


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Plain cells: an interval as its two ends, configurations as their names, settings as text."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if dataclasses.is_dataclass(value):
            found[name] = value.name  # pyright: ignore[reportAttributeAccessIssue]
        elif name.endswith("95"):
            found |= dict(zip((f"{name}_low", f"{name}_high"), plain(list(value or (None, None))), strict=True))
        elif isinstance(value, tuple):
            inner = [each.name if dataclasses.is_dataclass(each) else "=".join(map(str, each)) for each in value]  # pyright: ignore
            found[name] = "; ".join(inner)
        else:
            found[name] = plain(value)
    return found


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV text of rows, with every key that one of them has.

    A text that a spreadsheet would take for a formula has a quotation mark before it: names come with the data.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"'{value}" if _is_formula(value) else value for key, value in row.items()})
    return text.getvalue()


def _is_formula(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))


def shown_tables(result: SweepResult) -> list[Shown]:
    """Every table of a sweep as text, those without rows left out."""
    title = words()
    found = [
        asked_table(result), ranges_table(result),
        Shown(title["choices"], _headings("budget", *CHOICE), [
            [amount(answer.budget), *row] for answer in spread(result) for row in choice_rows(result, answer)
        ]),
        Shown(title["optimal"], _headings("budget", "group_size", "cost95", "num_steps"), _optimal_text(result)),
        switches_table(result), next_table(result), schedules_table(result), paper_table(result),
    ]  # fmt: skip
    return [each for each in found if each.rows]


CHOICE = ("configuration", "stop", "num_steps", "reward", "interval95", "run95", "cost", "cost95", "near_share", "data_end")


def _headings(*names: str) -> list[str]:
    return [words()["headings"][name] for name in names]


def spread(result: SweepResult) -> list[Answer]:
    """Some of the prepared answers, evenly, those that were asked for included."""
    every = facts.budgets_of(result)
    places = set(np.linspace(0, len(every) - 1, MOST_BUDGETS).round().astype(int).tolist())
    return [each for place, each in enumerate(every) if place in places or each in result.asked]


def choice_rows(result: SweepResult, answer: Answer) -> list[list[str]]:
    """Every configuration at one budget."""
    text = facts.rewards_of(result)
    return [_choice(each, text, advised=each is answer.advised) for each in answer.choices]


def _choice(each: Choice, text: Rewards, *, advised: bool) -> list[str]:
    steps = EN_DASH if each.num_steps is None else f"{each.num_steps:,}"
    return [
        short(each.configuration.name), amount(each.stop), steps, text.value(each.reward), text.interval(each.interval95),
        text.interval(each.run95), *([EN_DASH] * 2 if advised else [text.difference(each.cost), text.interval(each.cost95)]),
        f"{each.near_share:.0%}",
        amount(each.data_end),
    ]  # fmt: skip


def asked_table(result: SweepResult) -> Shown:
    """The answers to the budgets that were asked for."""
    rows = []
    for answer in result.asked:
        known = facts.answer_facts(result, answer)
        plan = ", ".join(filter(None, [known["pick"], say("plan", known)]))
        rows.append([
            known["budget"], plan, known["stop"], say("verdict_word", known), known["reward"], known["interval"],
            known["run_interval"],
        ])  # fmt: skip
    return Shown(
        words()["asked"], _headings("budget", "advised", "stop", "verdict", "reward", "interval95", "run95"), rows
    )


def ranges_table(result: SweepResult) -> Shown:
    """Which configuration is advised from where to where."""
    text, rows = facts.rewards_of(result), []
    for each in result.ranges:
        reward = " to ".join(dict.fromkeys(map(text.value, each.reward)))
        named = facts.names(each.named) if len(each.named) > 1 else ""
        verdict = say("verdict_word", {"rises": result.data.trend == "rise", "verdict": each.verdict})
        rows.append([amount(each.start), amount(each.end), short(each.advised.name), reward, verdict, named])
    return Shown(words()["ranges"], _headings("from", "to", "advised", "reward", "verdict", "named"), rows)


def _optimal_text(result: SweepResult) -> list[list[str]]:
    found = result.optimal
    if found is None:
        return []
    places = np.unique(np.linspace(0, len(found.budgets) - 1, MOST_BUDGETS).round().astype(int))
    return [
        [
            amount(float(found.budgets[i])),
            f"{found.group_size[i]:.0f}",
            "{:.0f} to {:.0f}".format(*found.interval95[i]),
            f"{found.num_steps[i]:,.0f}" if np.isfinite(found.num_steps[i]) else EN_DASH,
        ]
        for i in places
    ]


def switches_table(result: SweepResult) -> Shown:
    """Where the advised configuration changes, in compute and in epochs."""
    rows = [
        [
            short(each.before.name), short(each.after.name), amount(each.compute),
            " to ".join(map(amount, each.interval95)), f"{each.share:.0%}", figures(each.epochs),
            " to ".join(map(figures, each.epoch_interval95)) if np.isfinite(each.epochs) else EN_DASH,
        ]
        for each in result.switches
    ]  # fmt: skip
    heads = _headings("before", "after", "compute", "cost95", "share", "epochs", "epoch_interval95")
    return Shown(words()["switches"], heads, rows)


def next_table(result: SweepResult) -> Shown:
    """The runs to add."""
    rows = []
    for run in result.next_runs:
        known = facts.next_facts(result, run)
        rows.append([say("next_run", known), known["cost"], known["before"], known["after"]])
    return Shown(words()["next"], _headings("configuration", "total", "loss_before", "loss_after"), rows)


def schedules_table(result: SweepResult) -> Shown:
    """Each schedule beside the best fixed n."""
    text = facts.rewards_of(result)
    rows = [
        [
            short(each.schedule), str(len(each.seeds)), amount(each.compute), text.value(each.reward),
            text.interval(each.interval95), short(each.best_fixed.name), text.difference(each.difference),
            text.interval(each.difference95),
        ]
        for each in result.scheduled
    ]  # fmt: skip
    heads = ("schedule", "seeds", "compute", "reward", "interval95", "best_fixed", "difference", "cost95")
    return Shown(words()["scheduled"], _headings(*heads), rows)


def paper_table(result: SweepResult) -> Shown:
    """Parameters of the curves as in the paper."""
    rows = [
        [short(row["name"]), row["parameter"], cell(row["value"]), " to ".join(map(figures, row["interval95"] or ()))]
        for row in paper_fits(result)
    ]
    return Shown(words()["paper"], _headings("configuration", "parameter", "value", "cost95"), rows)


def law_tables(result: LawResult) -> list[Shown]:
    """The tables of a law as text."""
    found = []
    for name in ("parameters", *result.tables):
        rows = result.rows(name)
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = [[cell(row.get(column)) for column in columns] for row in rows]
        title = words()["law_tables"].get(name, name)
        found += [Shown(title, [column.replace("_", " ") for column in columns], text)] if rows else []
    return found
