r"""`numeric`: equality of the final answers as numbers.

An answer is found where `math` finds it (`answers`) and cleaned as there (`latex`). A number in a box or behind a
marker must be the only one there: an answer that hedges ("3 or 5") earns nothing. What stands around a number must be
understood, or it is none: words, units and steps are ("5 cm", "x = 5", "15 + 5 = 20", "42, and she is happy"),
mathematics that would change its value is not ("5^2", "5!", "\sqrt{5}", "2x", "sin(5)", "x \le 5").

Nothing here evaluates an expression. Of a text few characters are read, and what is longer than `MAX_NUMBER_CHARS` or
has an exponent beyond `MAX_EXPONENT` is not taken for a number. So no text can make a check hang, and it needs no
process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import (
    Final,
    find_answer,
    is_conditional,
    last_match,
    plain_unicode,
    to_final_grade,
    without_thoughts,
)
from isocompute_jax.tasks.graders.latex import MAX_CHARS, clean
from isocompute_jax.tasks.graders.protocol import Grade, Grader

MAX_NUMBER_CHARS = 200
MAX_EXPONENT = 400
RELATIVE_TOLERANCE = Fraction(1, 10**6)
NEIGHBOURS = 200
"""Characters around an unmarked number that are looked at, at most to the ends of its line."""

_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+")
_NUMBER = re.compile(
    r"""
    (?<![^\W\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af])(?<!\.)  # not inside a word or a longer number
    (?P<sign>(?:(?<![)\]}])[-+])?)          # "47-3" is 47 and 3: behind an operand it is no sign
    (?:
      (?P<units>(?:\d{1,20}(?=\s?\\))?) \s?             # 2\frac{1}{2}
      \\frac \s?\{\s? (?P<above_sign>[-+]?) (?P<above>\d+) \s?\} \s?\{\s? (?P<below>-?\d+) \s?\}
    |
      (?P<mixed>\d{1,20}) [ ] (?P<part>\d{1,20}) \s?/\s? (?P<of>\d{1,20}) (?![\d.])
    |
      (?=\.?\d) (?P<whole>\d{1,3}(?:[ ]\d{3})+(?!\d) | \d+(?:,\d+)*)? (?:\.(?P<decimals>\d+))?
      (?: (?: [eE] | \s?(?:\\times|\\cdot|\*)\s?10\s?\^\s?\{? ) (?P<exponent>[-+]?\d+) \}? )?
      (?: \s?/\s? (?P<divisor>\d+) (?!\d|\.\d) )?
    )
    (?P<percent>\s?(?:%|percent\b))?
    """,
    re.VERBOSE,
)

# What people write around a number that is no part of it, and what else may stand there.
_ASIDE = re.compile("<<[^<>]*>>")  # of a calculator
_TAG = re.compile("</?[A-Za-z|_][\\w|]*>|\N{REPLACEMENT CHARACTER}")  # of a format, or a special token
_BOLD = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w({-])|`|(?:^|(?<=\s))\|(?=\s|$)")  # and code, and cells of a table
_SPELLED = re.compile(
    r"(?<=\d)\s?\((?:[a-z]+[ -]?)*(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|teen|ty)\)"
)
_SENTENCE_END = re.compile(r"(?:[.?]|(?<![\d)}])!)(?:\s|$)")
_CLAUSE_END = re.compile(r"[,;:?](?!\d)|\.(?:\s|$)")
_GOES_ON = re.compile(
    r"\s*(?:and|so|which|because|since|as|where|who|then|thus|making|namely)[\s,]+[A-Za-z]\w(?!.*\bor\b).*"
)
_EQUALS = re.compile(r"(?<![<>!~=])=(?!=)")
_NAMED = re.compile(r"(?:(?<![\w\\^*/+<>-])[A-Za-z](?:_\{?\w{1,3}\}?|\([a-z]\))?\s{0,3}=\s{0,3})+$")
_SIGNS = re.compile(r"\\(?:times|cdot|div|frac|leq|geq)(?![A-Za-z])|_\{?\w{1,3}\}?")
_STEP = re.compile(r"[-A-Za-z\d\s$.,'\"()\[\]{}+*/]*")
_UNIT_POWER = re.compile(r"([A-Za-z]+)\s?\^\s?\{?[23]\}?")
_SLASHED = re.compile(r"(?<=[A-Za-z])\s?/\s?(?=[A-Za-z])")
_LAST_WORDS = re.compile(r"(?:[^\s=:;,?!]+\s+){0,2}[^\s=:;,?!]*$")
_PLAIN = re.compile(r"(?:[^\W\d_]|[\s$,:;.'\"()\[\]{}=-])*")
_MINUS = re.compile(r"(?<![^\W\d_])-|-(?![^\W\d_])")
_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")
_CHANGING_WORDS = """
sin cos tan cot sec csc arcsin arccos arctan log ln lg exp sqrt cbrt root abs min max mod gcd lcm floor ceil pi infty
infinity i e or not never except but than least most between plus minus under above below beyond exceeds exceeding
over divided multiplied times square cube cubed squared reciprocal inverse negative twice double triple thrice factorial
percent half halves third thirds quarter quarters tenth tenths hundredth hundredths thousandth thousandths
hundred thousand million millions billion billions trillion dozen bn mn mio mrd millionen milliarden lakh crore
two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety
"""
_CHANGING = frozenset(_CHANGING_WORDS.split())
"""Words that make another value of a number beside them, or leave it open."""
_ARTICLES = frozenset({"a", "A", "I"})


class WrittenNumber(NamedTuple):
    """A number as it was written."""

    value: Fraction  # of "60%" it is 60
    exact: bool  # whole, or a fraction of whole numbers
    percent: bool


class Numeric(Grader):
    """Equality of the final answers as numbers; see `read_number` and `same_number`."""

    name = "numeric"
    runs = "inline"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where completion and problem end in the same number, else 0.0."""
        pairs = zip(problems, texts, strict=True)
        finals = ((find_answer(text), gold_number(problem.answer)) for problem, text in pairs)
        return [to_final_grade(found, same_number(number_of(found), expected)) for found, expected in finals]

    def fault(self, problem: Problem) -> str | None:
        """A message if the answer is not one number."""
        if gold_number(problem.answer) is not None:
            return None
        return (
            f"answer: {problem.answer!r} is not one number that can be read; correct it, or use the task 'math' (for "
            "expressions) or 'exact'"
        )


