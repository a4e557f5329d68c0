r"""Unit tests of code problems, read from the JSON of `Problem.answer` in the shapes of the field's data sets.

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
import json
from collections.abc import Sequence
from typing import Any

from isocompute_jax.tasks.sandbox import Call
from isocompute_jax.tasks.sandbox.inside.plain_values import plain

_STDIN, _CALL = ("stdin_stdout", "stdin"), ("function_call", "functional")
_SHAPES = (
    'write {"inputs": [...], "outputs": [...]}, with "fn_name" for a function; a list of {"input", "output", "type"}; '
    'or {"assert_case": [...]}'
)


class MalformedTests(ValueError):
    """Says which part of the tests is wrong, and what to write instead."""


@dataclasses.dataclass(frozen=True)
class CodeTests:
    """Tests of one problem: either texts for standard input or calls to what a program defines.

    Attributes:
      inputs: standard input of each test; empty where there are calls.
      calls: the calls; empty where there are inputs.
      expected: the text on standard output, or the plain value (`inside.plain_values`), of each test.
    """

    inputs: tuple[str, ...]
    calls: tuple[Call, ...]
    expected: tuple[Any, ...]


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


class Wrapped:
    """An expected list of one element, which some data sets write for the element itself: either is right."""

    def __init__(self, value: list[Any]):
        self.value = value


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
