"""The files that docs/strangers.md shows are read as it says."""

from __future__ import annotations

import pathlib
import re

import pytest

from isocompute_jax.fit.read import ReadOptions, read_curves

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "strangers.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`[^\n]*(?:\n[^\n]+)*\n\n```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
EXPECTED = {
    "q4_n8/trainer_state.json": {"q4_n8": [0.1, 0.16, 0.22]},
    "log_n4.json": {"log_n4": [0.1, 0.14, 0.21]},
    "series.json": {"n4": [0.1, 0.2], "n8": [0.1, 0.3]},
    "traces.json": {"a": [0.1, 0.2, 0.3], "b": [0.1, 0.3, 0.4]},
    "melted.csv": {"a": [0.03, 0.08]},
    "verl.log": {"verl": [0.613, 0.64]},
    "trl.log": {"trl": [0.31, 0.33, 0.36]},
    "own.log": {"own": [0.237, 0.15, 0.3]},
    "runs.csv": {"grpo-n4-s0": [0.1, 0.19], "grpo-n8-s0": [0.11]},
    "sizes.csv": {"0.6b": [0.037, 0.21], "14b": [0.784, 0.82]},
    "rows.jsonl": {"rows": [0.15, 0.25]},
    "again.jsonl": {"again": [0.1, 0.14], "again (2)": [0.11, 0.19]},
    "ends.jsonl": {
        **{f"n4 [{i}]": [each] for i, each in enumerate((0.31, 0.33, 0.30), 1)},
        **{f"n8 [{i}]": [each] for i, each in enumerate((0.35, 0.38, 0.36), 1)},
        **{f"n16 [{i}]": [each] for i, each in enumerate((0.37, 0.40, 0.36), 1)},
    },
    "final.csv": {"a": [0.66], "b": [0.7]},
    "history.csv": {"a": [0.12, 0.16], "b": [0.17]},
}


def test_every_file_of_the_page_is_known():
    assert list(FILES) == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_the_page_is_read_as_it_says(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(FILES[name])
    options = ReadOptions(compute="steps", metric="y") if name == "series.json" else ReadOptions(compute="steps")
    runs, notes = read_curves([str(path)], options)
    assert notes.read is not None
    assert {run.run: run.columns[notes.read.metric].round(6).tolist() for run in runs} == EXPECTED[name]
