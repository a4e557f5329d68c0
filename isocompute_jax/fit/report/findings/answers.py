"""The playbook's answer: how to spend a budget, what to expect of it, and why."""

from __future__ import annotations

import dataclasses

from isocompute_jax.fit.report.wording import between, figures, spent
from isocompute_jax.fit.results import Recommendation
from isocompute_jax.fit.sweep_results import SweepResult


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


def answers(result: SweepResult) -> list[Answer]:
    """One for each budget that was asked for."""
    return [_answer(result, row) for row in result.allocation.recommendations]


def _answer(result: SweepResult, row: Recommendation) -> Answer:
    interval = between(row.interval95, lambda value: f"{value:z.3f}")
    if row.num_steps == 0:
        return Answer(f"To spend {spent(result, row.budget)}", ("no configuration fits",), "", row.reasons, True)
    return Answer(
        question=f"To spend {spent(result, row.budget)}",
        choice=tuple(choice(row)),
        expectation=f"Expect {result.metric} {row.reward:z.3f}"
        f"{f' (95% interval {interval})' if interval else ' (no interval could be given)'}, {_where(row)}.",
        reasons=row.reasons,
        doubtful=row.status != "ok",
    )


def _where(row: Recommendation) -> str:
    """Where the budget lies against the data of the configuration."""
    if row.place == "beyond":
        return f"{figures(row.beyond)} times as far as the data go"
    return "inside the data" if row.place == "inside" else "before the first evaluation"


def choice(row: Recommendation) -> list[str]:
    """`n = 16`, `32 problems per batch`, `1,953 steps`, `learning rate 7.1e-07`, as far as they are known."""
    parts = [f"n = {row.group_size}"] if row.group_size else [f"the configuration {row.run}"]
    if row.problems_per_batch:
        parts.append(f"{row.problems_per_batch:,} problems per batch")
    if row.num_steps:
        parts.append(f"{row.num_steps:,} steps")
    if row.learning_rate:
        parts.append(f"learning rate {row.learning_rate:.2g}")
    return parts