def number_of(found: Final) -> WrittenNumber | None:
    """The number that a completion gives: the only one of a marked answer, else the last one; None if it hedges."""
    if found.place == "end":
        found = found._replace(text=without_thoughts(found.text))
    if found.place != "box" and (found.hedged or is_conditional(found.claim)):
        return None
    return _last_number(found.text) if found.place == "end" else _only_number(_plain(found.text))


def gold_number(answer: str) -> WrittenNumber | None:
    """The number of a problem's answer: alone, with a name before it or a known unit behind it, or marked so."""
    text = find_answer(answer).text
    plain = _plain(text)
    match = _NUMBER.search(plain)
    if match is None or len(text) > MAX_CHARS:
        return None
    before, after = plain[: match.start()], plain[match.end() :]
    attached = re.match(r"[A-Za-z](?![A-Za-z])", after)  # "2x"; "5 m" has a space
    named = not before.strip() or _NAMED.fullmatch(before)
    return _value(match) if named and not attached and is_unit(after) else None


def read_number(text: str) -> WrittenNumber | None:
    r"""Reads one number and nothing else; None if it is none, or is too long (see the module's docstring).

    `12`, `-0.5`, `.5`, `1,234,567`, `$3.20`, `3/4`, `\frac34`, `2\frac{1}{2}`, `1.5e-3`, `1.5 \times 10^{-3}`, `50%`.
    """
    match = _NUMBER.fullmatch(clean(text).removesuffix(" dollars"))
    return None if match is None or len(text) > MAX_CHARS else _value(match)


