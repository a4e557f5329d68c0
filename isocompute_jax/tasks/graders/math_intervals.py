r"""Sets of real numbers as intervals: `1 < x \leq 2`, `|x| > 2`, `x \neq 1`, `\mathbb{R} \setminus \{2\}`."""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

from isocompute_jax.tasks.graders import math_values
from isocompute_jax.tasks.graders.math_shapes import Shape, read_shape
from isocompute_jax.tasks.graders.math_values import NotUnderstoodError, plain_value

FLIPPED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", "=": "=", r"\neq": r"\neq"}
"""The sign of a relation whose sides change places."""

_REALS = re.compile(r"\\mathbb\s?\{?\s?R\s?\}?|\\R|\\Re")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z]\))?")
_MODULUS = re.compile(r"\|([^|]+)\|")
_LOW = {"<": "(", r"\leq": "["}
_HIGH = {"<": ")", r"\leq": "]"}
_INFINITY = Shape("value", r"\infty")
_MINUS_INFINITY = Shape("value", r"-\infty")


def intervals(shape: Shape) -> tuple[Shape, ...] | None:
    """The intervals that a shape means, in no order; None where it means none."""
    if shape.kind == "union":
        return _joined(shape)
    if shape.kind == "tuple" and len(shape.parts) == 2 and shape.text in ("()", "[]", "(]", "[)", "][", "]]", "[["):
        low, high = shape.text.translate(str.maketrans({"]": "("}))[0], shape.text[1].replace("[", ")")
        return (Shape("tuple", low + high, shape.parts),)
    if shape.kind == "value" and r"\setminus" in shape.text:
        return _without_points(shape.text)
    if _REALS.fullmatch(shape.text) or (shape.kind == "words" and "real numbers" in shape.text):
        return (Shape("tuple", "()", (_MINUS_INFINITY, _INFINITY)),)
    if shape.kind != "relation":
        return (shape,) if shape.kind == "set" else None
    return _of_relation(shape)


def _of_relation(shape: Shape) -> tuple[Shape, ...] | None:
    """The solutions of an inequality between a name, or a linear term in one, and numbers."""
    signs, sides = shape.text.split(), shape.parts
    if signs and all(sign in (">", r"\geq") for sign in signs):
        signs, sides = [FLIPPED[sign] for sign in reversed(signs)], sides[::-1]
    if not all(sign in _LOW for sign in signs):
        return _punctured(sides) if signs == [r"\neq"] else None
    match [math_values.is_number(plain_value(side.text)) for side in sides]:
        case [False, True]:
            modulus = _MODULUS.fullmatch(sides[0].text.strip())
            if modulus:  # |x| < a is -a < x < a
                low = Shape("value", f"-({sides[1].text})")
                return _of_relation(Shape("relation", " ".join(signs * 2), (low, Shape("value", modulus[1]), sides[1])))
            term, brackets, ends = sides[0].text, "(" + _HIGH[signs[0]], (_MINUS_INFINITY, sides[-1])
        case [True, False]:
            modulus = _MODULUS.fullmatch(sides[1].text.strip())
            if modulus:  # |x| > a is x < -a or x > a
                inside, low = Shape("value", modulus[1]), Shape("value", f"-({sides[0].text})")
                pairs = ((inside, low), (sides[0], inside))
                return _joined(Shape("union", "or", tuple(Shape("relation", signs[0], pair) for pair in pairs)))
            term, brackets, ends = sides[1].text, _LOW[signs[0]] + ")", (sides[0], _INFINITY)
        case [True, False, True]:
            term, brackets, ends = sides[1].text, _LOW[signs[0]] + _HIGH[signs[1]], (sides[0], sides[-1])
        case _:
            return None
    return _solved(term, brackets, ends)


