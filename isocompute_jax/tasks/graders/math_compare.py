"""Whether two cleaned answers are the same: shapes part by part, names, units, percent signs and relations.

See `math` for the conventions.
"""

from __future__ import annotations

import decimal
import itertools
import re
from collections.abc import Callable

from isocompute_jax.tasks.graders import math_values
from isocompute_jax.tasks.graders.answers import is_conditional
from isocompute_jax.tasks.graders.math_shapes import FLIPPED, Shape, interval, names, read_shape, real_set
from isocompute_jax.tasks.graders.math_values import DEEPEST, NotUnderstoodError, depth, plain_value
from isocompute_jax.tasks.graders.numeric import is_unit, read_number, unit_factor

_CHOICE = re.compile(r"\(?\s*([A-Z])\s*\)?")
_CHOSEN = re.compile(
    r"(?:(?:[Tt]he )?(?:[Cc]orrect )?(?:[Aa]nswer|[Oo]ption|[Cc]hoice|[Aa]lternative)(?: is)?\s?:?\s*)?"
    r"\(?\s*([A-Za-z])\s*(?:\)|[.:]\s|$)"
)
_HEDGED = re.compile(r"\b(?:or|and)\b|[,/]")
_FULL_HOUR = re.compile(r"0+(?:\s?[AaPp]\.?[Mm]\.?)?")
"""What stands behind the hour of a clock time such as `3:00 PM`; as a ratio it would be that of all."""
_DECIMAL = re.compile(r"[-+]?\d{0,40}\.\d{1,40}")
_UNIT = re.compile(
    r"(?:(?<![\\A-Za-z])[A-Za-z][A-Za-z.]*+|\\cdot(?![A-Za-z])|\^\\circ|(?<=[A-Za-z ])\^\{?[23]\}?|[\s/·])+$"
)
"""Words and what joins them, at the end of a value."""

_SIGN = re.compile(r"[\\^_=<>*|]|(?<=[\d)}\]])\s?[!/]|(?<![A-Za-z])[A-Za-z]'")
"""What only formulas have."""
_LOOSE_SPACE = re.compile(r"(?<!\w)\s|\s(?!\w)")
_PRODUCT = re.compile(r"\\vec\s?\{?[A-Za-z]\}?\s*\\(?:times|cdot)")
_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_ANGLE = re.compile(r"(\d+(?:\.\d+)?|\\frac\s?\{\d+\}\s?\{\d+\})\s?\^\\circ")
"""Degrees; only the functions of angles tell them from plain numbers."""


def same_answer(gold: str, answer: str) -> bool:
    """Whether two cleaned answers are the same."""
    if not answer:
        return False
    if gold == answer:
        return True
    if depth(answer) > DEEPEST or conditional(gold, answer):
        return False
    choice = _CHOICE.fullmatch(gold)
    if choice:
        found = _CHOSEN.match(answer)
        if found is not None and not _HEDGED.search(answer):
            return found[1].upper() == choice[1]
    return same_shape(read_shape(gold), read_shape(answer))


def conditional(gold: str, answer: str) -> bool:
    """Whether an answer holds only under a condition, of which the gold answer has none."""
    return is_conditional(answer) and not is_conditional(gold)


def same_shape(gold: Shape, answer: Shape) -> bool:
    """Whether two shapes are the same answer."""
    gold, answer = _without_name(gold, answer)
    pair = (gold.kind, answer.kind)
    if gold.kind == "words" and answer.kind in ("words", "value"):
        return _same_words(gold.text, answer.text)
    if pair == ("value", "value"):
        return _same_value(gold.text, answer.text)
    if gold.kind == "set" and len(gold.parts) == 1 and answer.kind == "value":  # the only solution
        return same_shape(gold.parts[0], answer)
    if gold.kind in ("list", "set") and answer.kind in ("list", "set"):
        return _same_elements(gold.parts, answer.parts)
    if answer.kind == "list" and gold.kind == "value":  # one value in several forms
        return all(same_shape(gold, part) for part in answer.parts)
    if pair == ("tuple", "tuple") and gold.text == answer.text:
        return _same_in_order(gold.parts, answer.parts)
    if pair == ("matrix", "matrix"):
        return _same_in_order(gold.parts, answer.parts)
    if pair == ("ratio", "ratio"):
        return _same_ratio(gold, answer)
    if pair == ("relation", "relation") and _same_relation(gold, answer):
        return True
    if pair == ("union", "union") and _same_elements(gold.parts, answer.parts, _same_condition):
        return True
    return _same_reals(gold, answer)


