"""The code grader: which block counts, every shape of tests, how outputs are compared, and what is refused at load."""

from __future__ import annotations

import json
import logging
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.code import CodeGrader, Wrapped, code_of, read_tests, same_output, same_value
from isocompute_jax.tasks.sandbox import Failed, SandboxLimits

ADD_STDIN = "a, b = map(int, input().split())\nprint(a + b)"
ADD = "def add(a, b):\n    return a + b"
ADD_METHOD = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"

STDIN_SHAPES = {
    "columns": {"inputs": ["1 2\n", "3 4"], "outputs": ["3", "7\n"]},
    "lines": {"inputs": [["1 2"], ["3 4"]], "outputs": [["3"], ["7"]]},
    "list": [
        {"input": "1 2", "output": "3", "type": "stdin_stdout"},
        {"input": "3 4", "output": "7", "testtype": "stdin"},
    ],
    "list without types": [{"input": "1 2", "output": "3"}, {"input": "3 4", "output": "7"}],
    "LiveCodeBench": {
        "public_test_cases": [{"input": "1 2", "output": "3", "testtype": "stdin"}],
        "private_test_cases": json.dumps([{"input": "3 4", "output": "7", "testtype": "stdin"}]),
    },
}
_CALL = {"metadata": {"func_name": "add"}}
CALL_SHAPES = {
    "columns": {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]},
    "columns of APPS": {"fn_name": "Solution.add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]},
    "list": [
        {"input": [1, 2], "output": 3, "type": "function_call", **_CALL},
        {"input": [3, 4], "output": [7], "type": "function_call", "fn_name": "add"},
    ],
    "LiveCodeBench": {
        "metadata": json.dumps({"func_name": "add"}),
        "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
        "private_test_cases": [json.dumps({"input": "3\n4\n", "output": "7", "testtype": "functional"})],
    },
    "assertions": {"assert_case": ["assert add(1, 2) == 3", "assert 7 == add(3, b=4), 'sum'"]},
    "written as text again": json.dumps({"fn_name": "add", "inputs": "[[1, 2], [3, 4]]", "outputs": [3, 7]}),
}


def problem(tests: object) -> Problem:
    return Problem("p1", "Add.", tests if isinstance(tests, str) else json.dumps(tests), "code")


def block(code: str, mark: str = "python") -> str:
    return f"```{mark}\n{code}\n```"


@pytest.fixture(scope="module")
def grader():
    grader = CodeGrader(SandboxLimits(test_s=30, wall_s=60))
    yield grader
    grader.close()


# Rewards.


@pytest.mark.parametrize("shape", STDIN_SHAPES)
def test_standard_input_in_every_shape(grader, shape):
    tests = problem(STDIN_SHAPES[shape])
    assert grader.fault(tests) is None
    right = grader.grade(tests, f"<think>```python\nprint(0)\n```</think> Like this:\n{block(ADD_STDIN)}\nDone.")
    assert (right.reward, right.metrics) == (1.0, {"tests_passed": 1.0})
    half = grader.grade(tests, block("print(3)"))
    assert (half.reward, half.metrics) == (0.0, {"tests_passed": 0.5})


@pytest.mark.parametrize("program", [ADD, ADD_METHOD], ids=["function", "method"])
@pytest.mark.parametrize("shape", CALL_SHAPES)
def test_functions_in_every_shape(grader, shape, program):
    tests = problem(CALL_SHAPES[shape])
    assert grader.fault(tests) is None
    if shape == "assertions" and program is ADD_METHOD:
        program += "\nadd = Solution().add"
    assert grader.grade(tests, block(program)).reward == 1.0
    assert grader.grade(tests, block(program.replace("a + b", "3"))).metrics == {"tests_passed": 0.5}


def test_an_answer_of_the_wrong_kind_is_worth_nothing(grader):
    calls, stdin = problem(CALL_SHAPES["columns"]), problem(STDIN_SHAPES["columns"])
    for tests, text in [
        (calls, "The answer is 3."),
        (calls, "```python\ndef add(a, b): return a + b"),
        (calls, block(ADD) + "</think>"),
        (calls, block(ADD_STDIN)),
        (calls, block("def add(a, b): return str(a + b)")),
        (stdin, block(ADD)),
        (stdin, block(ADD_STDIN + "\nraise SystemExit(3)")),
    ]:
        assert grader.grade(tests, text).metrics == {"tests_passed": 0.0}


def test_assertions_of_all_kinds(grader):
    lines = ["assert f(1)", "assert not f(0)", "assert f(0) is None", "assert -1 == g(-1)"]
    lines += ["assert f(2) == {1: (1, 2.5), 'a': {3, 4}}"]
    source = """
def f(x): return None if x == 0 else [1] if x == 1 else {1: [1, 2.5000000001], 'a': {4, 3}}
def g(x): return x
"""
    assert grader.grade(problem({"assert_case": lines}), block(source)).metrics == {"tests_passed": 1.0}


def test_what_an_assertion_compares_with_never_leaves():
    tests = read_tests(json.dumps({"assert_case": ["assert f(1) == 'secret', 'secret'", "assert 'secret' == g(2)"]}))
    assert tests.calls == (("f(1)", None), ("g(2)", None)) and tests.expected == ("secret", "secret")


def test_a_grader_goes_to_another_process_as_its_limits(grader, caplog):
    with caplog.at_level(logging.INFO):
        copy = pickle.loads(pickle.dumps(grader))
        tests = problem(STDIN_SHAPES["columns"])
        assert copy.limits == grader.limits
        for _ in range(2):
            assert copy.grade(tests, block(ADD_STDIN)).reward == 1.0
        copy.close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["The sandbox for code isolates"]


