"""One simulated sweep as ten frameworks and spreadsheets write it, each with the flags that read it."""

from __future__ import annotations

import csv
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

PROBLEMS = 32
STEPS = (0, 4, 8, 12, 20, 32, 48, 72, 108, 160, 240)
CURVES = {4: (0.1, 0.52, 6e3, 1.3), 16: (0.1, 0.6, 2.2e4, 1.3), 64: (0.1, 0.66, 9e4, 1.3)}
"""n -> floor, asymptote, midpoint and steepness over rollouts: the lead passes from 4 to 16 to 64."""
PATTERN = r"n(?P<group_size>\d+)-b(?P<problems_per_batch>\d+)-s(?P<seed>\d+)"

Flags = list[str]
Row = dict[str, Any]


def name_of(n: int, seed: int) -> str:
    return f"grpo-n{n}-b{PROBLEMS}-s{seed}"


def sweep() -> Iterator[tuple[int, int, list[tuple[int, float]]]]:
    """n, seed, and its (step, reward): noise is drawn anew for each run, and shared by no two."""
    for n, (floor, asymptote, midpoint, steepness) in CURVES.items():
        for seed in range(3):
            noise = np.random.default_rng([n, seed]).normal(scale=0.008, size=len(STEPS))
            x = np.array(STEPS, float) * n * PROBLEMS
            reward = floor + (asymptote - floor) * x**steepness / (x**steepness + midpoint**steepness) + noise
            yield n, seed, [(step, round(float(value), 6)) for step, value in zip(STEPS, reward, strict=True)]


def write_rows(path: pathlib.Path, rows: list[Row], **dialect: Any) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), **dialect)
        writer.writeheader()
        writer.writerows(rows)


def wandb(folder: pathlib.Path) -> Flags:
    """A history with training and evaluation in rows of their own."""
    rows = []
    for n, seed, points in sweep():
        for count, (step, reward) in enumerate(points):
            rows.append({"Name": name_of(n, seed), "_step": 2 * count, "trainer/global_step": step, "train/lr": 1e-6})
            rows.append({"Name": name_of(n, seed), "_step": 2 * count + 1, "trainer/global_step": step, "eval": reward})
    write_rows(folder / "history.csv", rows)
    return ["--runs=history.csv", "--columns=Name:run,eval:avg@4,trainer/global_step:step", f"--run_pattern={PATTERN}"]


def verl(folder: pathlib.Path) -> Flags:
    """A history in which a step is one row."""
    rows = [
        {"": step, "_step": step, "training/global_step": step, "critic/score/mean": 0.3, "actor/lr": 1e-6}
        | {"val-core/math/acc/mean@4": reward, "val-core/math/acc/best@4/mean": round(1 - (1 - reward) ** 2, 6)}
        | {"run_name": name_of(n, seed)}
        for n, seed, points in sweep()
        for step, reward in points
    ]
    write_rows(folder / "history.csv", rows)
    columns = "run_name:run,val-core/math/acc/mean@4:avg@4,val-core/math/acc/best@4/mean:best@4"
    return ["--runs=history.csv", f"--columns={columns}", f"--run_pattern={PATTERN}"]


