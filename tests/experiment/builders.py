"""A random model on digit problems, runs of it, and what two runs must have in common."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import jax
import numpy as np
import pyarrow.parquet
import pytest

from isocompute_jax import model, tasks
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig
from isocompute_jax.learner import LossConfig, OptimizerConfig, checkpoint
from isocompute_jax.model import ModelConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.rollout import Problem
from tests.model.tiny import random_params

MODEL = ModelConfig(
    vocab_size=32,
    embed_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=32,
    tied_embeddings=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    max_positions=64,
)


def make_inputs(path: pathlib.Path) -> RunConfig:
    """Writes a model and problem sets; returns a run on them, of 24 steps, that uses every part of a step.

    Completions have at most two tokens, and the answer is one digit: a random model is rewarded now and then.
    """
    tasks.save_arithmetic_tokenizer(path / "tokenizer")
    model.save_checkpoint(path / "model", MODEL, random_params(MODEL, scale=0.1), tokenizer_from=path / "tokenizer")
    problems = [Problem(f"p{i}", f"{i}+{i}=", str(i % 10), "numeric") for i in range(24)]
    tasks.write_problems(path / "train.jsonl", problems[:16])
    tasks.write_problems(path / "validation.jsonl", problems[16:])
    return RunConfig(
        model=str(path / "model"),
        train_set=str(path / "train.jsonl"),
        group_size=16,
        problems_per_batch=4,
        max_compute=64 * 24,
        checkpoint_every_s=0.0,
        sampling=SamplingConfig(max_prompt_tokens=6, max_tokens=2),
        recipe=RecipeConfig(microbatch_tokens=32),  # one group: a step has up to four micro-batches
        loss=LossConfig(kl_coef=1e-2, entropy_coef=1e-3),
        optimizer=OptimizerConfig(base_lr=1e-2, base_batch=64, warmup_steps=2),
        evaluation=EvaluationConfig(
            sets={"validation": str(path / "validation.jsonl"), "train": str(path / "train.jsonl")},
            samples=4,
            k=2,
            points=4,
            first_compute=128,
        ),
    )


def write_config(path: pathlib.Path, config: RunConfig) -> pathlib.Path:
    """A file for --resolved_config."""
    path.write_text(json.dumps({"config": dataclasses.asdict(config)}))
    return path


def train_command(config: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    main = [sys.executable, "-m", "isocompute_jax.train"]
    return [*main, f"--resolved_config={config}", "--trust_config", f"--workdir={workdir}"]


def pinned(command: list[str]) -> list[str]:
    """`command` on one core: another number of threads may sum in another order."""
    core = "-"
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        core = str(cores[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % len(cores)])
    return [sys.executable, "-m", "isocompute_jax.sweeps.workers", str(os.getpid()), core, *command]


def compile_cache(path: pathlib.Path) -> dict[str, str]:
    """Environment variables of a compile cache that takes small programs too."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@contextlib.contextmanager
def before_step(number: int, effect: Callable[[], None]):
    """Within the context, runs in this process have an effect of their own just before they make step `number`."""
    step = loop.step

    def with_effect(parts, state):
        if state.step == number - 1:
            effect()
        return step(parts, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "step", with_effect)
        yield


def interrupted_in_step(number: int):
    """Within the context, runs in this process get a Ctrl-C while they make step `number`."""
    return before_step(number, lambda: os.kill(os.getpid(), signal.SIGINT))


def run(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


def log_lines(workdir: pathlib.Path, name: str) -> list[dict]:
    """One log, without what the clock wrote."""
    lines = run_files.read_lines(workdir / name)
    return [{key: value for key, value in line.items() if key not in run_files.WALL_CLOCK_KEYS} for line in lines]


def final_checkpoint(workdir: pathlib.Path) -> tuple[list[np.ndarray], dict]:
    """Every array of the last orbax checkpoint (parameters, moments, step), and the loop's JSON without the clock."""
    arrays, loop = read_checkpoint(workdir, max(kept_checkpoints(workdir)))
    return list(arrays.values()), loop


def read_checkpoint(workdir: pathlib.Path, step: int) -> tuple[dict[str, np.ndarray], dict]:
    """The same of any checkpoint, arrays by name."""
    import orbax.checkpoint as ocp

    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])  # whatever processes and devices wrote it
    directory, handlers = (workdir / run_files.CHECKPOINTS).absolute(), {"state": ocp.StandardCheckpointHandler()}
    with ocp.CheckpointManager(directory, item_handlers=handlers | {"loop": ocp.JsonCheckpointHandler()}) as manager:
        arrays = manager.item_metadata(step)["state"]
        target = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=here), arrays)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target), loop=ocp.args.JsonRestore())
        restored = manager.restore(step, args=args)
    return named_arrays(restored["state"]), timeless(restored["loop"])


def named_arrays(state) -> dict[str, np.ndarray]:
    """Arrays of a learner's state by name, in one order for orbax's dicts and our records."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
    return dict(sorted(named.items()))


def timeless(loop: dict) -> dict:
    """The JSON of a checkpoint without the clock, and without how the run was run."""
    ledger = {k: v for k, v in loop["ledger"].items() if k not in run_files.WALL_CLOCK_KEYS}
    return {name: value for name, value in loop.items() if name not in ("mark", "mesh")} | {"ledger": ledger}


def kept_checkpoints(workdir: pathlib.Path) -> list[int]:
    return sorted(checkpoint.names(workdir / run_files.CHECKPOINTS))


def garble(directory: pathlib.Path) -> None:
    """Turns a bit of a checkpoint's largest file."""
    file = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def history(workdir: pathlib.Path):
    """What became of each problem, as a table."""
    return pyarrow.parquet.read_table(workdir / run_files.HISTORY)


def rule_of_checkpoints(workdir: pathlib.Path):
    """By what a run keeps checkpoints; None where the clock has a say in it."""
    config = run_files.read_run(workdir).config["config"]
    return None if config["checkpoint_every_s"] else config["checkpoints"]


def assert_same_run(ours: pathlib.Path, theirs: pathlib.Path) -> None:
    """Both are done, with the same logs (wall-clock fields aside), model and checkpoints, bit for bit."""
    for name in (run_files.METRICS, run_files.EVAL, run_files.ROLLOUTS, run_files.AGREEMENT):
        assert log_lines(ours, name) == log_lines(theirs, name)
    [mine, yours] = [(workdir / "model" / "model.safetensors").read_bytes() for workdir in (ours, theirs)]
    assert mine == yours
    assert history(ours).equals(history(theirs))
    (my_state, my_loop), (your_state, your_loop) = final_checkpoint(ours), final_checkpoint(theirs)
    assert my_loop == your_loop
    for a, b in zip(my_state, your_state, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    rules = [rule_of_checkpoints(workdir) for workdir in (ours, theirs)]
    if rules[0] is not None and rules[0] == rules[1]:
        assert kept_checkpoints(ours) == kept_checkpoints(theirs)
    for workdir in (ours, theirs):  # nothing is left behind that was begun
        assert [path.name for path in workdir.glob(".*")] == [".lock"]
        assert all(path.name.isdigit() for path in (workdir / run_files.CHECKPOINTS).iterdir())
    assert (ours / run_files.DONE).read_text() == (theirs / run_files.DONE).read_text()
    assert run_files.read_run(ours).facts == run_files.read_run(theirs).facts


@contextlib.contextmanager
def small_disk(path: pathlib.Path):
    """A tmpfs of 64 KiB at `path`; yields a function that makes room. None where this user may not mount."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield (lambda: subprocess.run(["mount", "-o", "remount,size=64m", path], check=True)) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", path], check=True)
