"""This library's own run of a job: `isocompute_jax.train` in a process of its own, read from its metrics.jsonl."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np

from benchmarks.peers.job import PHASES, Job, Timed
from isocompute_jax.experiment.config import EvaluationConfig, MeshConfig, RecipeConfig, RunConfig, SamplingConfig
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError

OURS = {"sampling": ("sampling", "weights"), "grading": ("grading",), "update": ("packing", "logprobs", "update")}
"""Phases of the table -> those of our log that they hold."""


def run_config(job: Job) -> RunConfig:
    """The job as this library's configuration: every group takes part, so that no run has less to do by luck."""
    return RunConfig(
        model=job.model,
        train_set=job.problems,
        group_size=job.group_size,
        problems_per_batch=job.problems_per_batch,
        max_compute=(job.warmup + job.steps) * job.rollouts,
        checkpoint_every_s=1e9,
        sampling=SamplingConfig(max_prompt_tokens=job.max_prompt_tokens, max_tokens=job.max_tokens),
        recipe=RecipeConfig(zero_variance_groups="keep"),
        optimizer=OptimizerConfig(base_lr=1e-5),
        evaluation=EvaluationConfig(points=1),
        mesh=MeshConfig(data=job.devices),
    )


def run(job: Job) -> Timed:
    """Runs it, and reads what it logged.

    Raises:
      RunError: it failed; says what it wrote.
    """
    path = pathlib.Path(job.directory)
    path.mkdir(parents=True)
    resolved = path / "config.json"
    resolved.write_text(json.dumps({"config": dataclasses.asdict(run_config(job))}))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if job.devices > 1:
        flags = f"{environment.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={job.devices}"
        environment["XLA_FLAGS"] = flags.strip()
    command = [sys.executable, "-m", "isocompute_jax.train", f"--resolved_config={resolved}", "--trust_config"]
    done = subprocess.run([*command, f"--workdir={path / 'run'}"], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RunError(f"ours failed\n{done.stderr[-2000:]}")
    return read(path / "run", job)


def read(directory: pathlib.Path, job: Job) -> Timed:
    """The timed steps of a finished run."""
    lines = run_files.read_lines(directory / run_files.METRICS)
    ends = [line["wall_s"] for line in lines]
    timed = lines[job.warmup :]
    return Timed(
        step_s=np.diff(ends)[job.warmup - 1 :].tolist(),
        phase_s=[{name: sum(line["phase_s"][part] for part in OURS[name]) for name in PHASES} for line in timed],
        completion_tokens=float(np.mean([line["completion_length"] for line in timed])),
        reward=float(np.mean([line["reward"] for line in timed])),
        versions=f"jax {jax.__version__}",
    )
