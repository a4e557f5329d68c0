"""`python -m benchmarks.curriculum`: what each curriculum and length feature is worth at equal C, over seeds.

    python -m benchmarks.curriculum --workdir=runs/curriculum                   # the quick study's model, 3 seeds, 2^17
    python -m benchmarks.curriculum --workdir=runs/curriculum-smoke --preset=smoke --seeds=2

The embedded base model and its Easy and Hard sets are made as in `make study`; each feature is a training run beside
one without it, with the same seeds, all in one resumable sweep. Scores are avg@4 on held-out problems at the C that
every run of a block reached (between two evaluations: interpolated in log C). The difference to the first row of the
block is taken seed by seed. C counts every rollout that was sampled for training: what a feature throws away is paid.
"extra rollouts" are those that refills drew, "without signal" the share of rollouts in groups with equal rewards, and
"truncated" that of the last 50 steps.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks.shared import names, print_head, print_row
from isocompute_jax import app
from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.study import stages
from isocompute_jax.study.presets import PRESETS, Preset
from isocompute_jax.sweeps.executor import run_sweep
from isocompute_jax.sweeps.grid import PlannedRun

WORKDIR = flags.DEFINE_string("workdir", "runs/curriculum", "Where models, sets and runs go; continued if it is there.")
PRESET = flags.DEFINE_enum("preset", "quick", ["smoke", "quick"], "Whose base model and problem sets.")
SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds of each row.", lower_bound=1)
COMPUTE = flags.DEFINE_integer("compute", 0, "C of each run; 0 for 2^17, of smoke 2^11.")
WORKERS = flags.DEFINE_integer("workers", None, "Runs at a time; one per core by default.")
ONLY = flags.DEFINE_list("only", [], "Blocks to run; all by default.")

DYNAMIC = {"curriculum.dynamic_sampling": True}
STAGED = {"curriculum.pools": (0.0,), "curriculum.stages": (0.5, 0.5)}


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows that are compared: name -> overrides, the first of them without the feature.

    `sets` are the curated sets that are trained on, several of them as a mixture, and `fields` what all rows have.
    """

    sets: tuple[str, ...]
    fields: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]


BLOCKS = {
    "hard": Block(
        ("hard",),
        {"recipe.healthy": "hard"},
        {
            "zero variance: drop": {},
            "zero variance: keep": {"recipe.zero_variance_groups": "keep"},
            "dynamic sampling": DYNAMIC,
            "dynamic sampling, at most 2 batches": {**DYNAMIC, "curriculum.max_sampled_batches": 2.0},
            "easy to hard": {"curriculum.order": "easy_to_hard"},
            "hard to easy": {"curriculum.order": "hard_to_easy"},
            "stages, easy to hard": {"curriculum.order": "easy_to_hard", **STAGED},
        },
    ),
    "easy": Block(
        ("easy",),
        {"recipe.healthy": "easy"},
        {
            "zero variance: drop": {},
            "zero variance: regularizers only": {"recipe.zero_variance_groups": "regularizers_only"},
            "zero variance: drop regularizers": {"recipe.zero_variance_groups": "drop_regularizers"},
            "dynamic sampling": DYNAMIC,
            "retired at 0.9": {"curriculum.retire_rate": 0.9, "curriculum.retire_attempts": 16},
            "retired at 0.9, every other epoch": {
                "curriculum.retire_rate": 0.9,
                "curriculum.retire_attempts": 16,
                "curriculum.retire_for": "epoch",
            },
        },
    ),
    "mixture": Block(
        ("easy", "hard"),
        {"recipe.healthy": "mixture"},
        {
            "by size": {},
            "equal": {"curriculum.weights": {"easy": 1.0, "hard": 1.0}},
            "adaptive": {"curriculum.weighting": "adaptive"},
        },
    ),
    "length": Block(
        ("hard",),
        {"recipe.healthy": "hard", "sampling.max_tokens": 6},  # short enough that completions are cut off
        {
            "off": {},
            "overlong penalty": {"length.overlong": "all", "length.overlong_tokens": 3},
            "overlong penalty, correct ones": {"length.overlong": "correct", "length.overlong_tokens": 3},
            "truncated masked": {"length.truncated": "mask"},
        },
    ),
    "interruption": Block(
        ("hard",),  # too short for all running totals: the last one alone is asked for
        {"recipe.healthy": "hard", "sampling.max_tokens": 7, "reward.function": "benchmarks.rewards:last_total"},
        {
            "off": {},
            "interrupted after 2 or 3 tokens": {
                "sampling.thinking.low": 2,
                "sampling.thinking.high": 3,
                "sampling.thinking.answer_tokens": 3,
                "sampling.thinking.end_phrase": ",",
                "sampling.thinking.end_of_thinking": "",
            },
        },
    ),
}
HEAD = ("range", "difference", "steps", "C per step", "extra rollouts", "without signal", "epochs", "truncated")


