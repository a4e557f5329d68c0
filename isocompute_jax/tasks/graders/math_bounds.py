"""How large an expression may be: told from its text, before anything evaluates it.

SymPy computes powers, factorials and binomial coefficients while it reads them, and its parser takes ever longer the
deeper brackets stand in brackets; what passes here is read in a fraction of a second.
"""

from __future__ import annotations

import itertools
import math
import re

MOST_DIGITS = 100_000
"""Of a number that is computed."""
DEEPEST = 16
"""Brackets within brackets."""

_TOKEN = re.compile(r"\\[A-Za-z]+|\d+|[({\[\])}^_!]|[A-Za-z]")
_CHAINED = re.compile(
    r"!\s?!\s?!|"
    r"(?:[\^_]\s?(?:\\[A-Za-z]+\s?|\w\s?|\{\w*\}\s?)){16}|"
    r"(?:[\^_]?\s?\\[A-Za-z]+\s?){16}"
)
"""`x^x^x...`, `\\sqrt\\sqrt\\sqrt...`: one within the other without brackets."""


def is_bounded(text: str) -> bool:
    """Whether an expression in LaTeX, and every number in it, is small enough to be evaluated."""
    if is_tangled(text):
        return False
    tokens = _TOKEN.findall(text)[::-1]
    try:
        while tokens:  # more than once only where a bracket closes that was never opened
            if _sequence(tokens) > MOST_DIGITS:
                return False
    except RecursionError:  # what is too deep for this is too deep for the parser
        return False
    return True


def is_tangled(text: str) -> bool:
    """Whether an expression is nested too deep to be parsed, whatever its value."""
    return depth(text) > DEEPEST or bool(_CHAINED.search(text))


def depth(text: str) -> int:
    """The most brackets within brackets."""
    now = most = 0
    for char in text:
        now += (char in "([{") - (char in ")]}")
        most = max(most, now)
    return most


def without_doubled_brackets(text: str) -> str:
    """`((x))` as `(x)` and `{{x}}` as `{x}`: the brackets that stand directly inside their like."""
    opened: list[int] = []
    closes: dict[int, int] = {}
    places = [i for i, char in enumerate(text) if not char.isspace()]
    following = dict(itertools.pairwise(places))
    for index in places:
        if text[index - 1 : index] == "\\":
            continue
        if text[index] in "({":
            opened.append(index)
        elif text[index] in ")}" and opened:
            start = opened.pop()
            if text[start] + text[index] in ("()", "{}"):
                closes[start] = index
    doubled = set()
    for start, end in closes.items():
        inner = following[start]
        if text[inner] == text[start] and inner in closes and following[closes[inner]] == end:
            doubled |= {start, end}
    return "".join(char for i, char in enumerate(text) if i not in doubled)


def _sequence(tokens: list[str]) -> float:
    """About how many digits the product of all atoms has, up to a closing bracket; takes them off the end."""
    digits = 0.0
    while tokens and tokens[-1] not in (")", "]", "}"):
        digits += _power(tokens)
    if tokens:
        tokens.pop()
    return digits


def _power(tokens: list[str]) -> float:
    """The digits of one atom with its factorials and exponents."""
    digits = _atom(tokens)
    while tokens and tokens[-1] in ("^", "_", "!"):
        sign = tokens.pop()
        if sign == "!":
            digits = _times(digits, digits)
        elif tokens:
            other = _power(tokens)  # a tower is read from its top
            digits = _times(digits, other) if sign == "^" else digits
    return digits


def _atom(tokens: list[str]) -> float:
    token = tokens.pop()
    if token in ("(", "[", "{"):
        return _sequence(tokens)
    if token == r"\binom" and tokens:
        above = _atom(tokens)
        return _times(above, _atom(tokens)) if tokens else above
    if token in (r"\sum", r"\prod", r"\int"):  # the limits are no powers
        while len(tokens) > 1 and tokens[-1] in ("^", "_"):
            tokens.pop()
            _atom(tokens)
        return 0.0
    return math.log10(max(int(token[:300]), 1)) + max(len(token) - 300, 0) if token.isdigit() else 0.0


def _times(digits: float, other: float) -> float:
    """The digits of a power: those of its base, times the exponent that has `other` digits."""
    if digits == 0.0:
        return 0.0
    return digits * 10.0**other if other < 300 else math.inf
