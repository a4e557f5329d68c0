"""Exports in the shapes of three other frameworks' logs, with known curves.

- verl: one row per W&B log call, all runs below each other, validation columns filled at every few steps only.
- TRL: W&B's export of a panel of the evaluation reward, one column per run with its __MIN and __MAX.
- prime-rl: one JSONL file per run, evaluations on lines of their own between those of training steps.
"""

from __future__ import annotations

import csv
import json
import pathlib

STEPS = (0, 10, 20, 40, 80)
GROUP_SIZES = (4, 16)
SEEDS = (0, 1)
PROBLEMS_PER_BATCH = 32
NAMES = {(n, s): f"grpo - n{n}-b{PROBLEMS_PER_BATCH}-s{s}" for n in GROUP_SIZES for s in SEEDS}
"""Names of the runs; the separator of a W&B panel is in them, too."""


def reward(group_size: int, seed: int, step: int) -> float:
    """The curve behind every export."""
    return round(0.1 + 0.005 * step + 0.001 * group_size + 0.01 * seed, 6)


def write_verl(path: pathlib.Path) -> None:
    """One long history: training and validation at a step share a row."""
    validation = (
        "val-core/math_dapo/acc/mean@4",
        "val-core/math_dapo/acc/best@4/mean",
        "val-aux/math_dapo/acc/worst@4/mean",
    )
    header = ["", "_step", "_timestamp", "training/global_step", "critic/score/mean", "perf/throughput", *validation]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "run_name"])
        for (n, s), name in NAMES.items():
            for step in range(0, 81, 5):
                known = step in STEPS
                value = reward(n, s, step)
                values = [value, round(1 - (1 - value) ** 2, 6), round(value**2, 6)] if known else ["", "", ""]
                score = "" if step == 0 else 0.3
                writer.writerow([step, step, f"17{step:08d}.25", step, score, 1234.5, *values, name])


def write_trl(path: pathlib.Path) -> None:
    """A panel: every cell in quotes, blank where a run has no evaluation at a step."""
    metric = "eval/rewards/accuracy_reward/mean"
    columns = [f"{name} - {metric}{suffix}" for name in NAMES.values() for suffix in ("", "__MIN", "__MAX")]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["train/global_step", *columns])
        for step in range(0, 81, 10):
            cells = []
            for n, s in NAMES:
                cells += [reward(n, s, step) if step in STEPS else ""] * 3
            writer.writerow([step, *cells])


def write_verl_files(folder: pathlib.Path) -> None:
    """verl's own file logger: one file per run, what is logged at a step wrapped in `data`."""
    folder.mkdir()
    for (n, s), name in NAMES.items():
        lines = []
        for step in range(0, 81, 5):
            data = {"training/global_step": step, "critic/score/mean": 0.3, "timing_s/step": None if step else "first"}
            if step in STEPS:
                data["val-core/math_dapo/acc/mean@4"] = reward(n, s, step)
            lines.append({"step": step, "data": data})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_prime_rl_folders(root: pathlib.Path) -> None:
    """prime-rl's file monitor: metrics.jsonl in each run's output directory."""
    for (n, s), name in NAMES.items():
        folder = root / name / "run_default"
        folder.mkdir(parents=True)
        lines = []
        for step in range(0, 81, 10):
            lines.append({"step": step, "time": 1.7e9 + step, "reward/all/mean": 0.4})
            if step in STEPS:
                lines.append({"step": step, "time": 1.7e9 + step, "eval/aime2024/avg@4": reward(n, s, step)})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_prime_rl(folder: pathlib.Path) -> None:
    """One file per run; `progress/...` stand on training lines, `eval/...` on their own."""
    folder.mkdir()
    for (n, s), name in NAMES.items():
        lines = []
        for step in range(0, 81, 10):
            if step in STEPS:
                lines.append({"eval/aime2024/avg@4": reward(n, s, step), "eval/aime2024/pass@4": 0.9, "step": step})
            samples = (step + 1) * PROBLEMS_PER_BATCH * n
            progress = {"progress/total_samples": samples, "progress/total_tokens": 900 * samples}
            lines.append({"reward/mean": 0.4, "entropy/mean": 1.0, **progress, "step": step})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
