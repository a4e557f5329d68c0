r"""Where a final answer stands in a text: in the last `\boxed{...}`; else behind `####`, `answer is` or `answer:`.

`exact` compares final answers as text.

Everything runs in time linear in the text, of which only the last `MAX_TEXT_CHARS` are read: no text can make it hang.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Sequence

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Grade, Grader

MAX_TEXT_CHARS = 100_000

_MARKER = re.compile(r"####|answer(?:\s{1,3}is\b|\*{0,2}\s?:)", re.IGNORECASE)
_BOX_OR_BRACE = re.compile(r"\\f?boxed\s{0,3}\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"(?:(?<!\\)\\+|(?<![\\A-Za-z]))(?:f?boxed|fbox)\s{0,3}\{")  # a run of signs is read once
_LOOSE_BOX = re.compile(r"\\(?:boxed|fbox)\s?(-?\d+(?:\.\d+)?|[A-Za-z])(?![A-Za-z\d{])")
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_INVISIBLE = re.compile("[\\u00ad\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u2069\\ufeff]")
"""Soft hyphens, spaces of no width, marks of direction: nobody sees them."""
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\u2010\u2011\u2012\ufe63\uff0d", "-"))


class Exact(Grader):
    """Equality of the final answers as text, once normalised (`normalise`)."""

    name = "exact"
    runs = "inline"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where the normalised final answers of completion and problem are equal, else 0.0."""
        pairs = zip(problems, texts, strict=True)
        return [Grade(float(_normal_answer(text) == _normal_answer(problem.answer))) for problem, text in pairs]

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is normalised."""
        if _normal_answer(problem.answer):
            return None
        return f"answer: {problem.answer!r} has a marker of the final answer and nothing behind it; write the answer"


def _normal_answer(text: str) -> str:
    return normalise(final_answer(text))


def normalise(text: str) -> str:
    """Unicode NFC, white space as single spaces, without `$` or `*` at the ends or a final full stop; keeps case."""
    spaced = " ".join(unicodedata.normalize("NFC", text).split())
    return spaced.lstrip("$* ").rstrip("$*. ") or spaced


def final_answer(text: str) -> str:
    r"""The text of the last `\boxed{...}`, else what a marker introduces, else the whole text; stripped."""
    text = said(text)
    marked = marked_answer(text)
    return text.strip() if marked is None else marked


def said(text: str) -> str:
    r"""What a completion says once its thought has ended, in one spelling of boxes: `\fbox{5}` and `\boxed 5` too."""
    text = text[-MAX_TEXT_CHARS:].rpartition("</think>")[2]
    return _LOOSE_BOX.sub(r"\\boxed{\1}", _BOX.sub(r"\\boxed{", text))


def marked_answer(text: str) -> str | None:
    """What the last box holds, or else the line behind the last marker; None where there is neither."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    last = last_match(_MARKER, text)
    if last is None:
        return None
    return text[last.end() :].lstrip(":* \t\r\n").split("\n", 1)[0].strip()


def last_boxed(text: str) -> str | None:
    r"""The content of the `\boxed{` that opens last among those that are closed, in one pass over the braces."""
    boxes = all_boxed(text)
    return max(boxes)[1] if boxes else None


def all_boxed(text: str) -> list[tuple[int, str]]:
    r"""(where its content begins, content) of every `\boxed{...}` that is closed, in the order in which they close.

    The content of a box that holds boxes is not repeated for each depth: beyond the first few it is left out.
    """
    open_braces: list[tuple[int, bool]] = []
    spans: list[tuple[int, int]] = []
    for match in _BOX_OR_BRACE.finditer(text):
        if match[0].endswith("}") and not match[0].startswith("\\"):
            content, is_box = open_braces.pop() if open_braces else (-1, False)
            if is_box:
                spans.append((content, match.start()))
        elif match[0] == "{" or (match[0].endswith("{") and "boxed" in match[0]):
            open_braces.append((match.end(), match[0] != "{"))
    # Nested boxes share their text: copying every one of a thousand depths would take quadratic time.
    last = max(spans, default=None)
    return [(start, text[start:end]) for start, end in spans if (start, end) == last or end - start < 1000]


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match of a pattern."""
    matches = collections.deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def plain_unicode(text: str) -> str:
    """NFKC, but with what it would make another number of kept apart.

    `5²` becomes `5^{2}` and not 52, `x₂` becomes `x_{2}`, `2½` becomes `2 1/2` and not 21/2; dashes that stand for a
    minus sign become one, what has no width goes, and thousands are separated by commas alone.
    """
    text = _INVISIBLE.sub("", text)
    text = _SUPERSCRIPTS.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = _SUBSCRIPTS.sub(lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[0]) + " ", text)
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/").translate(_MINUS)
    return text.replace("{,}", ",").replace("\\!", "")