def same_number(a: WrittenNumber | None, b: WrittenNumber | None) -> bool:
    """Equality; within a relative 1e-6 of the larger where either is written with decimals; False where one is missing.

    A percent sign may be left out, of numbers from 1 on: 60% is 0.6, and a bare 60.
    """
    if a is None or b is None:
        return False
    tolerance = Fraction(0) if a.exact and b.exact else RELATIVE_TOLERANCE
    x, y = (one.value / 100 if one.percent and not other.percent else one.value for one, other in ((a, b), (b, a)))
    bare = [(a.value, b.value)] if a.percent != b.percent and min(abs(a.value), abs(b.value)) >= 1 else []
    return any(abs(p - q) <= tolerance * max(abs(p), abs(q)) for p, q in [(x, y), *bare])


def _plain(text: str) -> str:
    """One line in one spelling: without tags, a calculator's notes and bold type; degrees as a word."""
    bare = _BOLD.sub(" ", _TAG.sub(" , ", _ASIDE.sub(" ", text))).replace("\u2014", "; ")
    plain = _SPELLED.sub("", clean(bare).replace(r"^\circ", " degrees "))
    plain = re.sub(r"^([-+]) (?=\.?\d)", r"\1", plain)
    return _UNIT_POWER.sub(lambda found: found[1] if found[1] in UNITS else found[0], plain)  # "5 m^2" as "5 m"


def _only_number(text: str) -> WrittenNumber | None:
    """The one number that an answer gives in its first sentence, behind names or steps: `x = 5`, `15 + 5 = 20`."""
    *steps, last = _EQUALS.split(_SENTENCE_END.split(text, maxsplit=1)[0])
    last = next((part for part in last.split(r"\approx") if part.strip()), "")  # of "10/3 ≈ 3.33" the first
    match = _NUMBER.search(last)
    found = None if match is None else _value(match)
    if match is None or found is None:
        return None
    clause, *rest = _CLAUSE_END.split(last[match.end() :], maxsplit=1)
    understood = not rest or _leaves_value("", rest[0]) or _GOES_ON.fullmatch(rest[0])
    if not understood or not all(_leads_to(step, found) for step in steps):
        return None
    return found if _leaves_value(last[: match.start()], clause) else None


def _leads_to(step: str, found: WrittenNumber) -> bool:
    """Whether what stands before a sign of equality names the number, or is a computation without variables."""
    whole = _NUMBER.fullmatch(step.strip())
    if whole is not None:
        return same_number(_value(whole), found)
    plain = _SIGNS.sub(" ", step)
    if not _STEP.fullmatch(plain) or re.search(r"\d[A-Za-z]|^\s*-\s*[A-Za-z]", plain):
        return False
    return not re.search(r"\d", plain) or all(_is_plain(word) for word in _WORD.findall(plain))


def _last_number(text: str) -> WrittenNumber | None:
    """The last number of a text without a marked answer; None where what stands around it is not understood."""
    for line in reversed(plain_unicode(text[-MAX_CHARS:]).splitlines()):
        plain = _plain(line) if re.search(r"\d", line) else ""
        last = last_match(_NUMBER, plain)
        if last is None:
            continue
        words = _LAST_WORDS.findall(plain[max(last.start() - NEIGHBOURS, 0) : last.start()])[0]
        after = re.split(r"[,;:?=]|\.\s|\.$", plain[last.end() : last.end() + NEIGHBOURS], maxsplit=1)[0]
        before = re.sub(r"^.*\d\S*\s", "", words)  # from the number before on: "3+1 is 4"
        return _value(last) if _leaves_value(before, after) else None
    return None


def _leaves_value(before: str, after: str) -> bool:
    """Whether what stands around a number is understood, and leaves its value alone."""
    before = _NAMED.sub("", before)
    attached = re.match("[A-Za-z]+", after)  # "2x" and "3i" are no numbers with a unit, "5cm" is
    if attached and (len(attached[0]) < 2 or attached[0] not in UNITS):
        return False
    if re.search(r"[A-Za-z]\s?[(\[{]+\s?$", before):  # the number is an argument: f(5)
        return False
    after = _SLASHED.sub(" per ", after)
    if not all(_PLAIN.fullmatch(part) and not _MINUS.search(part) for part in (before, after)):
        return False
    words = [word for word in _WORD.findall(after) if word not in UNITS or word in POWERS]
    return all(_is_plain(word) for word in (*_WORD.findall(before), *words))


