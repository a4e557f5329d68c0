"""`python -m benchmarks.asynchronous`: steps per hour of asynchronous training over those of on-policy training.

    python -m benchmarks.asynchronous                       # k = 0, 1, 2, 4, 8: about five minutes
    python -m benchmarks.asynchronous --staleness=0,8 --steps=60 --json=asynchronous.json

Each line is a training run of its own process against two servers with a simulated engine, whose lengths have a long
tail; read from the run's own metrics.jsonl. The engine's speed is set such that an on-policy step spends as long in
sampling as in everything else, so that 2 is the most that asynchrony can give. The same lengths are drawn whatever k
is. The engine draws tokens at random: rewards are zero, and the update computes as much as ever.

The learner has one core and the servers another, where there are two: they stand for machines of their own. Values of k
take turns, `--repeats` times.

The first steps are not timed, nor are the last k, after whose begin nothing is submitted any more. "busy" is how many
of the engine's slots draw a token, on average. A staleness above k ends the benchmark with an error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from absl import flags

from benchmarks.servers import serving
from isocompute_jax import app, model, tasks
from isocompute_jax.experiment.config import (
    AgreementConfig,
    EvaluationConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
)
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.model import EMBEDDED
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.sweeps import workers

CORES = sorted(os.sched_getaffinity(0))
SERVERS = 2
WARM_UP = 16
"""Steps that are not timed: compilation, and two windows of the largest k."""
PILOT_STEPS = 12
PILOT_TOKENS_PER_S = 256.0
TOKENIZER_IDS = 17
SHAPE = dataclasses.replace(EMBEDDED, max_positions=256)

_STALENESS = flags.DEFINE_list("staleness", ["0", "1", "2", "4", "8"], "Values of k; the first must be 0.")
_STEPS = flags.DEFINE_integer("steps", 30, "Timed steps of each run.", 4)
_BOUNDARY = flags.DEFINE_bool("boundary", False, "New weights wait until what is being drawn is done.")
_SLOTS = flags.DEFINE_integer("slots", 64, "Rollouts that each engine draws at once.", 1)
_MEDIAN_LENGTH = flags.DEFINE_float("median_length", 8.0, "Median length of completions, in tokens.")
_TAIL = flags.DEFINE_float("tail", 1.0, "Standard deviation of the logarithm of the length.")
_MAX_TOKENS = flags.DEFINE_integer("max_tokens", 128, "Longest completion.", 2)
_REPEATS = flags.DEFINE_integer("repeats", 1, "Rounds; ratios are within a round.", 1)
_JSON = flags.DEFINE_string("json", "", "File for the numbers.")


@dataclasses.dataclass(frozen=True)
class Row:
    """A run's timed steps; `sampling_s` is how long the learner waited for rollouts in a step, `learner_s` the rest."""

    staleness: int
    step_s: float
    sampling_s: float
    learner_s: float
    oldest: int
    mean_age: float
    busy: float


def make_config(root: pathlib.Path, endpoints: str, *, staleness: int, steps: int) -> RunConfig:
    """A run of 256 rollouts a step in which every group takes part, so that its cost does not depend on luck."""
    return RunConfig(
        model=str(root / "model"),
        train_set=str(root / "problems.jsonl"),
        group_size=16,
        problems_per_batch=16,
        max_compute=256 * steps,
        checkpoint_every_s=1e9,
        max_staleness=staleness,
        asynchrony="boundary" if _BOUNDARY.value else "in_flight",
        sampling=SamplingConfig(max_tokens=_MAX_TOKENS.value),
        recipe=RecipeConfig(zero_variance_groups="keep"),
        optimizer=OptimizerConfig(base_lr=1e-6),
        evaluation=EvaluationConfig(points=1),
        service=ServiceConfig(endpoints=endpoints),
        agreement=AgreementConfig(every=0),  # what the engine draws has nothing to do with the model
    )


