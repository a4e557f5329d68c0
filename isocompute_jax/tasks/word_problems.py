"""Small arithmetic in words, for language models of some 100 million parameters: `words:COUNT:SEED` makes problems.

Sums and differences told as stories, and questions about numbers, with operands up to 30. The answer is a number, which
`numeric` reads from whatever the model writes around it.

Each question, such as "7 and 5, added", is asked once, in one of its wordings: problems that are held out ask for
nothing that is trained on. What a model can gain on them is the skill, and the form of an answer.
"""

from __future__ import annotations

import itertools

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.gym import count_and_seed

PREFIX = "words:"
LARGEST = 30
"""Of the operands."""

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "stamps")
CLOSING = "Answer with the number only."

WORDINGS = {
    "sum": (
        "{name} has {a} {things}. {other} gives {name} {b} more. How many {things} does {name} have now?",
        "There are {a} {things} in one box and {b} in another. How many {things} are in both boxes together?",
        "On Monday {name} finds {a} {things}, and on Tuesday {b}. How many {things} does {name} find in all?",
    ),
    "difference": (
        "{name} has {a} {things} and gives {b} of them to {other}. How many {things} does {name} have left?",
        "A box holds {a} {things}. {name} takes {b} out. How many {things} are still in the box?",
        "{name} has {a} {things}, {other} has {b}. How many more {things} has {name} than {other}?",
    ),
    "larger": (
        "Which number is larger, {a} or {b}?",
        "{name} has {a} {things}, {other} has {b}. How many has the one with more {things}?",
    ),
    "next": ("Which number comes right after {a}?", "{name} counts upwards: {before}, {a}, and then?"),
}
EITHER_WAY = ("sum", "larger")
"""What asks the same of its two numbers in either order."""


def word_problems(count: int, *, seed: int) -> list[Problem]:
    """`count` problems, drawn without repetition; the same seed gives the same ones, and a larger count more.

    Raises:
      InputError: there are fewer.
    """
    random = np.random.default_rng(seed)
    asked = _questions()
    if count > len(asked):
        raise InputError(f"{PREFIX}{count}: there are {len(asked)} such problems; ask for at most as many")
    found = []
    for index in random.permutation(len(asked)):
        kind, a, b, answer = asked[index]
        name, other = random.choice(NAMES, size=2, replace=False)
        wording = WORDINGS[kind][random.integers(len(WORDINGS[kind]))]
        if kind in EITHER_WAY and random.random() < 0.5:
            a, b = b, a
        text = wording.format(a=a, b=b, before=a - 1, name=name, other=other, things=random.choice(THINGS))
        found.append(Problem(f"{kind}-{index}", f"{text} {CLOSING}", str(answer), "numeric"))
    return found[:count]


def read_words(source: str) -> list[Problem]:
    """The problems that `words:COUNT` or `words:COUNT:SEED` names; it stands where a file's path may.

    Raises:
      InputError: it is not of this form.
    """
    count, seed = count_and_seed(source.removeprefix(PREFIX).split(":"), source, "words", "words")
    return word_problems(count, seed=seed)


def _questions() -> list[tuple[str, int, int, int]]:
    """(kind, a, b, answer) of every question; a sum's operands in both orders are one question."""
    found = []
    for a, b in itertools.product(range(1, LARGEST + 1), repeat=2):
        if a >= b:
            found.append(("sum", a, b, a + b))
        if a > b:
            found += [("difference", a, b, a - b), ("larger", a, b, a)]
    found += [("next", a, 1, a + 1) for a in range(2, 100)]
    return found
