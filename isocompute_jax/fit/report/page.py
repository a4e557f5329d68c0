"""report.html: one file that opens offline; first what is advised and a picture of what was measured, below the rest.

Its script moves between prepared answers, which are JSON in the page; without it the page reads the same for the budget
that was asked for.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from isocompute_jax.fit.laws import LawResult
from isocompute_jax.fit.laws import sentences as law_sentences
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.report import facts, tables
from isocompute_jax.fit.report.figures import style
from isocompute_jax.fit.report.wording import Html, Section, amount, render, say, short, versions, words
from isocompute_jax.fit.results import BudgetAnswer, SweepResult

Figures = Mapping[str, pathlib.Path]

DIGITS = 4
"""Significant digits of a number that is only drawn."""
MOST_DOTS = 6000
"""Evaluations in the page; of more every second, third, ... one of each run."""
LEVELS = {"clear": "good", "no matter": "fine", "open": "doubt"}


def render_page(
    result: SweepResult, figures: Figures, *, before: Sequence[Section] = (), after: Sequence[Section] = ()
) -> str:
    """Writes the page of an analysis.

    Sections `before` and `after` are those of another room, on how the runs were made and on what this does not show.
    """
    return render(
        "page.html.j2",
        title=result.options.title,
        known=facts.answer_facts(result, result.asked[0]),
        answer=answer_parts(result, result.asked[0]),
        notes=result.data.notes,
        following=[facts.next_facts(result, run) for run in result.next_runs],
        scheduled=[facts.schedule_facts(result, each) for each in result.scheduled],
        figures=figures,
        several=len(result.curves) > 1,
        sections=_open_sections(result, figures),
        folded=[*_folded_sections(result, figures), *before, *after],
        data=Html(page_data(result)),
        drawing=Html((importlib.resources.files("isocompute_jax.records") / "drawing.js").read_text("utf-8")),
        versions=versions(),
    )


def render_law(result: LawResult, figures: Figures) -> str:
    """Writes the page of a law: its sentences, its picture, its parameters, and its other tables folded."""
    first, *others = tables.law_tables(result)
    return render(
        "law.html.j2",
        title=words()["law_titles"][result.options.analysis],
        sentences=law_sentences(result),
        picture_of_law=figures.get("law"),
        section=first,
        folded=others,
        notes=result.notes,
        versions=versions(),
    )


def answer_parts(result: SweepResult, answer: BudgetAnswer) -> dict[str, Any]:
    """Puts an answer into the words of the page's parts, with a level for the colour of the verdict."""
    known = facts.answer_facts(result, answer)
    log = [say("best_row", known), say("no_forecast", known)] if not known["curves"] else []
    rises = known["rises"]
    return {
        "question": say("question", known),
        "pick": say("pick", known),
        "plan": f"{say('plan_sentence', known)} {say('stop', known)}".strip() if rises else "",
        "label": say("verdict_word", known),
        "certainty": say("verdict_text_alone", known),
        "expectation": say("expect", known),
        "instead": say("instead", known) if rises and not log else "",
        "log": " ".join(log),
        "rests": say("rests", known),
        "level": LEVELS[answer.verdict] if rises else "doubt",
    }


def _open_sections(result: SweepResult, figures: Figures) -> list[Section]:
    """Returns the sections that stand open below the first screen."""
    found = [each for each in (tables.asked(result), tables.ranges(result)) if len(each.rows) > 1]
    if "optimal_n" in figures and result.optimal is not None:
        largest = max(band.configuration.group_size for band in result.curves)
        law, said = say("law", result.optimal.law, largest), words()
        found.append(Section(said["optimal"], (law,) if law else (), figures["optimal_n"], said["optimal_alt"]))
    others = (tables.next_runs(result), tables.switches(result), tables.schedules(result))
    found += [each for each in others if each.rows or (each.paragraphs and not each.columns)]
    known = facts.answer_facts(result, result.asked[0])
    measures = [facts.answer_facts(other, other.asked[0]) for other in result.targets.values() if other.asked]
    targets = tuple(say("target", known, other) for other in measures)
    return [*found, *([Section(words()["targets"], findings=targets)] if targets else [])]


def _folded_sections(result: SweepResult, figures: Figures) -> list[Section]:
    """Returns the sections that a reader may open."""
    found = [_question(each, figures.get(f"question_{place}")) for place, each in enumerate(result.questions, 1)]
    paper = dataclasses.replace(tables.paper(result), figure=figures.get("paper"), alt=words()["paper_alt"])
    found += [each for each in (paper, tables.choices(result)) if each.rows]
    spent = sum(float(run.compute[-1]) for run in result.runs if len(run.compute))
    cost = say("cost", {"compute": amount(spent), "unit": facts.unit_of(result)})
    return [*found, Section(words()["cost"], findings=(cost,))]


