"""What the fitter's flags can spell that absl's cannot: 1.5M, 1500,50000, A=0.61,B=1, A=0.5:0.9 and 0.45:0.8:0.005."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isocompute_jax.records.errors import InputError

EXPONENTS = {"k": "e3", "M": "e6", "B": "e9"}


def number(flag: str, text: str) -> float:
    """A number, which may end in k, M or B: `1.5M` is 1.5e6."""
    exponent = EXPONENTS.get(text[-1:], "")
    try:
        value = float(text[:-1] + exponent if exponent else text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InputError(f"{flag}: {text!r} is not a number")
    return value


def numbers(flag: str, texts: Sequence[str]) -> tuple[float, ...]:
    """Numbers, as in `1e6,4M`."""
    return tuple(number(flag, text) for text in texts)


def pair(flag: str, texts: Sequence[str]) -> tuple[float, float]:
    """Two numbers."""
    if len(texts) != 2:
        raise InputError(f"{flag} takes two numbers, not {len(texts)}")
    return number(flag, texts[0]), number(flag, texts[1])


def named_numbers(flag: str, items: Sequence[str]) -> dict[str, float]:
    """Numbers by name, as in `A=0.61,B=1`."""
    return {name: number(flag, text) for name, text in _named(flag, items).items()}


def named_pairs(flag: str, items: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Ranges by name, as in `A=0.5:0.9,B=0.3:3`."""
    return {name: pair(flag, text.split(":")) for name, text in _named(flag, items).items()}


def _named(flag: str, items: Sequence[str]) -> dict[str, str]:
    """name=value items as a mapping."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value) or name in found:
            raise InputError(f"{flag}: {item!r} is not of the form name=value, each name once")
        found[name] = value
    return found
