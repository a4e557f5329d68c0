r"""Where a final answer stands: in a text's last boxes, else behind `####`, `answer is` or `answer:`, else at its end.

A thought (up to `</think>`) holds no answer. `exact` compares final answers as text; `numeric` and `math` read what is
found here as a number and as mathematics.

Everything runs in time linear in the text, of which only the last `MAX_TEXT_CHARS` are read: no text can make it hang.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import UNMARKED, Grade, Grader

MAX_TEXT_CHARS = 100_000

_MARKER = re.compile(r"####|answer(?:\s{1,3}is\b|\*{0,2}\s?:)|答案\s?(?:是|为|:|\uff1a)", re.IGNORECASE)
_BOX_OR_BRACE = re.compile(r"\\boxed\s{0,3}\{|\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"(?:(?<!\\)\\+|(?<![\\A-Za-z]))(?:f?boxed|fbox)\s{0,3}\{")  # a run of signs is read once
_LOOSE_BOX = re.compile(r"\\(?:boxed|fbox)\s?(-?\d+(?:\.\d+)?|[A-Za-z])(?![A-Za-z\d{])")
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_INVISIBLE = re.compile("[\\u00ad\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u2069\\ufeff]")
"""Soft hyphens, spaces of no width, marks of direction: nobody sees them."""
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\u2010\u2011\u2012\ufe63\uff0d", "-"))
_JOINED = re.compile(
    r"(?:[\s$.,;:()]|\\[()\[\]])*(?:\\text\s?\{\s*)?(?:and|or|,)?(?:\s*\})?(?:[\s$.,;:()]|\\[()\[\]])*"
    r"(?:[A-Za-z](?:_\{?\w\}?)?\s?=\s?)?"
)
_TEXT = re.compile(r"\s*\\(?:text|textbf|mathrm|mbox)\s?\{([^{}]*)\}\s*")
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+|(?<=[.!?])(?=\n)")
_THOUGHT = re.compile(r"\b(?:wait|hmm+|let me|let's|reconsider|suppose|assume|maybe|perhaps)\b", re.IGNORECASE)
_HEDGE = re.compile(r"[\d$})],?\s{1,3}or\s{1,3}(?:\$|\\|[A-Za-z]\s?=|-?\d)")
_CONDITION = re.compile(
    r"(?<![A-Za-z\\])(?:if|iff|unless|whenever|provided|assuming|supposing|otherwise"
    r"|(?:when|where|given|for)(?=[^<>]*[A-Za-z)]\s?=))(?![A-Za-z])"
    r"|\\(?:iff|implies|impliedby|(?:[lL]ong)?(?:[lL]eft)?[rR]ightarrow|(?:Long)?Leftarrow)(?![A-Za-z])|[⇒⇔⟹⟺]"
)


class Final(NamedTuple):
    """The final answer of a text, as it is written there."""

    text: str  # with the place `end`, the whole text behind its thought
    place: Literal["box", "marker", "end"]

    @property
    def claim(self) -> str:
        """What is said at last without a box: behind a marker the first sentence, else the last from its number on."""
        if self.place == "marker":
            return _SENTENCE.split(self.text)[0]
        return re.sub(r"^[^\d$\\]*", "", _SENTENCE.split(self.text.strip())[-1])

    @property
    def hedged(self) -> bool:
        """Whether the claim leaves open which of two it is: "3 or 5"."""
        return _HEDGE.search(self.claim) is not None


class Exact(Grader):
    """Equality of the final answers as text, once normalised (`normalise`)."""

    name = "exact"
    runs = "inline"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where the normalised final answers of completion and problem are equal, else 0.0."""
        finals = (
            (find_answer(text), _normal_answer(problem.answer)) for problem, text in zip(problems, texts, strict=True)
        )
        return [to_final_grade(found, normalise(found.text) == gold) for found, gold in finals]

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is normalised."""
        if _normal_answer(problem.answer):
            return None
        return f"answer: {problem.answer!r} has a marker of the final answer and nothing behind it; write the answer"


def to_final_grade(found: Final, right: bool) -> Grade:
    """The grade of a final answer; it says whether one that stands neither in a box nor behind a marker is paid."""
    return Grade(float(right), {UNMARKED: float(right and found.place == "end")})


def _normal_answer(text: str) -> str:
    return normalise(find_answer(text).text)


def normalise(text: str) -> str:
    """Unicode NFC, white space as single spaces, no `$`, `*`, quotation marks or final full stop around; keeps case."""
    spaced = " ".join(unicodedata.normalize("NFC", _TEXT.sub(r"\1", text)).split())
    return spaced.lstrip("$*`\"' ").rstrip("$*`\"'.。 ") or spaced


def find_answer(text: str) -> Final:
    r"""The text of the last boxes, else what a marker introduces, else the whole text.

    `\fbox{5}` and `\boxed 5` are boxes too. Boxes with nothing but a comma, a word or a name between them are read
    together: `$\boxed{3}$ or $\boxed{5}$` is "3, 5".
    """
    text = text[-MAX_TEXT_CHARS:].rpartition("</think>")[2]
    text = _LOOSE_BOX.sub(r"\\boxed{\1}", _BOX.sub(r"\\boxed{", text))
    boxes = sorted(_all_boxed(text))
    if boxes:
        return Final(_joined(text, boxes).strip(), "box")
    last = last_match(_MARKER, text)
    if last is None:
        return Final(text.strip(), "end")
    return Final(text[last.end() :].lstrip(":* \t\r\n").split("\n", 1)[0].strip(), "marker")


def without_thoughts(text: str) -> str:
    """A text without sentences such as "Wait, let me see if it is 2"; nothing of one that breaks off in such a one."""
    sentences = _SENTENCE.split(text.strip())
    if _THOUGHT.search(sentences[-1]):
        return ""
    return " ".join("\n" if _THOUGHT.search(sentence) else sentence for sentence in sentences)


def is_conditional(text: str) -> bool:
    """Whether an answer holds only under a condition, which may be the answer itself: `x = 3 if x = 3`."""
    return _CONDITION.search(text) is not None


def _joined(text: str, boxes: list[tuple[int, str]]) -> str:
    """The last box, and those before it that only a comma, a word or a name separates: together they are the answer."""
    start, content = boxes[-1]
    joined, named = [content], False
    for before, inside in reversed(boxes[:-1]):
        between = text[before + len(inside) + 1 : start]
        between = between[: between.rfind("\\boxed")] if "\\boxed" in between else between
        if before + len(inside) > start or not _JOINED.fullmatch(between) or ("=" in between and "\n" in between):
            break
        named = named or "=" in between
        joined.append(inside)
        start = before
    return ", ".join(joined[::-1] if named else dict.fromkeys(reversed(joined)))


def _all_boxed(text: str) -> list[tuple[int, str]]:
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
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/").replace("\u3002", ". ").translate(_MINUS)
    return text.replace("{,}", ",").replace("\\!", "")
