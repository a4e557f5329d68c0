"""Exports as four frameworks' code writes them, with a run that crashed and one that was resumed, by the command."""

from __future__ import annotations

import csv
import html
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from isocompute_jax.fit.configurations import ended_early, group_runs
from isocompute_jax.fit.read import Notes, ReadOptions, memory_table, read_curves
from tests.fit.commands import fit, undrawn

SIZES, SEEDS, PROBLEMS, RATE = (4, 16), (0, 1), 32, 1e-6
STEPS = range(0, 101, 4)
EVALUATED = 20
CRASHED, RESUMED = (16, 1), (4, 1)
LAST, BACK_AT, GONE_AT = 40, 40, 80
"""The last step of the run that crashed; the checkpoint that the other came back from, and where it had come to."""

Row = dict[str, Any]


def name_of(n: int, seed: int) -> str:
    return f"grpo-n{n}-b{PROBLEMS}-s{seed}"


def reward(n: int, seed: int, step: int, *, abandoned: bool = False) -> float:
    return round(0.1 + 0.5 * step / (step + 20 + n) + 0.003 * seed - 0.05 * abandoned, 6)


def walk(n: int, seed: int) -> Iterator[tuple[int, bool, bool]]:
    """The steps of a run as it logs them: the step, whether it was abandoned, and whether it is of a second start."""
    for step in STEPS:
        if (n, seed) == CRASHED and step > LAST:
            return
        if (n, seed) == RESUMED and step > GONE_AT:
            break
        yield step, (n, seed) == RESUMED and step > BACK_AT, False
    if (n, seed) == RESUMED:
        yield from ((step, False, True) for step in STEPS if step > BACK_AT)


def runs() -> Iterator[tuple[int, int]]:
    yield from ((n, seed) for n in SIZES for seed in SEEDS)


def history(path: pathlib.Path, rows: list[Row]) -> pathlib.Path:
    """A W&B history as CSV: the columns of all rows, blank where a row has none."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def verl(folder: pathlib.Path) -> tuple[str, str]:
    """What a step logs is one row, with its number as `_step`; a second start is another run of the same name."""
    rows = []
    for n, seed in runs():
        for step, gone, _ in walk(n, seed):
            row = {"run_name": name_of(n, seed), "_step": step, "training/global_step": step}
            row |= {"actor/lr": RATE, "critic/score/mean": 0.3} if step else {}
            row |= {"val-core/math/acc/mean@4": reward(n, seed, step, abandoned=gone)} if step % EVALUATED == 0 else {}
            rows.append(row)
    path = history(folder / "verl.csv", rows)
    return str(path), "run_name:run,val-core/math/acc/mean@4:avg@4"


def trl(folder: pathlib.Path) -> tuple[str, str]:
    """Training and evaluation are rows of their own, and `_step` counts them, from 0 again after a second start."""
    rows = []
    for n, seed in runs():
        count, was = 0, False
        for step, gone, again in walk(n, seed):
            count, was = (0, True) if again and not was else (count, was)
            found = [{"train/learning_rate": RATE, "train/reward": 0.3}] if step else []
            if step % EVALUATED == 0:
                found.append({"eval/reward": reward(n, seed, step, abandoned=gone)})
            for values in found:
                rows.append({"Name": name_of(n, seed), "_step": count, "train/global_step": step} | values)
                count += 1
    return str(history(folder / "trl.csv", rows)), "Name:run,eval/reward:avg@4"


def prime_rl(folder: pathlib.Path) -> tuple[str, str]:
    """A file for each run, to which a second start appends; evaluations are lines of their own."""
    for n, seed in runs():
        lines = []
        for step, gone, _ in walk(n, seed):
            if step % EVALUATED == 0:
                lines.append({"eval/aime2024/avg@4": reward(n, seed, step, abandoned=gone), "step": step})
            lines.append({"reward/mean": 0.4, "optim/lr": RATE, "step": step})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name_of(n, seed)}.jsonl").write_text(text)
    return str(folder / "*.jsonl"), "eval/aime2024/avg@4:avg@4"


def open_instruct(folder: pathlib.Path) -> tuple[str, str]:
    """W&B's step, `episode` and `global_step` count rollouts here; the step is `training_step`."""
    rows = []
    for n, seed in runs():
        for step, gone, _ in walk(n, seed):
            episode = step * n * PROBLEMS
            row = {"exp_name": name_of(n, seed), "_step": episode, "episode": episode, "global_step": episode}
            row |= {"training_step": step, "lr": RATE}
            row |= {"eval/scores": reward(n, seed, step, abandoned=gone)} if step % EVALUATED == 0 else {}
            rows.append(row)
    return str(history(folder / "open_instruct.csv", rows)), "exp_name:run,eval/scores:avg@4"