def run(root: pathlib.Path, *, staleness: int, tokens_per_s: float, timed: int, warm_up: int) -> Row:
    """Trains in a process of its own, and reads its log.

    Raises:
      RunError: the run failed, or used a rollout that is older than it may.
    """
    arguments = [
        f"--model={root / 'model'}",
        f"--vocab_size={TOKENIZER_IDS}",
        f"--tokens_per_s={tokens_per_s}",
        f"--slots={_SLOTS.value}",
        f"--median_length={_MEDIAN_LENGTH.value}",
        f"--tail={_TAIL.value}",
    ]
    workdir = pathlib.Path(tempfile.mkdtemp(prefix=f"run-{staleness}-", dir=root))
    with serving("benchmarks.simulated", arguments, count=SERVERS, root=root) as servers:
        endpoints = ",".join(server.address for server in servers)
        config = make_config(root, endpoints, staleness=staleness, steps=warm_up + timed + staleness)
        train(config, workdir)
    lines = run_files.read_lines(workdir / run_files.METRICS)
    oldest = max(line["staleness"] for line in lines)
    if oldest > staleness:
        raise RunError(f"k = {staleness}: a rollout was {oldest} updates old when it was used")
    steady = lines[warm_up : warm_up + timed]
    step_s = (steady[-1]["wall_s"] - lines[warm_up - 1]["wall_s"]) / timed
    sampling_s = float(np.mean([line["phase_s"]["waiting"] for line in steady]))
    tokens = config.rollouts_per_step * float(np.mean([line["completion_length"] for line in steady]))
    return Row(
        staleness=staleness,
        step_s=step_s,
        sampling_s=sampling_s,
        learner_s=step_s - sampling_s,
        oldest=oldest,
        mean_age=float(np.mean([line["staleness_mean"] for line in steady])),
        busy=tokens / step_s / (SERVERS * _SLOTS.value * tokens_per_s),
    )


def train(config: RunConfig, workdir: pathlib.Path) -> None:
    """`isocompute_jax.train` in a process that ends with this one.

    Raises:
      RunError: it failed.
    """
    resolved = workdir.with_suffix(".json")
    resolved.write_text(json.dumps({"config": dataclasses.asdict(config)}))
    setup = [sys.executable, "-m", workers.__name__, str(os.getpid()), str(CORES[0])]
    command = [
        sys.executable,
        "-m",
        "isocompute_jax.train",
        f"--resolved_config={resolved}",
        "--trust_config",
        f"--workdir={workdir}",
    ]
    done = subprocess.run([*setup, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"k = {config.max_staleness}: the run failed\n{done.stderr}")


def calibrated(root: pathlib.Path) -> float:
    """Tokens per second of a slot with which an on-policy step samples as long as it does everything else."""
    pilot = run(root, staleness=0, tokens_per_s=PILOT_TOKENS_PER_S, timed=PILOT_STEPS, warm_up=WARM_UP // 4)
    return PILOT_TOKENS_PER_S * pilot.sampling_s / pilot.learner_s


def main() -> None:
    """Flags -> table."""
    os.sched_setaffinity(0, {CORES[-1]})  # and so the servers; the learner takes the first
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        tasks.save_arithmetic_tokenizer(root / "tokenizer")
        tasks.write_problems(root / "problems.jsonl", tasks.make_problems(1024, seed=0))
        params = model.init_params(SHAPE, jax.random.key(0))
        model.save_checkpoint(root / "model", SHAPE, params, tokenizer_from=root / "tokenizer")
        tokens_per_s = calibrated(root)
        print(f"{SERVERS} servers of {_SLOTS.value} slots, {tokens_per_s:.0f} tokens/s each\n")
        print("| k | steps/h | times k = 0 | s/step | waits for rollouts | learner | staleness: oldest | mean | busy |")
        print("|" + " --: |" * 9, flush=True)
        rows: list[Row] = []
        for _ in range(_REPEATS.value):
            first = None
            for staleness in map(int, _STALENESS.value):
                row = run(root, staleness=staleness, tokens_per_s=tokens_per_s, timed=_STEPS.value, warm_up=WARM_UP)
                first = first or row
                rows.append(row)
                print(line(row, first), flush=True)
    if _JSON.value:
        numbers: dict[str, Any] = {"tokens_per_s": tokens_per_s, "rows": [dataclasses.asdict(row) for row in rows]}
        pathlib.Path(_JSON.value).write_text(json.dumps(numbers, indent=1))


def line(row: Row, first: Row) -> str:
    """One line of the table."""
    cells = (
        f"{row.staleness}",
        f"{3600 / row.step_s:,.0f}",
        f"{first.step_s / row.step_s:.2f}",
        f"{row.step_s:.3f}",
        f"{row.sampling_s:.3f}",
        f"{row.learner_s:.3f}",
        f"{row.oldest}",
        f"{row.mean_age:.2f}",
        f"{row.busy:.0%}",
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    app.run(main)