# Which block.


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no code", None), ("``` unclosed\nx", None), ("```\na\n```", "a"),
        ("```python\na\n```\n```python\nb\n```", "b"), ("```py\na\n```\nIt prints\n```\n3\n```", "a"),
        ("```text\n1\n```\n```\na\n```", "a"), ("```Python3 \na\n```", "a"),
        ("1. This:\n   ```python\n   if a:\n       b\n   ```", "if a:\n    b"),
        ("```python\na\n\n```python\nb\n```", "b"), ("```python\na\n```</think>none", None),
        ("<think>```python\na\n```</think>\n```python\nb\n```", "b"),
        ("</think>\n```python\na\n```\n</think>\n```python\nb\n```", "b"),
        ("```python\na\n```\nand ```inline``` is none\n", "a"), ("```python\r\na\r\n```\r\n", "a\r"),
    ],
)  # fmt: skip
def test_the_last_block_counts(text, code):
    assert code_of(text) == code


# Equality.


@pytest.mark.parametrize(("found", "expected"), [
    ("3", "3\n"), ("1 2\n3  \n\n", "1  2\n3"), ("0.3333333", "0.33333334"), ("5.0", "5"), ("5", "5.0"), ("-0", "0"),
    ("+7", "007"), ("1e3", "1000.0"), ("1e10", "1e10"), ("yes 2.0000001", "yes 2.0"), ("100000.01", "100000.05"),
])  # fmt: skip
def test_equal_outputs(found, expected):
    assert same_output(found, expected)


@pytest.mark.parametrize(("found", "expected"), [
    ("1\n2", "1 2"), ("1 2 3", "1 2"), ("1\n\n2", "1\n2"), ("yes", "YES"), ("5.1", "5"), ("1000000001", "1000000000"),
    ("1000000000.0000001", "1000000000"), ("0.33", "0.3333333"), ("nan", "1.0"), ("inf", "1e999"), ("1e999", "1.0"),
    ("1_0", "10.0"), ("", "0"), ("٣", "3.0"),
])  # fmt: skip
def test_different_outputs(found, expected):
    assert not same_output(found, expected)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=1), min_size=1))
def test_numbers_equal_themselves_however_they_are_spaced(rows):
    text = "\n".join(" ".join(map(repr, row)) for row in rows)
    assert same_output(text.replace(" ", "   ").replace("\n", " \n") + "\n\n", text)
    assert not same_output(text + " 1", text)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (3, 3, True), (True, 1, True), (1.0, 1, True), (0.1 + 0.2, 0.3, True), ("1", 1, False), (None, 0, False),
        ([1, [2.0000001]], [1, [2]], True), ([1], [1, 2], False), ({"a": [1]}, {"a": [1]}, True),
        ({"a": 1}, {"b": 1}, False), ([], {}, False), (float("nan"), float("nan"), False),
        (float("inf"), float("inf"), True), (float("inf"), 1.0, False), (10**400, 1.0, False),
        (10**400, 10**400 + 1, False), (Failed, None, False), (3, Wrapped([3]), True), ([3], Wrapped([3]), True),
        (4, Wrapped([3]), False),
    ],
)  # fmt: skip
def test_values(found, expected, same):
    assert same_value(found, expected) is same


# What is refused at load.


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("5", "none of the shapes of tests; write"),
        ("not json", r"answer: not JSON \(.*write \{\"inputs\""),
        ("[" * 100_000, "not JSON"),
        ({"input": ["1"]}, "object with 'input' is none of the shapes"),
        ({"inputs": [], "outputs": []}, "no tests; every program would pass"),
        ([], "no tests"),
        ({"assert_case": []}, "no tests"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs but 0 outputs"),
        ({"inputs": "1", "outputs": "2"}, "inputs is no list"),
        ({"inputs": [[1]], "outputs": [2]}, r"inputs\[0\] is no text.*name the function"),
        ({"inputs": ["1"], "outputs": [2]}, r"outputs\[0\] is no text"),
        ({"fn_name": "f", "inputs": [1], "outputs": [2]}, r"inputs\[0\] is no list"),
        ({"fn_name": "f()", "inputs": [[1]], "outputs": [2]}, "'f()' is no name of a function".replace("()", r"\(\)")),
        ([{"input": "1"}], 'test 0 is no object with "input" and "output"'),
        ([{"input": "1", "output": "1", "type": "x"}], "type 'x' of test 0 is unknown; known: stdin_stdout, stdin"),
        ([{"input": "1", "output": "1", "type": "functional"}], 'names none; add "metadata"'),
        ([{"input": "x", "output": "1", "fn_name": "f"}], "input of test 0: not JSON"),
        ([{"input": "1", "output": "x", "fn_name": "f"}], "output of test 0: not JSON"),
        ([{"input": "1", "output": "1"}, {"input": [], "output": 1, "fn_name": "f"}], "give each kind a problem"),
        ({"private_test_cases": "eJxrYJk"}, "private_test_cases is not JSON; .* unpack them once"),
        ({"assert_case": ["assert f(1) < 2"]}, r"assert_case\[0\]: 'assert f\(1\) < 2' is not `assert EXPRESSION == "),
        ({"assert_case": ["assert f(1) == g(1)"]}, "is not `assert"),
        ({"assert_case": ["f(1)"]}, "is not `assert"),
        ({"assert_case": ["assert f("]}, "is not `assert"),
        ({"assert_case": ["assert f(1) == b'a'"]}, "is not `assert"),
    ],
)  # fmt: skip
def test_tests_that_cannot_be_read_are_refused(grader, tests, message):
    fault = grader.fault(problem(tests))
    assert fault is not None and fault.startswith("answer: ") and re.search(message, fault), fault
    with pytest.raises(InputError, match=r"problem p1: answer: "):
        grader.grade(problem(tests), block(ADD))
