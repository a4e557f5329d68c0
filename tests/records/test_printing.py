"""Text from files cannot command a terminal, nor forge a line: every way to one, by the commands themselves."""

from __future__ import annotations

import csv
import io
import json
import logging
import pathlib
import subprocess
import sys
import unicodedata

import pytest
import transformers
from rich.console import Console

from isocompute_jax.experiment.progress import progress
from isocompute_jax.records.printing import MISSING_PYTORCH, hide_missing_pytorch, printable, say
from isocompute_jax.sweeps import books, status
from tests import mains
from tests.sweeps.test_status import BASE

EVIL = "\x1b[31mred\x07\r\x9b2J\u202e\x1b]0;title\x07\nwarning: forged\n12:00:00 forged\x85\u2028\u200bend"
"""Colours, a bell, a carriage return, a C1 control, an override of direction, a window's title, lines, hidden text."""

SHOWN = r"\x1b[31mred\x07\r\x9b2J\u202e\x1b]0;title\x07\nwarning: forged"


def harmless(text: str) -> bool:
    """Whether a terminal does nothing but show it, and no line of it is forged."""
    seen = all(c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" for c in text)
    return seen and not any(line.startswith(("warning: forged", "12:00:00 forged")) for line in text.splitlines())


def test_every_character_is_shown_or_escaped(capsys):
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    told = printable(every)
    assert harmless(told) and "\n" not in told and set(told) < set(every)
    told.encode("utf-8")
    assert printable("Größe n\u00a0=\u00a08, 群, ¿é?") == "Größe n\u00a0=\u00a08, 群, ¿é?"
    assert printable("a\tb\n") == r"a\tb\n" and printable("a\tb\n\r", lines=True) == "a\tb\n\\r"
    assert printable(printable(EVIL)) == printable(EVIL) and harmless(printable(EVIL)) and not harmless(EVIL)
    say("a\x1b[31m\n")
    assert capsys.readouterr().out == "a\\x1b[31m\n\n"


PROGRAM = """
import logging, sys
from isocompute_jax import app
from isocompute_jax.records.errors import InputError
EVIL, error = {evil!r}, {error}
def main():
    logging.getLogger("isocompute_jax.x").warning("problem %s of\\n%s", EVIL, EVIL)
    raise error(f"--runs: {{EVIL}}")
sys.argv = ["main"]
app.run(main)
"""


@pytest.mark.parametrize(("error", "code"), [("InputError", 2), ("OSError", 1)])
def test_logs_errors_and_tracebacks(error, code):
    program = [sys.executable, "-c", PROGRAM.format(evil=EVIL, error=error)]
    done = subprocess.run(program, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == code and harmless(done.stderr), done.stderr
    assert done.stderr.count(SHOWN.partition(r"\n")[0]) == 3


def table(path, *, columns=("run", "compute", "avg@4", "eval_set", "model", EVIL)) -> str:
    rows = [
        [f"n{n}{EVIL}", c, 0.1 + 0.6 / (1 + n * 5e3 / c), name, f"model{n}{EVIL}", 1.0]
        for n in (4, 16)
        for name in ("validation", EVIL)
        for c in (1e3 * 2**i for i in range(9))
    ]
    rows += [[f"n4{EVIL}", EVIL, 0.5, "validation", f"model4{EVIL}", 1.0], [EVIL, 4e3, EVIL, "validation", "", 1.0]]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(path)


def test_the_fit_of_a_table(tmp_path):
    path, out = table(tmp_path / f"evil{EVIL.replace('/', '')}.csv"), tmp_path / "out"
    done = mains.run("isocompute_jax.fit", [f"--runs={tmp_path}/*.csv", f"--out={out}", "--tables"])
    assert done.returncode == 0 and harmless(done.stdout) and harmless(done.stderr), done.stderr
    assert "".join(SHOWN.split()) in "".join(done.stdout.split()) and done.stderr == "" and path  # lines are wrapped
    for name in ("headline.txt", "tables.txt", "summary.json", "report.html"):
        assert harmless((out / name).read_text(encoding="utf-8")), name


def test_a_table_without_the_metric(tmp_path):
    path = table(tmp_path / "curves.csv", columns=("run", "compute", f"amount{EVIL}", "eval_set", "model", EVIL))
    done = mains.run("isocompute_jax.fit", [f"--runs={path}", f"--out={tmp_path / 'out'}"])
    assert done.returncode == 2 and harmless(done.stderr) and SHOWN.partition(r"\n")[0] in done.stderr


def test_problems_that_are_shown_or_refused(tmp_path):
    rows = [{"id": EVIL, "prompt": f"1 + 1{EVIL}", "answer": f"2{EVIL}", "task": "exact", "extra": EVIL}]
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = mains.run("isocompute_jax.convert", [f"--source={path}", "--show=1"])
    assert shown.returncode == 0 and harmless(shown.stdout) and SHOWN in shown.stdout
    path.write_text(json.dumps({**rows[0], "task": EVIL}) + "\n")
    for module, flags in (
        ("isocompute_jax.convert", [f"--source={path}", f"--out={tmp_path / 'out.jsonl'}"]),
        ("isocompute_jax.split", [f"--source={path}", f"--out={tmp_path / 'sets'}", "--validation=1"]),
    ):
        refused = mains.run(module, flags)
        assert harmless(refused.stdout) and harmless(refused.stderr)


def test_the_status_of_a_sweep_and_a_bar(tmp_path, capsys):
    name = f"a{EVIL}[link=http://x]b[/link]"
    state = books.SweepState(tmp_path, {name: BASE}, {name: "failed"}, {name: f"why{EVIL}"}, num_workers=1)
    status.print_result(state)
    status.print_plan(state)
    told = capsys.readouterr().out
    assert harmless(told) and "[link=" in "".join(told.split()) and f"why{SHOWN}" in told
    file = io.StringIO()
    with progress(f"set {EVIL}", 2, console=Console(file=file, force_terminal=True, width=400)) as report:
        report(1, f"note {EVIL}")
    assert f"set {SHOWN}" in file.getvalue() and f"note {SHOWN}" in file.getvalue()
    assert "\x1b[31mred" not in file.getvalue() and "\u202e" not in file.getvalue() and "\x9b" not in file.getvalue()


def test_the_line_about_pytorch_is_hidden_and_no_other(caplog):
    logger = logging.getLogger("transformers")
    handlers, propagate = logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [caplog.handler], False
    try:
        hide_missing_pytorch()
        hide_missing_pytorch()
        logger.warning("PyTorch was not found. Models won't be available and only tokenizers can be used.")
        logger.warning("Torch was found, and it is old.")
    finally:
        logger.handlers, logger.propagate = handlers, propagate
    assert [record.message for record in caplog.records] == ["Torch was found, and it is old."]


def test_transformers_still_says_it_so():
    source = pathlib.Path(transformers.__file__).read_text(encoding="utf-8")
    assert f'logger.warning_advice(\n        "{MISSING_PYTORCH} ' in source and "get_logger(__name__)" in source


def test_who_reads_may_end_before_all_is_said(tmp_path):
    """As `| head -1` does; what is not about printing goes on."""
    end = tmp_path / "end"
    loop = "from isocompute_jax.records.printing import say\nfor _ in range(9999): say('x' * 99)\n"
    program = f"{loop}open({str(end)!r}, 'w')"
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0
    assert end.exists()
