r"""Programs against unit tests: the last code block of a completion, run in the sandbox, all tests or nothing.

Tests are the JSON of `Problem.answer`, in the shapes of the field's data sets:

    {"inputs": ["1 2\n"], "outputs": ["3\n"]}                        standard input and output (TACO, APPS)
    {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}          a function, or a method of `Solution`
    [{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}]    a list of tests (DeepCoder)
    [{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]   (LiveCodeBench)
    {"public_test_cases": ..., "private_test_cases": ...}           lists as above (LiveCodeBench)
    {"assert_case": ["assert add(1, 2) == 3"]}                      assertions (AceCode, MBPP)

Any part may be JSON written as text once more. What is expected stays here: `CodeTests.inputs` and `calls` alone are
given to the program.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import logging
import math
import os
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Grade, Grader
from isocompute_jax.tasks.sandbox import Call, Failed, Sandbox, SandboxLimits, isolation
from isocompute_jax.tasks.sandbox.inside.program import plain

LOG = logging.getLogger(__name__)

TOLERANCE = 1e-6
"""Relative to the expected number, absolute below 1."""

_PYTHON = ("python", "python3", "py")
_THINKING_ENDS = "</think>"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"[+-]?[0-9]+")

_STDIN, _CALL = ("stdin_stdout", "stdin"), ("function_call", "functional")
_SHAPES = (
    'write {"inputs": [...], "outputs": [...]}, with "fn_name" for a function; a list of {"input", "output", "type"}; '
    'or {"assert_case": [...]}'
)


class CodeGrader(Grader):
    """1.0 for a program that passes every test of its problem (`read_tests`), else 0.0.

    Its metric `tests_passed` is the share of tests passed; those after a test that ran out of time count as failed.
    """

    name = "code"

    def __init__(self, limits: SandboxLimits | None = None):
        """Starts nothing yet: the sandbox starts with the first program, in the process that grades it."""
        self.limits = limits or SandboxLimits()
        self._sandbox: Sandbox | None = None
        self._process = 0

    def grade_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade]:
        """Runs the program of each completion.

        Raises:
          InputError: the tests cannot be read; `fault` says so beforehand.
          RunError: the sandbox cannot be started on this machine.
        """
        return [self._run(problem, text) for problem, text in zip(problems, texts, strict=True)]

    def _run(self, problem: Problem, text: str) -> Grade:
        try:
            tests = _read(problem.answer)
        except MalformedTests as error:
            raise InputError(f"problem {problem.id}: answer: {error}") from None
        source = code_of(text)
        passed = [] if source is None else self._passed(source, tests)
        return Grade(float(all(passed) and bool(passed)), {"tests_passed": sum(passed) / len(tests.expected)})

    def fault(self, problem: Problem) -> str | None:
        """What is wrong with the tests of a problem, and what to do."""
        try:
            _read(problem.answer)
        except MalformedTests as error:
            return f"answer: {error}"
        return None

    def close(self) -> None:
        """Ends the sandbox; the next program starts another."""
        if self._sandbox is not None and self._process == os.getpid():
            self._sandbox.close()
        self._sandbox = None

    def __getstate__(self) -> dict[str, Any]:
        return {"limits": self.limits, "_sandbox": None, "_process": 0}  # a worker process starts its own

    def _passed(self, source: str, tests: CodeTests) -> list[bool]:
        sandbox = self._own_sandbox()
        if tests.calls:
            values = sandbox.call(source, tests.calls)
            return [same_value(value, expected) for value, expected in zip(values, tests.expected, strict=True)]
        outcomes = sandbox.run(source, tests.inputs)
        return [
            outcome.ending == "ended" and same_output(outcome.stdout.decode("utf-8", "replace"), expected)
            for outcome, expected in zip(outcomes, tests.expected, strict=True)
        ]

    def _own_sandbox(self) -> Sandbox:
        """This process's sandbox; says once what it cannot isolate."""
        if self._sandbox is None or self._process != os.getpid():
            self._sandbox, self._process = Sandbox(self.limits), os.getpid()
            found = isolation(self._sandbox)
            LOG.log(logging.WARNING if found.missing else logging.INFO, "%s", found)
        return self._sandbox


@functools.lru_cache(maxsize=8)
def _read(answer: str) -> CodeTests:
    """The tests, read once for a group."""
    return read_tests(answer)


def code_of(text: str) -> str | None:
    """The last closed block marked as Python, else the last one; of what follows the thinking, where there is any."""
    text = text.rpartition(_THINKING_ENDS)[2]
    python: str | None = None
    other: str | None = None
    begin: tuple[int, str, bool] | None = None  # line, mark, whether it is indented
    lines = text.split("\n")
    for number, line in enumerate(lines):
        fence = line.strip()
        if not fence.startswith("```"):
            continue
        if fence != "```" or begin is None:  # one with a mark begins a block, also where the last one was left open
            begin = (number + 1, fence.strip("`").strip().lower(), line[:1].isspace())
            continue
        block = "\n".join(lines[begin[0] : number])
        block = textwrap.dedent(block) if begin[2] else block
        if begin[1] in _PYTHON:
            python = block
        else:
            other = block
        begin = None
    return other if python is None else python