def _solved(term: str, brackets: str, ends: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
    """Where the values of a linear term lie between two ends."""
    if _NAME.fullmatch(term.strip()):
        return (Shape("tuple", brackets, ends),)
    import sympy

    try:
        value = math_values.parse(plain_value(term))
    except NotUnderstoodError:
        return None
    if not isinstance(value, sympy.Expr) or len(value.free_symbols) != 1:
        return None
    [symbol] = value.free_symbols
    slope = sympy.simplify(value.diff(symbol))
    if slope.free_symbols or not slope.is_real or slope == 0:
        return None
    offset, divisor = sympy.latex(value.subs(symbol, 0)), sympy.latex(slope)
    moved = [
        Shape("value", f"\\frac{{({plain_value(end.text)})-({offset})}}{{{divisor}}}")
        if "infty" not in end.text else end
        for end in ends
    ]  # fmt: skip
    if slope > 0:
        return (Shape("tuple", brackets, tuple(moved)),)
    turned = brackets[::-1].translate(str.maketrans("()[]", ")(]["))
    opposite = {_INFINITY: _MINUS_INFINITY, _MINUS_INFINITY: _INFINITY}
    return (Shape("tuple", turned, tuple(opposite.get(end, end) for end in reversed(moved))),)


def _joined(shape: Shape) -> tuple[Shape, ...] | None:
    """A union; of conditions that all hold the intersection, unless it is empty ("x < 1 and x > 3").

    None of conditions on several names: "x > 1, y > 2" is a set of points.
    """
    parts = [_point(part) or intervals(part) for part in shape.parts]
    if None in parts or len({name for part in shape.parts if part.kind == "relation" for name in names(part)}) > 1:
        return None
    if shape.text == "and":
        common: tuple[Shape, ...] = parts[0] or ()
        for part in parts[1:]:
            common = tuple(one for a in common for b in part or () if (one := _overlap(a, b)) is not None)
        if common:
            return common
    return tuple(one for part in parts for one in part or ())


def _point(shape: Shape) -> tuple[Shape, ...] | None:
    """`x = 2` as a set of one point; None for anything else."""
    named = shape.kind == "relation" and shape.text == "=" and _NAME.fullmatch(shape.parts[0].text.strip())
    return (Shape("set", parts=shape.parts[1:]),) if named else None


def names(relation: Shape) -> frozenset[str]:
    """What a relation is about: a side that is a name, or the symbols in a side that is none."""
    found: set[str] = set()
    for side in relation.parts:
        text = side.text.strip()
        try:
            found |= (
                {text} if _NAME.fullmatch(text) else set(map(str, math_values.parse(plain_value(text)).free_symbols))
            )
        except (NotUnderstoodError, AttributeError):
            found.add(text)
    return frozenset(found) - {r"\infty"}


def merged(pieces: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
    """The same set of real numbers in the fewest pieces, in order; None where an end is no known number."""
    spans: list[_Span] = []
    for piece in pieces:
        singles = [Shape("tuple", "[]", (point, point)) for point in piece.parts]
        for interval in singles if piece.kind == "set" else [piece]:
            span = _span(interval)
            if span is None:
                return None
            spans.append(span)
    joined: list[_Span] = []
    for span in sorted(spans, key=lambda span: (span.low, span.piece.text[0] == "(")):
        last = joined[-1] if joined else None
        if last is None or not last.reaches(span):
            joined.append(span)
        elif span.high > last.high or (span.high == last.high and span.piece.text[1] == "]"):
            piece = Shape("tuple", last.piece.text[0] + span.piece.text[1], (last.piece.parts[0], span.piece.parts[1]))
            joined[-1] = _Span(last.low, span.high, piece)
    return tuple(span.piece for span in joined)


class _Span(NamedTuple):
    """An interval and the values of its ends."""

    low: Any
    high: Any
    piece: Shape

    def reaches(self, other: _Span) -> bool:
        """Whether no number lies between this and one that begins no earlier."""
        closed = self.piece.text[1] == "]" or other.piece.text[0] == "["
        return other.low < self.high or (other.low == self.high and closed)


def _span(interval: Shape) -> _Span | None:
    """An interval with its ends in order; None where they are not."""
    low, high = (math_values.real_value(plain_value(end.text)) for end in interval.parts)
    if low is None or high is None or low > high or (low == high and interval.text != "[]"):
        return None
    return _Span(low, high, interval)


def _names(relation: Shape) -> list[str]:
    """The sides of a relation that are no numbers."""
    texts = [side.text.strip() for side in relation.parts]
    return [text.strip("| ") for text in texts if not math_values.is_number(plain_value(text))]


def _overlap(a: Shape, b: Shape) -> Shape | None:
    """What two intervals have in common; None where that is nothing, or their ends cannot be compared."""
    first, second = _numbers(a), _numbers(b)
    if first is None or second is None or "set" in (a.kind, b.kind):
        return None
    (low, high), (other_low, other_high) = first, second
    below = b if other_low > low or (other_low == low and b.text[0] == "(") else a
    above = b if other_high < high or (other_high == high and b.text[1] == ")") else a
    if max(low, other_low) >= min(high, other_high):
        return None
    return Shape("tuple", below.text[0] + above.text[1], (below.parts[0], above.parts[1]))


def _numbers(interval: Shape) -> Any:
    """The two ends as floats; None where they are none."""
    try:
        return [float(math_values.parse(plain_value(end.text))) for end in interval.parts]
    except (NotUnderstoodError, TypeError, ValueError):
        return None


def _without_points(text: str) -> tuple[Shape, ...] | None:
    r"""`\mathbb{R} \setminus \{a, b\}` as intervals, for numbers in ascending order."""
    whole, _, points = text.partition(r"\setminus")
    removed = read_shape(points.strip())
    if not _REALS.fullmatch(whole.strip()) or removed.kind != "set":
        return None
    ends = (_MINUS_INFINITY, *removed.parts, _INFINITY)
    return tuple(Shape("tuple", "()", pair) for pair in itertools.pairwise(ends))


def _punctured(sides: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
    r"""`x \neq a` is everything below a, and everything above."""
    number = [side for side in sides if math_values.is_number(plain_value(side.text))]
    if len(number) != 1:
        return None
    return Shape("tuple", "()", (_MINUS_INFINITY, number[0])), Shape("tuple", "()", (number[0], _INFINITY))
