"""The embedded tasks: chains of additions and subtractions, and sums with a calculator; problems, teachers, graders.

**arithmetic**, the default: a prompt such as `47+3-2=` is answered by its running totals, `50,48`. A chain starts in
0..99, has one to three operands of 1..4, and its running totals stay in 0..99. The reward is 1 if the whole completion
is the running totals, else 0: there is no partial credit.

What is to be learned are 80 *facts*: (operation, units digit of the running total, operand). Training and validation
sets share all facts while their prompts are disjoint, so validation measures transfer to new chains of known steps.

**calculator**, of two turns: a prompt such as `384+579,` is answered by `963`. The model may write the sum again with
an equals sign, `384+579=`; that ends its turn, the calculator puts `963,` behind it, and the model goes on. The reward
is 1 if what stands behind the last comma is the sum, whoever did it. The calculator is a pure function of
the completion's text (`sampling.turn_policies.ToolTurns`); it takes what the model wrote, not what the prompt asks.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Grade, Grader

MAX_TOTAL = 99
MAX_OPERAND = 4
MAX_OPERATIONS = 3

CALL_STOP = "="
"""What ends a call of the calculator."""
LARGEST = 999
"""Of the numbers of a sum."""
LONGEST_ANSWER = 8
"""Characters of the calculator's longest answer."""

_CHAIN = re.compile(r"(0|[1-9][0-9]?)((?:[+-][1-4]){1,3})=")
_CALL = re.compile(r"(?:^|,)(\d{1,3}(?:[+-]\d{1,3}){1,8})=$")


