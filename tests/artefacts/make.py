# type: ignore  (of names that commit d6f90a3 has)
"""Makes the artefacts beside this file: run it in a checkout of the commit that they are of.

    git worktree add ../old d6f90a3 && cd ../old && PYTHONPATH=$PWD python THIS_FILE d6f90a3

It writes d6f90a3.tar.gz, with `inputs` (a tiny model and its problem sets), `sweep` (six runs, the last of them
interrupted half-way, with its checkpoint), `fit` (what the fitter made of them) and `study` (a finished study, without
its weights). Paths in them are relative: a test unpacks the archive and works in its folder.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
from isocompute_jax.experiment.curate import CurationConfig

from isocompute_jax import model, tasks
from isocompute_jax.experiment import loop, sweep
from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.rollout import Problem
from isocompute_jax.study import stages
from isocompute_jax.study.base_model import BaseModelConfig
from isocompute_jax.study.presets import SMOKE

MODEL = ModelConfig(
    vocab_size=32,
    embed_dim=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=16,
    tied_embeddings=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    max_positions=64,
)
BASE = RunConfig(
    model="inputs/model",
    train_set="inputs/train.jsonl",
    group_size=8,
    problems_per_batch=4,
    max_compute=512,
    sampling=SamplingConfig(max_prompt_tokens=6, max_tokens=2),
    recipe=RecipeConfig(microbatch_tokens=32),
    loss=LossConfig(kl_coef=1e-2, entropy_coef=1e-3),
    optimizer=OptimizerConfig(base_lr=2e-2, base_batch=32, warmup_steps=2),
    evaluation=EvaluationConfig(
        sets={"validation": "inputs/validation.jsonl"}, samples=8, k=4, points=12, first_compute=64
    ),
)
AXES = {"group_size": (4, 8, 16), "seed": (0, 1)}
STUDY = dataclasses.replace(
    SMOKE,
    num_problems=96,
    base=BaseModelConfig(steps=60, batch_size=64, warmup_steps=10),
    curation=CurationConfig(samples=8, sets=("hard",), validation_size=16),
    run=dataclasses.replace(
        SMOKE.run, max_compute=256, evaluation=EvaluationConfig(samples=4, points=3, first_compute=64)
    ),
    slices=(dataclasses.replace(SMOKE.slices[0], axes={"group_size": (4, 8), "seed": (0,)}),),
)


def make_inputs() -> None:
    """A random model on problems whose answer is a digit; all the same one, so that it learns something."""
    tasks.save_arithmetic_tokenizer("tokenizer")
    rng = np.random.default_rng(0)
    shapes = model.abstract_params(MODEL, "float32")
    params = jax.tree.map(lambda x: (0.1 * rng.normal(size=x.shape)).astype(x.dtype), shapes)
    model.save_checkpoint("inputs/model", MODEL, params, tokenizer_from="tokenizer")
    problems = [Problem(f"p{i}", f"{i}+{i}=", "7", "numeric") for i in range(16)]
    tasks.write_problems("inputs/train.jsonl", problems[:12])
    tasks.write_problems("inputs/validation.jsonl", problems[12:])
    shutil.rmtree("tokenizer")


def make_sweep() -> None:
    """Five runs to their ends, and one to its middle."""
    *finished, last = sweep.grid(BASE, AXES)
    assert not sweep.run_sweep(finished, "sweep").failed
    step = loop.Run.step

    def interrupted_half_way(run: loop.Run) -> float:
        if run.ledger.step == run.config.num_steps // 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(run)

    loop.Run.step = interrupted_half_way
    with contextlib.suppress(KeyboardInterrupt):
        loop.train(last.config, f"sweep/{last.name}")
    loop.Run.step = step
    keep_small("sweep")


def keep_small(root: str) -> None:
    """Without compiled programs, locks, what workers printed (paths of a machine), and the weights of finished runs."""
    for path in [*pathlib.Path(root).rglob("*")]:
        if path.name in (".compile_cache", "logs", "compile-cache"):
            shutil.rmtree(path)
        elif path.name == ".lock":
            path.unlink()
        elif path.name in ("model", "checkpoints") and (path.parent / "DONE").exists():
            shutil.rmtree(path)


def main(name: str) -> None:
    """Makes everything in a folder, and packs it."""
    archive = pathlib.Path(name).absolute()
    os.makedirs(name)
    os.chdir(name)
    make_inputs()
    make_sweep()
    command = [sys.executable, "-m", "isocompute_jax.fit", "--runs=sweep", "--out=fit", "--title=Old artefacts"]
    subprocess.run(command, check=True)
    stages.run_study(STUDY, "study", workers=2)
    keep_small("study")
    for folder in ("fit", "study/report"):
        for path in pathlib.Path(folder).iterdir():
            if path.suffix not in (".json", ".csv"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in pathlib.Path("study").rglob("*"):
        if path.suffix in (".safetensors", ".png", ".svg"):
            path.unlink()
    shutil.rmtree("study/tokenizer")
    for path in pathlib.Path().rglob("commit_success.txt"):  # of orbax, which names the whole path
        path.write_text("Checkpoint commit was successful")
    shutil.make_archive(str(archive), "gztar", owner="root", group="root")


if __name__ == "__main__":
    main(sys.argv[1])
