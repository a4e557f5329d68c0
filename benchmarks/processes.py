"""What learner processes cost each other: meeting, agreeing, being told of a batch, and noticing who died or stalled.

    python -m benchmarks.processes --processes=2,8 --rollouts=512 --tokens=2048

Real processes on this machine, over the loopback interface; they compute nothing. A batch is told as it is in a run
(`experiment.rollouts`): tokens, log-probabilities, versions and masks of every rollout. Beside it stands the least that
its bytes take: one plain socket to one process, times the processes. What is noticed, by process 0: one that is killed,
one that is stopped (its host froze, or its network is gone), and one that does not come to a computation while it
beats; the last two take `--stall_s`, the limit of a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.context
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags

from benchmarks.shared import median_seconds, random_group
from isocompute_jax import app
from isocompute_jax.distributed import Team
from isocompute_jax.distributed.environment import Place
from isocompute_jax.distributed.link import Codec
from isocompute_jax.distributed.meeting import about, meet
from isocompute_jax.experiment.workdir import RECORDS
from isocompute_jax.records.rollout import RolloutGroup

_PROCESSES = flags.DEFINE_list("processes", ["2", "8"], "Numbers of processes.")
_ROLLOUTS = flags.DEFINE_integer("rollouts", 512, "Rollouts of a batch.", 1)
_TOKENS = flags.DEFINE_integer("tokens", 2048, "Tokens of a rollout.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Rounds, of which each figure is the median.", 1)
_STALL_S = flags.DEFINE_float("stall_s", 60.0, "Longest silence of a process, as in isocompute_jax.train.", 2.0)
GROUP = 16


def main() -> None:
    """Flags -> table."""
    groups, codec = batch(_ROLLOUTS.value, _TOKENS.value), Codec(RECORDS)
    size = len(codec.encode(groups))
    print(f"{_ROLLOUTS.value} rollouts of {_TOKENS.value} tokens: {size / 1e6:.1f} MB")
    print(f"{'processes':>9}{'meet':>9}{'agree':>11}{'a batch':>10}{'its bytes':>11}{'of it':>7}")
    for count in map(int, _PROCESSES.value):
        met, agreed, told = measure(count, groups)
        least = plain(size) * (count - 1)
        print(f"{count:9}{met:8.2f}s{agreed * 1e3:9.2f}ms{told:9.3f}s{least:10.3f}s{told / least:6.1f}x")
    print(
        f"\nnoticed after, at --stall_s={_STALL_S.value:g}\n{'processes':>9}{'killed':>11}{'stopped':>11}{'hangs':>11}"
    )
    for count in map(int, _PROCESSES.value):
        print(f"{count:9}" + "".join(f"{noticed(count, how):10.3f}s" for how in (kill, stop, hang)))


def batch(rollouts: int, tokens: int) -> list[RolloutGroup]:
    """A batch of random tokens."""
    rng, rewards = np.random.default_rng(0), np.zeros(GROUP, np.float32)
    groups = [random_group(rng, f"p{i}", 128, [tokens] * GROUP) for i in range(max(1, rollouts // GROUP))]
    return [dataclasses.replace(group, rewards=rewards) for group in groups]


Others = list[multiprocessing.context.SpawnProcess]


@contextlib.contextmanager
def processes(count: int) -> Iterator[tuple[Team, float, Others]]:
    """The team of this process among others, how many seconds they took to meet, and the others; killed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    context, stall_s = multiprocessing.get_context("spawn"), _STALL_S.value
    others = [
        context.Process(target=follow, args=(address, i, count, stall_s, _REPEATS.value), daemon=True)
        for i in range(1, count)
    ]
    for other in others:
        other.start()
    for _ in others:  # they are up, and wait for this one
        time.sleep(1.0)
    began = time.monotonic()
    team = join(address, 0, count, stall_s)
    met = time.monotonic() - began
    team.steady()
    team._end = lambda *why: None
    try:
        yield team, met, others
    finally:
        for other in others:
            other.kill()
            other.join()
        team.leave()


def measure(count: int, groups: list[RolloutGroup]) -> tuple[float, float, float]:
    """Seconds to meet, to agree, and until all have a batch."""
    with processes(count) as (team, met, _):

        def tell() -> None:
            team.broadcast(lambda: groups)
            team.everywhere(lambda: None)

        agreed = median_seconds(lambda: team.agree("nothing", 0), _REPEATS.value, warm_up=0)
        return met, agreed, median_seconds(tell, _REPEATS.value, warm_up=1)


def noticed(count: int, strike: Callable[[Team, Others], None]) -> float:
    """Seconds until process 0 ends the run, and with it tells all others to end, after one of them was struck."""
    ended = threading.Event()
    with processes(count) as (team, _, others):
        for _ in range(_REPEATS.value):
            team.agree("nothing", 0)
        team._end = lambda *why: ended.set()
        began = time.monotonic()
        strike(team, others)
        ended.wait()
        return time.monotonic() - began


def kill(team: Team, others: Others) -> None:
    """Ends one."""
    os.kill(others[-1].pid or 0, signal.SIGKILL)


def stop(team: Team, others: Others) -> None:
    """Stops one: its connections stay, and nothing comes."""
    os.kill(others[-1].pid or 0, signal.SIGSTOP)


def hang(team: Team, others: Others) -> None:
    """Draws, as on the mesh of all: the others are called to it, and hang before they come to it."""

    def draw() -> None:
        team.call("draw")
        team.arrive()

    team.broadcast(draw)


def join(address: str, index: int, count: int, stall_s: float) -> Team:
    """The team, met."""
    place = Place(index, count, address, "flags")
    return meet(place, about(place, {}), Codec(RECORDS), start_s=60.0, stall_s=stall_s)


def follow(address: str, index: int, count: int, stall_s: float, repeats: int) -> None:
    """Another process: it agrees so often, then is told of batches."""
    team = join(address, index, count, stall_s)
    team.serve("draw", threading.Event().wait)
    for _ in range(repeats):
        team.agree("nothing", 0)
    while True:
        team.broadcast(lambda: None)
        team.everywhere(lambda: None)


def plain(size: int) -> float:
    """Seconds that so many bytes take over one plain connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    data, read = bytes(size), threading.Thread(target=drain, args=(theirs, size))
    began = time.monotonic()
    read.start()
    ours.sendall(data)
    read.join()
    taken = time.monotonic() - began
    ours.close()
    theirs.close()
    return taken


def drain(connection: socket.socket, size: int) -> None:
    """Reads so many bytes."""
    left = size
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))


if __name__ == "__main__":
    app.run(main)