def _is_plain(word: str) -> bool:
    """Whether a word beside a number is neither a variable nor one that makes another number of it."""
    if len(word) == 1:
        return word in _ARTICLES or not re.match("[A-Za-z\u0370-\u03ff不非没]", word)
    return word.lower() not in _CHANGING and not word.endswith(("n't", "not")) and "不是" not in word


def _value(match: re.Match[str]) -> WrittenNumber | None:
    """The number that `_NUMBER` matched; None if it is too long, misplaces a comma, or divides by zero."""
    if len(match[0]) > MAX_NUMBER_CHARS:
        return None
    above, below = match["above"] or match["part"], int(match["below"] or match["of"] or match["divisor"] or 1)
    exponent, decimals = int(match["exponent"] or 0), match["decimals"] or ""
    whole = match["units"] or match["mixed"] or match["whole"] or "0"
    if below == 0 or abs(exponent) > MAX_EXPONENT or not _THOUSANDS.fullmatch(whole):
        return None
    value = Fraction(int(re.sub("[ ,]", "", whole) + decimals)) * Fraction(10) ** (exponent - len(decimals))
    if above is None:
        value /= below
    elif whole != "0" and not 0 < int(above) < below:  # 2\frac{3}{2} is no mixed number
        return None
    else:
        value += Fraction(int(above), below)
    sign = -1 if (match["sign"] == "-") != (match["above_sign"] == "-") else 1
    approximate = value.denominator != 1 and bool(decimals or match["exponent"])
    return WrittenNumber(sign * value, not approximate, bool(match["percent"]))


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
POWERS = frozenset({"squared", "cubed"})  # of a unit before them
UNITS = frozenset(_WORDS.split())
"""Units and counted things, as they are written."""

_WRAPPED = re.compile(r"\\(?:text|mathrm|mbox|textrm|textbf|textit|operatorname)\s?\{([^{}]*)\}")
_POWER = re.compile(r"(?<=[A-Za-z} ])(?:\^|\*\*)\s?\{?\s?-?[123]\s?\}?")
_SPACES = re.compile(r"\\[,;:! ]|\\quad\b|\\qquad\b|~")


def is_unit(text: str) -> bool:
    r"""Whether all of a text is known units: `cm`, `\text{ km/h}`, `square feet`, `m^2`, `students`, or nothing."""
    plain = _SPACES.sub(" ", _WRAPPED.sub(r" \1 ", text)).replace("{", "").replace("}", "")
    plain = _POWER.sub(" ", plain)
    words = [word.strip(".") for word in re.split(r"[\s/·*$]+|\\cdot\b", plain) if word]
    return not POWERS & set(words[:1]) and all(word in UNITS or word.lower() in UNITS for word in words if word)


_NAMES = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "millimeter": "mm", "millimetre": "mm", "inche": "in", "inch": "in", "foot": "ft", "feet": "ft", "second": "s",
    "sec": "s", "minute": "min", "hour": "h", "hr": "h", "gram": "g", "kilogram": "kg", "milligram": "mg",
    "liter": "l", "litre": "l", "milliliter": "ml", "millilitre": "ml", "pound": "lb", "ounce": "oz", "degree": "deg",
    "mile": "mi", "yard": "yd", "dollar": "usd", "radian": "rad", "kph": "km/h", "kmh": "km/h", "mph": "mi/h",
    "celsiu": "C", "celsius": "C", "fahrenheit": "F", "kelvin": "K",
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
    "C": ("celsius", "1"), "F": ("fahrenheit", "1"), "K": ("kelvin", "1"),
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
    if lowered[:1] == ["deg"] and lowered[1:] in (["C"], ["F"], ["K"]):
        return lowered[1]
    if lowered[:1] in (["square"], ["sq"]):
        lowered = [*lowered[1:], "^2"]
    if lowered[:1] in (["cubic"], ["cu"]):
        lowered = [*lowered[1:], "^3"]
    return " ".join(lowered)