def same_output(found: str, expected: str) -> bool:
    """Equality line by line and word by word, numbers within `TOLERANCE`; white space at ends does not count."""
    lines, wanted = (text.strip().split("\n") for text in (found, expected))
    if len(lines) != len(wanted):
        return False
    return all(_same_line(line.split(), other.split()) for line, other in zip(lines, wanted, strict=True))


def same_value(found: Any, expected: Any) -> bool:
    """Equality of plain data as Python has it, floats within `TOLERANCE`."""
    if found is Failed:
        return False
    if isinstance(expected, Wrapped):
        return same_value(found, expected.value) or same_value(found, expected.value[0])
    if isinstance(expected, list):
        same_shape = isinstance(found, list) and len(found) == len(expected)
        return same_shape and all(map(same_value, found, expected))
    if isinstance(expected, dict):
        same_keys = isinstance(found, dict) and found.keys() == expected.keys()
        return same_keys and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(found, float) or isinstance(expected, float):
        numbers = all(isinstance(value, int | float) for value in (found, expected))
        return numbers and (found == expected or _close(found, expected))
    return found == expected


def _same_line(words: list[str], wanted: list[str]) -> bool:
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def _same_word(word: str, wanted: str) -> bool:
    if word == wanted:
        return True
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(wanted)):
        return False
    if _INTEGER.fullmatch(wanted):
        # A whole number is met exactly, however large: by itself, or by a float that is written for it ("5.0").
        whole, _, decimals = word.partition(".")
        return not decimals.strip("0") and _canonical(whole) == _canonical(wanted)
    return _close(float(word), float(wanted))


def _canonical(integer: str) -> str:
    sign = "-" if integer.startswith("-") else ""
    digits = integer.lstrip("+-").lstrip("0")
    return sign + digits if digits else "0"


def _close(found: float, expected: float) -> bool:
    try:
        return math.isfinite(found) and abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
    except OverflowError:  # an integer beyond all floats
        return False


# --- reading tests


class MalformedTests(ValueError):
    """Says which part of the tests is wrong, and what to write instead."""


@dataclasses.dataclass(frozen=True)
class CodeTests:
    """Tests of one problem: either texts for standard input or calls to what a program defines."""

    inputs: tuple[str, ...]  # standard input of each test; empty where there are calls
    calls: tuple[Call, ...]  # the calls; empty where there are inputs
    # the text on standard output, or the plain value (`sandbox.inside.program.plain`), of each test
    expected: tuple[Any, ...]


class Wrapped:
    """An expected list of one element, which some data sets write for the element itself: either is right."""

    def __init__(self, value: list[Any]):
        self.value = value


def read_tests(answer: str) -> CodeTests:
    """Reads the tests of a problem.

    Raises:
      MalformedTests: they are in none of the shapes above, or there are none.
    """
    try:
        data = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise MalformedTests(f"not JSON ({error}); {_SHAPES}") from None
    data = _unwrapped(data, "tests")
    if isinstance(data, dict) and "assert_case" in data:
        return _assertions(_unwrapped(data["assert_case"], "assert_case"))
    if isinstance(data, dict) and {"public_test_cases", "private_test_cases"} & data.keys():
        return _from_list(_all_cases(data), _name(data))
    if isinstance(data, dict) and {"inputs", "outputs"} <= data.keys():
        return _from_columns(data)
    if isinstance(data, list):
        return _from_list(data, None)
    fields = ", ".join(map(repr, list(data)[:5])) if isinstance(data, dict) else ""
    found = f"a JSON object with {fields or 'nothing'}" if isinstance(data, dict) else answer[:100]
    raise MalformedTests(f"{found} is none of the shapes of tests; {_SHAPES}")


def _from_columns(data: dict[str, Any]) -> CodeTests:
    inputs, outputs = (_list(_unwrapped(data[name], name), name) for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs):
        raise MalformedTests(f"{len(inputs)} inputs but {len(outputs)} outputs; give one output for each input")
    name = _name(data)
    if name is None:
        texts = [_lines(text, f"inputs[{index}]") for index, text in enumerate(inputs)]
        wanted = [_lines(text, f"outputs[{index}]") for index, text in enumerate(outputs)]
        return _of_stdin(texts, wanted)
    arguments = [_list(each, f"inputs[{index}]") for index, each in enumerate(inputs)]
    if outputs and all(isinstance(output, list) and len(output) == 1 for output in outputs):
        # APPS wraps each value in a list, which cannot be told from a function whose values are such lists.
        return _of_calls([(name, each) for each in arguments], [Wrapped(output) for output in outputs])
    return _of_calls([(name, each) for each in arguments], outputs)


