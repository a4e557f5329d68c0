"""One training run per line, in a process pinned to one core, read from its own log."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from benchmarks import small_runs
from benchmarks.h200_cases import SHAPES
from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.study.base_model import BaseModelConfig, train_base_model
from isocompute_jax.tasks import load_tokenizer, make_problems, make_teacher, save_arithmetic_tokenizer, write_problems

PHASES = ("sampling", "grading", "packing", "update")
HEAD = (
    *("n", "B_problem", "rollouts/s", "tokens/s", "sampling rollouts/s", *PHASES, "other", "peak MiB"),
    *("vs peer: sampling", "update"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Rates over the timed steps; `seconds` per step by phase; peak resident memory in MiB."""

    group_size: int
    problems: int
    rollouts: int
    tokens: float
    step_s: float
    seconds: dict[str, float]
    peak_mib: float


def make_model(shape: str, root: pathlib.Path) -> pathlib.Path:
    """A model directory: the embedded base model after a short supervised phase, or random weights of a real shape."""
    tokenizer = root / "tokenizer"
    save_arithmetic_tokenizer(tokenizer)
    problems = make_problems(4096, seed=0)
    write_problems(root / "problems.jsonl", problems)
    directory = root / "model"
    if shape == "embedded":
        train_base_model(
            directory,
            BaseModelConfig(steps=300),
            problems=problems,
            teacher=make_teacher(4),
            tokenizer=load_tokenizer(tokenizer),
            tokenizer_directory=tokenizer,
        )
        return directory
    config = model.ModelConfig(
        **SHAPES[shape], rope_theta=1e6, norm_eps=1e-6, max_positions=32_768, dtype="bfloat16", remat="full"
    )
    small_runs.save_model(directory, config, tokenizer)
    return directory


def measure(directory: pathlib.Path, root: pathlib.Path, *, group_size: int, rollouts: int, steps: int) -> Row:
    """Runs the loop for `steps` steps in a process of its own."""
    config = run_config(directory, root, group_size=group_size, rollouts=rollouts, steps=steps)
    run = root / f"run-{group_size}"
    peak_mib = small_runs.train(config, run, core=small_runs.one_core(), what=f"n = {group_size}")
    lines = run_files.read_lines(run / run_files.METRICS)[steps // 3 :]
    wall = (lines[-1]["wall_s"] - lines[0]["wall_s"]) / (len(lines) - 1)
    return Row(
        group_size=group_size,
        problems=config.problems_per_batch,
        rollouts=config.rollouts_per_step,
        tokens=(lines[-1]["tokens"] - lines[0]["tokens"]) / (len(lines) - 1),
        step_s=wall,
        seconds={phase: float(np.mean([line["phase_s"][phase] for line in lines])) for phase in PHASES},
        peak_mib=peak_mib,
    )


def run_config(directory: pathlib.Path, root: pathlib.Path, *, group_size: int, rollouts: int, steps: int) -> RunConfig:
    """The timed run."""
    dtype = "float32" if model.load_config(directory).dtype == "float32" else "bfloat16"
    problems = max(1, rollouts // group_size)
    return small_runs.run_config(
        root, group_size=group_size, problems=problems, steps=steps, lr=1e-5, model=str(directory), dtype=dtype
    )


def cells(row: Row, theirs: dict[str, float] | None) -> tuple[str, ...]:
    """The cells of `HEAD`; ratios above 1 mean that this library is faster than the peer."""
    share = {phase: f"{seconds / row.step_s:.0%}" for phase, seconds in row.seconds.items()}
    other = 1 - sum(row.seconds.values()) / row.step_s
    ratios = ("-", "-")
    if theirs is not None:
        update = row.seconds["packing"] + row.seconds["update"]
        ratios = (f"{theirs['sampling'] / row.seconds['sampling']:.1f}x", f"{theirs['update'] / update:.1f}x")
    return (
        f"{row.group_size}",
        f"{row.problems}",
        f"{row.rollouts / row.step_s:,.0f}",
        f"{row.tokens / row.step_s:,.0f}",
        f"{row.rollouts / row.seconds['sampling']:,.0f}",
        *(share[phase] for phase in PHASES),
        f"{other:.0%}",
        f"{row.peak_mib:,.0f}",
        *ratios,
    )
