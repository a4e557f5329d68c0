"""The answer in words: what to do with a budget, what to expect of it, how sure that is, and what speaks against it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from isocompute_jax.fit.advice import BudgetAnswer, BudgetRange, Confidence
from isocompute_jax.fit.report.templating import said, told
from isocompute_jax.fit.report.wording import amount, spent, without_gap
from isocompute_jax.fit.sweep_results import SweepResult

LABELS: dict[Confidence, str] = {
    "sure": "Sure", "likely": "Likely", "open": "Uncertain", "tied": "A tie", "contradicted": "Contradicted",
    "unknown": "Not known",
}  # fmt: skip

LESSER = ("seeds", "form", "seeds_differ", "outliers")
"""Objections that speak against how sure an answer is, where they name no other leader, rather than against it."""

MOST_NAMED = 5
"""Of more n that tie only the first and the last are named, where all between them tie."""


@dataclasses.dataclass(frozen=True)
class AnswerText:
    """A recommendation in words; what is unknown is empty."""

    question: str  # the budget
    pick: str  # n, and those from which no difference was seen, or the configuration
    plan: str = ""  # steps and, where several were tried, problems per batch
    expectation: str = ""  # the reward with its interval, and how far the budget is from the data
    level: str = ""  # of confidence
    label: str = ""  # the same in a word
    certainty: str = ""  # the same in a sentence
    against: tuple[str, ...] = ()  # what speaks against it, and what to mistrust; the strongest first
    fixed: str = ""  # what was not tried, so that nothing is known of it
    reasons: tuple[str, ...] = ()  # the other reasons, as whole sentences


def answer_text(result: SweepResult, found: BudgetAnswer) -> AnswerText:
    """The answer for a budget, by the template `answer`."""
    row = found.recommendation

    def part(name: str) -> str:
        return " ".join(told("answer", result, block=name, found=found, row=row, answers=[found], in_order=in_order))

    if not math.isfinite(row.reward):
        return AnswerText(part("question"), "no configuration fits", expectation=" ".join(row.reasons))
    return AnswerText(
        question=part("question"),
        pick=pick(result, row.group_size, row.run, found.tied_group_sizes, row.stop),
        plan=part("plan"),
        expectation=part("expectation"),
        level=found.confidence,
        label=_label(result, found.confidence, beyond=row.place == "beyond"),
        certainty=part("certainty"),
        against=_against(result, found),
        fixed=part("fixed"),
        reasons=tuple(reason for reason in row.reasons if reason not in row.doubts),
    )


def _against(result: SweepResult, found: BudgetAnswer) -> tuple[str, ...]:
    """What speaks against an answer: who else leads, then its own doubts, then the rest, others' falls at the end."""
    row, others = found.recommendation, found.contradicted_by
    ranked = [(3 if text in row.others_fallen else 1, text) for text in row.doubts]
    if row.by_records and row.doubts:  # the last doubt names who leads by the other evaluations
        ranked[-1] = (0, row.doubts[-1])
    for each in found.objections:
        lesser = each.kind in LESSER or (each.kind == "unseen" and not any(other.open for other in row.unseen))
        rank = 0 if each.run in others else 2 if lesser else 1
        ranked += [(rank, text) for text in said("objection", result, row, each)]
    return tuple(text for _, text in sorted(ranked, key=lambda pair: pair[0]))


def pick(result: SweepResult, group_size: int, run: str, tied: Sequence[int] = (), stop: float | None = None) -> str:
    """`n = 16`, or the configuration where n alone does not name it; where to stop it; `(or 8)`, which is as good."""
    name = run if not group_size or result.several_batches else f"n = {group_size}"
    if stop is not None:
        name += f", stopped at {spent(result, stop)}"
    others = [n for n in tied if n != group_size]
    if not others:
        return name
    if len(tied) > MOST_NAMED and without_gap(tied, result.group_sizes):
        return f"{name} (or any from {tied[0]} to {tied[-1]})"
    *first, last = map(str, others)
    return f"{name} (or {', '.join(first)}{' or ' if first else ''}{last})"


def in_order(names: Sequence[str]) -> list[str]:
    """Names in the order of their numbers: `n = 8` before `n = 16`."""
    return sorted(
        names, key=lambda name: [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]
    )


def _label(result: SweepResult, confidence: Confidence, *, beyond: bool) -> str:
    """How sure an answer is that was chosen among several."""
    return f"{LABELS[confidence] if result.several else 'Not compared'}{', extrapolated' if beyond else ''}"


def range_cells(result: SweepResult, row: BudgetRange) -> tuple[str | None, ...]:
    """A range of budgets as a row: from and to, n, reward, confidence."""
    ends = f"{amount(row.start)} to {amount(row.end)}"
    if not math.isfinite(row.rewards[0]):
        return ends, "no configuration fits", None, None
    reward = " to ".join(dict.fromkeys(f"{value:z.3f}" for value in row.rewards))
    told = row.share is not None and row.confidence in ("sure", "likely", "open") and not row.beyond
    share = f" ({row.share:.0%})" if told else ""
    sure = _label(result, row.confidence, beyond=row.beyond)
    return (
        ends,
        pick(result, row.group_size, row.run, row.tied_group_sizes, row.stop),
        reward,
        f"{sure}{share}",
    )
