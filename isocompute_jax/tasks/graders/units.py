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
