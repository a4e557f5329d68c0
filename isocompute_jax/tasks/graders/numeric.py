r"""`numeric`: equality of the final answers as numbers.

A number in a box or behind a marker must be the only one there: an answer that hedges ("3 or 5") earns nothing. What
stands around a number must be understood, or it is none: words and units are ("5 cm", "x = 5"), mathematics that would
change its value is not ("5^2", "5!", "\sqrt{5}", "2x", "sin(5)", "x \le 5").

Nothing here evaluates an expression. Everything runs in time linear in the text, of which only the last
`MAX_TEXT_CHARS` are read, and what is longer than `MAX_NUMBER_CHARS` or has an exponent beyond `MAX_EXPONENT` is not
taken for a number. So no text can make a check hang, and it needs no process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import last_match, marked_answer, plain_unicode, said
from isocompute_jax.tasks.graders.protocol import Grade, Grader

MAX_NUMBER_CHARS = 200
MAX_EXPONENT = 400
RELATIVE_TOLERANCE = Fraction(1, 10**6)
NEIGHBOURS = 200
"""Characters around an unmarked number that are looked at, at most to the ends of its line."""

_SENTENCE_END = re.compile(r"(?:[.?]|(?<![\d)}])!)(?:\s|$)")
_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|°")
_COMPARED = re.compile(r"[<>!~≈]=")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+|\d+")

_NUMBER = re.compile(
    r"""
    (?<![\w.])                              # not inside a word or a longer number
    (?P<sign>(?:(?<![)\]}])[-+])?)          # "47-3" is 47 and 3: behind an operand it is no sign
    (?:
      \\[dt]?frac \s?\{\s? (?P<above_sign>[-+]?) (?P<above>\d+) \s?\} \s?\{\s? (?P<below>\d+) \s?\}
    |
      \\?[$€£]? (?=\.?\d)
      (?P<whole>\d+(?:,\d+)*)? (?:\.(?P<decimals>\d+))?
      (?: (?: [eE] | \s{0,3}(?:\\times|\\cdot|[\u00d7*])\s{0,3}10\s?\^\s?\{? ) (?P<exponent>[-+]?\d+) \}? )?
      (?: \s?/\s? (?P<divisor>\d+) (?!\d|\.\d) )?
    )
    (?P<percent>\s?\\?%)?
    """,
    re.VERBOSE,
)

# What may stand around the one number of an answer, once wrappers are opened: plain words, and a name before "=".
_NAMED = re.compile(r"(?:(?<![\w\\^*/+<>-])[A-Za-z](?:_\{?\w{1,3}\}?|\([a-z]\))?\s{0,3}=\s{0,3})+$")
_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit|mathbf|bf|rm|left|right|quad|displaystyle)\b|\\[,;: ]")
_TAG = re.compile("</?[A-Za-z|_][\\w|]*>|\N{REPLACEMENT CHARACTER}")  # of a format, or a special token
_UNIT_POWER = re.compile(r"([A-Za-z]+)\s?\^\s?\{?[23]\}?")
_SLASHED = re.compile(r"(?<=[A-Za-z])/(?=[A-Za-z])")
_LAST_WORDS = re.compile(r"(?:[^\s=:;,?!]+\s+)?[^\s=:;,?!]*$")
_PLAIN = re.compile(r"[A-Za-z\s$,:;.'\"()\[\]{}=-]*")
_MINUS = re.compile(r"(?<![A-Za-z])-|-(?![A-Za-z])")
_WORD = re.compile(r"[A-Za-z]+")
_CHANGING = """
sin cos tan cot sec csc arcsin arccos arctan log ln lg exp sqrt cbrt root abs min max mod gcd lcm floor ceil pi infty
infinity i e or and not about than least most between plus minus over divided multiplied times square cubed squared
factorial percent half thousand million billion trillion hundred dozen
"""
_FUNCTIONS = frozenset(_CHANGING.split())
"""Words that make another value of a number beside them, or leave it open."""
_ARTICLES = frozenset({"a", "A", "I"})


class Numeric(Grader):
    """Equality of the final answers as numbers; see `parse_number` and `same_number`."""

    name = "numeric"
    runs = "inline"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where completion and problem end in the same number, else 0.0."""
        pairs = zip(problems, texts, strict=True)
        numbers = ((numeric_answer(text), reference_number(problem.answer)) for problem, text in pairs)
        return [Grade(float(same_number(found, expected))) for found, expected in numbers]

    def fault(self, problem: Problem) -> str | None:
        """A message if the answer is not one number."""
        if reference_number(problem.answer) is not None:
            return None
        return (
            f"answer: {problem.answer!r} is not one number that can be read; correct it, or use the task 'math' (for "
            "expressions) or 'exact'"
        )


