r"""What shape an answer has: a list, a set, a tuple or an interval, a matrix, a relation, words, or one expression.

math-verify takes shapes for equal that are not (a set and half of it, an inequality and its border); here a shape is
told from the text, equal shapes are compared part by part (`math_compare`), and only expressions are left to an algebra
system. Sets of real numbers have many shapes, `1 < x \leq 2`, `|x| > 2`, `x \neq 1`, `\mathbb{R} \setminus \{2\}`, and
are compared as intervals (`intervals`).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from isocompute_jax.tasks.graders import math_values
from isocompute_jax.tasks.graders.math_values import NotUnderstoodError, plain_value

Kind = Literal["value", "words", "list", "set", "tuple", "union", "matrix", "relation", "ratio"]

RELATIONS = (r"\leq", r"\geq", r"\neq", r"\equiv", r"\approx", r"\in", "<", ">", "=")

_OPEN, _CLOSE = "([{", ")]}"
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array|smallmatrix)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL)
_RELATION = re.compile(
    r"\\leq(?![A-Za-z])|\\geq(?![A-Za-z])|\\neq(?![A-Za-z])|\\approx(?![A-Za-z])|\\in(?![A-Za-z])|<|>|="
)
_OR = re.compile(r"(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])|;")
_EITHER = re.compile(r"(?<![A-Za-z\\])or(?![A-Za-z])|;")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d+)?(?:\s?%|\s?[A-Za-z]+)?")
_RATIO = re.compile(r"[^:]+:[^:]+(?::[^:]+)?")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
MOST_SIGNS = 4
"""Signs `\\pm` of one answer that are chosen: 16 values."""
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


@dataclass(frozen=True)
class Shape:
    """An answer, or a part of one.

    Attributes:
      kind: what it is.
      text: of a value or words, all of it; of a tuple, its two brackets; of a relation, its signs with spaces between;
        of a union of inequalities, the word between them.
      parts: its elements; of a matrix, its rows.
    """

    kind: Kind
    text: str = ""
    parts: tuple[Shape, ...] = ()


def read_shape(text: str) -> Shape:
    """The shape of a cleaned answer (`latex.clean`)."""
    text = text.strip()
    if text[:1] == "{" and text[-1:] == "}" and _encloses(text[1:-1], "{}"):
        return read_shape(text[1:-1])
    if _THOUSANDS.fullmatch(text):
        return Shape("value", re.sub(r"(?<=\d)[, ](?=\d)", "", text))
    pieces = [piece for part in split_top(text, ",") for piece in _split_words(part)]
    if len(pieces) > 1 and all(piece.strip() for piece in pieces):
        return _listed([read_shape(piece) for piece in pieces], either=bool(_EITHER.search(text)))
    found = _matrix(text) or _union(text) or _relation(text) or _bracketed(text)
    if found is not None:
        return found
    if _SIGNS.search(text):
        return _plus_minus(text)
    if ":" in text and _RATIO.fullmatch(text) and "{" not in text:
        return Shape("ratio", parts=tuple(Shape("value", part.strip()) for part in text.split(":")))
    return Shape("words" if _is_words(text) else "value", text)


def split_top(text: str, separator: str) -> list[str]:
    """Parts between separators that stand in no brackets; half-open intervals count as brackets."""
    parts, depth, start = [], 0, 0
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\" and index + 1 < len(text) and text[index + 1] in "{}":
            depth += 1 if text[index + 1] == "{" else -1
            index += 2
            continue
        if text.startswith((r"\begin", r"\langle"), index):
            depth += 1
        elif text.startswith((r"\end", r"\rangle"), index):
            depth -= 1
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif depth == 0 and text.startswith(separator, index):
            parts.append(text[start:index])
            start = index + len(separator)
        index += 1
    return [*parts, text[start:]]


def _split_words(text: str) -> list[str]:
    """Parts between "or", "and" and semicolons that stand in no brackets."""
    if not _OR.search(text) or (_is_words(_OR.sub(" ", text)) and not re.search(r"[\d=<>]", text)):
        return [text]
    marked = _OR.sub("\0", text)
    return [part for part in split_top(marked, "\0") if part.strip()]


def _listed(parts: list[Shape], either: bool) -> Shape:
    """Several answers; inequalities together are a union, or conditions that all hold."""
    flat = [part for shape in parts for part in (shape.parts if shape.kind == "list" else (shape,))]
    equations = [part.kind == "relation" and part.text == "=" for part in flat]
    if all(part.kind == "relation" for part in flat) and not (all(equations) if either else any(equations)):
        return Shape("union", "or" if either else "and", tuple(flat))
    return Shape("list", parts=tuple(flat))


def _union(text: str) -> Shape | None:
    parts = split_top(text, r"\cup")
    return Shape("union", parts=tuple(read_shape(part) for part in parts)) if len(parts) > 1 else None


def _matrix(text: str) -> Shape | None:
    if text[:1] in "([" and text[-1:] in ")]" and text[1:-1].strip().startswith((r"\begin{array}", r"\begin{matrix}")):
        text = text[1:-1].strip()
    start = max(text.find(r"\begin"), 0)
    found, factor = _MATRIX.fullmatch(text[start:]), text[:start].strip()
    if found is None or found[1] == "vmatrix" or "=" in factor:
        return None
    rows = [row for row in found[2].split(r"\\") if row.strip()]
    if factor:
        rows = ["&".join(f"({factor})({cell.strip()})" for cell in row.split("&")) for row in rows]
    return Shape("matrix", parts=tuple(
        Shape("tuple", "()", tuple(read_shape(cell) for cell in row.split("&"))) for row in rows
    ))  # fmt: skip


def _relation(text: str) -> Shape | None:
    r"""`a < x \leq b`: the signs and what stands between them, where they stand in no brackets."""
    marked = _RELATION.sub(lambda found: f"\0{found[0]}\0", text)
    pieces = split_top(marked, "\0")
    if len(pieces) < 3 or len(pieces) % 2 == 0:
        return None
    signs, sides = pieces[1::2], pieces[::2]
    if not all(side.strip() for side in sides):
        return None
    if signs == [r"\in"]:
        return replace(read_shape(sides[1]))
    return Shape("relation", " ".join(signs), tuple(Shape("value", side.strip()) for side in sides))


def _bracketed(text: str) -> Shape | None:
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return _set(text[2:-2])
    if text.startswith(r"\langle") and text.endswith(r"\rangle"):
        return Shape("tuple", "<>", _items(text[7:-7]))
    if text in (r"\emptyset", r"\{\}"):
        return Shape("set")
    if len(text) > 2 and text[0] in "([]" and text[-1] in ")][" and _encloses(text[1:-1]):
        if len(split_top(text[1:-1], ",")) > 1:
            if text[0] + text[-1] == "()" and _SIGNS.search(text):
                return _plus_minus(text)
            return Shape("tuple", text[0] + text[-1], _items(text[1:-1]))
        if text[0] + text[-1] == "()":
            return read_shape(text[1:-1])
    return None


def _encloses(inside: str, brackets: str = "()") -> bool:
    """Whether the brackets around a text belong together: `(a)(b)` is not in brackets."""
    depth = 0
    for char in inside:
        depth += (char == brackets[0]) - (char == brackets[1])
        if depth < 0:
            return False
    return depth == 0


def _set(inside: str) -> Shape:
    if not inside.strip():
        return Shape("set")
    builder = re.split(r"\||:", inside, maxsplit=1)
    if len(builder) == 2 and re.fullmatch(r"\s*[A-Za-z](?:\s*\\in\s*\\mathbb\s?\{R\})?\s*", builder[0]):
        return read_shape(builder[1])
    elements = (part.parts if part.kind == "list" else (part,) for part in _items(inside))
    return Shape("set", parts=tuple(itertools.chain.from_iterable(elements)))


def _items(text: str) -> tuple[Shape, ...]:
    return tuple(read_shape(part) for part in split_top(text, ","))


def _plus_minus(text: str) -> Shape:
    r"""`a \pm b` is a + b and a - b; several signs are chosen each for itself, but with a `\mp` all together."""
    signs = _SIGNS.findall(text)
    if len(signs) > MOST_SIGNS:
        return Shape("value", text)
    linked = r"\mp" in signs
    choices = itertools.product("+-", repeat=1 if linked else len(signs))
    turned = {"+": "-", "-": "+"}
    parts = []
    for choice in choices:
        chosen = iter(choice * len(signs) if linked else choice)
        plain = _SIGNS.sub(lambda m, c=chosen: next(c) if m[0] == r"\pm" else turned[next(c)], text)
        parts.append(read_shape(plain.strip().removeprefix("+")))
    return Shape("list", parts=tuple(parts))


def _is_words(text: str) -> bool:
    """Whether a text is words rather than a formula."""
    return bool(_WORDS.search(text)) and not re.search(r"[\\^_=<>+*/{}|]|\d", text)


# --- sets of real numbers

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
