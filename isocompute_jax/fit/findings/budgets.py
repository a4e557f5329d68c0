"""The playbook's answer: how to spend a budget, what to expect of it, and why."""

from __future__ import annotations

import dataclasses
from typing import Any

from isocompute_jax.fit.wording import Summary, amount, between, figures, spent


@dataclasses.dataclass(frozen=True)
class Answer:
    """A recommendation in words.

    Attributes:
      question: the budget.
      choice: n, problems per batch, steps and learning rate, as far as they are known.
      expectation: the reward with its interval, and how far the budget is from the data.
      reasons: whole sentences.
      doubtful: whether the reasons hold doubts.
    """

    question: str
    choice: tuple[str, ...]
    expectation: str
    reasons: tuple[str, ...]
    doubtful: bool


def answers(summary: Summary) -> list[Answer]:
    """One for each budget that was asked for."""
    return [_answer(summary, row) for row in summary["allocation"]["recommendations"]]


def _answer(summary: Summary, row: dict[str, Any]) -> Answer:
    interval = between(row["interval95"], lambda value: f"{value:.3f}")
    inside = row["beyond"] <= 1 + 1e-9
    where = "inside the data" if inside else f"{figures(row['beyond'])} times as far as the data go"
    return Answer(
        question=f"To spend {spent(summary, row['budget'])}",
        choice=tuple(choice(row)),
        expectation=f"Expect {summary['frontier']['metric']} {row['reward']:.3f}"
        f"{f' (95% interval {interval})' if interval else ' (no interval could be given)'}, {where}.",
        reasons=tuple(row["reasons"]),
        doubtful=row["status"] != "ok",
    )


def choice(row: dict[str, Any]) -> list[str]:
    """`n = 16`, `32 problems per batch`, `1,953 steps`, `learning rate 7.1e-07`, as far as they are known."""
    parts = [f"n = {row['group_size']}"] if row["group_size"] else [f"the configuration {row['run']}"]
    if row["problems_per_batch"]:
        parts.append(f"{row['problems_per_batch']:,} problems per batch")
    if row["num_steps"]:
        parts.append(f"{row['num_steps']:,} steps")
    if row["learning_rate"]:
        parts.append(f"learning rate {row['learning_rate']:.2g}")
    return parts


def overview(summary: Summary) -> list[str]:
    """How the choice moves from the smallest budget to the largest one."""
    rows = sorted(summary["allocation"]["recommendations"], key=lambda row: row["budget"])
    if len(rows) < 2:
        return []
    first, last = rows[0], rows[-1]
    ends = f"{amount(first['budget'])} and {spent(summary, last['budget'])}"
    if len({row["run"] for row in rows}) == 1:
        return [f"Between {ends} the recommended configuration is the same, {first['run']}."]
    return [f"Between {ends} the recommended configuration moves from {first['run']} to {last['run']}."]
