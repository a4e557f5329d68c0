r"""Numbers that are too large to be computed, `9^{9^9}`: equal where algebra alone makes them one expression.

A giant power is written in powers of primes, 9^n as 3^(2n) with a symbol for 3, and SymPy then gathers exponents, which
are exact. Equal expressions in these symbols are equal numbers; what stays different is not told apart, and not paid.
"""

from __future__ import annotations

import re
from typing import Any

from isocompute_jax.tasks.graders import math_bounds, math_values
from isocompute_jax.tasks.graders.math_values import NotUnderstoodError

LARGEST_FACTORED = 1 << 4000
"""A larger base is no base that people write."""
TRIED = 10_000
"""Divisors are looked for up to here; what is left stands for itself, prime or not."""
MOST_SQUARED = 64
"""The highest power of what is no number but has one as a factor."""
MOST_SUMS = 8
"""Sums in two expressions that are multiplied out."""

_PRIME = "prime "


def same_giant(gold: str, answer: str) -> bool:
    """Whether two expressions, at least one of which is too large for `math_values.parse`, are certainly equal.

    Raises:
      NotUnderstoodError: `gold` is none, or holds what cannot be told apart: factorials, sums of many terms.
    """
    import sympy

    first = _reduced(_unevaluated(gold))
    try:
        second = _reduced(_unevaluated(answer))
    except NotUnderstoodError:
        return False
    sums = [part for side in (first, second) for part in sympy.preorder_traversal(side) if isinstance(part, sympy.Add)]
    if first == second or len(sums) > MOST_SUMS:
        return bool(first == second)
    return bool(_gathered(sympy.expand_mul(first)) == _gathered(sympy.expand_mul(second)))


def _unevaluated(text: str) -> Any:
    """An expression as it is written, nothing computed.

    Raises:
      NotUnderstoodError: it is none, or not even that can be read in a short time.
    """
    import sympy

    if math_bounds.is_tangled(text) or re.search(r"\\binom|!", text):
        raise NotUnderstoodError(text)
    with sympy.evaluate(False):
        return math_values.read(text)


def _reduced(node: Any) -> Any:
    """The value of an unevaluated expression, its giant powers in symbols of primes.

    Raises:
      NotUnderstoodError: it holds more than sums, products and powers, or a power that is neither computed nor kept.
    """
    import sympy

    if isinstance(node, (sympy.Rational, sympy.Symbol, sympy.NumberSymbol)):
        return node
    if not isinstance(node, (sympy.Add, sympy.Mul, sympy.Pow)):
        raise NotUnderstoodError(str(type(node)))
    parts = [_reduced(part) for part in node.args]
    if isinstance(node, sympy.Add):
        return sympy.Add(*parts)
    return _gathered(sympy.Mul(*parts)) if isinstance(node, sympy.Mul) else _power(*parts)


def _power(base: Any, exponent: Any) -> Any:
    import sympy

    if isinstance(base, sympy.Rational) and base not in (0, 1, -1):
        if not isinstance(exponent, sympy.Rational):
            giant = _is_giant(exponent)
        else:
            giant = (len(bin(base.p)) + len(bin(base.q))) * abs(exponent) > math_bounds.MOST_DIGITS
        if giant and base < 0 and not isinstance(exponent, sympy.Integer):
            raise NotUnderstoodError("a negative base")
        sign = sympy.Integer(-1) ** exponent if giant and base < 0 else sympy.Integer(1)
        return sign * _in_primes(abs(base), exponent) if giant else base**exponent
    small = isinstance(exponent, sympy.Rational) and abs(exponent) <= MOST_SQUARED
    if small or base.is_Atom or all(_is_giant(factor) for factor in sympy.Mul.make_args(base)):
        return base**exponent
    raise NotUnderstoodError("a giant power of a sum")


def _is_giant(expression: Any) -> bool:
    """Whether an expression holds a symbol of a prime."""
    return any(symbol.name.startswith(_PRIME) for symbol in expression.free_symbols)


def _in_primes(number: Any, exponent: Any = 1) -> Any:
    """A power of a positive rational number as a product of symbols that stand for its primes."""
    import sympy

    if max(number.p, number.q) > LARGEST_FACTORED:
        raise NotUnderstoodError("a giant base")
    product = sympy.Integer(1)
    exponent = sympy.sympify(exponent)
    for whole, sign in ((number.p, 1), (number.q, -1)):
        for prime, power in _factors(whole).items():
            product *= sympy.Symbol(f"{_PRIME}{prime}", positive=True) ** _gathered(sign * power * exponent)
    return product


def _factors(number: int) -> dict[int, int]:
    """Divisors below TRIED and what they leave, with their powers."""
    factors: dict[int, int] = {}
    divisor = 2
    while divisor < TRIED and divisor * divisor <= number:
        while number % divisor == 0:
            factors[divisor] = factors.get(divisor, 0) + 1
            number //= divisor
        divisor += 1 if divisor == 2 else 2
    return factors | ({number: factors.get(number, 0) + 1} if number > 1 else {})


def _gathered(expression: Any) -> Any:
    """Each term with its number in the symbols of primes too, where it has any: 9 * 9^n as 3^(2n + 2)."""
    import sympy

    terms = []
    for term in sympy.Add.make_args(expression):
        number, rest = term.as_coeff_Mul()
        giant = _is_giant(rest) and isinstance(number, sympy.Rational) and number != 0
        terms.append((_in_primes(abs(number)) * rest * (1 if number > 0 else -1)) if giant else term)
    return sympy.Add(*terms)
