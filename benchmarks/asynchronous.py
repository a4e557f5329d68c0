"""`python -m benchmarks.asynchronous`: steps per hour of asynchronous training over those of on-policy training.

    python -m benchmarks.asynchronous                       # k = 0, 1, 2, 4, 8: about five minutes
    python -m benchmarks.asynchronous --staleness=0,8 --steps=60

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
import os
import pathlib
import tempfile
import threading

import numpy as np
from absl import flags

from benchmarks import small_runs
from benchmarks.servers import Server, serving
from benchmarks.shared import print_head, print_row
from isocompute_jax import app
from isocompute_jax.experiment.config import AgreementConfig, RunConfig, SamplingConfig
from isocompute_jax.model import EMBEDDED
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.service.client.service_config import ServiceConfig

CORES = sorted(os.sched_getaffinity(0))
SERVERS = 2
WARM_UP = 16
"""Steps that are not timed: compilation, and two windows of the largest k."""
PILOT_STEPS = 12
PILOT_TOKENS_PER_S = 256.0
GROUPS = GROUP_SIZE = 16
TOKENIZER_IDS = 17
SHAPE = dataclasses.replace(EMBEDDED, max_positions=256)
HEAD = ("k", "steps/h", "times k = 0", "s/step", "waits for rollouts", "learner", "staleness: oldest", "mean", "busy")

_STALENESS = flags.DEFINE_list("staleness", ["0", "1", "2", "4", "8"], "Values of k; the first must be 0.")
_STEPS = flags.DEFINE_integer("steps", 30, "Timed steps of each run.", 4)
_BOUNDARY = flags.DEFINE_bool("boundary", False, "New weights wait until what is being drawn is done.")
_SLOTS = flags.DEFINE_integer("slots", 64, "Rollouts that each engine draws at once.", 1)
_MEDIAN_LENGTH = flags.DEFINE_float("median_length", 8.0, "Median length of completions, in tokens.")
_TAIL = flags.DEFINE_float("tail", 1.0, "Standard deviation of the logarithm of the length.")
_MAX_TOKENS = flags.DEFINE_integer("max_tokens", 128, "Longest completion.", 2)
_REPEATS = flags.DEFINE_integer("repeats", 1, "Rounds; ratios are within a round.", 1)


@dataclasses.dataclass(frozen=True)
class Engines:
    """What the simulated engine of each server draws."""

    slots: int  # rollouts at once
    median: float  # tokens of a completion
    tail: float  # standard deviation of the logarithm of that length
    longest: int  # tokens


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


def make_config(root: pathlib.Path, endpoints: str, engines: Engines, *, staleness: int, steps: int) -> RunConfig:
    """A run of 256 rollouts a step."""
    return small_runs.run_config(
        root,
        group_size=GROUP_SIZE,
        problems=GROUPS,
        steps=steps,
        lr=1e-6,
        max_staleness=staleness,
        asynchrony="boundary" if _BOUNDARY.value else "in_flight",
        sampling=SamplingConfig(max_tokens=engines.longest),
        service=ServiceConfig(endpoints=endpoints),
        agreement=AgreementConfig(every=0),  # what the engine draws has nothing to do with the model
    )


def run(
    root: pathlib.Path,
    engines: Engines,
    *,
    staleness: int,
    tokens_per_s: float,
    timed: int,
    warm_up: int,
    kill: bool = False,
) -> Row:
    """Trains in a process of its own on the first core, and reads its log.

    Args:
      root: of the files of `small_runs`.
      engines: of both servers.
      staleness: k.
      tokens_per_s: of each slot.
      timed: steps.
      warm_up: steps before them.
      kill: a server, after half of the timed steps.

    Raises:
      RunError: the run failed, or used a rollout that is older than it may.
    """
    arguments = [
        f"--model={root / 'model'}", f"--vocab_size={TOKENIZER_IDS}", f"--tokens_per_s={tokens_per_s}",
        f"--slots={engines.slots}", f"--median_length={engines.median}", f"--tail={engines.tail}",
    ]  # fmt: skip
    workdir = pathlib.Path(tempfile.mkdtemp(prefix=f"run-{staleness}-", dir=root))
    with serving("benchmarks.simulated", arguments, count=SERVERS, root=root) as servers:
        endpoints = ",".join(server.address for server in servers)
        config = make_config(root, endpoints, engines, staleness=staleness, steps=warm_up + timed + staleness)
        if kill:
            watched = (servers[0], workdir / run_files.METRICS, warm_up + timed // 2)
            threading.Thread(target=kill_after, args=watched, daemon=True).start()
        small_runs.train(config, workdir, core=str(CORES[0]), what=f"k = {staleness}")
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
        busy=tokens / step_s / (SERVERS * engines.slots * tokens_per_s),
    )


def kill_after(server: Server, log: pathlib.Path, steps: int) -> None:
    """Kills a server once so many steps are logged."""
    pause = threading.Event()
    while not log.exists() or log.read_bytes().count(b"\n") < steps:
        pause.wait(0.01)
    server.kill()


def calibrated(root: pathlib.Path, engines: Engines, *, timed: int, warm_up: int) -> float:
    """Tokens per second of a slot with which an on-policy step samples as long as it does everything else."""
    speed = PILOT_TOKENS_PER_S
    pilot = run(root, engines, staleness=0, tokens_per_s=speed, timed=timed, warm_up=warm_up)
    return speed * pilot.sampling_s / pilot.learner_s


def main() -> None:
    """Flags -> table."""
    os.sched_setaffinity(0, {CORES[-1]})  # and so the servers; the learner takes the first
    engines = Engines(_SLOTS.value, _MEDIAN_LENGTH.value, _TAIL.value, _MAX_TOKENS.value)
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        small_runs.write_files(root, SHAPE, problems=1024)
        tokens_per_s = calibrated(root, engines, timed=PILOT_STEPS, warm_up=WARM_UP // 4)
        given = {"tokens_per_s": tokens_per_s, "timed": _STEPS.value, "warm_up": WARM_UP}
        print(f"{SERVERS} servers of {engines.slots} slots, {tokens_per_s:.0f} tokens/s each\n")
        print_head(HEAD, left=())
        for _ in range(_REPEATS.value):
            first = None
            for staleness in map(int, _STALENESS.value):
                row = run(root, engines, staleness=staleness, **given)
                first = first or row
                print_row(*cells(row, first))


def cells(row: Row, first: Row) -> tuple[str, ...]:
    """The cells of `HEAD`."""
    return (
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


if __name__ == "__main__":
    app.run(main)
