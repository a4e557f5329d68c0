"""What a task is, and how ungraded groups become graded ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.tasks.arithmetic import Arithmetic
from isocompute_jax.tasks.calculator import Calculator
from isocompute_jax.tasks.final_answers import Exact, Numeric

Decode = Callable[[Sequence[Sequence[int]]], list[str]]
"""Token ids of several completions -> their texts (`tokenizer.Tokenizer.decode`)."""


class Task(Protocol):
    """How the completions of one kind of problem are verified.

    Verifiers are pure and return at once, whatever text they are given, because they run inside the training loop. A
    verifier that could hang belongs in a process of its own.
    """

    @property
    def name(self) -> str:
        """The name that problems carry in `Problem.task`."""
        ...

    def reward(self, problem: Problem, text: str) -> float:
        """1.0 if `text`, the completion without its end-of-sequence token, solves `problem`, else 0.0."""
        ...

    def fault(self, problem: Problem) -> str | None:
        """The reason why no completion could ever solve `problem`, and what to do; None if one can."""
        ...


def get_task(name: str) -> Task:
    """The task that problems name.

    Raises:
      InputError: there is none of this name; lists the known ones and the nearest.
    """
    tasks: dict[str, Task] = {task.name: task for task in (Arithmetic(), Calculator(), Exact(), Numeric())}
    if name in tasks:
        return tasks[name]
    raise InputError(unknown_word("task", name, tasks))


def grade(group: RolloutGroup, problem: Problem, decode: Decode) -> RolloutGroup:
    """The group with the rewards [G] (float32) that its problem's task gives; equal completions are verified once."""
    task = get_task(problem.task)
    keys = [completion.tokens.tobytes() for completion in group.completions]
    distinct = {key: completion.tokens for key, completion in zip(keys, group.completions, strict=True)}
    texts = decode([tokens.tolist() for tokens in distinct.values()])
    rewards = {key: task.reward(problem, text) for key, text in zip(distinct, texts, strict=True)}
    return dataclasses.replace(group, rewards=np.array([rewards[key] for key in keys], dtype=np.float32))
