"""One training run per line, in a process pinned to one core, read from its own log."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np

from isocompute_jax import model
from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.study.base_model import BaseModelConfig, train_base_model
from isocompute_jax.sweeps import workers
from isocompute_jax.tasks import load_tokenizer, make_problems, make_teacher, save_arithmetic_tokenizer, write_problems

PHASES = ("sampling", "grading", "packing", "update")
HEADER = (
    "|   n | B_problem | rollouts/s | tokens/s | sampling rollouts/s | sampling | grading | packing | update | other "
    "| peak MiB | vs peer: sampling | update |\n"
    "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |"
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
        vocab_size=151_936,
        embed_dim=896,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        mlp_dim=4864,
        tied_embeddings=True,
        rope_theta=1e6,
        norm_eps=1e-6,
        max_positions=32_768,
        dtype="bfloat16",
        remat="full",
    )
    model.save_checkpoint(directory, config, model.init_params(config, jax.random.key(0)), tokenizer_from=tokenizer)
    return directory


def measure(directory: pathlib.Path, root: pathlib.Path, *, group_size: int, rollouts: int, steps: int) -> Row:
    """Runs the loop for `steps` steps in a process of its own."""
    config = run_config(directory, root, group_size=group_size, rollouts=rollouts, steps=steps)
    run = root / f"run-{group_size}"
    resolved = root / f"config-{group_size}.json"
    resolved.write_text(json.dumps({"config": dataclasses.asdict(config)}))
    # Set up by the sweep's own launcher, which pins before JAX counts cores.
    setup = [sys.executable, "-m", workers.__name__, str(os.getpid()), one_core()]
    train = [
        sys.executable,
        "-m",
        "isocompute_jax.train",
        f"--resolved_config={resolved}",
        "--trust_config",
        f"--workdir={run}",
    ]
    with open(root / f"log-{group_size}", "w+") as log:
        process = subprocess.Popen([*setup, *train], stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        log.seek(0)
        if status:
            raise RunError(f"n = {group_size}: the run failed\n{log.read()}")
    lines = run_files.read_lines(run / run_files.METRICS)[steps // 3 :]
    wall = (lines[-1]["wall_s"] - lines[0]["wall_s"]) / (len(lines) - 1)
    return Row(
        group_size=group_size,
        problems=config.problems_per_batch,
        rollouts=config.rollouts_per_step,
        tokens=(lines[-1]["tokens"] - lines[0]["tokens"]) / (len(lines) - 1),
        step_s=wall,
        seconds={phase: float(np.mean([line["phase_s"][phase] for line in lines])) for phase in PHASES},
        peak_mib=usage.ru_maxrss / 1024,  # ru_maxrss is in KiB on Linux
    )


def run_config(directory: pathlib.Path, root: pathlib.Path, *, group_size: int, rollouts: int, steps: int) -> RunConfig:
    """The timed run: every group takes part, so that its cost does not depend on luck."""
    model_config = model.load_config(directory)
    return RunConfig(
        model=str(directory),
        train_set=str(root / "problems.jsonl"),
        group_size=group_size,
        problems_per_batch=max(1, rollouts // group_size),
        max_compute=steps * max(1, rollouts // group_size) * group_size,
        checkpoint_every_s=1e9,
        dtype="float32" if model_config.dtype == "float32" else "bfloat16",
        recipe=RecipeConfig(zero_variance_groups="keep"),
        optimizer=OptimizerConfig(base_lr=1e-5),
        evaluation=EvaluationConfig(points=1),
    )


def one_core() -> str:
    """The first core this process may use; the system chooses where pinning is impossible, or with accelerators."""
    cores = workers.default_cores()
    return str(min(cores)) if cores else workers.NO_CORE


def line(row: Row, theirs: dict[str, float] | None) -> str:
    """One line of the table; ratios above 1 mean that this library is faster than the peer."""
    share = {phase: f"{seconds / row.step_s:.0%}" for phase, seconds in row.seconds.items()}
    other = 1 - sum(row.seconds.values()) / row.step_s
    ratios = ("-", "-")
    if theirs is not None:
        update = row.seconds["packing"] + row.seconds["update"]
        ratios = (f"{theirs['sampling'] / row.seconds['sampling']:.1f}x", f"{theirs['update'] / update:.1f}x")
    cells = (
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
    return "| " + " | ".join(cells) + " |"
