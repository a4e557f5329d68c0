"""This library's own run of a job: `isocompute_jax.train` in a process of its own, read from its metrics.jsonl."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np

from benchmarks import small_runs
from benchmarks.peers.job import PHASES, Job, Timed
from isocompute_jax.experiment.config import MeshConfig, RunConfig, SamplingConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError

OURS = {"sampling": ("sampling", "weights"), "grading": ("grading",), "update": ("packing", "logprobs", "update")}
"""Phases of the table -> those of our log that they hold."""


def run_config(job: Job) -> RunConfig:
    """The job as this library's configuration."""
    return small_runs.run_config(
        pathlib.Path(job.model).parent,
        group_size=job.group_size,
        problems=job.problems_per_batch,
        steps=job.warmup + job.steps,
        lr=1e-5,
        model=job.model,
        dtype=job.dtype,
        train_set=job.problems,
        sampling=SamplingConfig(max_prompt_tokens=job.max_prompt_tokens, max_tokens=job.max_tokens),
        mesh=MeshConfig(data=job.devices),
    )


def run(job: Job) -> Timed:
    """Runs it, and reads what it logged.

    Raises:
      RunError: it failed; says what it wrote.
    """
    path = pathlib.Path(job.directory)
    path.mkdir(parents=True)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if job.devices > 1:
        flags = f"{environment.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={job.devices}"
        environment["XLA_FLAGS"] = flags.strip()
    command = [sys.executable, *small_runs.train_flags(run_config(job), path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
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
