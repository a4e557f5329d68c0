"""For a terminal: at most four lines on the data and eight of answer; and, where asked for, all that they rest on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from isocompute_jax.fit.laws import LawResult
from isocompute_jax.fit.laws import sentences as law_sentences
from isocompute_jax.fit.report import facts
from isocompute_jax.fit.report.tables import every_table, law_tables
from isocompute_jax.fit.report.wording import TERMINAL_WIDTH, Section, say, wrapped
from isocompute_jax.fit.results import SweepResult

MOST_DATA, MOST_ANSWER = 4, 8
"""Lines."""
MOST_NOTES = 2
ITEMS = (6, 5, 4, 3, 2)
"""How many alternatives and ranges of budgets a line may name: as many as fit."""
MOST_ASKED = 4
"""Budgets with an answer of their own on the first screen; two lines each."""


def headline(result: SweepResult) -> str:
    """Says what the data are in at most four lines, and how to spend each budget in at most eight."""
    return "\n".join([*_data(result), *_answers(result)])


def _data(result: SweepResult) -> list[str]:
    known = facts.data_facts(result)
    notes, quiet = result.data.notes, known["equal"] == "compute" and not known["beside"]
    shape = [say("no_rise", known) if not known["rises"] else say("falls", known)]
    # Of runs that end alike and differ in n alone there is little to say: notes come first.
    if not quiet or any(shape) or len(notes) < MOST_NOTES:
        shape = [say("data_varies", known), say("data_ends", known), *shape]
    told = [say("data_size", known), say("data_reward", known), " ".join(filter(None, shape))]
    lines = _fitted(told, MOST_DATA - bool(notes))
    return [*lines, *_notes(notes, MOST_DATA - len(lines))]


def _notes(notes: Sequence[str], room: int) -> list[str]:
    """Returns a line for each of the first notes, which says how many more there are."""
    shown = list(notes)[: min(MOST_NOTES, room)]
    more = f" ({say('more_notes', len(notes) - len(shown))})" if len(notes) > len(shown) else ""
    lines = []
    for place, note in enumerate(shown):
        tail = more if place == len(shown) - 1 else ""
        lines.append(_cut(note, TERMINAL_WIDTH - len(tail)) + tail)
    return lines


def _cut(text: str, most: int) -> str:
    """Cuts a note to one line: without its places where these are too long."""
    if len(text) <= most:
        return wrapped(text)[0]
    head = text[: text.index(": ")] + "." if ": " in text[:most] else text
    return head if len(head) <= most else f"{head[: most - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def _answers(result: SweepResult) -> list[str]:
    known = facts.answer_facts(result, result.asked[0])
    if len(result.asked) > 1:
        return _several(result)
    ranges = facts.range_facts(result.ranges) if known["rises"] and known["curves"] else []
    told = [say("choice", known), say("verdict", known), say("expect", known)]
    if not known["curves"]:
        told += [say("best_row", known), say("no_forecast", known)]
    elif known["rises"]:
        told.append(_on_a_line("instead", known, shorter=(ITEMS[0], False)))
    told += [say("rests", known), _on_a_line("by_budget", ranges), *_following(result)]
    return _fitted(told, MOST_ANSWER)


def _on_a_line(macro: str, given: object, *, shorter: tuple[int, ...] = ()) -> str:
    """Says a list with as many items as fit on a line, all in a shorter form before fewer, and at least two."""
    tried = [(ITEMS[0],), *([shorter] if shorter else []), *((count,) for count in ITEMS[1:])]
    texts = [say(macro, given, *how) for how in tried]
    return next((text for text in texts if len(text) <= TERMINAL_WIDTH), texts[-1])


def _following(result: SweepResult) -> list[str]:
    """Says which runs to add, and how the first schedule compares with the best fixed n."""
    following = say("next_runs", [facts.next_facts(result, run) for run in result.next_runs])
    return [following, *(say("schedule", facts.schedule_facts(result, each)) for each in result.scheduled[:1])]


def _several(result: SweepResult) -> list[str]:
    """Says two lines on each of several budgets."""
    told = []
    following = [text for text in _following(result)[:1] if text]
    most = MOST_ASKED - len(following)
    shown = list(result.asked if len(result.asked) <= most else result.asked[: most - 1])
    for answer in shown:
        known = facts.answer_facts(result, answer)
        told += [wrapped(say("choice_in_short", known), most=1), wrapped(say("in_short", known), first="  ", most=1)]
    more = len(result.asked) - len(shown)
    rest = [say("more_budgets", more)] if more else []
    tail = list(itertools.chain.from_iterable(wrapped(text, most=2) for text in following))
    return [*itertools.chain.from_iterable(told), *rest, *tail][:MOST_ANSWER]


def _fitted(paragraphs: Sequence[str], most: int) -> list[str]:
    """Breaks paragraphs into at most `most` lines: the longest are cut, and the last left out."""
    told = [text for text in paragraphs if text][:most]
    found = [wrapped(text) for text in told]
    while sum(map(len, found)) > most:
        longest = max(range(len(found)), key=lambda place: (len(found[place]), place))
        found[longest] = wrapped(told[longest], most=len(found[longest]) - 1)
    return list(itertools.chain.from_iterable(found))


def tables(result: SweepResult) -> str:
    """Writes out what the answer rests on: every choice of each budget, curves, switches, and all notes."""
    notes = [line for note in result.data.notes for line in wrapped(f"- {note}")]
    return "\n".join([*(line for each in every_table(result) for line in _table(each)), *notes])


def law_text(result: LawResult) -> tuple[str, str]:
    """Returns the sentences of a law, and its tables."""
    told = [line for sentence in law_sentences(result) for line in wrapped(sentence)]
    return "\n".join(told), "\n".join(line for each in law_tables(result) for line in _table(each))


def _table(section: Section) -> list[str]:
    """Returns the lines of a title, what it is about, and aligned columns."""
    about = [line for paragraph in section.paragraphs for line in wrapped(paragraph)]
    if not section.rows:
        return [section.title, *about, ""]
    rows = [section.columns, *(list(map(str, row)) for row in section.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [section.title, *about, lines[0], "-" * min(sum(widths) + 2 * len(widths) - 2, 160), *lines[1:], ""]
