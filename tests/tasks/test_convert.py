"""Any file to a problem set: formats, columns by other names, what is kept, and what is refused."""

from __future__ import annotations

import json
import pathlib

import pytest

from isocompute_jax.options import parse_renames
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import read_problems
from isocompute_jax.tasks.convert import ConvertOptions, convert
from isocompute_jax.tasks.rows import ABSENT, at_path, renamed
from isocompute_jax.tasks.splitting import SplitOptions, split_files
from tests import mains
from tests.tasks.files import write_rows

ROWS = [
    {"question": "2+2?", "gold": {"final": 4, "steps": "long"}, "source": "book"},
    {"question": "2+3?", "gold": {"final": 5, "steps": "longer"}, "source": "web"},
]
COLUMNS = {"question": "prompt", "gold.final": "answer", "source": "origin"}
PROBLEMS = [
    Problem("mine-1", "2+2?", "4", "numeric", extra={"origin": "book"}),
    Problem("mine-2", "2+3?", "5", "numeric", extra={"origin": "web"}),
]


def options(**fields) -> ConvertOptions:
    return ConvertOptions(**{"columns": COLUMNS, "task": "numeric", "extra": ("origin",)} | fields)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_columns_by_other_names(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        write_rows(path, *ROWS)
    assert convert([path], options()) == PROBLEMS


def test_csv(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('\ufeffquestion,gold,avg@4,source\n"2+2,\nor?",4,0.5,\n2+3?,5,,"a ""b"""\n', encoding="utf-8")
    columns = {"question": "prompt", "gold": "answer"}
    assert convert([path], ConvertOptions(columns=columns, task="numeric")) == [
        Problem("mine-3", "2+2,\nor?", "4", "numeric", {"avg@4": 0.5}),  # ids are those of the line that ends the row
        Problem("mine-4", "2+3?", "5", "numeric", extra={"source": 'a "b"'}),
    ]
    for text, message in {
        "prompt,prompt\n1,2\n": "the column 'prompt' occurs twice",
        "prompt,answer\n1,2,3\n": r"mine.csv:2: has 3 cells under 2 names",
        'prompt,answer\n"1,2\n': r"mine.csv:2: not CSV in UTF-8",
        "prompt,answer\n": "no problems in it",
        "": "no problems in it",
    }.items():
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            convert([path], ConvertOptions(task="exact"))
    path.write_bytes(b"prompt,answer\n\xff,1\n")
    with pytest.raises(InputError, match="not CSV in UTF-8"):
        convert([path], ConvertOptions(task="exact"))


def test_what_is_kept(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", *ROWS)

    def extra(**fields) -> list[str]:
        return list(convert([path], options(**fields))[0].extra)

    assert extra(extra=()) == extra(extra=("all",)) == ["origin", "gold"]
    assert extra(extra=("none",)) == []
    assert extra(extra=("gold",)) == ["origin", "gold"]
    adapted = write_rows(tmp_path / "gsm.jsonl", {"question": "q", "answer": "#### 1", "hint": "h", "task": "algebra"})

    def kept(*names: str) -> Problem:
        return convert([adapted], ConvertOptions(adapter="gsm8k", extra=names))[0]

    assert kept() == Problem("gsm-1", "q", "1", "numeric")  # its own column `task` means something else
    assert kept("hint").extra == {"hint": "h"}
    assert kept("all").extra == {"hint": "h", "question": "q"}


def test_directories_and_several_files_are_read_in_order(tmp_path):
    for name in ("b/2.jsonl", "b/1.jsonl", "a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_rows(tmp_path / name, {"prompt": name, "answer": "1"})
    (tmp_path / "b" / "LICENSE").write_text("text")
    found = convert([tmp_path / "b", tmp_path / "a.jsonl"], ConvertOptions(task="numeric"))
    assert [(problem.id, problem.text) for problem in found] == [
        ("1-1", "b/1.jsonl"), ("2-1", "b/2.jsonl"), ("a-1", "a.jsonl"),
    ]  # fmt: skip
    (tmp_path / "empty").mkdir()
    for source, message in {"empty": "has no .jsonl, .json", "b/LICENSE": "unknown extension ''"}.items():
        with pytest.raises(InputError, match=message):
            convert([tmp_path / source], ConvertOptions(task="numeric"))


def test_repeated_rows_are_dropped_and_bad_ones_named(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [
        {"id": "a", "prompt": "2+2?", "answer": "4"},
        {"id": "b", "prompt": "2+2?", "answer": "4"},
        {"id": "c", "prompt": "2+2?", "answer": "5"},
        {"id": "a", "prompt": "other", "answer": "4"},
        {"id": "d", "prompt": "2+3?", "answer": None},
    ]
    path = write_rows(tmp_path / "mine.jsonl", *rows)
    with pytest.raises(InputError, match=r"mine.jsonl:4: id: 'a' is that of another problem"):
        convert([path], ConvertOptions(task="numeric"))
    found = convert([path], ConvertOptions(task="numeric", skip_bad_rows=True))
    assert [problem.id for problem in found] == ["a", "c"]
    repeated, bad, *messages = caplog.messages
    assert repeated.startswith("1 rows repeat") and bad.startswith("2 rows are at fault")
    assert [message.split(": ")[0][-1] for message in messages] == ["4", "5"]
    path = write_rows(tmp_path / "bad.jsonl", rows[-1])
    with pytest.raises(InputError, match=r"no problems in it; the first row that is at fault: .*answer: missing"):
        convert([path], ConvertOptions(task="numeric", skip_bad_rows=True))


def test_the_input_of_an_instruction_stands_in_its_prompt(tmp_path):
    rows = [
        {"instruction": "Add.", "input": "1 2", "output": 3},
        {"instruction": "Add.", "input": "2 1", "output": 3},
        {"instruction": "Square.", "input": 2, "output": 4},
        {"instruction": "2+2?", "input": "", "output": 4},
        {"instruction": "2+3?", "output": 5},
    ]
    path = write_rows(tmp_path / "alpaca.jsonl", *rows)
    columns = {"instruction": "prompt", "output": "answer"}
    for extra in ((), ("none",)):
        found = convert([path], ConvertOptions(columns=columns, task="numeric", extra=extra))
        assert [problem.prompt for problem in found] == ["Add.\n\n1 2", "Add.\n\n2 1", "Square.\n\n2", "2+2?", "2+3?"]
    empty = write_rows(tmp_path / "empty.jsonl", {"instruction": None, "input": "1 2", "output": 3})
    with pytest.raises(InputError, match="prompt: missing or empty"):
        convert([empty], ConvertOptions(columns=columns, task="numeric"))


def test_what_repeated_rows_differ_in_is_named(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [{"prompt": "Add.", "context": each, "n": 1, "answer": "3"} for each in ("1 2", "2 1", "1 2")]
    assert len(convert([write_rows(tmp_path / "mine.jsonl", *rows)], ConvertOptions(task="numeric"))) == 1
    assert caplog.messages == [
        "2 rows repeat an earlier one and were dropped; they differ in context, which no prompt has"
    ]


def test_a_column_that_no_row_has_is_named(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", *ROWS)
    with pytest.raises(InputError, match=r"--columns: no row of .*mine.jsonl has 'soruce'; check its name"):
        convert([path], options(columns=COLUMNS | {"soruce": "place"}))
    two = COLUMNS | {"problem": "prompt"}  # several of theirs for one of ours: files differ
    assert convert([path], options(columns=two)) == PROBLEMS


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", {"b.c": [{"d": 1}]}), ("a.b.c.0.d", 1), ("a.b.c.1", ABSENT), ("a.b.c.x", ABSENT),
        ("a.b.c.0.d.e", ABSENT), ("a.b", ABSENT), ("e.f", 2),
    ],
)  # fmt: skip
def test_paths(path, value):
    assert at_path({"a": {"b.c": [{"d": 1}]}, "e.f": 2, "e": {"f": 3}}, path) == value


def test_renaming():
    columns = parse_renames("--columns", ["q:prompt", "question:prompt", "a:b:answer"], example="such as a:b")
    assert columns == {"q": "prompt", "question": "prompt", "a:b": "answer"}
    row = {"question": "x", "prompt": "old", "rest": 1, "q": None}
    assert renamed(row, columns) == ({"prompt": "x", "rest": 1}, {"question", "q"})
    assert renamed({"question": "x", "q": "y"}, columns)[0] == {"prompt": "y"}  # the first that has something
    for item, message in {"prompt": "not of the form theirs:ours", ":b": "not of the form"}.items():
        with pytest.raises(InputError, match=f"--columns: '{item}' is {message}"):
            parse_renames("--columns", [item], example="such as a:b")
    with pytest.raises(InputError, match="'a' is given twice, as b and as c"):
        parse_renames("--columns", ["a:b", "a:c"], example="such as a:b")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapter": "gsm9k"}, "--adapter = 'gsm9k': did you mean 'gsm8k'"),
        ({"adapter": "gsm8k", "columns": COLUMNS}, "--adapter and --columns"),
        ({"extra": ("all", "x")}, "--extra=all,x: give names, or all, or none"),
    ],
)
def test_options_that_do_not_go_together(fields, message):
    with pytest.raises(InputError, match=message):
        ConvertOptions(**fields)


def test_rows_that_name_code_or_addresses_are_named_or_left_out(tmp_path, caplog):
    rows = [
        {"prompt": "2+2?", "answer": "4", "task": task} for task in ("numeric", "unasked:grade", "http://a.example/")
    ]
    path = write_rows(tmp_path / "theirs.jsonl", *rows)
    with pytest.raises(InputError, match=rf"{path}:2: task: 'unasked:grade' is a function"):
        convert([path], ConvertOptions())
    left = convert([path], ConvertOptions(skip_bad_rows=True))
    assert [problem.task for problem in left] == ["numeric"] and f"{path}:3: task: 'http" in caplog.messages[-1]
    said = convert([path], ConvertOptions(task="http://a.example/", skip_bad_rows=True))
    assert [problem.task for problem in said] == ["numeric", "http://a.example/"]
    with pytest.raises(InputError, match=rf"{path}:2: .*name it in --allow"):
        split_files(path, tmp_path / "sets", SplitOptions(validation=1))


# --- the commands


@pytest.mark.slow
def test_the_commands(tmp_path: pathlib.Path):
    path = write_rows(tmp_path / "mine.jsonl", *[{"question": f"{i}+1?", "gold": i + 1} for i in range(10)] * 2)
    names = ("--columns=question:prompt,gold:answer", "--task=numeric")
    shown = mains.run("isocompute_jax.convert", [f"--source={path}", "--show=2", *names])
    assert shown.returncode == 0, shown.stderr
    assert "mine-1 (task numeric), answer: 1\n  | 0+1?\n\nmine-2" in shown.stdout and "10 problems in" in shown.stdout
    assert "10 rows repeat an earlier one" in shown.stderr
    out = tmp_path / "ours.jsonl"
    assert mains.run("isocompute_jax.convert", [f"--source={path}", f"--out={out}", *names]).returncode == 0
    assert len(read_problems(out)) == 10
    sizes = ["--validation=3", "--nested=2,4"]
    split = mains.run("isocompute_jax.split", [f"--source={out}", f"--out={tmp_path}/sets", *sizes])
    assert split.returncode == 0 and "train_4: 4 problems" in split.stdout, split.stderr
    assert len(read_problems(tmp_path / "sets" / "validation.jsonl")) == 3
    for module, arguments, message in [
        ("convert", [], "--source is missing"),
        ("convert", [f"--source={path}"], "give either --out=FILE.jsonl, or --show=3"),
        ("convert", [f"--source={path}", "--show=1", "--task=exact"], "prompt: missing or empty"),
        ("split", [f"--source={out}"], "--out is missing"),
    ]:
        done = mains.run(f"isocompute_jax.{module}", arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
