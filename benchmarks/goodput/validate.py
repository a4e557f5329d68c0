"""The simulation beside real runs: two servers with a simulated engine over gRPC, and a learner that really updates.

The runs are those of `benchmarks.asynchronous`. Of each side the simulation is told what was set (slots, tokens/s of a
slot, lengths, k) and one time that is measured: what a step takes beside waiting for rollouts. It is taken from the
on-policy run ("predicted"), and from the run itself ("with its learner's time"): what the simulation errs by even
where the machine was not as fast in both. In some runs a server is killed in the middle of the timed steps and does
not come back.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import tempfile
from collections.abc import Sequence

from benchmarks import asynchronous
from benchmarks.goodput.model import NEVER_S, Cluster, simulate
from benchmarks.shared import print_head, print_row
from benchmarks.small_runs import write_files

WINDOWS = (0, 1, 2)
KILLED_AT = (0, 2)
ENGINES = asynchronous.Engines(slots=16, median=8.0, tail=1.0, longest=128)
"""With so few slots it matters how many servers there are."""
WARM_UP = 8
PILOT_STEPS = 10
SEEDS = 20
"""Of which a prediction is the mean."""
HEAD = (
    *("k", "a server is killed", "steps/h", "waits for rollouts", "learner", "predicted", "ratio"),
    *("with its learner's time", "ratio"),
)


def validate(*, timed: int) -> None:
    """Prints the table."""
    os.sched_setaffinity(0, {asynchronous.CORES[-1]})  # and so the servers; the learner takes the first
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        write_files(root, asynchronous.SHAPE, problems=1024)
        speed = asynchronous.calibrated(root, ENGINES, timed=PILOT_STEPS, warm_up=WARM_UP)
        print(f"{asynchronous.SERVERS} servers of {ENGINES.slots} slots, {speed:.1f} tokens/s each\n")
        print_head(HEAD, left=(1,))
        given = {"tokens_per_s": speed, "timed": timed, "warm_up": WARM_UP}
        learner_s = None
        for kill, windows in ((False, WINDOWS), (True, KILLED_AT)):
            for k in windows:
                measured = asynchronous.run(root, ENGINES, staleness=k, kill=kill, **given)
                learner_s = learner_s or measured.learner_s
                times = (learner_s, measured.learner_s)
                expected = [predicted(k, speed, each, timed, kill) for each in times]
                print_row(*cells(k, kill, measured, expected))


def predicted(staleness: int, tokens_per_s: float, learner_s: float, timed: int, kill: bool) -> float:
    """Seconds of a step, the mean over seeds."""
    cluster = Cluster(
        servers=asynchronous.SERVERS,
        slots=ENGINES.slots,
        decode_s=1 / tokens_per_s,
        decode_rollout_s=0.0,
        learner_s=learner_s,
        groups=asynchronous.GROUPS,
        group_size=asynchronous.GROUP_SIZE,
        median=ENGINES.median,
        sigma=ENGINES.tail,
        longest=ENGINES.longest,
        staleness=staleness,
        server_restart_s=NEVER_S,  # a connection that breaks is noticed at once
    )
    lose = {WARM_UP + timed // 2: 0} if kill else {}
    runs = [simulate(cluster, steps=timed, warm_up=WARM_UP, seed=seed, lose=lose) for seed in range(SEEDS)]
    return statistics.fmean(each.step_s for each in runs)


def cells(staleness: int, kill: bool, measured: asynchronous.Row, expected: Sequence[float]) -> list[str]:
    """The cells of `HEAD`; `expected` are seconds of a step."""
    found = [f"{staleness}", "half-way" if kill else "", f"{3600 / measured.step_s:,.0f}"]
    found += [f"{measured.sampling_s:.3f} s", f"{measured.learner_s:.3f} s"]
    for step_s in expected:
        found += [f"{3600 / step_s:,.0f}", f"{measured.step_s / step_s:.2f}"]
    return found
