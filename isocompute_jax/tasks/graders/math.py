r"""`math`: equality of final answers as mathematics.

The answer of a completion is its last `\boxed{...}`, else what a marker introduces (`####`, "answer is"), else the
last formula of its last lines. Both sides are cleaned (`latex`), their shapes (`math_shapes`) compared part by part
(`math_compare`), and what is left, expressions, by value (`math_values`, on math-verify's parser).

Conventions: solutions in a list or a set have no order, coordinates and intervals do; brackets count; a unit or a name
(`x =`, `p + q =`) may be left out, another one may not be put in its place; an inequality is the interval that it
means, and a union the set that it makes up.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from typing import Literal

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.answers import MAX_TEXT_CHARS, all_boxed, marked_answer
from isocompute_jax.tasks.graders.latex import clean
from isocompute_jax.tasks.graders.math_compare import conditional, same_answer
from isocompute_jax.tasks.graders.numeric import numeric_answer, reference_number, same_number
from isocompute_jax.tasks.graders.protocol import WORKER, Grade

MEMORY = 4 << 30
"""Bytes of address space that a comparison may use; what needs more is not understood."""
LAST_LINES = 3
"""Where an unmarked answer is looked for."""

_JOINED = re.compile(
    r"[\s$.,;:()]*(?:\\text\s?\{\s*)?(?:and|or|,)?(?:\s*\})?[\s$.,;:()]*(?:[A-Za-z](?:_\{?\w\}?)?\s?=\s?)?"
)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+|(?<=[.!?])(?=\n)")
_THOUGHT = re.compile(r"\b(?:wait|hmm+|let me|let's|reconsider|suppose|assume|maybe|perhaps)\b", re.IGNORECASE)
_BOX = re.compile(r"\\*(?<![A-Za-z])f?boxed\s?\{")
_LOOSE_BOX = re.compile(r"\\boxed\s?(-?\d+(?:\.\d+)?|[A-Za-z])(?![A-Za-z\d{])")


class Math:
    """1.0 where completion and answer are the same mathematics, else 0.0."""

    name: str = "math"
    runs: Literal["process"] = "process"

    def grade(self, problem: Problem, text: str) -> Grade:
        """1.0 if the final answer of `text` equals that of the problem, else 0.0."""
        found, expected = answer_of(text), gold_of(problem.answer)
        boxed = bool(all_boxed(text[-MAX_TEXT_CHARS:]))
        if not boxed and conditional(expected, _claim(text)):
            return Grade(0.0)
        with _bounded_memory():
            if found is not None and same_answer(expected, clean(found)):
                return Grade(1.0)
        return Grade(float(not boxed and _ends_in(expected, text)))

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is cleaned."""
        if gold_of(problem.answer):
            return None
        return f"answer: {problem.answer!r} holds no answer; write a number, an expression, a set, words, ..."


def _ends_in(gold: str, text: str) -> bool:
    """Whether a text without a box ends in the number that the gold answer is: "So there are 12 apples."."""
    expected, found = reference_number(gold), numeric_answer(_stated(text.rpartition("</think>")[2]))
    return expected is not None and found is not None and same_number(expected, found)


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
    text = text[-MAX_TEXT_CHARS:].rpartition("</think>")[2]
    text = _LOOSE_BOX.sub(r"\\boxed{\1}", _BOX.sub(r"\\boxed{", text))
    boxes = sorted(all_boxed(text))
    if boxes:
        return _last_boxes(text, boxes)
    marked = marked_answer(text)
    lines = [marked] if marked else _stated(text).splitlines()[-LAST_LINES:]
    for line in reversed([line for line in lines if line.strip()]):
        formulas = [next(part for part in found if part) for found in _FORMULA.findall(line)]
        if formulas:
            return ", ".join(formulas) if marked else formulas[-1]
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
        between = between[: between.rfind("\\")] if "\\" in between else between
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