def _from_list(tests: list[Any], name: str | None) -> CodeTests:
    tests = [_unwrapped(test, f"test {index}") for index, test in enumerate(tests)]
    kinds = {_kind(test, index) for index, test in enumerate(tests)}
    if len(kinds) > 1:
        raise MalformedTests("some tests use standard input, some call a function; give each kind a problem of its own")
    outputs = [test["output"] for test in tests]
    if kinds != {"call"}:
        texts = [_lines(test["input"], f"input of test {index}") for index, test in enumerate(tests)]
        return _of_stdin(texts, [_lines(text, f"output of test {index}") for index, text in enumerate(outputs)])
    calls: list[Call] = []
    wanted: list[Any] = []
    for index, test in enumerate(tests):
        function = _name(test) or name
        if function is None:
            raise MalformedTests(f'test {index} calls a function but names none; add "metadata": {{"func_name": ...}}')
        arguments, output = test["input"], test["output"]
        if isinstance(arguments, str):  # LiveCodeBench: one argument a line, as JSON, and the value as JSON
            arguments = [_json(line, f"input of test {index}") for line in arguments.split("\n") if line.strip()]
            output = _json(output, f"output of test {index}") if isinstance(output, str) else output
        elif isinstance(output, list) and len(output) == 1:
            output = Wrapped(output)
        calls.append((function, _list(arguments, f"input of test {index}")))
        wanted.append(output)
    return _of_calls(calls, wanted)


def _assertions(lines: Any) -> CodeTests:
    """What each assertion calls goes to the program as text; what it is compared with stays here."""
    pairs = [_assertion(line, index) for index, line in enumerate(_list(lines, "assert_case"))]
    return _of_calls([(left, None) for left, _ in pairs], [right for _, right in pairs])


def _assertion(line: Any, index: int) -> tuple[str, Any]:
    """(expression, expected value) of `assert f(1) == 2`, `assert f(1) is None`, `assert f(1)` or `assert not f(1)`."""
    where = f"assert_case[{index}]"
    problem = MalformedTests(
        f"{where}: {str(line)[:80]!r} is not `assert EXPRESSION == LITERAL`, `assert EXPRESSION` or `assert not "
        "EXPRESSION`; write it so, or leave the test out"
    )
    try:
        [statement] = ast.parse(str(line).strip()).body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise problem from None
    if not isinstance(statement, ast.Assert):
        raise problem
    match statement.test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            for one, other in ((left, right), (right, left)):
                try:
                    return ast.unparse(one), plain(ast.literal_eval(other))
                except (ValueError, TypeError, SyntaxError, RecursionError):
                    continue
            raise problem
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
            return f"not {ast.unparse(call)}", True
        case ast.Call() as call:
            return f"not not {ast.unparse(call)}", True
        case _:
            raise problem


def _of_stdin(inputs: list[str], outputs: list[str]) -> CodeTests:
    _some(inputs)
    return CodeTests(tuple(inputs), (), tuple(outputs))


def _of_calls(calls: Sequence[Call], expected: Sequence[Any]) -> CodeTests:
    _some(calls)
    for name, arguments in calls:
        if arguments is not None and not name.isidentifier():
            raise MalformedTests(f"{name!r} is no name of a function; correct it")
    return CodeTests((), tuple(calls), tuple(expected))


def _some(tests: Sequence[Any]) -> None:
    if not tests:
        raise MalformedTests("there are no tests; every program would pass, so leave the problem out")


def _all_cases(data: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for name in ("public_test_cases", "private_test_cases"):
        cases = _unwrapped(data.get(name) or [], name)
        if isinstance(cases, str):
            raise MalformedTests(f"{name} is not JSON; LiveCodeBench packs its tests: unpack them once (zlib, pickle)")
        found += _list(cases, name)
    return found


def _kind(test: Any, index: int) -> str:
    if not isinstance(test, dict) or not {"input", "output"} <= test.keys():
        raise MalformedTests(f'test {index} is no object with "input" and "output"; {_SHAPES}')
    kind = test.get("type", test.get("testtype", "function_call" if _name(test) else "stdin_stdout"))
    if kind not in _STDIN + _CALL:
        raise MalformedTests(f"type {kind!r} of test {index} is unknown; known: {', '.join(_STDIN + _CALL)}")
    return "call" if kind in _CALL else "stdin"


def _name(data: dict[str, Any]) -> str | None:
    """The function's name, wherever the data sets put it."""
    metadata = _unwrapped(data.get("metadata") or {}, "metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    name = data.get("fn_name") or data.get("func_name") or inner.get("func_name") or inner.get("fn_name")
    return None if name is None else str(name).rpartition(".")[2]


def _unwrapped(value: Any, where: str) -> Any:
    """The value of JSON that was written as text once more; other text is left alone."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        return _json(value, where)
    return value


def _json(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedTests(f"{where}: not JSON ({error}); correct it") from None


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedTests(f"{where} is no list, but {str(value)[:40]!r}; write a JSON list")
    return value


def _lines(value: Any, where: str) -> str:
    """Text, or lines of text as APPS writes some."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise MalformedTests(f"{where} is no text, but {str(value)[:40]!r}; write text, or name the function to call")
    return value
