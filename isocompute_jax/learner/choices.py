"""Closed choices: a word names one of a few functions, and an unknown word names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError

Word = TypeVar("Word", bound=str)
Function = TypeVar("Function")


def named(functions: Mapping[Word, Function], word: Word, what: str) -> Function:
    """The function that `word` names.

    Raises:
      InputError: the word is unknown; says `what` was asked for, and the nearest known word.
    """
    if word not in functions:
        raise InputError(unknown_word(what, word, functions))
    return functions[word]
