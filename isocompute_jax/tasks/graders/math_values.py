"""Equality of two expressions in LaTeX: parsed by latex2sympy2_extended (math-verify's parser), compared by value.

Two expressions are equal if their values agree to 40 digits at random points of their symbols; decimals are exact.
What cannot be evaluated, a sum up to n say, is equal where SymPy writes it alike.

Before anything evaluates an expression its text says how large it may be (`is_bounded`): SymPy computes powers,
factorials and binomial coefficients while it reads them, and its parser takes ever longer the deeper brackets stand in
brackets. Products of numbers that are too large to be computed, `9^{9^9}`, are equal where they have the same primes to
the same powers (`same_giant`).

SymPy is imported when the first expression is read.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import re
from collections.abc import Iterator
from typing import Any

MOST_DIGITS = 100_000
"""Of a number that is computed."""
DEEPEST = 16
"""Brackets within brackets."""
DIGITS = 60
AGREE = 40
"""Digits that must agree, of the DIGITS that are computed."""
POINTS = ((0.7390851, 1.2020569, 0.9159655), (1.6449341, 0.5772157, 1.3247180), (2.6854520, 1.4513692, 0.6434105))
NEGATIVE = ((-0.6180339, -1.3063778, -0.8346268), (-1.7632228, 0.7642236, -2.5029079))
"""Where expressions are evaluated: constants without a relation to each other."""

_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_REPEATING = re.compile(r"(-?)(\d*)\.(\d*)\\overline\s?\{(\d+)\}")
_MIXED = re.compile(r"(?<![\d.}\w])(\d+)\s?\\frac\s?\{(\d+)\}\s?\{(\d+)\}")
_SPACED_MIXED = re.compile(r"(-?)(\d+)\s+(\d+)\s?/\s?(\d+)")
_UNKNOWN = re.compile(r"[@#&;\"`?]|'|\\(?:ldots|cdots|dots|vdots)|\.\.\.")
_TOKEN = re.compile(r"\\[A-Za-z]+|\d+|[({\[\])}^_!]|[A-Za-z]")
_CHAINED = re.compile(
    r"!\s?!\s?!|"
    r"(?:[\^_]\s?(?:\\[A-Za-z]+\s?|\w\s?|\{\w*\}\s?)){16}|"
    r"(?:[\^_]?\s?\\[A-Za-z]+\s?){16}"
)
"""`x^x^x...`, `\\sqrt\\sqrt\\sqrt...`: one within the other without brackets."""

LARGEST_FACTORED = 1 << 4000
"""A larger base is no base that people write."""
TRIED = 10_000
"""Divisors are looked for up to here; what is left counts as a prime."""


class NotUnderstoodError(ValueError):
    """A text is no expression."""


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Any:
    """A SymPy expression.

    Raises:
      NotUnderstoodError: the text is none, or its value is out of all bounds.
    """
    if not text or _UNKNOWN.search(text) or not is_bounded(text):
        raise NotUnderstoodError(text)
    return read(text)


def read(text: str) -> Any:
    """What math-verify's parser makes of a text that is known to be bounded, or that is read without evaluation.

    Raises:
      NotUnderstoodError: it makes nothing of it.
    """
    text = _DECIMAL.sub(lambda found: f"\\frac{{{int(found[1] + found[2])}}}{{{10 ** len(found[2])}}}", text)
    latex2sympy, config = _parser()
    try:
        return latex2sympy(text, is_real=None, normalization_config=None, conversion_config=config)
    except Exception as error:  # antlr and the conversion raise whatever they like
        raise NotUnderstoodError(text) from error


@functools.cache
def _parser() -> tuple[Any, Any]:
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they warn of every text that is no formula
    return latex2sympy, ConversionConfig(lowercase_symbols=False, interpret_as_mixed_fractions=False)


def plain_value(text: str) -> str:
    """An expression without what only people read: repeating decimals, mixed numbers."""
    text = _REPEATING.sub(_repeating, text)
    text = _MIXED.sub(lambda m: f"({m[1]}+\\frac{{{m[2]}}}{{{m[3]}}})" if int(m[2]) < int(m[3]) else m[0], text)
    spaced = _SPACED_MIXED.fullmatch(text)
    return f"{spaced[1]}({spaced[2]}+\\frac{{{spaced[3]}}}{{{spaced[4]}}})" if spaced else text


def _repeating(found: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as a fraction: (16 - 1) / 90."""
    sign, whole, fixed, cycle = found.groups()
    whole = whole or "0"
    top = int(whole + fixed + cycle) - int(whole + fixed)
    return f"{sign}\\frac{{{top}}}{{{(10 ** len(cycle) - 1) * 10 ** len(fixed)}}}"


