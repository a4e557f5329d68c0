r"""What may stand before a value as its name: `x`, `f(x)`, `\angle ABC`, and sums of letters, `p + q`.

An unsolved equation is no named value: `x + 2 = 5` and `2x = 10` do not answer 5 and 10.
"""

from __future__ import annotations

import re

from isocompute_jax.tasks.graders import math_values
from isocompute_jax.tasks.graders.math_values import NotUnderstoodError, plain_value

_NAME = re.compile(r"(?!\d)[A-Za-z\\_{}()'|,.\d\s\[\]^]*")
_DERIVATIVE = re.compile(r"\^\{-1\}|\\frac\s?\{d([a-z]?)\}\s?\{d([a-z])\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_FUNCTIONS = ("frac", "sqrt", "sin", "cos", "log", "ln")
_SIGNED = re.compile(r"\\(?:pm|mp)(?![A-Za-z])|[%!]")


def name_of(text: str) -> str:
    """The name that a text is, in one spelling; nothing where it is none."""
    name = _DERIVATIVE.sub(r"d\1d\2", text.strip())
    if not _NAME.fullmatch(name) or any(word in name for word in _FUNCTIONS) or _is_arithmetic(name):
        return ""
    return name.replace(" ", "")


def is_quantity(text: str) -> bool:
    r"""Whether a text is an expression in letters that has a value, not half of an equation: `p + q`, `P(X > 3)`.

    A term without a letter, or one letter times a number, is what remains to be solved.
    """
    if _SIGNED.search(text):
        return False
    try:
        value = math_values.parse(plain_value(text))
    except NotUnderstoodError:  # P(A | B), \max f: letters, and no arithmetic at all
        return bool(_letters(text)) and re.search(r"[-+*/]", text) is None
    import sympy

    terms = sympy.Add.make_args(value) if isinstance(value, sympy.Expr) else ()
    if not terms or any(term.is_number for term in terms):
        return False
    symbols = value.free_symbols
    return len(symbols) != 1 or value in symbols or any(value.diff(symbol).free_symbols for symbol in symbols)


def _letters(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]", _COMMAND.sub("", text))


def _is_arithmetic(text: str) -> bool:
    r"""Whether a text is a computation without letters, `(3)(4)` or `\binom{5}{2}`: it names nothing."""
    return not _letters(text) and math_values.is_number(plain_value(text))
