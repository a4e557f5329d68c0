"""Training runs of small models for benchmarks: their files, their config, and a process of their own."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax

from isocompute_jax import model, tasks
from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.records.errors import RunError
from isocompute_jax.sweeps import workers


def save_model(directory: pathlib.Path, shape: model.ModelConfig, tokenizer: pathlib.Path | None = None) -> None:
    """A Hugging Face directory of random weights."""
    params = model.init_params(shape, jax.random.key(0))
    model.save_checkpoint(directory, shape, params, tokenizer_from=tokenizer)


def write_files(root: pathlib.Path, shape: model.ModelConfig, *, problems: int) -> None:
    """`tokenizer`, `model` with random weights, and `problems.jsonl` of the embedded task."""
    tasks.save_arithmetic_tokenizer(root / "tokenizer")
    tasks.write_problems(root / "problems.jsonl", tasks.make_problems(problems, seed=0))
    save_model(root / "model", shape, root / "tokenizer")


def run_config(root: pathlib.Path, *, group_size: int, problems: int, steps: int, lr: float, **more: Any) -> RunConfig:
    """A run on the files of `root` in which every group takes part, so that its cost does not depend on luck.

    Args:
      root: has `model` and `problems.jsonl`.
      group_size: n.
      problems: of a step.
      steps: how many.
      lr: base learning rate.
      more: other fields; `checkpoint_every_s` is 1e9 by default.
    """
    fields: dict[str, Any] = {
        "model": str(root / "model"),
        "train_set": str(root / "problems.jsonl"),
        "group_size": group_size,
        "problems_per_batch": problems,
        "max_compute": steps * problems * group_size,
        "checkpoint_every_s": 1e9,
        "recipe": RecipeConfig(zero_variance_groups="keep"),
        "optimizer": OptimizerConfig(base_lr=lr),
        "evaluation": EvaluationConfig(points=1),
    }
    return RunConfig(**fields | more)


def train_flags(config: RunConfig, workdir: pathlib.Path) -> list[str]:
    """`-m isocompute_jax.train` and its flags, for a config that is written beside the run's directory."""
    resolved = workdir.with_name(f"{workdir.name}.json")
    resolved.write_text(json.dumps({"config": dataclasses.asdict(config)}))
    return ["-m", "isocompute_jax.train", f"--resolved_config={resolved}", "--trust_config", f"--workdir={workdir}"]


def with_this_process(core: str) -> list[str]:
    """What a command begins with that ends with this process, pinned to a core before JAX counts them."""
    return [sys.executable, "-m", workers.__name__, str(os.getpid()), core]


def train(config: RunConfig, workdir: pathlib.Path, *, core: str, what: str, options: Sequence[str] = ()) -> float:
    """Trains in a process that ends with this one; returns its peak of resident memory, in MiB.

    Raises:
      RunError: it failed; names what ran.
    """
    command = [*with_this_process(core), sys.executable, *train_flags(config, workdir), *options]
    with open(workdir.with_name(f"{workdir.name}.log"), "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        log.seek(0)
        if status:
            raise RunError(f"{what}: the run failed\n{log.read()}")
    return usage.ru_maxrss / 1024  # in KiB on Linux


def one_core() -> str:
    """The first core this process may use; the system chooses where pinning is impossible, or with accelerators."""
    cores = workers.default_cores()
    return str(min(cores)) if cores else workers.NO_CORE