def same_value(gold: str, answer: str) -> bool:
    """Whether two expressions in LaTeX are equal.

    Raises:
      NotUnderstoodError: `gold` is no expression.
    """
    if gold == answer:
        return True
    if not (is_bounded(gold) and is_bounded(answer)):
        return same_giant(gold, answer)
    expected = parse(gold)
    try:
        found = parse(answer)
    except NotUnderstoodError:
        return False
    return same_expression(expected, found)


def same_expression(a: Any, b: Any) -> bool:
    """Whether two SymPy expressions have the same values."""
    import sympy

    if not isinstance(a, sympy.Expr) or not isinstance(b, sympy.Expr):
        return type(a) is type(b) and a == b
    if a.has(sympy.zoo, sympy.nan) or b.has(sympy.zoo, sympy.nan):  # 1/0 has no value, and so equals nothing
        return False
    exact = _rational(a), _rational(b)
    if None not in exact:  # a long number may differ in its last digit
        return exact[0] == exact[1]
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    compared = 0
    for points, real_only in ((POINTS, False), (NEGATIVE, True)):
        for point in points if symbols else points[:1]:
            values = {symbol: sympy.Float(str(point[i % 3] * (1 + i // 3)), DIGITS) for i, symbol in enumerate(symbols)}
            x, y = _value(a, values), _value(b, values)
            if x is None or y is None or (real_only and not (x.is_real and y.is_real)):
                continue
            if not _close(x, y):
                return False
            compared += 1
    return compared > 0 or a == b


def _rational(expression: Any) -> Any:
    """The exact value of sums, products and powers of rational numbers; None for anything else."""
    import sympy

    kinds = (sympy.Rational, sympy.Add, sympy.Mul, sympy.Pow, sympy.factorial, sympy.binomial)
    if expression.free_symbols or not all(isinstance(node, kinds) for node in sympy.preorder_traversal(expression)):
        return None
    value = expression.doit()
    return value if isinstance(value, sympy.Rational) else None


def constant_factor(a: Any, b: Any) -> Any:
    """The number c with a = c b at every point; None where there is none, or both are constants."""
    import sympy

    symbols = sorted(a.free_symbols | b.free_symbols, key=str) if isinstance(a, sympy.Expr) else []
    factors = []
    for point in (*POINTS, *NEGATIVE) if symbols and isinstance(b, sympy.Expr) else ():
        values = {symbol: sympy.Float(str(point[i % 3] * (1 + i // 3)), DIGITS) for i, symbol in enumerate(symbols)}
        x, y = _value(a, values), _value(b, values)
        if x is None or y is None or not (x.is_finite and y.is_finite) or x == 0 or y == 0:
            return None
        factors.append(x / y)
    return factors[0] if factors and all(_close(factors[0], factor) for factor in factors) else None


def real_value(text: str) -> Any:
    """The real number, or infinity, that an expression is, to AGREE digits, so that equal values are equal; or None."""
    import sympy

    try:
        expression = parse(text)
    except NotUnderstoodError:
        return None
    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    if expression in (sympy.oo, -sympy.oo) or isinstance(expression, sympy.Rational):
        return expression
    value = _value(expression, {})
    return sympy.Rational(str(value.round(AGREE))) if value is not None and value.is_real else None


def is_number(text: str) -> bool:
    """Whether a text is an expression without symbols."""
    import sympy

    try:
        value = parse(text)
    except NotUnderstoodError:
        return False
    return isinstance(value, sympy.Expr) and not value.free_symbols and value.is_number is True


def _value(expression: Any, values: dict[Any, Any]) -> Any:
    """A complex number to DIGITS digits; None where there is none."""
    import sympy

    constants = {"i": sympy.I, "e": sympy.E}
    if expression.has(sympy.Mod):  # which the parser leaves as it is
        expression = expression.doit()
    try:
        number = expression.subs({s: constants.get(s.name, value) for s, value in values.items()}).evalf(DIGITS)
    except Exception:  # of functions that have no value there
        return None
    if number in (sympy.oo, -sympy.oo):
        return number
    return number if number.is_number and number.is_finite and not number.has(sympy.zoo, sympy.nan) else None


def _close(x: Any, y: Any) -> bool:
    import sympy

    if x in (sympy.oo, -sympy.oo) or y in (sympy.oo, -sympy.oo):
        return x == y
    if not (abs(x).is_comparable and abs(y).is_comparable):  # a function that nobody has computed
        return x == y
    size = max(abs(x), abs(y))
    return bool(abs(x - y) <= 10.0**-AGREE * size) if size > 0 else True


# --- how large


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


# --- numbers that nobody computes


def same_giant(gold: str, answer: str) -> bool:
    """Whether two products of powers, at least one of which is too large for `parse`, are certainly equal.

    Raises:
      NotUnderstoodError: `gold` is none (it has a sum, a factorial, a tower of powers that is too high).
    """
    expected = prime_powers(gold)
    try:
        return expected == prime_powers(answer)
    except NotUnderstoodError:
        return False


def prime_powers(text: str) -> dict[int, Any]:
    """Prime -> its exponent, in a product of powers of rational numbers, of which nothing but exponents is computed.

    Raises:
      NotUnderstoodError: the text is no such product, or not even that can be read in a short time.
    """
    import sympy

    if is_tangled(text) or re.search(r"\\binom|!", text):
        raise NotUnderstoodError(text)
    with sympy.evaluate(False):
        product = read(text)
    exponents: dict[int, Any] = {}
    for base, exponent in _factors(product):
        if max(abs(base.p), base.q) > LARGEST_FACTORED:
            raise NotUnderstoodError(text)
        powers: Any = sympy.factorrat(base, limit=TRIED)
        for prime, power in powers.items():
            exponents[prime] = exponents.get(prime, 0) + power * exponent
    if -1 in exponents:
        exponents[-1] %= 2
    return {prime: exponent for prime, exponent in exponents.items() if exponent != 0}


def _factors(node: Any, exponent: Any = 1) -> Iterator[tuple[Any, Any]]:
    """(rational number, exponent) of each factor of an unevaluated product; raises NotUnderstoodError for others."""
    import sympy

    if isinstance(node, sympy.Rational) and node != 0:
        yield node, exponent
    elif isinstance(node, sympy.Mul):
        for factor in node.args:
            yield from _factors(factor, exponent)
    elif isinstance(node, sympy.Pow):
        yield from _factors(node.base, exponent * _whole(node.exp))
    else:
        raise NotUnderstoodError(str(type(node)))


def _whole(node: Any) -> Any:
    """The whole number that an unevaluated expression is; raises NotUnderstoodError where it is none, or too large."""
    import sympy

    if isinstance(node, sympy.Integer):
        return node
    if isinstance(node, (sympy.Add, sympy.Mul)):
        return node.func(*map(_whole, node.args))
    if isinstance(node, sympy.Pow):
        base, exponent = map(_whole, node.args)
        if exponent >= 0 and int(base).bit_length() * exponent <= MOST_DIGITS:
            return base**exponent
    raise NotUnderstoodError(str(type(node)))
