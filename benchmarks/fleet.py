"""What a learner pays for more servers: processor time per rollout with 4 servers and with 64.

    python -m benchmarks.fleet                                   # about seven minutes
    python -m benchmarks.fleet --servers=4,64 --group_s=0,4 --repeats=3

One `RemoteSampler` in this process keeps --in_flight rollouts in flight: when a group is done, another is submitted.
The servers are real gRPC servers, each with a port and a simulated engine of its own; those of one number share one
other process. Both numbers draw the same lengths; they take turns, `--repeats` times.

- An engine that takes no time (`--group_s=0`): the cores are the limit.
- One that takes a rollout of median length so many seconds: what passes per second is less, and what the client does
  per second and server, whether or not rollouts come, weighs more.
- "idle" is the processor time of a second in which nothing is in flight, "an update" that of sending all servers the
  embedded model's weights (by manifest).

Processor time is that of this process, all threads (`os.times`): the client, and a loop that does nothing else. Ratios
are to the first number of servers within a round; every figure is the median of the rounds.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import os
import pathlib
import statistics
import tempfile
import time

import jax
from absl import flags

from benchmarks.servers import endless_groups, sampling, serving
from benchmarks.shared import print_head, print_row, spread
from benchmarks.small_runs import save_model
from isocompute_jax import app, model
from isocompute_jax.model import EMBEDDED
from isocompute_jax.service.client.fleet import RemoteSampler

_SERVERS = flags.DEFINE_list("servers", ["4", "64"], "Numbers of servers; ratios are to the first.")
_IN_FLIGHT = flags.DEFINE_integer("in_flight", 4096, "Rollouts in flight.", 1)
_GROUP_SIZE = flags.DEFINE_integer("group_size", 8, "Rollouts per group.", 1)
_GROUP_S = flags.DEFINE_list("group_s", ["0", "4"], "Seconds that a rollout of median length takes; 0 for no time.")
_ROLLOUTS = flags.DEFINE_integer("rollouts", 16_384, "Rollouts that are measured, after as many as are in flight.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Rounds.", 1)
_IDLE_S = flags.DEFINE_float("idle_s", 5.0, "How long nothing is in flight, in seconds.", 0.1)
_UPDATES = flags.DEFINE_integer("updates", 3, "Updates that are measured in each round.", 1)

SHAPE = dataclasses.replace(EMBEDDED, max_positions=1024)
MEDIAN_LENGTH, TAIL, MAX_TOKENS = 64, 0.5, 512
NO_TIME = 1e9
"""Tokens per second of an engine that takes none."""
HEAD = (
    *("a rollout takes", "servers", "rollouts/s", "client us per rollout", "ratio", "from .. to"),
    *("idle", "an update"),
)


@dataclasses.dataclass(frozen=True)
class Turn:
    """One number of servers in one round."""

    rollouts_per_s: float  # that passed
    cpu_us: float  # microseconds of this process per rollout
    idle_ms: float  # milliseconds of it per second with nothing in flight
    update_ms: float  # milliseconds of it per update


def main() -> None:
    """Flags -> table."""
    logging.getLogger("isocompute_jax").setLevel(logging.WARNING)  # 64 servers come up in every turn
    turns: dict[tuple[float, int], list[Turn]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        save_model(root / "model", SHAPE)
        cases = [(seconds, count) for seconds in map(float, _GROUP_S.value) for count in map(int, _SERVERS.value)]
        for _, (seconds, count) in itertools.product(range(_REPEATS.value), cases):
            turns[seconds, count].append(take_turn(root, count=count, seconds=seconds))
    print_head(HEAD, left=())
    for seconds, count in cases:
        print_row(*cells(seconds, count, turns[seconds, count], turns[seconds, int(_SERVERS.value[0])]))


def cells(seconds: float, count: int, turns: list[Turn], first: list[Turn]) -> list[object]:
    """The cells of `HEAD`; `first` are the turns that ratios are to."""
    middle = {
        field.name: statistics.median(getattr(turn, field.name) for turn in turns) for field in dataclasses.fields(Turn)
    }
    ratios = [turn.cpu_us / other.cpu_us for turn, other in zip(turns, first, strict=True)]
    return [
        f"{seconds:g} s" if seconds else "no time",
        count,
        f"{middle['rollouts_per_s']:,.0f}",
        f"{middle['cpu_us']:.0f}",
        f"{statistics.median(ratios):.2f}",
        spread(ratios),
        f"{middle['idle_ms']:.0f} ms/s",
        f"{middle['update_ms']:.0f} ms",
    ]


def take_turn(root: pathlib.Path, *, count: int, seconds: float) -> Turn:
    """A sampler over new servers, measured idle, under load and while it updates them."""
    arguments = [
        f"--model={root / 'model'}",
        f"--servers={count}",
        f"--slots={_IN_FLIGHT.value}",
        f"--median_length={MEDIAN_LENGTH}",
        f"--tail={TAIL}",
        f"--tokens_per_s={MEDIAN_LENGTH / seconds if seconds else NO_TIME}",
    ]
    params = model.init_params(SHAPE, jax.random.key(0))
    with (
        serving("benchmarks.simulated", arguments, count=1, root=root) as [servers],
        sampling(servers.address, SHAPE) as sampler,
    ):
        began = cpu_s()
        time.sleep(_IDLE_S.value)
        idle = (cpu_s() - began) / _IDLE_S.value
        rate, rollout = load(sampler)
        began = cpu_s()
        for version in range(1, _UPDATES.value + 1):
            sampler.update_weights(params, version=version)
        update = (cpu_s() - began) / _UPDATES.value
    return Turn(rate, 1e6 * rollout, 1e3 * idle, 1e3 * update)


def load(sampler: RemoteSampler) -> tuple[float, float]:
    """Rollouts per second, and seconds of processor time per rollout; at the end nothing is in flight."""
    groups = _IN_FLIGHT.value // _GROUP_SIZE.value
    measured = max(1, _ROLLOUTS.value // _GROUP_SIZE.value)
    source = endless_groups(_GROUP_SIZE.value, max_tokens=MAX_TOKENS)
    sampler.submit(list(itertools.islice(source, groups)))
    began = began_cpu = rate = cost = 0.0
    for number, _ in enumerate(sampler.completed(), 1):
        if number < groups + measured:
            sampler.submit([next(source)])
        if number == groups:
            began, began_cpu = time.monotonic(), cpu_s()
        elif number == groups + measured:
            rollouts = measured * _GROUP_SIZE.value
            rate, cost = rollouts / (time.monotonic() - began), (cpu_s() - began_cpu) / rollouts
    return rate, cost


def cpu_s() -> float:
    """Seconds of processor time of this process, all its threads."""
    used = os.times()
    return used.user + used.system


if __name__ == "__main__":
    app.run(main)