def _same_reals(gold: Shape, answer: Shape) -> bool:
    """Whether two shapes are one set of real numbers; of one interval each, the ends are compared as written."""
    one, other = interval(gold), interval(answer)
    if one is not None and other is not None:
        return one.text == other.text and _same_in_order(one.parts, other.parts)
    whole = real_set(gold)
    return whole is not None and whole == real_set(answer)


def _same_condition(a: Shape, b: Shape) -> bool:
    """Whether two parts of unions are the same, of the same name."""
    return (a.kind != "relation" or b.kind != "relation" or names(a) == names(b)) and same_shape(a, b)


def _same_in_order(a: tuple[Shape, ...], b: tuple[Shape, ...]) -> bool:
    return len(a) == len(b) and all(map(same_shape, a, b))


def _same_elements(
    a: tuple[Shape, ...], b: tuple[Shape, ...], same: Callable[[Shape, Shape], bool] = same_shape
) -> bool:
    """Whether each element of one is an element of the other, as often."""
    rest = list(b)
    for part in a:
        match = next((other for other in rest if same(part, other)), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


# --- values


def _same_value(gold: str, answer: str) -> bool:
    """Equality of two expressions, which may have units and percent signs."""
    (gold, unit, percent), (answer, other_unit, other_percent) = _measured(gold), _measured(answer)
    factor = unit_factor(other_unit, unit) if unit and other_unit else "1"
    if factor is None:
        return False
    if factor != "1":
        answer = f"({answer})*{factor}"
    if percent != other_percent:
        bare = read_number(gold)
        if bare is not None and abs(bare.value) >= 1 and bare == read_number(answer):  # the sign is often left out
            return True
        gold, answer = (f"({text})/100" if sign else text for text, sign in ((gold, percent), (answer, other_percent)))
    numeral, other = read_numeral(gold), read_numeral(answer)
    if numeral or other:
        return same_numeral(numeral or gold, other or answer)
    if _rounds_to(answer, gold):
        return True
    if _PRODUCT.search(gold) or _PRODUCT.search(answer):  # which does not commute
        return _same_words(gold, answer)
    try:
        return math_values.same_value(plain_value(gold), plain_value(answer))
    except (NotUnderstoodError, MemoryError, RecursionError):
        return _same_words(gold, answer)


def _measured(text: str) -> tuple[str, str, bool]:
    """A number, its unit, and whether it is in percent."""
    percent = "%" in text or bool(re.search(r"\bpercent\b", text))
    text = re.sub(r"%|\bpercent\b", "", text).strip()
    found = _UNIT.search(text)
    if found is not None and found[0].strip() and is_unit(found[0].replace(r"^\circ", " degrees ")):
        value = text[: found.start()].strip()
        if value and not _letters(value) and not _OF_ANGLES.search(value):
            return value, found[0].strip(), percent
    text = _ANGLE.sub(r"(\\frac{\\pi}{180}(\1))", text) if _OF_ANGLES.search(text) else text
    return text.replace(r"^\circ", "").strip(), "", percent


def _rounds_to(answer: str, gold: str) -> bool:
    """Whether a decimal with at least as many digits as a decimal gold answer rounds to it."""
    if not (_DECIMAL.fullmatch(gold) and _DECIMAL.fullmatch(answer)):
        return False
    places = len(gold.partition(".")[2])
    if len(answer.partition(".")[2]) < places:
        return False
    exact, other = decimal.Decimal(gold), decimal.Decimal(answer)
    return abs(exact - other) <= decimal.Decimal(5).scaleb(-places - 1)


def _same_words(a: str, b: str) -> bool:
    """Equality of texts that are no expressions; of formulas all signs count, of words letters and digits alone."""

    def plain(text: str) -> str:
        bare = " ".join(re.sub(r"[^\w\s+-]", " ", text).split())
        return bare if len(bare) < 3 and bare.isupper() else bare.casefold()

    if _SIGN.search(a) or _SIGN.search(b):
        return _LOOSE_SPACE.sub("", a) == _LOOSE_SPACE.sub("", b)
    return bool(plain(a)) and plain(a) == plain(b)


def _same_ratio(gold: Shape, answer: Shape) -> bool:
    """Whether a : b = c : d."""
    if any(_FULL_HOUR.fullmatch(part.text) for part in (*gold.parts, *answer.parts)):
        return _same_in_order(gold.parts, answer.parts)
    (first, *rest), (other, *others) = gold.parts, answer.parts
    return len(rest) == len(others) and all(
        _same_value(f"({a.text})/({first.text})", f"({b.text})/({other.text})")
        for a, b in zip(rest, others, strict=True)
    )


# --- names and relations


def _without_name(gold: Shape, answer: Shape) -> tuple[Shape, Shape]:
    """`x = 5` as 5, unless the other side has another name, or both are equations."""
    if gold.kind == "relation" and answer.kind == "relation" and gold.text == answer.text == "=":
        named = _name(gold), _name(answer)
        if named[0] and named[0] == named[1]:
            return _value_of(gold), _value_of(answer)
        return gold, answer
    if gold.kind == "relation" and _name(gold):
        gold = _value_of(gold)
    answer = _exact_side(answer)
    if answer.kind == "relation" and set(answer.text.split()) == {"="}:
        number = _named_number(answer.parts) if gold.kind != "relation" else None
        if _name(answer):
            answer = _value_of(answer)
        elif number is not None:
            answer = number
        elif gold.kind == "value" and all(_same_value(gold.text, side.text) for side in answer.parts):
            return gold, gold
    return gold, answer


def _exact_side(shape: Shape) -> Shape:
    r"""`x = a \approx b` as `x = a`."""
    signs = shape.text.split()
    if shape.kind != "relation" or r"\approx" not in signs:
        return shape
    kept = signs.index(r"\approx")
    return Shape("relation", " ".join(signs[:kept]), shape.parts[: kept + 1]) if kept else shape.parts[0]


def _name(shape: Shape) -> str:
    """What stands before the first sign of equality, where it names what follows and every further step is equal."""
    first = name_of(shape.parts[0].text) if set(shape.text.split()) == {"="} else ""
    return first if first and _agree(shape.parts[1:]) else ""


def _agree(steps: tuple[Shape, ...]) -> bool:
    return all(_same_value(steps[-1].text, step.text) for step in steps[:-1])


def _named_number(sides: tuple[Shape, ...]) -> Shape | None:
    r"""The number that a chain gives its names: `p + q = 25 + 48 = 73`, `AB = BC = 5`; None if it hedges."""
    steps = list(itertools.dropwhile(lambda side: is_quantity(side.text) and not _is_measure(side), sides))
    given = 0 < len(steps) < len(sides) and _is_measure(steps[-1]) and _agree(tuple(steps))
    return read_shape(steps[-1].text) if given else None


def _is_measure(side: Shape) -> bool:
    """Whether a side is a number, with or without a unit."""
    return math_values.is_number(plain_value(_measured(side.text)[0]))


def _value_of(shape: Shape) -> Shape:
    return read_shape(shape.parts[-1].text)


def _same_relation(gold: Shape, answer: Shape) -> bool:
    """Whether two relations of two sides say the same: their differences are multiples, of the right sign."""
    if len(gold.parts) != len(answer.parts):
        return False
    if gold.text == answer.text and _same_in_order(gold.parts, answer.parts):
        return True
    if len(gold.parts) != 2:
        return False
    try:
        left, right = (math_values.parse(_difference(shape)) for shape in (gold, answer))
    except NotUnderstoodError:
        return False
    symmetric = gold.text in ("=", r"\neq")
    factor = math_values.constant_factor(left, right)
    if factor is None or not (symmetric or factor.is_real):
        return False
    wanted = gold.text if symmetric or factor > 0 else FLIPPED.get(gold.text)
    return answer.text == wanted


def _difference(shape: Shape) -> str:
    return f"({plain_value(shape.parts[0].text)})-({plain_value(shape.parts[1].text)})"


# --- what may stand before a value as its name

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


# --- numerals in a base

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_BASES = {word: base for base, word in enumerate(_WORDS, 2)} | {"binary": 2, "octal": 8, "decimal": 10, "sixteen": 16}
_NUMERAL = re.compile(
    r"([-+]?)\s*(\()?\s*(?:\{\s*)?([\dA-Z][\dA-Z .]*|[\da-f][\da-f .]*)(?:\})?\s*(?(2)\)\s*)"
    r"(?:_\s*(\d|[a-z]{3,})|_\s*\{\s*\(?\s*(?:base\s*)?([A-Za-z]+|\d{1,2})\s*\)?\s*\}|"
    r"\(?\s*(?:in\s)?\s*base[\s-]*([A-Za-z]+|\d{1,2})\s*\)?)"
)


Numeral = tuple[str, int]
"""Digits without leading zeros, with their sign, and the base."""


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
    return sign.replace("+", "") + (digits.lstrip("0") or "0"), base


def same_numeral(gold: Numeral | str, answer: Numeral | str) -> bool:
    """Whether digits and bases agree; an answer may leave the base out, and have one of ten where the gold has none."""
    if isinstance(answer, str):
        return gold[0] == answer if not isinstance(gold, str) else gold == answer
    return (gold, 10) == answer if isinstance(gold, str) else gold == answer
