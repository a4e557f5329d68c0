"""Problem sets there and back, and one message per mistake that names file, line and field."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
import tempfile
import weakref

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import ProblemFile, RewardConfig, read_problems, rows, write_problems
from isocompute_jax.tasks.problem_sets import problem_of
from tests.tasks.files import write_rows

SUFFIXES = (".jsonl", ".parquet")

texts = st.text(min_size=1).filter(str.strip)
rates = st.dictionaries(st.sampled_from(["avg@4", "avg@16", "avg@128"]), st.floats(0, 1))
problems_of_text = st.lists(
    st.builds(Problem, id=texts, prompt=texts, answer=st.from_regex(r"[^\W#]+", fullmatch=True), task=st.just("exact"),
              measured=rates),
    min_size=1, unique_by=lambda problem: problem.id,
)  # fmt: skip


@settings(max_examples=40)
@given(problems_of_text, st.sampled_from(SUFFIXES))
def test_round_trip(problems, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"new/set{suffix}")
        write_problems(path, problems)
        assert read_problems(path) == problems
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_jsonl_as_it_stands_in_the_file(tmp_path):
    path = tmp_path / "set.jsonl"
    write_problems(path, [Problem("a", "Größe?\u2028x", "3", "exact", {"avg@16": 0.25, "avg@4": 0.5})])
    assert path.read_text(encoding="utf-8") == (
        '{"id": "a", "prompt": "Größe?\u2028x", "answer": "3", "task": "exact", "avg@16": 0.25, "avg@4": 0.5}\n'
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_defaults_and_foreign_columns(tmp_path, suffix):
    rows = [
        {"prompt": "2+2?", "answer": 4, "avg@16": 1, "source": [{"x": 2}], "level": 2.5, "hard": True},
        {"prompt": "2+3?", "answer": 5, "avg@16": None, "source": [], "level": None, "hard": False},
    ]
    path = write_rows(tmp_path / f"sums{suffix}", *rows)
    found = read_problems(path, default_task="numeric")
    assert found == [
        Problem("sums-1", "2+2?", "4", "numeric", {"avg@16": 1.0},
                extra={"source": [{"x": 2}], "level": 2.5, "hard": True}),
        Problem("sums-2", "2+3?", "5", "numeric", extra={"source": [], "hard": False}),
    ]  # fmt: skip
    assert type(found[0].extra["source"][0]["x"]) is int  # a number, not its spelling
    some = read_problems(path, default_task="numeric", extra=["level"])
    assert [problem.extra for problem in some] == [{"level": 2.5}, {}]


MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_messages_and_token_ids(tmp_path, suffix):
    answer = {"answer": "4", "task": "numeric"}
    rows = [{"id": "chat", "prompt": [dict(message) for message in MESSAGES], **answer}]
    tokens = [{"id": "ids", "prompt": [7, 0, 151644], **answer}]
    both = [{"id": "both", "prompt": "2+2?", "prompt_tokens": [7, 8], **answer}]
    found = [
        read_problems(write_rows(tmp_path / f"{number}{suffix}", *kind))[0]
        for number, kind in enumerate((rows, tokens, both))
    ]
    assert found == [
        Problem("chat", MESSAGES, "4", "numeric"),
        Problem("ids", "", "4", "numeric", prompt_tokens=(7, 0, 151644)),
        Problem("both", "2+2?", "4", "numeric", prompt_tokens=(7, 8)),
    ]
    assert [problem.text for problem in found] == ["2+2?", "7 0 151644", "2+2?"]
    for number, problem in enumerate(found):  # a column of a Parquet file has one type
        write_problems(tmp_path / f"again{number}{suffix}", [problem])
        assert read_problems(tmp_path / f"again{number}{suffix}") == [problem]


@pytest.mark.parametrize("written", [json.dumps, repr, lambda messages: f"\n {json.dumps(messages, indent=1)}\n"])
@given(contents=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=3))
def test_messages_that_stand_as_text_are_read(written, contents):
    """As cells of CSV files have them."""
    messages = [{"role": "user", "content": f"{each}?"} for each in contents]
    row = {"prompt": written(messages), "answer": "4", "task": "numeric"}
    assert problem_of(row, "set.csv:2", default_id="a", default_task=None).prompt == tuple(messages)


@pytest.mark.parametrize("prompt", ["[3, 4]: add", '[{"x": 3}]: add', "Say [{'role': 'user'}]."])
def test_other_texts_are_no_messages(prompt):
    row = {"prompt": prompt, "answer": "7", "task": "numeric"}
    assert problem_of(row, "set.csv:2", default_id="a", default_task=None).prompt == prompt


def test_a_chat_in_parquet_lacks_what_other_rows_have(tmp_path):
    """Nested columns give every message the fields of all."""
    prompt = [{"role": "user", "content": "2+2?", "name": None}]
    path = write_rows(tmp_path / "s.parquet", {"prompt": prompt, "answer": "4", "task": "numeric"})
    assert read_problems(path)[0].prompt == ({"role": "user", "content": "2+2?"},)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=20)
@given(st.dictionaries(texts.filter(lambda name: "@" not in name), json_values.filter(lambda v: v is not None)))
def test_extra_columns_round_trip(extra):
    extra = {f"x{name}": value for name, value in extra.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "set.jsonl")
        write_problems(path, [Problem("a", "p", "1", "exact", extra=extra)])
        [found] = read_problems(path)
    assert found.extra == extra
    assert json.dumps(found.extra) == json.dumps(extra)  # types too: 1 is not 1.0, nor True


def test_numbers_keep_their_spelling_and_lines_their_number(tmp_path):
    path = tmp_path / "set.jsonl"
    lines = [
        '\ufeff{"id": 7, "prompt": "p", "answer": 2.50, "task": "exact"}\r',
        "",
        '{"prompt": "q", "answer": 12345678901234567890123, "task": "exact"}',
        '{"prompt": "r", "answer": 1e400, "task": "exact"}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = [(problem.id, problem.answer) for problem in read_problems(path)]
    assert found == [("7", "2.50"), ("set-3", "12345678901234567890123"), ("set-4", "1e400")]


def test_a_row_names_its_own_task(tmp_path):
    rows = [{"prompt": "1+1=", "answer": "2", "task": "arithmetic"}, {"prompt": "Capital?", "answer": "Paris"}]
    tasks = [problem.task for problem in read_problems(write_rows(tmp_path / "s.jsonl", *rows), default_task="exact")]
    assert tasks == ["arithmetic", "exact"]


def test_a_file_names_no_function_and_no_address(tmp_path, monkeypatch):
    """Nothing is imported for it; what the config says is graded by that, and what it allows may be named."""
    (tmp_path / "unasked.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.chdir(tmp_path)
    rows = [
        {"prompt": "1+1=", "answer": "2", "task": "numeric"},
        {"prompt": "1+1=", "answer": "3", "task": "unasked:grade"},
        {"prompt": "1+1=", "answer": "4", "task": "https://a.example/s"},
        {"prompt": "1+1=", "answer": "5", "task": "http://a.example/s, http://b.example/s"},
        {"prompt": "1+1=", "answer": "6", "task": "gym:a b"},
    ]
    faults = {1: "is a function", 2: "is an address", 3: "is an address", 4: "write gym:NAME"}
    for config in (RewardConfig(), RewardConfig(allow=("http://a.example/s", "other:grade"))):
        for number, what in faults.items():
            path = write_rows(tmp_path / "s.jsonl", rows[0], rows[number])
            for read in (read_problems, functools.partial(read_problems, grader_name=config.name_for)):
                with pytest.raises(InputError, match=f"^{re.escape(str(path))}:2: .*{what}"):
                    read(path)
    path = write_rows(tmp_path / "s.jsonl", *rows[2:4])
    allowed = RewardConfig(allow=("https://a.example/s", "http://a.example/s", "http://b.example/s"))
    assert [allowed.name_for(p.task) for p in read_problems(path, grader_name=allowed.name_for)] == [
        row["task"] for row in rows[2:4]
    ]
    path = write_rows(tmp_path / "s.jsonl", *rows[:4])
    for config in (RewardConfig("exact"), RewardConfig(tasks={row["task"]: "exact" for row in rows})):
        assert [config.name_for(p.task) for p in read_problems(path, grader_name=config.name_for)] == ["exact"] * 4


def test_equal_prompts_are_allowed(tmp_path):
    problems = [Problem("a", "p", "1", "exact"), Problem("b", "p", "1", "exact")]
    write_problems(tmp_path / "s.jsonl", problems)
    assert read_problems(tmp_path / "s.jsonl") == problems


GOOD = {"id": "a", "prompt": "2+2?", "answer": "4", "task": "numeric"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "answer: missing"), ({"answer": " \n"}, "answer: missing"),
        ({"answer": True}, "answer: .*bool"), ({"answer": ["4"]}, "answer: .*list"),
        ({"answer": "four"}, "answer: 'four' .*'exact'"), ({"prompt": ""}, "prompt: missing"),
        ({"prompt": 3}, "prompt: .*number"), ({"task": "numerc"}, "task = 'numerc': .*'numeric'"),
        ({"task": None}, "task: missing"), ({"task": "arithmetic"}, "prompt: '2[+]2[?]'"),
        ({"prompt": [1.5]}, "prompt: is no list of token ids"),
        ({"prompt_tokens": [-1]}, "prompt_tokens: is no list of token ids"),
        ({"prompt": [{"role": "user"}]}, "prompt: message 1: content: missing"),
        ({"prompt": [{"role": "user", "content": ["text"]}]}, "prompt: message 1: content: missing, or no text"),
        ({"prompt": [{"content": "2+2?"}]}, "prompt: message 1: role: missing"),
        ({"prompt": "[{'role': 'user'}\n {'role': 'user'}]"}, "prompt: begins as messages .* neither JSON nor Python"),
        ({"prompt": '[{"from": "human", "value": "2+2?"}]'}, "prompt: message 1: role: missing"),
        ({"prompt": [{"role": "user", "content": " "}]}, "prompt: all its messages are empty"),
        ({"prompt": [{"role": "assistant", "content": "4"}]}, "prompt: its last message is the assistant's"),
        ({"prompt": None, "prompt_tokens": []}, "prompt: missing"),
        ({"answer": None, "gold": "4"}, "answer: missing or empty; .*[(]is it gold[?] .*--columns=theirs:answer"),
        ({"avg@16": 1.5}, "avg@16: .*'1.5'"), ({"avg@16": "high"}, "avg@16: .*'high'"),
        ({"id": "first"}, "id: 'first' .*set.*1"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path, suffix, change, message):
    path = tmp_path / f"set{suffix}"
    # A column of a Parquet file has one type, so only a row of the same types can stand before the bad one.
    first = [GOOD | {"id": "first"}] if suffix == ".jsonl" or change == {"id": "first"} else []
    rows = [*first, GOOD | change]
    write_rows(path, *rows)
    place = f"{path}:{len(rows)}" if suffix == ".jsonl" else f"{path}: row {len(rows)}"
    with pytest.raises(InputError, match=f"^{re.escape(place)}: {message}"):
        read_problems(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": ', "not JSON in UTF-8"),
        (b'{"prompt": "\xff"}', "not JSON in UTF-8"),
        (b'{"prompt": "p", "answer": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "not JSON in UTF-8"),
        (b"[1]", "not a JSON object"),
        (b'{"prompt": "\\ud800", "answer": "1", "task": "exact"}', "prompt: has half of a surrogate pair"),
        (b'{"prompt": "p", "answer": "1", "task": "exact", "x": ["\\ud800"]}', "x: has half of a surrogate pair"),
        (b'{"prompt": [1, {"role": "user"}], "answer": "1", "task": "exact"}', "prompt: is no list of token ids"),
        (b'{"prompt": [{"role": "user", "content": "p"}, 1], "answer": "1", "task": "exact"}', "message 2: is no mess"),
        (b'{"prompt": [1], "prompt_tokens": [1], "answer": "1", "task": "exact"}', "prompt: is a list beside prompt_t"),
    ],
    ids=["cut", "latin", "nan", "deep", "list", "surrogate", "extra", "mixed", "no message", "twice"],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "set.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(InputError, match=f"{re.escape(str(path))}:3: .*{message}"):
        read_problems(path)


def test_a_bad_file_is_named(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "text.parquet").write_text("id,prompt\n")
    (tmp_path / "folder.jsonl").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"id": pyarrow.array([], pyarrow.string())}), tmp_path / "empty.parquet")
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["answer", "answer"]), tmp_path / "twice.parquet"
    )
    for name, message in {
        "missing.jsonl": "no such problem set",
        "empty.jsonl": "the problem set is empty",
        "empty.parquet": "the problem set is empty",
        "text.parquet": "not a Parquet file",
        "folder.jsonl": "cannot be read",
        "set.csv": r"unknown extension '.csv'",
        "twice.parquet": "the column 'answer' occurs twice",
    }.items():
        with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / name))}: {message}"):
            read_problems(tmp_path / name)


def test_missing_cells_of_data_frames(tmp_path):
    path = tmp_path / "set.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["p", "q"], "answer": [4.5, float("nan")]}), path)
    with pytest.raises(InputError, match="row 2: answer: missing or empty"):
        read_problems(path, default_task="numeric")


def test_nothing_unreadable_is_written(tmp_path):
    problem = Problem("a", "p", "1", "exact")
    for path, problems, message in [
        ("s.jsonl", [], "no problems to write"),
        ("s.jsonl", [problem, problem], "two problems have the same id"),
        ("s.csv", [problem], "unknown extension"),
        ("s.jsonl", [dataclasses.replace(problem, extra={"answer": 1})], "'answer' is no name for an extra column"),
        ("s.jsonl", [dataclasses.replace(problem, extra={"x": float("nan")})], "'a': extra columns hold what JSON has"),
        ("s.jsonl", [dataclasses.replace(problem, extra={"x": b""})], "'a': extra columns hold what JSON has not"),
        (
            "s.parquet",
            [dataclasses.replace(problem, id=str(x), extra={"x": x}) for x in (1, "a")],
            "x: Parquet has one",
        ),
        ("s.parquet", [dataclasses.replace(problem, extra={"x": {}})], "Parquet has no room for these columns"),
    ]:
        with pytest.raises(InputError, match=message):
            write_problems(tmp_path / path, problems)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_read_and_written_one_problem_at_a_time(tmp_path):
    """Rows behind the one that is asked for are not looked at, and each pass begins anew."""
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": 2, "task": "numeric"}\n' * 2 + "no JSON\n")
    found = ProblemFile(path)
    for _ in range(2):
        rows = iter(found)
        assert [next(rows).id, next(rows).id] == ["set-1", "set-2"]
        with pytest.raises(InputError, match=r"set.jsonl:3: not JSON"):
            next(rows)
    seen: list[weakref.ref[Problem]] = []
    most = 0

    def made():
        nonlocal most
        for i in range(9):
            problem = Problem(f"p{i}", f"{i}=", "1", "numeric")
            seen.append(weakref.ref(problem))
            most = max(most, sum(ref() is not None for ref in seen))
            yield problem
            del problem

    write_problems(tmp_path / "out.jsonl", made())
    assert most <= 2 and len(read_problems(tmp_path / "out.jsonl")) == 9


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_cannot_be_written_whole_is_not_written(tmp_path, suffix):
    path = tmp_path / f"set{suffix}"
    write_problems(path, [Problem("p", "1=", "1", "numeric")])
    before = path.read_bytes()
    with pytest.raises(InputError, match="two problems have the same id"):
        write_problems(path, (Problem("q", "1=", "1", "numeric") for _ in range(2)))
    assert path.read_bytes() == before and [path] == list(tmp_path.iterdir())


def test_parquet_is_read_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "PARQUET_ROWS", 4)
    problems = [Problem(f"p{i}", f"{i}=", "1", "numeric") for i in range(10)]
    write_problems(tmp_path / "set.parquet", problems)
    assert read_problems(tmp_path / "set.parquet") == problems
    with pytest.raises(InputError, match=r"set.parquet: row 10: prompt: missing"):
        table = pyarrow.parquet.read_table(tmp_path / "set.parquet").to_pydict()
        table["prompt"][-1] = None
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "set.parquet")
        read_problems(tmp_path / "set.parquet")
