"""Options said once: a dataclass whose fields carry their help, bounds and whether they identify a run.

From it come the checks on construction, the flags and the `--help`. A field is declared as

    policy_loss: PolicyLoss = option("clipped", "Policy-gradient term.")

and a class calls `check(self)` in `__post_init__`, so that an unknown word never gets as far as an algorithm, whether
it came from a flag, a file or a caller of the library.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable
from typing import Any, Literal

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import IDENTITY, REPLICATE

_HELP = "help"
_LOW = "low"
_HIGH = "high"


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    default_factory: Any = dataclasses.MISSING,
    low: float | None = None,
    high: float | None = None,
    identity: bool = True,
    replicate: bool = False,
) -> Any:
    """A dataclass field that carries its own help.

    Args:
      default: its default.
      help: what it means, with its unit; a sentence.
      default_factory: makes the default, where that is mutable.
      low: least value, included.
      high: largest value, included.
      identity: whether two runs that differ in it are different runs; False for what only says where or how a run is
        executed (see `records.identity`).
      replicate: whether two runs that differ in it alone repeat one configuration, as with another seed.
    """
    metadata = {_HELP: help, _LOW: low, _HIGH: high, IDENTITY: identity, REPLICATE: replicate}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def help_of(field: dataclasses.Field[Any]) -> str:
    """The help that `option` gave a field; empty for a plain one."""
    return field.metadata.get(_HELP, "")


def check(instance: Any, prefix: str | None = None) -> None:
    """Holds every field of a dataclass to its Literal and its bounds.

    Args:
      instance: the dataclass, in its `__post_init__`.
      prefix: stands before a field's name in messages: `--` where fields are flags; the class's name otherwise.

    Raises:
      InputError: names the field, the value, and the nearest known word or the bounds.
    """
    prefix = f"{type(instance).__name__}." if prefix is None else prefix
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        choices = choices_of(hints[field.name])
        if choices and value not in choices:
            raise InputError(unknown_word(f"{prefix}{field.name}", value, choices))
        low, high = field.metadata.get(_LOW), field.metadata.get(_HIGH)
        if value is None or (low is None and high is None):
            continue
        if not (low is None or value >= low) or not (high is None or value <= high):
            raise InputError(f"{prefix}{field.name} = {value!r} must be {_range(low, high)}")


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The values of a Literal type, None among them where it is optional; empty for every other type."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    parts = typing.get_args(hint)
    if type(None) in parts and any(typing.get_origin(part) is Literal for part in parts):
        return tuple(value for part in parts for value in (typing.get_args(part) or (None,)))
    return ()


def unknown_word(where: str, value: Any, known: Iterable[Any]) -> str:
    """The message for a word that is none of the known ones: the nearest of them, and all."""
    known = list(known)
    nearest = difflib.get_close_matches(str(value), [str(word) for word in known], n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{where} = {value!r}: {hint}known: {', '.join(map(repr, known))}"


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