class Approximate(Fraction):
    """A number that was written with decimals or an exponent, and is not whole."""


def numeric_answer(text: str) -> Fraction | None:
    """The number that a completion ends in: the only one in its marked answer, else the last one of the text."""
    text = said(text)
    marked = marked_answer(text)
    if marked is not None:
        return _only_number(marked)
    plain = _without_unit_powers(_plain(text))
    last = last_match(_NUMBER, plain)
    if last is None:
        return None
    before = plain[max(last.start() - NEIGHBOURS, 0) : last.start()].rpartition("\n")[2]
    after = plain[last.end() : last.end() + NEIGHBOURS].partition("\n")[0]
    after = re.split(r"[,;:?=]|\.\s|\.$", after, maxsplit=1)[0]
    words = _LAST_WORDS.search(before)
    return _value(last) if words is not None and _leaves_value(words[0], after) else None


def parse_number(text: str) -> Fraction | None:
    r"""Reads one number and nothing else; None if it is none, or is too long (see the module's docstring).

    `12`, `-0.5`, `.5`, `1,234,567`, `$3.20`, `3/4`, `\frac{3}{4}`, `1.5e-3`, `1.5 \times 10^{-3}`; `50%` is 1/2.
    """
    match = _NUMBER.fullmatch(plain_unicode(text).strip()) if len(text) <= 2 * MAX_NUMBER_CHARS else None
    return None if match is None else _value(match)


def reference_number(answer: str) -> Fraction | None:
    """The number of a problem's answer: alone, with a name before it or a known unit behind it, or marked so."""
    marked = marked_answer(answer)
    text = answer if marked is None else marked
    if len(text) > 2 * MAX_NUMBER_CHARS:
        return None
    plain = _plain(text).strip().strip("$ ").rstrip(". ")
    match = _NUMBER.search(plain)
    if match is None:
        return None
    before, after = plain[: match.start()], plain[match.end() :]
    named = not before.strip() or _NAMED.fullmatch(before)
    attached = re.match(r"[A-Za-z](?![A-Za-z])", after)  # "2x"; "5 m" has a space
    return _value(match) if named and not attached and is_unit(after) else None


def same_number(a: Fraction | None, b: Fraction | None) -> bool:
    """Exact equality; within a relative 1e-6 of the larger where either is approximate; False where one is missing."""
    if a is None or b is None:
        return False
    if isinstance(a, Approximate) or isinstance(b, Approximate):
        return abs(a - b) <= RELATIVE_TOLERANCE * max(abs(a), abs(b))
    return a == b


def _plain(text: str) -> str:
    """Without typography: degrees as a word, tags as commas, comparisons as one sign."""
    return _TAG.sub(" , ", _COMPARED.sub("≤", _DEGREES.sub(" degrees ", plain_unicode(text))))


def _only_number(text: str) -> Fraction | None:
    """The one number of a marked answer's first sentence; None if there are more, or mathematics around it."""
    plain = _without_unit_powers(_first_clause(_plain(text)))
    matches = list(_NUMBER.finditer(plain))
    if len(matches) != 1:
        return None
    [match] = matches
    return _value(match) if _leaves_value(plain[: match.start()], plain[match.end() :]) else None


def _without_unit_powers(text: str) -> str:
    """`5 m^2` as `5 m`."""
    return _UNIT_POWER.sub(lambda found: found[1] if found[1] in UNITS else found[0], text)


def _first_clause(text: str) -> str:
    return _SENTENCE_END.split(text, maxsplit=1)[0]


