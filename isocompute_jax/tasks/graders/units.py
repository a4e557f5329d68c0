"""Words that may stand behind a number without changing it."""

from __future__ import annotations

import re

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


def factor(unit: str, wanted: str) -> str | None:
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
