"""The simulation beside real runs: two servers with a simulated engine over gRPC, and a learner that really updates.

The runs are those of `benchmarks.asynchronous`. Of each side the simulation is told what was set (slots, tokens/s of a
slot, lengths, k) and one time that is measured: what a step takes beside waiting for rollouts. It is taken from the
on-policy run ("predicted"), and from the run itself ("with its learner's time"): what the simulation errs by even
where the machine was not as fast in both. In some runs a server is killed in the middle of the timed steps and does
not come back.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
import tempfile
import threading
from collections.abc import Sequence

import jax

from benchmarks import asynchronous
from benchmarks.goodput.model import NEVER_S, Cluster, simulate
from benchmarks.servers import Server, serving
from isocompute_jax import model, tasks
from isocompute_jax.records import run_files

WINDOWS = (0, 1, 2)
KILLED_AT = (0, 2)
SLOTS, MEDIAN, TAIL, LONGEST = 16, 8.0, 1.0, 128
"""Of a server, and of lengths: with so few slots it matters how many servers there are."""
WARM_UP = 8
PILOT_STEPS = 10
SEEDS = 20
"""Of which a prediction is the mean."""
POLL_S = 0.01
HEADER = (
    "| k | a server is killed | steps/h | waits for rollouts | learner | predicted | ratio "
    "| with its learner's time | ratio |\n"
    "| --: | :-- | --: | --: | --: | --: | --: | --: | --: |"
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Means over the timed steps of a real run, in seconds."""

    step_s: float
    waiting_s: float

    @property
    def learner_s(self) -> float:
        """All but waiting for rollouts."""
        return self.step_s - self.waiting_s


def validate(*, timed: int) -> None:
    """Prints the table."""
    os.sched_setaffinity(0, {asynchronous.CORES[-1]})  # and so the servers; the learner takes the first
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        tasks.save_arithmetic_tokenizer(root / "tokenizer")
        tasks.write_problems(root / "problems.jsonl", tasks.make_problems(1024, seed=0))
        params = model.init_params(asynchronous.SHAPE, jax.random.key(0))
        model.save_checkpoint(root / "model", asynchronous.SHAPE, params, tokenizer_from=root / "tokenizer")
        speed = asynchronous.PILOT_TOKENS_PER_S
        pilot = run(root, staleness=0, tokens_per_s=speed, timed=PILOT_STEPS, kill=False)
        speed *= pilot.waiting_s / pilot.learner_s  # an on-policy step samples about as long as it learns
        print(f"{asynchronous.SERVERS} servers of {SLOTS} slots, {speed:.1f} tokens/s each\n\n{HEADER}", flush=True)
        learner_s = None
        for kill, windows in ((False, WINDOWS), (True, KILLED_AT)):
            for k in windows:
                measured = run(root, staleness=k, tokens_per_s=speed, timed=timed, kill=kill)
                learner_s = learner_s or measured.learner_s
                times = (learner_s, measured.learner_s)
                expected = [predicted(k, speed, each, timed, kill) for each in times]
                print(line(k, kill, measured, expected), flush=True)


def run(root: pathlib.Path, *, staleness: int, tokens_per_s: float, timed: int, kill: bool) -> Measured:
    """Trains in a process of its own, and reads its log; a server is killed after half of the timed steps."""
    arguments = [
        f"--model={root / 'model'}",
        f"--vocab_size={asynchronous.TOKENIZER_IDS}",
        f"--tokens_per_s={tokens_per_s}",
        f"--slots={SLOTS}",
        f"--median_length={MEDIAN}",
        f"--tail={TAIL}",
    ]
    workdir = pathlib.Path(tempfile.mkdtemp(prefix=f"run-{staleness}-", dir=root))
    with serving("benchmarks.simulated", arguments, count=asynchronous.SERVERS, root=root) as servers:
        endpoints = ",".join(server.address for server in servers)
        config = asynchronous.make_config(root, endpoints, staleness=staleness, steps=WARM_UP + timed + staleness)
        config = dataclasses.replace(config, sampling=dataclasses.replace(config.sampling, max_tokens=LONGEST))
        if kill:
            arguments_of = (servers[0], workdir / run_files.METRICS, WARM_UP + timed // 2)
            threading.Thread(target=kill_after, args=arguments_of, daemon=True).start()
        asynchronous.train(config, workdir)
    lines = run_files.read_lines(workdir / run_files.METRICS)
    steady = lines[WARM_UP : WARM_UP + timed]
    step_s = (steady[-1]["wall_s"] - lines[WARM_UP - 1]["wall_s"]) / timed
    return Measured(step_s, statistics.fmean(each["phase_s"]["waiting"] for each in steady))


def kill_after(server: Server, log: pathlib.Path, steps: int) -> None:
    """Waits until so many steps are logged."""
    pause = threading.Event()
    while not log.exists() or log.read_bytes().count(b"\n") < steps:
        pause.wait(POLL_S)
    server.kill()


def predicted(staleness: int, tokens_per_s: float, learner_s: float, timed: int, kill: bool) -> float:
    """Seconds of a step, the mean over seeds."""
    config = asynchronous.make_config(pathlib.Path(), "localhost:1", staleness=staleness, steps=1)
    cluster = Cluster(
        servers=asynchronous.SERVERS,
        slots=SLOTS,
        decode_s=1 / tokens_per_s,
        decode_rollout_s=0.0,
        learner_s=learner_s,
        groups=config.problems_per_batch,
        group_size=config.group_size,
        median=MEDIAN,
        sigma=TAIL,
        longest=LONGEST,
        staleness=staleness,
        server_restart_s=NEVER_S,  # a connection that breaks is noticed at once
    )
    lose = {WARM_UP + timed // 2: 0} if kill else {}
    runs = [simulate(cluster, steps=timed, warm_up=WARM_UP, seed=seed, lose=lose) for seed in range(SEEDS)]
    return statistics.fmean(each.step_s for each in runs)


def line(staleness: int, kill: bool, measured: Measured, expected: Sequence[float]) -> str:
    """A line of the table; `expected` are seconds of a step."""
    cells = [f"{staleness}", "half-way" if kill else "", f"{3600 / measured.step_s:,.0f}"]
    cells += [f"{measured.waiting_s:.3f} s", f"{measured.learner_s:.3f} s"]
    for step_s in expected:
        cells += [f"{3600 / step_s:,.0f}", f"{measured.step_s / step_s:.2f}"]
    return f"| {' | '.join(cells)} |"