def _leaves_value(before: str, after: str) -> bool:
    """Whether what stands around a number is understood, and leaves its value alone."""
    before, after = (_WRAPPER.sub(" ", part).replace("**", " ") for part in (before, after))
    before = _NAMED.sub("", before)
    attached = _WORD.match(after)  # "2x" and "3i" are no numbers with a unit, "5cm" is
    if attached and (len(attached[0]) < 2 or attached[0] not in UNITS):
        return False
    if re.search(r"[A-Za-z]\s?[(\[{]+\s?$", before):  # the number is an argument: f(5)
        return False
    after = _SLASHED.sub(" per ", after)
    if not all(_PLAIN.fullmatch(part) and not _MINUS.search(part) for part in (before, after)):
        return False
    words = [word for word in _WORD.findall(after) if word not in UNITS]
    return all(_is_plain(word) for word in (*_WORD.findall(before), *words))


def _is_plain(word: str) -> bool:
    """Whether a word beside a number is neither a variable nor one that makes another number of it."""
    return word in _ARTICLES or (len(word) > 1 and word.lower() not in _FUNCTIONS)


def _value(match: re.Match[str]) -> Fraction | None:
    """The number that `_NUMBER` matched; None if it is too long, misplaces a comma, or divides by zero."""
    if len(match[0]) > MAX_NUMBER_CHARS:
        return None
    below = int(match["below"] or match["divisor"] or 1) * (100 if match["percent"] else 1)
    exponent = int(match["exponent"] or 0)
    whole = match["above"] or match["whole"] or "0"
    if below == 0 or abs(exponent) > MAX_EXPONENT or not _THOUSANDS.fullmatch(whole):
        return None
    decimals = match["decimals"] or ""
    digits = int(whole.replace(",", "") + decimals)
    sign = -1 if (match["sign"] == "-") != (match["above_sign"] == "-") else 1
    value = Fraction(sign * digits, below) * Fraction(10) ** (exponent - len(decimals))
    return Approximate(value) if value.denominator != 1 and (decimals or match["exponent"]) else value


# --- units

_WORDS = """
mm cm dm km m nm um inch inches in ft foot feet yd yard yards mi mile miles meter meters metre metres centimeter
centimeters centimetre centimetres millimeter millimeters millimetre millimetres kilometer kilometers kilometre
kilometres light-year light-years
mg g kg t gram grams kilogram kilograms milligram milligrams ton tons tonne tonnes lb lbs pound pounds oz ounce ounces
s sec secs second seconds ms min mins minute minutes h hr hrs hour hours day days week weeks month months year years
decade decades century centuries
ml cl dl l L mL liter liters litre litres milliliter milliliters millilitre millilitres gallon gallons quart quarts
pint pints cup cups tablespoon tablespoons teaspoon teaspoons
deg degree degrees rad radian radians turn turns C F K
N J kJ W kW kWh MW Pa kPa bar atm V mV A mA Hz kHz MHz GHz Ohm ohm ohms mol mole moles cal kcal calories newton newtons
joule joules watt watts volt volts ampere amperes hertz pascal pascals
mph kph kmh rpm
dollar dollars cent cents euro euros yen rupee rupees peso pesos buck bucks USD EUR GBP
percent units unit square sq cubic cu per squared cubed
people persons person students student children child boys boy girls girl men man women woman workers worker friends
friend players player voters voter members member guests guest
apples apple oranges orange bananas banana books book pages page marbles marble balls ball coins coin candies candy
cookies cookie stickers sticker pencils pencil pens pen cards card tickets ticket boxes box bags bag cars car eggs egg
chairs chair tables table toys toy points point times time ways way steps step terms term digits digit
items item pieces piece slices slice games game goals goal problems problem questions question words word letters letter
numbers integers solutions solution values triangles squares rectangles circles sides side edges edge vertices vertex
faces face pairs pair sets subsets rows row columns column cubes cube tiles tile animals animal dogs dog cats cat
chickens chicken cows cow horses horse birds bird fish trees tree flowers flower
paths path arrangements arrangement permutations combinations
"""
UNITS = frozenset(_WORDS.split())
"""Units and counted things, as they are written."""