def parse_chains(prompts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Parses P prompts such as `47+3-2=`.

    Returns:
      Their first numbers, [P] int64, and signed operands, [P, 3] int64, 0 where a chain has fewer.

    Raises:
      ValueError: a prompt is not of this form.
    """
    start = np.zeros(len(prompts), dtype=np.int64)
    deltas = np.zeros((len(prompts), MAX_OPERATIONS), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        match = _CHAIN.fullmatch(prompt)
        if match is None:
            raise ValueError(f"{prompt!r} is not a chain of one to three operands of 1..4 such as '47+3-2='")
        start[row] = int(match[1])
        signed = match[2]
        deltas[row, : len(signed) // 2] = [int(signed[i : i + 2]) for i in range(0, len(signed), 2)]
    return start, deltas


def answer_to(prompt: str) -> str:
    """The running totals of one prompt, separated by commas.

    Raises:
      ValueError: the prompt is no chain, or a running total leaves 0..99.
    """
    start, [deltas] = parse_chains([prompt])
    totals = (start + np.cumsum(deltas[deltas != 0])).tolist()
    if not all(0 <= total <= MAX_TOTAL for total in totals):
        raise ValueError(f"the running totals of {prompt!r}, {totals}, leave 0..{MAX_TOTAL}")
    return ",".join(map(str, totals))


class Arithmetic(Grader):
    """The whole completion must be the running totals; there is no partial credit."""

    name = "arithmetic"
    runs = "inline"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where the whole text equals the running totals, else 0.0."""
        return [Grade(float(text == problem.answer)) for problem, text in zip(problems, texts, strict=True)]

    def fault(self, problem: Problem) -> str | None:
        """A message if the prompt is no chain, or the answer is not its running totals."""
        try:
            expected = answer_to(problem.text)
        except ValueError as error:
            return f"prompt: {error}"
        if problem.answer != expected:
            return f"answer: {problem.answer!r} is not the running totals of {problem.text!r}; write {expected!r}"
        return None


def make_problems(count: int, *, seed: int) -> list[Problem]:
    """Draws `count` distinct problems; a smaller count with the same seed gives the first of them.

    Drawn without replacement from all chains, each number of operations equally often while they last.

    Raises:
      InputError: fewer than one, or more problems than there are.
    """
    by_operations = _all_prompts()
    available = sum(map(len, by_operations))
    if not 1 <= count <= available:
        raise InputError(f"count = {count}: there are {available} distinct arithmetic problems; ask for 1..{available}")
    rng = np.random.default_rng(seed)
    shuffled = [[prompts[i] for i in rng.permutation(len(prompts))] for prompts in by_operations]
    # Round-robin over the numbers of operations; shorter lists run out first.
    rounds = itertools.zip_longest(*shuffled)
    prompts = (prompt for one_round in rounds for prompt in one_round if prompt is not None)
    return [_problem(prompt) for prompt in itertools.islice(prompts, count)]


def _problem(prompt: str) -> Problem:
    return Problem(f"arithmetic-{prompt}", prompt, answer_to(prompt), "arithmetic")


@functools.cache
def _all_prompts() -> tuple[tuple[str, ...], ...]:
    """Every prompt, by number of operations (1, 2, 3), in a fixed order."""
    return tuple(tuple(_prompts(operations)) for operations in range(1, MAX_OPERATIONS + 1))


def _prompts(operations: int) -> Iterator[str]:
    signed = [sign * operand for sign in (1, -1) for operand in range(1, MAX_OPERAND + 1)]
    for deltas in itertools.product(signed, repeat=operations):
        totals = list(itertools.accumulate(deltas))
        suffix = "".join(f"{delta:+d}" for delta in deltas) + "="
        for start in range(max(0, -min(totals)), MAX_TOTAL + 1 - max(0, max(totals))):
            yield f"{start}{suffix}"


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """An imperfect teacher, so that a base model trained on it solves problems at broadly spread rates.

    Both tables are by operation (0 is +), units digit of the running total before the step, and operand - 1.
    """

    error_rates: np.ndarray  # [2, 10, 4] float64, probability of a wrong step
    offsets: np.ndarray  # [2, 10, 4] int64, what a wrong step adds to the right total: always the same for one fact

    def answers(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[str]:
        """One demonstration per problem, drawn anew at each call.

        Errors propagate: a step starts from the total that was written before it, right or wrong. Totals that leave
        0..99 wrap around (100 is written as 0, -1 as 99), which leaves the units digits, and so the facts, intact.
        """
        total, deltas = parse_chains([problem.text for problem in problems])
        draws = rng.random(deltas.shape)
        totals = np.empty_like(deltas)
        for step, delta in enumerate(deltas.T):
            fact = _facts(total, delta)
            wrong = draws[:, step] < self.error_rates[fact]
            total = (total + delta + np.where(wrong, self.offsets[fact], 0)) % (MAX_TOTAL + 1)
            totals[:, step] = total
        lengths = np.count_nonzero(deltas, axis=1)
        rows = zip(totals.tolist(), lengths.tolist(), strict=True)
        return [",".join(map(str, row[:length])) for row, length in rows]

    def pass_probabilities(self, problems: Sequence[Problem]) -> np.ndarray:
        """[P] float64, exact probability of a right demonstration: the product of its facts' accuracies."""
        start, deltas = parse_chains([problem.text for problem in problems])
        before = start[:, None] + np.cumsum(deltas, axis=1) - deltas
        right = 1.0 - self.error_rates[_facts(before, deltas)]
        return np.prod(np.where(deltas == 0, 1.0, right), axis=1)


def make_teacher(seed: int) -> Teacher:
    """Error rates ~ Beta(0.8, 0.8), at most 0.97, and offsets drawn from {-10, -1, 1, 10}, one of each per fact."""
    rng = np.random.default_rng(seed)
    shape = (2, 10, MAX_OPERAND)
    # Beta(0.8, 0.8) is widest at both ends: some facts are known, some nearly never right, and chains multiply them.
    error_rates = np.minimum(rng.beta(0.8, 0.8, size=shape), 0.97)
    return Teacher(error_rates, rng.choice([-10, -1, 1, 10], size=shape))


def _facts(total: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices into the teacher's tables; where delta is 0 (no step) they are valid but mean nothing."""
    return (delta < 0).astype(np.int64), total % 10, np.maximum(np.abs(delta), 1) - 1


def calculate(text: str) -> str | None:
    """What the calculator puts behind a completion that ends with a call; None for what is none."""
    call = _CALL.search(text)
    if call is None:
        return None
    return f"{sum(map(int, re.findall(r'[+-]?[0-9]+', call[1])))},"


def make_sums(count: int, *, seed: int, digits: int = 3) -> list[Problem]:
    """Draws `count` distinct sums of two numbers of up to so many digits.

    Raises:
      InputError: there are not so many.
    """
    numbers = 10**digits
    if not 1 <= digits <= len(str(LARGEST)) or not 1 <= count <= numbers**2:
        raise InputError(f"count = {count}, digits = {digits}: ask for 1 .. {numbers**2} sums of 1 to 3 digits")
    drawn = np.random.default_rng(seed).choice(numbers**2, size=count, replace=False).tolist()
    pairs = [divmod(pair, numbers) for pair in drawn]
    return [Problem(f"{a}+{b}", f"{a}+{b},", str(a + b), "calculator") for a, b in pairs]


class Calculator(Grader):
    """What stands behind the last comma must be the sum, whoever did it."""

    name = "calculator"
    runs = "inline"

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """1.0 where what stands behind the last comma of a text is the sum, else 0.0."""
        totals = [text.rpartition(",")[2] for text in texts]
        return [Grade(float(total == problem.answer)) for problem, total in zip(problems, totals, strict=True)]

    def fault(self, problem: Problem) -> str | None:
        """A message if the prompt is no sum, or the answer is another."""
        expected = calculate(problem.text.removesuffix(",") + CALL_STOP)
        if expected is None or not problem.text.endswith(","):
            return f"prompt: {problem.text!r} is not a sum such as '384+579,'"
        if problem.answer + "," != expected:
            return f"answer: {problem.answer!r} is not the sum {problem.text!r}; write {expected.rstrip(',')!r}"
        return None
