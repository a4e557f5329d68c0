r"""Answer checks for problem sets of the user's own: `exact` and `numeric`.

Both look for the final answer in the same places: the last `\boxed{...}`; else what follows the last `####` or
`answer is`, to the end of its line; else the whole text, of which `numeric` takes the last number.

A number in a box or behind a marker must be the only one there: an answer that hedges ("3 or 5") earns nothing.

Nothing here evaluates an expression. Everything runs in time linear in the text, of which only the last
`MAX_TEXT_CHARS` are read, and what is longer than `MAX_NUMBER_CHARS` or has an exponent beyond `MAX_EXPONENT` is not
taken for a number. So no text can make a check hang, and it needs no process of its own.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

from isocompute_jax.records.rollout import Problem

MAX_TEXT_CHARS = 100_000
MAX_NUMBER_CHARS = 200
MAX_EXPONENT = 400
RELATIVE_TOLERANCE = Fraction(1, 10**6)

_MARKER = re.compile(r"####|answer\s{1,3}is\b", re.IGNORECASE)
_BOX_OR_BRACE = re.compile(r"\\boxed\s{0,3}\{|\\.|[{}]", re.DOTALL)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?")
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
# Around the one number, units and a name ("x = 5 cm", "\text{ hours}") are fine; mathematics that would change its
# value ("5^2", "\sqrt{5}", "2\pi", "5-x") is not. Units and variables look alike: "2x" counts as 2.
_MATHEMATICS = re.compile(
    r"[-+^_*<>√π∞÷\u00d7]|(?<![A-Za-z}])/|\\(?!text|mathrm|mbox|quad|left|right|[\s,;:!()\[\]$]|$)", re.MULTILINE
)


class Exact:
    """Equality of the final answers as text, once normalised (`normalise`)."""

    name = "exact"

    def reward(self, problem: Problem, text: str) -> float:
        """1.0 if the normalised final answers of completion and problem are equal, else 0.0."""
        return float(normalise(final_answer(text)) == normalise(final_answer(problem.answer)))

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is normalised."""
        if normalise(final_answer(problem.answer)):
            return None
        return f"answer: {problem.answer!r} has a marker of the final answer and nothing behind it; write the answer"


class Numeric:
    """Equality of the final answers as numbers; see `parse_number` and `same_number`."""

    name = "numeric"

    def reward(self, problem: Problem, text: str) -> float:
        """1.0 if completion and problem end in the same number, else 0.0."""
        found, expected = numeric_answer(text), _reference_number(problem.answer)
        return float(found is not None and expected is not None and same_number(found, expected))

    def fault(self, problem: Problem) -> str | None:
        """A message if the answer is not one number."""
        if _reference_number(problem.answer) is not None:
            return None
        return f"answer: {problem.answer!r} is not one number that can be read; correct it, or use the task 'exact'"


class Number(NamedTuple):
    """A number as written: `approximate` if it has decimals or an exponent and is not whole."""

    value: Fraction
    approximate: bool


def final_answer(text: str) -> str:
    r"""The text of the last `\boxed{...}`, else what a marker introduces, else the whole text; stripped."""
    text = text[-MAX_TEXT_CHARS:]
    marked = _marked_answer(text)
    return text.strip() if marked is None else marked


def normalise(text: str) -> str:
    """Unicode NFC, white space as single spaces, without `$` or `*` at the ends or a final full stop; keeps case."""
    spaced = " ".join(unicodedata.normalize("NFC", text).split())
    return spaced.lstrip("$* ").rstrip("$*. ") or spaced


def numeric_answer(text: str) -> Number | None:
    """The number that a completion ends in: the only one in its marked answer, else the last one of the text."""
    text = text[-MAX_TEXT_CHARS:]
    marked = _marked_answer(text)
    if marked is not None:
        return _only_number(marked)
    last = _last_match(_NUMBER, _plain(text))
    return None if last is None else _value(last)


def parse_number(text: str) -> Number | None:
    r"""Reads one number and nothing else; None if it is none, or is too long (see the module's docstring).

    `12`, `-0.5`, `.5`, `1,234,567`, `$3.20`, `3/4`, `\frac{3}{4}`, `1.5e-3`, `1.5 \times 10^{-3}`; `50%` is 1/2.
    """
    match = _NUMBER.fullmatch(_plain(text).strip()) if len(text) <= 2 * MAX_NUMBER_CHARS else None
    return None if match is None else _value(match)


def same_number(a: Number, b: Number) -> bool:
    """Exact equality; within a relative 1e-6 of the larger where either is approximate."""
    if a.approximate or b.approximate:
        return abs(a.value - b.value) <= RELATIVE_TOLERANCE * max(abs(a.value), abs(b.value))
    return a.value == b.value


def _reference_number(answer: str) -> Number | None:
    marked = _marked_answer(answer)
    return _only_number(answer if marked is None else marked)


def _marked_answer(text: str) -> str | None:
    """What the last box holds, or else the line behind the last marker; None where there is neither."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    last = _last_match(_MARKER, text)
    if last is None:
        return None
    return text[last.end() :].lstrip(":* \t\r\n").split("\n", 1)[0].strip()


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = collections.deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _last_boxed(text: str) -> str | None:
    r"""The content of the `\boxed{` that opens last among those that are closed, in one pass over the braces."""
    open_braces: list[tuple[int, bool]] = []
    start, end = -1, -1
    for match in _BOX_OR_BRACE.finditer(text):
        if match[0].endswith("}") and not match[0].startswith("\\"):
            content, is_box = open_braces.pop() if open_braces else (-1, False)
            if is_box and content > start:
                start, end = content, match.start()
        elif match[0] == "{" or match[0].startswith("\\boxed"):
            open_braces.append((match.end(), match[0] != "{"))
    return None if start < 0 else text[start:end]


def _only_number(text: str) -> Number | None:
    """The one number of a marked answer's first sentence; None if there are more, or mathematics around it."""
    plain = _SENTENCE_END.split(_DEGREES.sub("", _plain(text)), maxsplit=1)[0]
    matches = list(_NUMBER.finditer(plain))
    if len(matches) != 1:
        return None
    [match] = matches
    around = plain[: match.start()].replace("**", "") + "\n" + plain[match.end() :].replace("**", "")
    return None if _MATHEMATICS.search(around) else _value(match)


def _plain(text: str) -> str:
    """Without the typography of minus signs and thousands separators."""
    return text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\!", "")


def _value(match: re.Match[str]) -> Number | None:
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
    value = Fraction(digits, below) * Fraction(10) ** (exponent - len(decimals))
    negative = (match["sign"] == "-") != (match["above_sign"] == "-")
    approximate = value.denominator != 1 and bool(decimals or match["exponent"])
    return Number(-value if negative else value, approximate)