_WRAPPED = re.compile(r"\\(?:text|mathrm|mbox|textrm|textbf|textit|operatorname)\s?\{([^{}]*)\}")
_POWER = re.compile(r"(?<=[A-Za-z} ])(?:\^|\*\*)\s?\{?\s?-?[123]\s?\}?")
_SPACES = re.compile(r"\\[,;:! ]|\\quad\b|\\qquad\b|~")


def is_unit(text: str) -> bool:
    r"""Whether all of a text is known units: `cm`, `\text{ km/h}`, `square feet`, `m^2`, `students`, or nothing."""
    plain = _SPACES.sub(" ", _WRAPPED.sub(r" \1 ", text)).replace("{", "").replace("}", "")
    plain = _POWER.sub(" ", plain)
    words = [word.strip(".") for word in re.split(r"[\s/·*$]+|\\cdot\b", plain)]
    return all(word in UNITS or word.lower() in UNITS for word in words if word)


_NAMES = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "millimeter": "mm", "millimetre": "mm", "inche": "in", "inch": "in", "foot": "ft", "feet": "ft", "second": "s",
    "sec": "s", "minute": "min", "hour": "h", "hr": "h", "gram": "g", "kilogram": "kg", "milligram": "mg",
    "liter": "l", "litre": "l", "milliliter": "ml", "millilitre": "ml", "pound": "lb", "ounce": "oz", "degree": "deg",
    "mile": "mi", "yard": "yd", "dollar": "usd", "radian": "rad", "kph": "km/h", "kmh": "km/h", "mph": "mi/h",
    "squared": "^2", "cubed": "^3", "per": "/",
}  # fmt: skip
_SCALES: dict[str, tuple[str, str]] = {
    "mm": ("length", "1"), "cm": ("length", "10"), "m": ("length", "1000"), "km": ("length", "1000000"),
    "in": ("feet", "1"), "ft": ("feet", "12"), "yd": ("feet", "36"), "mi": ("feet", "63360"),
    "s": ("time", "1"), "min": ("time", "60"), "h": ("time", "3600"), "day": ("time", "86400"),
    "week": ("time", "604800"), "mg": ("mass", "1"), "g": ("mass", "1000"), "kg": ("mass", "1000000"),
    "oz": ("pounds", "1"), "lb": ("pounds", "16"), "ml": ("volume", "1"), "l": ("volume", "1000"),
    "cent": ("money", "1"), "usd": ("money", "100"), "deg": ("angle", "1"), "rad": ("radians", "1"),
    "euro": ("euros", "1"), "month": ("months", "1"), "year": ("months", "12"), "gbp": ("gbp", "1"),
}  # fmt: skip
"""Unit -> what it measures, and how many of the smallest one it is; what is not compared stands alone."""


def unit_factor(unit: str, wanted: str) -> str | None:
    r"""What a number in `unit` is multiplied with to be one in `wanted`, as LaTeX.

    Returns:
      `1` where the units are the same or not known (different words for what is counted); None where they contradict.
    """
    ours, theirs = _canonical(unit), _canonical(wanted)
    if ours == theirs:
        return "1"
    if ours in _SCALES and theirs in _SCALES:
        (measured, count), (other, per) = _SCALES[ours], _SCALES[theirs]
        return f"\\frac{{{count}}}{{{per}}}" if measured == other else None
    known = all(
        part in _SCALES or part in ("/", "sq", "square", "cu", "^2", "^3") for part in (ours + " " + theirs).split()
    )
    return None if known else "1"


def _canonical(unit: str) -> str:
    """A unit's words in one spelling, with spaces between: `km / h`."""
    plain = _SPACES.sub(" ", _WRAPPED.sub(r" \1 ", unit.replace(r"^\circ", " degree ")))
    words = re.findall(r"[A-Za-z]+|/|\^\{?\d\}?", plain)
    named = [_NAMES.get(word) or _NAMES.get(word.lower().rstrip("s")) or word for word in words]
    spread = " ".join(named).replace("{", "").replace("}", "").replace("/", " / ").split()
    lowered = [word if word in _SCALES else word.lower().rstrip("s") or word for word in spread]
    if lowered[:1] in (["square"], ["sq"]):
        lowered = [*lowered[1:], "^2"]
    if lowered[:1] in (["cubic"], ["cu"]):
        lowered = [*lowered[1:], "^3"]
    return " ".join(lowered)