def _question(question: Any, figure: pathlib.Path | None) -> Section:
    """Puts the answer to a question into the words of its template."""
    own = "questions.j2"
    return Section(
        title=say("title", question, template=own),
        findings=(say("said", question, template=own), *question.notes),
        paragraphs=(say("about", question, template=own),),
        figure=figure,
        alt=words()["question_alt"],
        columns=tuple(say("heading", column, template=own) for column in question.columns),
        rows=[[say("cell", row, column, template=own) for column in question.columns] for row in question.rows],
    )


def page_data(result: SweepResult) -> str:
    """Returns JSON that may stand inside of a script element: no `<` is in it."""
    budgets = [answer.budget for answer in facts.budgets_of(result)]
    asked = [budgets.index(answer.budget) for answer in result.asked]
    measures = {result.metric: result, **result.targets}
    kept = ("chart", "evaluation", "seed", "budget", "metric", "axis", "logarithmic", "linear")
    said, drawn = words(), result.data.curves
    content = {
        "unit": facts.unit_of(result),
        "label": say("compute_label", facts.data_facts(result)),
        "words": {name: said[name] for name in kept},
        "metric": result.metric,
        "budgets": budgets,
        "labels": [amount(budget) for budget in budgets],
        "start": asked[0],
        "asked": asked,
        "metrics": {name: _measure(found, budgets) for name, found in measures.items()},
        "signs": [["dot", said["dot"]], *([["shade", said["band"]], ["thick", said["advised"]]] if drawn else [])],
        "schedules": [
            {"name": short(each.schedule), "colour": style.scheduled(place)}
            | {"lines": [{"x": _short(compute), "y": _short(reward)} for compute, reward in each.points]}
            for place, each in enumerate(result.scheduled)
        ],
        "batches": [f"B = {b}" for b in sorted({band.configuration.problems_per_batch for band in result.curves})],
    }
    return json.dumps(plain(content), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _measure(result: SweepResult, budgets: Sequence[float]) -> dict[str, Any]:
    every = [band.configuration for band in result.curves]
    colour_of, batches = style.colours(every), sorted({each.problems_per_batch for each in every})
    dots = sum(len(compute) for band in result.curves for compute, _ in band.points)
    stride = -(-dots // MOST_DOTS) or 1
    curves = [
        {
            "name": short(band.configuration.name),
            "colour": to_hex(colour_of[band.configuration]),
            "dash": batches.index(band.configuration.problems_per_batch),
            "end": band.data_end,
            "seeds": [
                {"seed": seed, "x": _short(compute[::stride]), "y": _short(reward[::stride])}
                for seed, (compute, reward) in zip(band.seeds, band.points, strict=True)
            ],
            **({name: _short(getattr(band, key)) for name, key in LINES.items()} if result.data.curves else {}),
        }
        for band in result.curves
    ]
    prepared = {answer.budget: answer for answer in facts.budgets_of(result)}
    order = {each: place for place, each in enumerate(facts.in_order(every))}
    answers = [_answer(result, prepared[b], every, order) if b in prepared else None for b in budgets]
    return {"decimals": facts.rewards_of(result).decimals, "curves": curves, "answers": answers}


LINES = {"x": "compute", "mean": "mean", "low": "low", "high": "high"}


def _answer(
    result: SweepResult, answer: BudgetAnswer, every: Sequence[Any], order: Mapping[Any, int]
) -> dict[str, Any]:
    number, text = {each: k for k, each in enumerate(every)}, facts.rewards_of(result)
    choices = sorted(answer.choices, key=lambda each: order[each.configuration])
    return answer_parts(result, answer) | {
        "advised": number[answer.advised.configuration],
        "caption": say("bars_caption", facts.answer_facts(result, answer)),
        "rises": result.data.trend == "rise",
        "choices": [
            {
                "of": number[each.configuration],
                "stop": each.stop,
                "near": each.best_share >= facts.LIKELY,
                "ends": _short(np.array([each.reward, *each.interval95, *each.run95])),
                "text": f"{text.value(each.reward)} ({text.interval(each.interval95)})",
            }
            for each in choices
        ],
    }


def _short(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.{DIGITS + 1}g}") if np.isfinite(value) else None for value in np.asarray(values, float)]