def main() -> None:
    """Flags -> tables."""
    preset = with_both_sets(PRESETS[PRESET.value])
    root = stages.prepare(preset, WORKDIR.value)
    stages.make_problem_sets(preset, root)
    only = names(ONLY, BLOCKS) or list(BLOCKS)
    blocks = {name: block for name, block in BLOCKS.items() if name in only}
    runs = [run for name, block in blocks.items() for run in planned(name, block, preset, root)]
    result = run_sweep(runs, root / "runs", num_workers=WORKERS.value)
    if result.failed:
        raise RunError("; ".join(f"{name}: {reason}" for name, reason in result.failed.items()))
    if not result.interrupted:
        for name, block in blocks.items():
            print_table(name, block, root / "runs")


def with_both_sets(preset: Preset) -> Preset:
    """The preset with an Easy and a Hard set; that of smoke has no Easy problems without more supervised steps."""
    curation = dataclasses.replace(preset.curation, sets=("easy", "hard"))
    if PRESET.value == "smoke" and preset.base is not None:
        base = dataclasses.replace(preset.base, steps=400)
        return dataclasses.replace(
            preset, num_problems=1024, base=base, curation=dataclasses.replace(curation, validation_size=16)
        )
    return dataclasses.replace(preset, curation=curation)


def planned(name: str, block: Block, preset: Preset, root: pathlib.Path) -> list[PlannedRun]:
    """The runs of a block, the seeds of a row side by side."""
    compute = COMPUTE.value or (2**11 if PRESET.value == "smoke" else 2**17)
    config: RunConfig = override(preset.run, "model", str(root / "base"))
    files = {problem_set: root / "curated" / problem_set for problem_set in block.sets}
    if len(files) == 1:
        config = override(config, "train_set", str(files[block.sets[0]] / "train.jsonl"))
    else:
        sets = {problem_set: str(path / "train.jsonl") for problem_set, path in files.items()}
        config = override(config, "curriculum.train_sets", sets)
    validation = {problem_set: str(path / "validation.jsonl") for problem_set, path in files.items()}
    config = override(config, "evaluation.sets", validation)
    config = override(config, "curriculum.rate_column", f"avg@{preset.curation.samples}")
    for field, value in {**block.fields, "max_compute": compute}.items():
        config = override(config, field, value)
    runs = []
    for row, fields in block.rows.items():
        for seed in range(SEEDS.value):
            run = override(config, "seed", seed)
            for field, value in fields.items():
                run = override(run, field, value)
            runs.append(PlannedRun(f"{name}-{slug(row)},seed={seed}", run))
    return runs


def slug(row: str) -> str:
    return "_".join(row.replace(":", "").replace(",", "").split())


def print_table(name: str, block: Block, runs: pathlib.Path) -> None:
    """A row per feature; means over seeds."""
    logs = {
        row: [run_files.read_run(runs / f"{name}-{slug(row)},seed={seed}") for seed in range(SEEDS.value)]
        for row in block.rows
    }
    compute = min(run.metrics[-1]["compute"] for seeds in logs.values() for run in seeds)
    print_head((name, f"avg@4 at C = {compute:,}", *HEAD))
    first = None
    for row, seeds in logs.items():
        scores = np.array([score_at(run.evaluations, compute) for run in seeds])
        first = scores if first is None else first
        difference = scores - first
        ends = [run.metrics[-1] for run in seeds]
        spread = f"{difference.mean():+.3f} ({difference.min():+.3f} to {difference.max():+.3f})"
        print_row(
            row,
            f"{scores.mean():.3f}",
            f"{scores.min():.3f} to {scores.max():.3f}",
            "" if scores is first else spread,
            f"{np.mean([end['step'] for end in ends]):,.0f}",
            f"{np.mean([end['compute'] / end['step'] for end in ends]):.1f}",
            f"{np.mean([extra(run) for run in seeds]):,.0f}",
            f"{np.mean([without_signal(run.metrics) for run in seeds]):.0%}",
            f"{np.mean([run.evaluations[-1]['epochs'] for run in seeds]):.1f}",
            f"{np.mean([line['truncation_rate'] for run in seeds for line in run.metrics[-50:]]):.1%}",
        )
    print()


def score_at(evaluations: Sequence[dict[str, Any]], compute: int) -> float:
    """avg@4 at `compute`, the mean over the block's validation sets, interpolated in log C."""
    sets = sorted({line["eval_set"] for line in evaluations})
    scores = []
    for name in sets:
        lines = [line for line in evaluations if line["eval_set"] == name and line["compute"] > 0]
        x = np.log([line["compute"] for line in lines])
        scores.append(np.interp(np.log(compute), x, [line["avg@4"] for line in lines]))
    return float(np.mean(scores))


def extra(run: run_files.Run) -> int:
    """Rollouts beyond those of the steps' first draws."""
    first = run.facts.group_size * run.facts.problems_per_batch
    return max(run.metrics[-1]["compute"] - first * len(run.metrics), 0)


def without_signal(lines: Sequence[dict[str, Any]]) -> float:
    """Share of a run's rollouts whose groups had no signal, whether they were dropped, kept or replaced."""
    spent = np.diff([0, *(line["compute"] for line in lines)])
    return float(np.sum(spent * [line["zero_variance_share"] for line in lines]) / spent.sum())


if __name__ == "__main__":
    app.run(main)
