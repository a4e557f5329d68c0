"""docs/llm.md from gallery/llm.parquet: the page, and the rows of its table of answers."""

import json
import pathlib
import re

import numpy as np

from research import llm
from research.llm import answers, text
from research.llm.runs import read_runs

ROOT = pathlib.Path(__file__).parents[2]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def test_the_page_is_what_the_gallery_says(tmp_path):
    """Words are the same; numbers too, but for the last digit that another processor may round otherwise."""
    built, kept = llm.build(ROOT / "gallery", tmp_path).read_text(), (ROOT / "docs/llm.md").read_text()
    assert NUMBER.sub("#", built) == NUMBER.sub("#", kept)
    numbers = [[float(each.replace(",", "")) for each in NUMBER.findall(page)] for page in (built, kept)]
    np.testing.assert_allclose(*numbers, rtol=0.06, atol=0.11)
    assert (tmp_path / "findings" / "llm.png").stat().st_size > 10_000


def test_every_configuration_has_its_seeds():
    runs = read_runs(ROOT / "gallery" / "llm.parquet")
    assert list(runs.configurations) == [4, 8, 16, 64, "auto"]
    assert len(runs.sweep.facts.runs) == sum(len(seeds.values) for seeds in runs.configurations.values())
    for seeds in runs.configurations.values():
        assert len(seeds.values) >= 3 and (np.diff(seeds.compute) > 0).all()
        assert seeds.values.min() >= 0 and seeds.values.max() <= 1
    # Of four answers: all right, one right on average, any right.
    average, worst, best, _ = runs.base
    assert worst <= average <= best


def test_right_answers_are_bold():
    """A line's end, or a bar, would end the table's row."""
    row = {
        "prompt": "Anna has 2|3.\nHow many? Answer with the number only.",
        "before": {"text": "She\nhas", "reward": 0.0},
        "after": {"text": " 5 ", "reward": 1.0},
    }
    assert text._answers([row]).splitlines()[2] == "| Anna has 2\\|3. How many? | She has | **5** |"


def test_answers_of_two_records_are_put_together(tmp_path):
    problems = [{"id": f"p{i}", "prompt": f"{i}+1?", "answer": str(i + 1), "task": "numeric"} for i in range(12)]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    for side in ("before", "after"):
        (tmp_path / side / "completions").mkdir(parents=True)
        lines = [
            {"problem": f"p{i}", "rollout": rollout, "text": f"{side} {i} {rollout}", "reward": float(side == "after")}
            for i in range(12)
            for rollout in (1, 0)
        ]
        (tmp_path / side / "completions" / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "answers.jsonl"
    answers.main(f"{tmp_path}/held_out.jsonl", f"{tmp_path}/before", f"{tmp_path}/after", "4", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == answers.COUNT and rows[3]["n"] == 4
    assert rows[3] == {
        "prompt": "3+1?", "answer": "4", "n": 4,
        "before": {"text": "before 3 0", "reward": 0.0}, "after": {"text": "after 3 0", "reward": 1.0},
    }  # fmt: skip