@pytest.mark.parametrize("write", [verl, trl, prime_rl, open_instruct])
def test_a_crashed_run_is_named_and_a_resumed_one_joined(
    write: Callable[[pathlib.Path], tuple[str, str]], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "in").mkdir()
    path, columns = write(tmp_path / "in")
    pattern = r"n(?P<group_size>\d+)-b(?P<problems_per_batch>\d+)-s(?P<seed>\d+)"
    given = [f"--runs={path}", f"--columns={columns}", f"--run_pattern={pattern}", f"--out={tmp_path / 'out'}"]
    with undrawn():
        code = fit(*given, "--budget=3e4")
    printed = capsys.readouterr()
    assert code == 0, printed.err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [(curve["group_size"], curve["problems_per_batch"], curve["seeds"]) for curve in summary["curves"]] == [
        (n, PROBLEMS, [0, 1]) for n in SIZES
    ]
    rows = {row["run"]: row for row in summary["inputs"]}
    assert {name: (row["compute_end"], row["seed"]) for name, row in rows.items()} == {
        name_of(n, seed): ((LAST if (n, seed) == CRASHED else 100) * n * PROBLEMS, seed) for n, seed in runs()
    }
    # The resumed run's later branch counts, and it is whole.
    few = dict(zip(summary["curves"][0]["seeds"], summary["curves"][0]["points"], strict=True))
    for seed in SEEDS:
        compute, found = few[seed]
        assert compute == [step * 4 * PROBLEMS for step in range(0, 101, EVALUATED)]
        assert found == pytest.approx([reward(4, seed, step) for step in range(0, 101, EVALUATED)])
    assert any(f"{name_of(*RESUMED)}" in text and "resumed" in text for text in summary["warnings"])
    # The crashed one is named, with where it ended beside the other of its configuration.
    (named,) = (text for text in summary["warnings"] if "ended early" in text)
    assert named.startswith("1 of 4 runs ended early and may have crashed")
    assert f"{name_of(*CRASHED)} at compute 20480, 40% of the 51200 that another run of n = 16 reaches" in named
    assert printed.err == ""
    for name in ("tables.txt", "report.html"):
        text = html.unescape((tmp_path / "out" / name).read_text())
        assert f"{name_of(*CRASHED)} at compute 20480" in " ".join(text.split())
    # The rate is the one that was run.
    (answer,) = summary["asked"]
    assert (answer["learning_rate"], answer["scaled_rate"]) == (RATE, False) and "1e-6" in printed.out


def test_rates_that_differ_between_seeds_are_configurations_and_a_schedule_is_its_highest():
    """By hand: n = 4 warms up to 3e-6, the seeds of n = 8 differ, and nothing is said of n = 16."""
    rows = [
        {"group_size": n, "problems_per_batch": 8, "seed": seed, "step": step, "avg@4": reward(n, seed, step)}
        | {"lr": {4: 2e-6 if step < 40 else 3e-6, 8: 1e-6 * (1 + seed), 16: 0.0}[n]}
        for n in (4, 8, 16)
        for seed in SEEDS
        for step in (0, 20, 40, 60)
    ]
    found, notes = read_curves(memory_table(pa.Table.from_pylist(rows)), ReadOptions())
    groups, remarks = group_runs(found)
    assert notes == Notes() and remarks == []
    assert [(each.configuration.name, each.configuration.learning_rate, len(each.runs)) for each in groups] == [
        ("n = 4", 3e-6, 2), ("n = 8, learning rate = 1e-6", 1e-6, 1), ("n = 8, learning rate = 2e-6", 2e-6, 1),
        ("n = 16", 0.0, 2),
    ]  # fmt: skip


def test_a_lone_run_that_ended_before_all_others_is_named():
    """One seed each: n = 8 ended first in compute and in steps; n = 4, trained for as many steps as n = 16, did not."""
    rows = [
        {"group_size": n, "problems_per_batch": 8, "step": step, "avg@4": reward(n, 0, step)}
        for n, last in ((4, 100), (8, 40), (16, 100))
        for step in range(20, last + 1, 20)
    ]
    groups = group_runs(read_curves(memory_table(pa.Table.from_pylist(rows)), ReadOptions())[0])[0]
    (named,) = ended_early(groups)
    assert named.startswith("1 of 3 runs ended early") and "group_size=8" in named
    assert "at compute 2560, 80% of the 3200 that every other run reaches at least" in named