def verl_files(folder: pathlib.Path) -> Flags:
    """A file for each run; what a step logs lies in `data`."""
    for n, seed, points in sweep():
        lines = [{"step": step, "data": {"val-core/math/acc/mean@4": reward}} for step, reward in points]
        (folder / f"{name_of(n, seed)}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["--runs=*.jsonl", "--columns=data.val-core/math/acc/mean@4:avg@4", f"--run_pattern={PATTERN}"]


def trl(folder: pathlib.Path) -> Flags:
    """A panel of W&B: a column for each run, with its __MIN and __MAX, every cell in quotes."""
    runs = list(sweep())
    metric = "eval/rewards/accuracy_reward/mean"
    rows = []
    for at, step in enumerate(STEPS):
        row: Row = {"train/global_step": step}
        for n, seed, points in runs:
            row |= {f"{name_of(n, seed)} - {metric}{end}": points[at][1] for end in ("", "__MIN", "__MAX")}
        rows.append(row)
    write_rows(folder / "panel.csv", rows, quoting=csv.QUOTE_ALL)
    return ["--runs=panel.csv", f"--columns={metric}:avg@4", f"--run_pattern={PATTERN}"]


def prime_rl(folder: pathlib.Path) -> Flags:
    """metrics.jsonl in each run's directory; evaluations are lines of their own."""
    for n, seed, points in sweep():
        run = folder / "outputs" / name_of(n, seed)
        run.mkdir(parents=True)
        lines: list[Row] = []
        for step, reward in points:
            lines += [{"reward/all/mean": 0.4, "step": step}, {"eval/aime2024/avg@4": reward, "step": step}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["--runs=outputs", "--columns=eval/aime2024/avg@4:avg@4", f"--run_pattern={PATTERN}"]


def open_instruct(folder: pathlib.Path) -> Flags:
    """`episode` and `global_step` count rollouts; the step is `training_step`."""
    rows = []
    for n, seed, points in sweep():
        for step, reward in points:
            episode = step * n * PROBLEMS
            row = {"exp_name": name_of(n, seed), "_step": episode, "episode": episode, "global_step": episode}
            rows.append(row | {"training_step": step, "lr": 1e-6, "eval/scores": reward})
    write_rows(folder / "history.csv", rows)
    return ["--runs=history.csv", "--columns=exp_name:run,eval/scores:avg@4", f"--run_pattern={PATTERN}"]


def _long() -> list[Row]:
    return [
        {"run": name_of(n, seed), "group_size": n, "problems_per_batch": PROBLEMS, "seed": seed}
        | {"compute": step * n * PROBLEMS, "avg@4": reward}
        for n, seed, points in sweep()
        for step, reward in points
    ]


def long(folder: pathlib.Path) -> Flags:
    """The columns of docs/fitter.md."""
    write_rows(folder / "long.csv", _long())
    return ["--runs=long.csv"]


def wide(folder: pathlib.Path) -> Flags:
    """A column for each run."""
    runs = list(sweep())
    rows = [{"step": step} | {name_of(n, s): p[at][1] for n, s, p in runs} for at, step in enumerate(STEPS)]
    write_rows(folder / "wide.csv", rows)
    return ["--runs=wide.csv", "--columns=*:avg@4", f"--run_pattern={PATTERN}"]


def semicolons(folder: pathlib.Path) -> Flags:
    """A spreadsheet's: commas are decimal points."""
    rows = [row | {"avg@4": f"{row['avg@4']:.6f}".replace(".", ",")} for row in _long()]
    write_rows(folder / "sheet.csv", rows, delimiter=";")
    return ["--runs=sheet.csv"]


def gpu_hours(folder: pathlib.Path) -> Flags:
    """Hours beside rollouts; an hour draws more of them in larger groups."""
    rows = []
    for n, seed, points in sweep():
        for step, reward in points:
            facts = {"run": name_of(n, seed), "group_size": n, "problems_per_batch": PROBLEMS, "seed": seed}
            hours = 0.01 + step * n * PROBLEMS / (1000 * n**0.5)
            rows.append(facts | {"step": step, "gpu_hours": hours, "avg@4": reward})
    write_rows(folder / "hours.csv", rows)
    return ["--runs=hours.csv", "--compute=gpu_hours", "--budget=10,100"]


TABLES: dict[str, Callable[[pathlib.Path], Flags]] = {
    write.__name__: write
    for write in (wandb, verl, verl_files, trl, prime_rl, open_instruct, long, wide, semicolons, gpu_hours)
}
"""Writes a table into a folder and returns the flags of `python -m isocompute_jax.fit` that read it there."""


def model_sizes(folder: pathlib.Path) -> Flags:
    """Runs of four model sizes, for the law of Tan et al.: test loss falls as a power of compute, faster for larger."""
    rows = []
    for size in (1e8, 3e8, 1e9, 3e9):
        for seed in range(2):
            noise = np.random.default_rng([int(size), seed]).normal(scale=0.004, size=len(STEPS))
            for step, error in zip(STEPS[1:], noise[1:], strict=True):
                compute = step * 16 * PROBLEMS
                reward = 1 - 0.9 * (compute / 1e3) ** (-0.12 * (size / 1e8) ** 0.15) + error
                facts = {"run": f"m{size:g}-s{seed}", "group_size": 16, "problems_per_batch": PROBLEMS, "seed": seed}
                facts |= {"model_params": int(size), "problem_set_size": 500, "tokens": compute * 900}
                rows.append(facts | {"step": step, "compute": compute, "avg@4": round(float(reward), 6)})
    write_rows(folder / "sizes.csv", rows)
    return ["--runs=sizes.csv", "--analysis=model_size"]


def pretraining(folder: pathlib.Path) -> Flags:
    """Losses of models trained on several amounts of tokens, for Chinchilla's law."""
    rng = np.random.default_rng(5)
    rows = [
        {"run": f"p{size:g}-{tokens:g}", "model_params": int(size), "tokens": int(tokens)}
        | {"loss": round(float(1.7 + 400 / size**0.34 + 410 / tokens**0.28 + rng.normal(scale=0.004)), 6)}
        for size in np.geomspace(1e7, 1e10, 7)
        for tokens in np.geomspace(1e9, 1e12, 6)
    ]
    write_rows(folder / "losses.csv", rows)
    return ["--runs=losses.csv", "--analysis=chinchilla", "--metric=loss"]


LAWS: dict[str, Callable[[pathlib.Path], Flags]] = {"law_model_size": model_sizes, "law_pretraining": pretraining}
"""The same of the two laws."""
