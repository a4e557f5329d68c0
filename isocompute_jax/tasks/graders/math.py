# ruff: noqa: RUF001 (the signs that people write are what this file is about)
r"""`math`: equality of final answers as mathematics.

The answer of a completion is its last `\boxed{...}`, else what a marker introduces (`####`, "answer is"), else the
last formula of its last lines. Both sides are cleaned (`clean`: `\dfrac12`, `½` and `frac{1}{2}` all become
`\frac{1}{2}`), their shapes (`math_shapes`) compared part by part (`math_compare`), and what is left, expressions, by
value (`math_values`, on math-verify's parser).

Conventions: solutions in a list or a set have no order, coordinates and intervals do; brackets count; a unit or a name
(`x =`, `p + q =`) may be left out, another one may not be put in its place; an inequality for a name or its absolute
value is the interval that it means, and a union the set that it makes up.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
from collections.abc import Iterator, Sequence

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import MAX_TEXT_CHARS, all_boxed, marked_answer, plain_unicode, said
from isocompute_jax.tasks.graders.math_compare import conditional, same_answer
from isocompute_jax.tasks.graders.math_values import without_doubled_brackets
from isocompute_jax.tasks.graders.numeric import numeric_answer, reference_number, same_number
from isocompute_jax.tasks.graders.protocol import WORKER, Grade, Grader

MEMORY = 4 << 30
"""Bytes of address space that a comparison may use; what needs more is not understood."""
LAST_LINES = 3
"""Where an unmarked answer is looked for."""

_JOINED = re.compile(
    r"(?:[\s$.,;:()]|\\[()\[\]])*(?:\\text\s?\{\s*)?(?:and|or|,)?(?:\s*\})?(?:[\s$.,;:()]|\\[()\[\]])*"
    r"(?:[A-Za-z](?:_\{?\w\}?)?\s?=\s?)?"
)
_HEDGE = re.compile(r"[\d$})],?\s{1,3}or\s{1,3}(?:\$|\\|[A-Za-z]\s?=|-?\d)")  # which of two is left open
_OR = re.compile(r",?\s{1,3}or\s{1,3}")  # between two formulas of one answer
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+|(?<=[.!?])(?=\n)")
_THOUGHT = re.compile(r"\b(?:wait|hmm+|let me|let's|reconsider|suppose|assume|maybe|perhaps)\b", re.IGNORECASE)


class Math(Grader):
    """1.0 where completion and answer are the same mathematics, else 0.0."""

    name = "math"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where the final answer of a text equals that of its problem, else 0.0."""
        pairs = zip(problems, texts, strict=True)
        return [Grade(float(is_solved(gold_of(problem.answer), text))) for problem, text in pairs]

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is cleaned."""
        if gold_of(problem.answer):
            return None
        return f"answer: {problem.answer!r} holds no answer; write a number, an expression, a set, words, ..."


def is_solved(gold: str, text: str) -> bool:
    """Whether the final answer of a completion equals a cleaned gold answer."""
    found, boxed = answer_of(text), bool(all_boxed(text[-MAX_TEXT_CHARS:]))
    if not boxed and conditional(gold, _claim(text)):
        return False
    with _bounded_memory():
        if found is not None and same_answer(gold, clean(found)):
            return True
    return not boxed and not _HEDGE.search(_claim(text)) and _ends_in(gold, text)


def _ends_in(gold: str, text: str) -> bool:
    """Whether a text without a box ends in the number that the gold answer is: "So there are 12 apples."."""
    return same_number(reference_number(gold), numeric_answer(_stated(text.rpartition("</think>")[2])))


def _claim(text: str) -> str:
    """The sentence that a text without a box ends with, from its first number or formula on, or behind its marker."""
    stated = _stated(text.rpartition("</think>")[2])
    marked = marked_answer(stated)
    last = _SENTENCE.split(stated.strip())[-1] if marked is None else _SENTENCE.split(marked)[0]
    return last if marked is not None else re.sub(r"^[^\d$\\]*", "", last)


def _stated(text: str) -> str:
    """A text without its thoughts ("Wait, let me see if $n = 2$"); none of one that breaks off in such a thought."""
    if marked_answer(text) is not None:
        return text
    sentences = _SENTENCE.split(text[-MAX_TEXT_CHARS:].strip())
    if _THOUGHT.search(sentences[-1]):
        return ""
    return " ".join("\n" if _THOUGHT.search(sentence) else sentence for sentence in sentences)


def gold_of(answer: str) -> str:
    """The cleaned answer of a problem."""
    marked = marked_answer(answer)
    return clean(answer if marked is None else marked)


def answer_of(text: str) -> str | None:
    """The final answer of a completion, as written; None where it gives none."""
    text = said(text)
    boxes = sorted(all_boxed(text))
    if boxes:
        return _last_boxes(text, boxes)
    marked = marked_answer(text)
    lines = [marked] if marked else _stated(text).splitlines()[-LAST_LINES:]
    for line in reversed([line for line in lines if line.strip()]):
        found = list(_FORMULA.finditer(line))
        formulas = [next(part for part in each.groups() if part) for each in found]
        if formulas and not marked:  # "$x = 3$ or $x = 5$" is one answer
            between = [line[one.end() : other.start()] for one, other in itertools.pairwise(found)]
            joined = itertools.takewhile(_OR.fullmatch, reversed(between))
            formulas = formulas[-1 - sum(1 for _ in joined) :]
        if formulas:
            return ", ".join(formulas)
        if marked:
            return re.split(r"\.\s|\n", line)[0]
    last = lines[-1].strip() if lines else ""
    return last if last and len(last) <= 60 else None


def _last_boxes(text: str, boxes: list[tuple[int, str]]) -> str:
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


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """Holds a worker process to MEMORY; what asks for more gets a MemoryError."""
    if WORKER not in os.environ:  # the limit is the whole process's
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- one spelling

MAX_CHARS = 2000
"""A longer answer is no answer."""

_SYMBOLS = str.maketrans({
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "×": r"\times ", "÷": r"\div ",
    "·": r"\cdot ", "⋅": r"\cdot ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ",
    "±": r"\pm ", "√": r"\sqrt ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "≈": r"\approx ", "∨": r"\lor ",
    "→": r"\to ", "⟨": r"\langle ", "⟩": r"\rangle ", "ℝ": r"\mathbb{R}", "‖": "|", "′": "'", "\u2062": "",
    "〈": r"\langle ", "〉": r"\rangle ", "＄": "$",
})  # fmt: skip

_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?", ""),
        (r"\\(?:rm|bf|it|normalsize|large)(?![A-Za-z])", ""),
        (r"\\(?:,|;|:|!|>|quad(?![a-z])|qquad(?![a-z])|hspace\{[^{}]*\}|hfill)|\\ |~", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"(?<=\d)\s?[xX]\s?(?=10\s?\^)", r"\\times "),
        (r"\\(?:d?dot|bar)\s?\{(\d+)\}(?!.*\\dot)", r"\\overline{\1}"),
        (r"(?<![\\A-Za-z])frac\s?\{", r"\\frac{"),
        (r"(?<![\\A-Za-z])sqrt", r"\\sqrt"),
        (r"\\(?:lbrace|\{)", r"\\{"),
        (r"\\(?:rbrace|\})", r"\\}"),
        (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
        (r"\\(?:le|leqslant|leqq)(?![A-Za-z])|<=|=<", r"\\leq "),
        (r"\\(?:ge|geqslant|geqq)(?![A-Za-z])|>=|=>", r"\\geq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\ne(?![A-Za-z])|!=|\\not\s?=", r"\\neq "),
        (r"\\(?:varnothing|O)(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:degree|deg)(?![A-Za-z])|\^\s?\{?\s?\\circ\s?\}?", r"^\\circ "),
        (r"\\(?:wedge|land)(?![A-Za-z])", r" and "),
        (r"\\(?:vee|lor)(?![A-Za-z])", r" or "),
        (r"\\(?:imath|mathrm\s?\{i\}|mathbf\s?\{i\}|text\s?\{i\})", "i"),
        (r"\\mathrm\s?\{e\}|\\text\s?\{e\}", "e"),
        (r"\*\*(?=[\d({-])", "^"),
        (r"(?<![A-Za-z\\])(?:infinity|Infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|ln|log|exp|arcsin|arccos|arctan)(?=\s?[(^0-9x])", r"\\\1"),
        (r"(?<![A-Za-z\\])theta(?![A-Za-z])", r"\\theta "),
        (r"\\pm\s?(?=[^\s])", r"\\pm "),
        # Arguments without braces, or with round ones.
        (r"\\frac\s?(\d)\s?(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s?(\d)\s?(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s?([\dA-Za-z])\s?\{", r"\\frac{\1}{"),
        (r"\\frac\s?(\{[^{}]*\})\s?([\dA-Za-z])", r"\\frac\1{\2}"),
        (r"\\frac\s?\(([^()]*)\)\s?\(([^()]*)\)", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s?(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\^\s?(-?\d{2,}|-\d)", r"^{\1}"),
        (r"\^\s?\((-?[\w./+-]+)\)", r"^{\1}"),
        (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?![\w.])", r"\1\\times 10^{\2}"),
    )
)  # fmt: skip
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname\*?|boldsymbol|bm|"
    r"boxed|fbox|underline|emph|ensuremath)\s?\{([^{}]*)\}"
)
_MATH = re.compile(r"(?<!\\)(?:\$\$?|\\\(|\\\)|\\\[|\\\])")
_DOUBLED = re.compile(r"\\\\+(?=[A-Za-z{}])")
_ROW = re.compile(r"\\\\(?:\[[^\]]{0,20}\])?")
_THIN = re.compile(r"(?<=\d)\\[,;:](?=\d{3}(?!\d))")
_CURRENCY = re.compile(r"(\\\$|(?<!\$)\$(?=[\d.,]+$)|[€£¥])\s?(\d[\d.,]*)")
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "GBP", "¥": "yen"}


def clean(text: str) -> str:
    """An answer in one spelling: wrappers of text are opened, delimiters of formulas and outer white space gone.

    It takes time linear in the text; what is not understood stays as it is.
    """
    text = plain_unicode(text[:MAX_CHARS]).translate(_SYMBOLS)
    text = _ROW.sub("\0", text) if r"\begin" in text else _DOUBLED.sub(r"\\", text)
    text = text.replace(r"\%", "%").strip().removeprefix("**").removesuffix("**")
    text = _THIN.sub("", text)
    text = _CURRENCY.sub(lambda found: f" {found[2]} {_CURRENCIES[found[1][-1]]} ", text)
    text = _MATH.sub(" ", text).replace("\\$", " ")
    for _ in range(3):  # nested wrappers
        text = _WRAPPER.sub(r" \1 ", text)
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    text = without_doubled_brackets(text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;: ").lstrip(":,; ").replace("\0", r"\\")
