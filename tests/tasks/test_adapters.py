r"""Every adapter on rows in its data set's own shape, with invented problems, from JSONL and from Parquet."""

from __future__ import annotations

import inspect
import json

import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks.convert import ADAPTERS, ConvertOptions, convert, last_box
from isocompute_jax.tasks.graders.code import read_tests
from isocompute_jax.tasks.rows import read_rows
from tests.tasks.files import write_rows

TESTS = [{"input": "2 3\n", "output": "5\n", "type": "stdin_stdout"}]
FUNCTION_TESTS = [{"input": "2\n3", "output": "5", "testtype": "functional"}]

VERL = {
    "data_source": "math_invented",
    "prompt": [{"content": "What is 40 + 2?", "role": "user"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "extra_info": {"index": "9a9b6eb4-a1cb", "split": "train"},
}
ROWS = {
    "dapo_math_17k": [VERL],
    "guru_math": [
        VERL
        | {"extra_info": {"index": 7}, "apply_chat_template": True}
        | {"qwen2.5_7b_pass_rate": 0.375, "qwen3_30b_pass_rate": 1.0}
    ],
    "polaris_53k": [{"difficulty": "3/8", "problem": "What is 40 + 2?", "answer": "42"}],
    "deepcoder": [
        {"problem": "Add two numbers.", "tests": json.dumps(TESTS), "solutions": ["print(5)"], "metadata": "{}"},
        {
            "problem": "Add two numbers!",
            "tests": json.dumps(FUNCTION_TESTS),
            "metadata": json.dumps({"func_name": "add"}),
            "starter_code": "def add(a, b):",
        },
        {"problem": "Add!", "tests": '{"inputs": [[2, 3]], "outputs": [5]}', "metadata": '{"func_name": "add"}'},
    ],
    "aime": [
        {"ID": "2031-I-4", "Problem": "What is 40 + 2?", "Solution": "Add.", "Answer": 42},
        {"ID": "2031-I-5", "Problem": "What is 4 + 2?", "Solution": "Add.", "Answer": 6},
    ],
    "gsm8k": [{"question": "Mia has 1,000 pens, buys 2. Now?", "answer": "1000 + 2 = <<1000+2=1002>>\n#### 1,002"}],
    "math": [
        {
            "problem": "What is half of one?",
            "level": "Level 1",
            "type": "Prealgebra",
            "solution": r"First \boxed{3}, no: $\boxed{\frac{1}{2}}$.",
        }
    ],
}  # fmt: skip
"""Rows as their data sets have them: the same columns, other contents."""

CONVERTED = {
    "dapo_math_17k": [{
        "id": "9a9b6eb4-a1cb", "prompt": ({"content": "What is 40 + 2?", "role": "user"},), "answer": "42",
        "extra": {"data_source": "math_invented", "ability": "MATH"},
    }],
    "guru_math": [{
        "id": "math_invented-7", "answer": "42", "measured": {},
        "extra": {"data_source": "math_invented", "ability": "MATH",
                  "qwen2.5_7b_pass_rate": 0.375, "qwen3_30b_pass_rate": 1.0},
    }],
    "polaris_53k": [{"id": "rows-1", "prompt": "What is 40 + 2?", "answer": "42", "measured": {"avg@8": 0.375}}],
    "deepcoder": [
        {"prompt": "Add two numbers.", "answer": json.dumps(TESTS), "extra": {}},
        {"prompt": "Add two numbers!\n\nBegin with this code:\n```python\ndef add(a, b):\n```",
         "answer": json.dumps([{"metadata": {"func_name": "add"}, **FUNCTION_TESTS[0]}])},
        {"prompt": "Add!", "answer": '{"fn_name": "add", "inputs": [[2, 3]], "outputs": [5]}'},
    ],
    "aime": [{"id": "2031-I-4", "prompt": "What is 40 + 2?", "answer": "42", "extra": {}},
             {"id": "2031-I-5", "answer": "6"}],
    "gsm8k": [{"prompt": "Mia has 1,000 pens, buys 2. Now?", "answer": "1002"}],
    "math": [{"prompt": "What is half of one?", "answer": r"\frac{1}{2}",
              "extra": {"level": "Level 1", "type": "Prealgebra"}}],
}  # fmt: skip


def test_every_adapter_has_rows_and_a_docstring():
    assert ROWS.keys() == CONVERTED.keys() == ADAPTERS.keys()
    assert all(inspect.getdoc(adapter.convert) for adapter in ADAPTERS.values())


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_become_problems(tmp_path, name, suffix):
    path = write_rows(tmp_path / f"rows{suffix}", *ROWS[name])
    # Graded by text, so that this is about columns alone.
    converted = convert([path], ConvertOptions(adapter=name, task="exact"))
    assert len(converted) == len(CONVERTED[name])
    for problem, expected in zip(converted, CONVERTED[name], strict=True):
        assert {field: getattr(problem, field) for field in expected} == expected
        assert problem.task == "exact"


@pytest.mark.parametrize("name", ROWS)
def test_an_adapter_says_which_columns_it_reads(tmp_path, name):
    """Of a Parquet file only those are read."""
    adapter = ADAPTERS[name]
    for row in ROWS[name]:
        read = {column: value for column, value in row.items() if column in adapter.columns}
        assert adapter.convert(read) == adapter.convert(row)
    assert adapter.task in {"math", "code", "numeric"}


def test_the_tests_of_deepcoder_are_what_the_code_grader_reads():
    stdin, listed, columns = (read_tests(ADAPTERS["deepcoder"].convert(row)["answer"]) for row in ROWS["deepcoder"])
    assert (stdin.inputs, stdin.calls) == (("2 3\n",), ())
    assert [(name, list(arguments or ())) for name, arguments in listed.calls] == [("add", [2, 3])]
    assert [(name, list(arguments or ())) for name, arguments in columns.calls] == [("add", [2, 3])]


def test_a_published_file_that_repeats_its_rows(tmp_path, caplog):
    """As DAPO-Math-17k does, a hundred times."""
    caplog.set_level("INFO")
    rows = [
        VERL | {"extra_info": {"index": f"{i}"}, "prompt": [{"content": f"{i}?", "role": "user"}]} for i in range(3)
    ]
    path = write_rows(tmp_path / "dapo.parquet", *(rows * 100))
    found = convert([path], ConvertOptions(adapter="dapo_math_17k", task="numeric"))
    assert [problem.id for problem in found] == ["0", "1", "2"]
    assert caplog.messages == ["297 rows repeat an earlier one and were dropped"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dapo_math_17k", {"reward_model": {"style": "rule"}}, "reward_model.ground_truth: missing; this is not the"),
        ("guru_math", {"prompt": None}, "prompt: missing; this is not the layout"),
        ("polaris_53k", {"difficulty": "hard"}, "difficulty: 'hard' is no share of samples, such as 3/8"),
        ("polaris_53k", {"difficulty": "9/8"}, "difficulty: '9/8' is no share"),
        ("polaris_53k", {"difficulty": "0/0"}, "difficulty: '0/0' is no share"),
        ("deepcoder", {"tests": "[{"}, "tests: not JSON"),
        ("aime", {"Answer": 1000}, "answer: '1000' is no whole number from 0 to 999"),
        ("gsm8k", {"answer": "42"}, "answer: has no '####'"),
        ("math", {"solution": "It is 42."}, r"solution: has no \\boxed"),
        ("math", {"solution": r"\boxed{42"}, r"solution: its last \\boxed\{ is not closed"),
    ],
)
def test_a_row_of_another_layout_is_named(tmp_path, name, change, message):
    path = write_rows(tmp_path / "rows.jsonl", ROWS[name][0] | change)
    with pytest.raises(InputError, match=f"rows.jsonl:1: {message}"):
        convert([path], ConvertOptions(adapter=name, task="exact"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{a}", "a"), (r"\boxed{a} then \boxed{ \{1, {2}\} }", r"\{1, {2}\}"), (r"\fbox{7}", "7"),
        (r"so \boxed 5.", "5"), (r"\boxed{\text{a}}", r"\text{a}"),
    ],
)  # fmt: skip
def test_the_last_box(text, answer):
    assert last_box(text) == answer


@pytest.mark.parametrize(("answer", "read"), [("033", "33"), ("000", "0"), (7, "7"), ("7.0", "7"), (" 540 ", "540")])
def test_answers_of_aime_have_no_leading_zeros(answer, read):
    row = {"problem": "p", "answer": answer, "id": "60", "url": "none"}  # names in lower case, as in other tables
    assert ADAPTERS["aime"].convert(row) == {"id": "60", "prompt": "p", "answer": read}
    assert ADAPTERS["aime"].convert({"Question": "p", "Answer": answer})["prompt"] == "p"


def test_rows_are_as_they_were_published(tmp_path):
    """The rows above, read back: what Parquet makes of them is what adapters see."""
    [row] = read_rows(write_rows(tmp_path / "rows.parquet", *ROWS["guru_math"]))
    assert row.columns == ROWS["guru_math"][0]
