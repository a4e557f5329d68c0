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
from isocompute_jax.tasks.graders.answers import Final, find_answer, to_final_grade, without_thoughts
from isocompute_jax.tasks.graders.latex import clean
from isocompute_jax.tasks.graders.math_compare import conditional, same_answer
from isocompute_jax.tasks.graders.numeric import gold_number, number_of, same_number
from isocompute_jax.tasks.graders.protocol import WORKER, Grade, Grader

MEMORY = 4 << 30
"""Bytes of address space that a comparison may use; what needs more is not understood."""
LAST_LINES = 3
"""Where an unmarked answer is looked for."""

_OR = re.compile(r",?\s{1,3}or\s{1,3}")  # between two formulas of one answer
_LEFT_OPEN = re.compile(r"\bnot\b[^#]*#|#,?\s*or\b")  # "not $5$", "$5$ or 6"
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


class Math(Grader):
    """1.0 where completion and answer are the same mathematics, else 0.0."""

    name = "math"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where the final answer of a text equals that of its problem, else 0.0."""
        pairs = zip(problems, texts, strict=True)
        finals = ((find_answer(text), gold_of(problem.answer)) for problem, text in pairs)
        return [to_final_grade(found, is_solved(gold, found)) for found, gold in finals]

    def fault(self, problem: Problem) -> str | None:
        """A message if nothing is left of the answer once it is cleaned."""
        if gold_of(problem.answer):
            return None
        return f"answer: {problem.answer!r} holds no answer; write a number, an expression, a set, words, ..."


def is_solved(gold: str, found: Final) -> bool:
    """Whether the final answer of a completion equals a cleaned gold answer."""
    if found.place != "box":
        found = found._replace(text=found.text if found.place == "marker" else without_thoughts(found.text))
        if conditional(gold, found.claim):
            return False
    written = as_written(found)
    with _bounded_memory():
        if written is not None and same_answer(gold, clean(written)):
            return True
    # "So there are 12 apples." ends in the number that the gold answer is.
    return found.place != "box" and same_number(gold_number(gold), number_of(found))


def gold_of(answer: str) -> str:
    """The cleaned answer of a problem."""
    return clean(find_answer(answer).text)


def as_written(found: Final) -> str | None:
    """The final answer of a completion without the words around it; None where it gives none."""
    if found.place == "box":
        return found.text
    lines = [found.text] if found.place == "marker" else found.text.splitlines()[-LAST_LINES:]
    for line in reversed([line for line in lines if line.strip()]):
        places = list(_FORMULA.finditer(line))
        formulas = [next(part for part in each.groups() if part) for each in places]
        between = [line[one.end() : other.start()] for one, other in itertools.pairwise(places)]
        if formulas and found.place == "end":  # "$x = 3$ or $x = 5$" is one answer
            joined = itertools.takewhile(_OR.fullmatch, reversed(between))
            formulas = formulas[-1 - sum(1 for _ in joined) :]
        elif formulas and _LEFT_OPEN.search(line[: places[0].start()] + " # " + line[places[-1].end() :]):
            return line
        if formulas:
            return ", ".join(formulas)
        if found.place == "marker":
            return re.split(r"\.\s|\n", line)[0]
    last = lines[-1].strip() if lines else ""
    return last if last and len(last) <= 60 else None


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
