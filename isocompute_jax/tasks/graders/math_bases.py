r"""Numerals in a base: `1100_2`, `(1100)_{2}`, `1100_{\text{two}}`, `FF_{16}`, `1100 \text{ (base 2)}`."""

from __future__ import annotations

import re
from typing import NamedTuple

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_BASES = {word: base for base, word in enumerate(_WORDS, 2)} | {"binary": 2, "octal": 8, "decimal": 10, "sixteen": 16}
_NUMERAL = re.compile(
    r"([-+]?)\s*(\()?\s*(?:\{\s*)?([\dA-Z][\dA-Z .]*|[\da-f][\da-f .]*)(?:\})?\s*(?(2)\)\s*)"
    r"(?:_\s*(\d|[a-z]{3,})|_\s*\{\s*\(?\s*(?:base\s*)?([A-Za-z]+|\d{1,2})\s*\)?\s*\}|"
    r"\(?\s*(?:in\s)?\s*base[\s-]*([A-Za-z]+|\d{1,2})\s*\)?)"
)


class Numeral(NamedTuple):
    """Digits without leading zeros, with their sign, and the base."""

    digits: str
    base: int


def read_numeral(text: str) -> Numeral | None:
    """A cleaned text as a numeral in a stated base; None where it is none, or has a digit that its base has not."""
    found = _NUMERAL.fullmatch(text.strip())
    if found is None:
        return None
    sign, _, digits, *bases = found.groups()
    digits, written = digits.replace(" ", "").upper(), next(base for base in bases if base)
    base = int(written) if written.isdigit() else _BASES.get(written.lower(), 0)
    symbol = len(digits) == 1 and digits.isalpha()  # a_{12} is the twelfth a
    if symbol or not 2 <= base <= len(_DIGITS) or not set(digits.replace(".", "", 1)) <= set(_DIGITS[:base]):
        return None
    return Numeral(sign.replace("+", "") + (digits.lstrip("0") or "0"), base)


def same_numeral(gold: Numeral | str, answer: Numeral | str) -> bool:
    """Whether digits and bases agree; a base may be left out on one side."""
    digits, others = (side if isinstance(side, str) else side.digits for side in (gold, answer))
    same_base = isinstance(gold, str) or isinstance(answer, str) or gold.base == answer.base
    return same_base and digits == others
