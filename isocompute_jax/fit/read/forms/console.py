"""What trainers print: verl's `step:10 - a/b:0.4 - ...`, TRL's `{'loss': '0.02', ...}`, and `step 3 | reward=0.2`.

Colours, progress bars and prefixes such as `(TaskRunner pid=7)` are passed over. Lines of TRL have no step and are
counted. What a command line before them says by name, such as `actor_rollout_ref.rollout.n=8`, holds for all rows.
"""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

from isocompute_jax.fit.read.layout import FACT_ALIASES
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.tables import DigestedFile, Table, TableError, check_text, columns_of, text_lines

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
VERL = re.compile(r"\bstep:(\d+) - (?=\S+:)")
VALUE = re.compile(rf"(?:[\w.]+\()?({NUMBER})")
DICT = re.compile(r"\{'[^{}]*\}")
STEP = re.compile(
    r"\b(?:global_?step|step|iter(?:ation)?)\b\s*[:=]?\s*(\d+)|(?:^|\s)(\d+)/\d+(?=\s*[|,:-])", re.IGNORECASE
)
PAIR = re.compile(rf"(?:^|[|,\s])([A-Za-z_][\w@/.\- ]*?)\s*[=:]\s*({NUMBER})%?(?=$|[|,\s])")
GIVEN = re.compile(rf"(?:^|\s)[+-]*((?:[\w.]+\.)?(?:{'|'.join(map(re.escape, FACT_ALIASES))}))[= ](\d+)(?=\s|$)")
LOGGED = re.compile(r"loss|reward|epoch|step")
EVAL = "eval"
HINTS = {
    "verl": """ (trainer.logger='["console","file"]' writes JSONL)""",
    "TRL": ", whose lines are counted (trainer_state.json of a checkpoint has steps)",
}
"""What serves better than a log."""


def has_steps(start: bytes) -> bool:
    """Whether text that begins like this is such a log."""
    lines = COLOURS.sub("", start.decode("utf-8", errors="replace")).splitlines()
    return any(_parsed(line) for line in lines)


def read(path: pathlib.Path, notices: Notices) -> Table:
    """The rows of the trainer that wrote most lines; those of others are counted.

    Raises:
      TableError: no line is one of a trainer.
    """
    check_text(path)
    source = DigestedFile(path)
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {"verl": [], "TRL": [], "": []}
    given: dict[str, set[str]] = {}
    count = 0
    for count, text in enumerate(text_lines(source), 1):
        line = COLOURS.sub("", text)
        for name, value in GIVEN.findall(line):
            given.setdefault(name, set()).add(value)
        if parsed := _parsed(line):
            found[parsed[0]].append((count, parsed[1]))
    kind = next((name for name, rows in found.items() if rows), None)
    if kind is None:
        raise TableError("no line of it is a trainer's: neither `step:N - name:value - ...` nor {'reward': ...}")
    rows, others = found[kind], sum(len(each) for name, each in found.items() if name != kind)
    stepless = [row for _, row in rows if "step" not in row and "global_step" not in row]
    if stepless:
        _count(rows)
    known = {name: values.pop() for name, values in given.items() if len(values) == 1}
    headers, lines, columns = columns_of(((line, known | row) for line, row in rows), path, notices)
    what = f"read as a console log{f' of {kind}' * bool(kind)}{HINTS.get(kind, '')}"
    passed = f", and {others} of another trainer passed over" * bool(others)
    of = "values and no step" if stepless else "a step"
    notices.changed("file", what, [f"{path}, {len(rows)} of {count} lines with {of}{passed}"])
    return Table(path, source.sha256(), "", headers, lines, columns)


def _parsed(line: str) -> tuple[str, dict[str, Any]] | None:
    """Who wrote a line, and its values."""
    if begun := VERL.search(line):
        pairs = (part.rpartition(":") for part in line[begun.end() :].split(" - "))
        row = {name.strip(): float(number[1]) for name, _, text in pairs if (number := VALUE.match(text.strip()))}
        return ("verl", {"step": int(begun[1])} | row) if row else None
    if "{'" in line and (whole := DICT.search(line)):
        try:
            row = ast.literal_eval(re.sub(r"(?<=: )-?(?:nan|inf)\b", "None", whole[0]))
        except (ValueError, SyntaxError):
            return None
        known = (
            isinstance(row, dict) and "train_runtime" not in row and len(LOGGED.findall(" ".join(map(str, row)))) > 1
        )
        return ("TRL", row) if known else None
    if any(mark in line for mark in "|=") and '"' not in line and (step := STEP.search(line)):
        rest = line[: step.start()] + "|" + line[step.end() :]
        row = {name.strip().lower(): float(value) for name, value in PAIR.findall(rest)}
        return ("", {"step": int(step[1] or step[2])} | row) if row else None
    return None


def _count(rows: list[tuple[int, dict[str, Any]]]) -> None:
    """Gives lines without a step the number of training lines until then."""
    trained = 0
    for _, row in rows:
        trained += not any(str(name).startswith(EVAL) for name in row)
        row["step"] = trained
