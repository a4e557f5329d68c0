r"""What shape an answer has: a list, a set, a tuple or an interval, a matrix, a relation, words, or one expression.

math-verify takes shapes for equal that are not (a set and half of it, an inequality and its border); here a shape is
told from the text, equal shapes are compared part by part (`math_compare`), and only expressions are left to an algebra
system. Sets of real numbers have many shapes, `1 < x \leq 2`, `|x| > 2`, `x \neq 1`, `\mathbb{R} \setminus \{2\}`, and
are compared as intervals (`interval`, `real_set`).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from isocompute_jax.tasks.graders import math_values
from isocompute_jax.tasks.graders.math_values import NotUnderstoodError, plain_value

Kind = Literal["value", "words", "list", "set", "tuple", "union", "matrix", "relation", "ratio"]

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
    """An answer, or a part of one."""

    kind: Kind  # what it is
    # of a value or words, all of it; of a tuple, its two brackets; of a relation, its signs with spaces between; of a
    # union of inequalities, the word between them
    text: str = ""
    parts: tuple[Shape, ...] = ()  # its elements; of a matrix, its rows


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
_MODULUS = re.compile(r"\|\s*\\?[A-Za-z]+(?:_\{?\w+\}?)?\s*\|")
_LOW = {"<": "(", r"\leq": "["}
_HIGH = {"<": ")", r"\leq": "]"}
_INFINITY = Shape("value", r"\infty")
_MINUS_INFINITY = Shape("value", r"-\infty")


def interval(shape: Shape) -> Shape | None:
    """The one interval that a shape means, as a tuple with its two brackets; None where it means none, or several."""
    if shape.kind == "tuple" and len(shape.parts) == 2 and shape.text in ("()", "[]", "(]", "[)", "][", "]]", "[["):
        low, high = shape.text.translate(str.maketrans({"]": "("}))[0], shape.text[1].replace("[", ")")
        return Shape("tuple", low + high, shape.parts)
    if _REALS.fullmatch(shape.text) or (shape.kind == "words" and "real numbers" in shape.text):
        return Shape("tuple", "()", (_MINUS_INFINITY, _INFINITY))
    term, bounds = _bounded_term(shape) or ("", None)
    return bounds if _NAME.fullmatch(term) else None


def real_set(shape: Shape) -> Any:
    """The set of real numbers that a shape means, as SymPy has it; None where it means none or an end is no number."""
    import sympy

    if shape.kind == "union":
        return _joined(shape)
    if shape.kind == "set":
        points = [math_values.real_value(plain_value(part.text)) for part in shape.parts]
        return None if None in points else sympy.FiniteSet(*points)
    if shape.kind == "value" and r"\setminus" in shape.text:
        whole, _, points = shape.text.partition(r"\setminus")
        return _without(real_set(read_shape(whole)), real_set(read_shape(points)))
    if shape.kind == "relation" and shape.text == r"\neq":
        return _without(sympy.S.Reals, _point(shape) or _point(replace(shape, parts=shape.parts[::-1])))
    one = interval(shape)
    if one is not None:
        return _numbers_within(one)
    term, bounds = _bounded_term(shape) or ("", None)
    if bounds is None or not _MODULUS.fullmatch(term):
        return None
    low, high = bounds.parts
    opposite = bounds.text[::-1].translate(str.maketrans("()[]", ")(]["))
    mirrored = Shape("tuple", opposite, (_negative(high), _negative(low)))
    if low == _MINUS_INFINITY:  # |x| < a is -a < x < a
        return _numbers_within(Shape("tuple", opposite[0] + bounds.text[1], (mirrored.parts[0], high)))
    sides = [_numbers_within(side) for side in (bounds, mirrored)]
    return None if None in sides else sympy.Union(*sides)


def _bounded_term(shape: Shape) -> tuple[str, Shape] | None:
    """The term of an inequality, `x` or `|x|`, and the interval of numbers that it lies in; None for anything else."""
    signs, sides = shape.text.split(), shape.parts
    if signs and all(sign in (">", r"\geq") for sign in signs):
        signs, sides = [FLIPPED[sign] for sign in reversed(signs)], sides[::-1]
    if shape.kind != "relation" or not all(sign in _LOW for sign in signs):
        return None
    match [math_values.is_number(plain_value(side.text)) for side in sides]:
        case [False, True]:
            return sides[0].text, Shape("tuple", "(" + _HIGH[signs[0]], (_MINUS_INFINITY, sides[1]))
        case [True, False]:
            return sides[1].text, Shape("tuple", _LOW[signs[0]] + ")", (sides[0], _INFINITY))
        case [True, False, True]:
            return sides[1].text, Shape("tuple", _LOW[signs[0]] + _HIGH[signs[1]], (sides[0], sides[2]))
    return None


def _numbers_within(bounds: Shape) -> Any:
    """The set of the numbers in an interval; None where it has none, or an end is no number."""
    import sympy

    low, high = (math_values.real_value(plain_value(end.text)) for end in bounds.parts)
    if low is None or high is None or low > high or (low == high and bounds.text != "[]"):
        return None
    return sympy.Interval(low, high, bounds.text[0] == "(", bounds.text[1] == ")")


def _negative(end: Shape) -> Shape:
    return Shape("value", f"-({end.text})")


def _point(relation: Shape) -> Any:
    r"""The right side of `x = 2` or `x \neq 2` as a set; None where that is no number, or the left side no name."""
    name, *values = relation.parts
    return real_set(Shape("set", parts=tuple(values))) if _NAME.fullmatch(name.text) else None


def _without(whole: Any, points: Any) -> Any:
    """A set without the elements of another."""
    return None if whole is None or points is None else whole - points


def _joined(shape: Shape) -> Any:
    """A union; of conditions that all hold the intersection, unless it is empty ("x < 1 and x > 3").

    None of conditions on several names: "x > 1, y > 2" is a set of points.
    """
    import sympy

    parts = [_point(part) if part.text == "=" else real_set(part) for part in shape.parts]
    if None in parts or len({name for part in shape.parts if part.kind == "relation" for name in names(part)}) > 1:
        return None
    common = sympy.Intersection(*parts) if shape.text == "and" else sympy.S.EmptySet
    return sympy.Union(*parts) if common == sympy.S.EmptySet else common


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
