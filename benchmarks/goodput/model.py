"""A cluster by events: a learner, servers that draw groups, and what fails.

It does what `experiment.loop`, `experiment.pipeline` and `service.client.dispatch` do, as far as time goes:

- before update u the batches up to u + k are out (`max_staleness` = k), and update u waits for all of batch u;
- a group goes whole to the server with the fewest rollouts outstanding, waits there for slots, and is drawn again
  whole, elsewhere and before others, once the server is known to be lost;
- a learner that loses a host loses everything since its last checkpoint and all batches that are out.

Not in it: grading, dynamic sampling, prefill, the time in which a server takes new weights, and a network that is busy.
Times are seconds, lengths are tokens. Events are simpy's.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import simpy

DAY_S = 86_400.0
NEVER_S = math.inf
_SAME = 1e-6
"""Tokens; rollouts that end within so little end together."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What is simulated."""

    servers: int  # how many
    slots: int  # rollouts that a server draws at once
    decode_s: float  # of one token of every slot, on a server that reads its weights and no keys
    decode_rollout_s: float  # what each rollout that is being drawn adds to it
    learner_s: float  # an update, with everything else for which the learner does not wait for rollouts
    groups: int  # in a batch
    group_size: int  # n
    # lengths are int(min(longest, median exp(sigma z))), z normal, and at least 1
    median: float
    sigma: float
    longest: int
    staleness: int  # k
    learner_failures: float = 0.0  # a day, of all learner hosts
    server_failures: float = 0.0  # a day, of all servers together
    learner_notice_s: float = 0.0  # until a failure is known
    learner_restart_s: float = 0.0  # from there to the first new step: processes, compilation, restored state
    server_notice_s: float = 0.0  # until a failure is known
    server_restart_s: float = 0.0  # from there until it is sent groups again
    checkpoint_every_s: float = 0.0  # at the end of the first step after so long

    @property
    def rollouts(self) -> int:
        """Of a batch."""
        return self.groups * self.group_size

    def token_s(self, drawn: int) -> float:
        """One token of each of so many rollouts."""
        return self.decode_s + self.decode_rollout_s * drawn

    def lengths(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count] lengths."""
        drawn = self.median * np.exp(self.sigma * rng.standard_normal(count))
        return np.clip(drawn, 1, self.longest).astype(int)

    @property
    def ideal_s(self) -> float:
        """A step in which neither side ever waits and nothing fails: the slower of an update and of full servers."""
        quantiles = self.lengths(200_000, np.random.default_rng(0))
        full = self.servers * self.slots / self.token_s(self.slots)
        return max(self.learner_s, self.rollouts * float(quantiles.mean()) / full)


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of it, after the warm-up."""

    steps: int  # that were not lost again
    seconds: float  # in which they were made
    goodput: float  # steps by those that `Cluster.ideal_s` allows
    learning: float  # share of the time in which the learner computed what was kept
    busy: float  # share of the servers' slots that drew a token
    learner_failures: int  # how many
    server_failures: int
    redrawn: int  # groups that were drawn again

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / max(self.steps, 1)


@dataclasses.dataclass(eq=False)
class _Group:
    lengths: np.ndarray
    batch: _Batch
    left: int = 0
    """Rollouts that are not drawn."""


@dataclasses.dataclass(eq=False)
class _Batch:
    left: int
    """Groups that are not there."""
    done: simpy.Event


class Server:
    """Slots that advance together: a clock that counts the tokens which each rollout in a slot has drawn."""

    def __init__(self, env: simpy.Environment, cluster: Cluster, fleet: Fleet):
        self.known_up = self.up = True
        self.groups: dict[_Group, None] = {}
        self.load = 0
        self._env = env
        self._cluster = cluster
        self._fleet = fleet
        self._clock = 0.0
        self._read_at = env.now
        self._drawing: list[tuple[float, int, _Group]] = []
        self._waiting: collections.deque[tuple[int, _Group]] = collections.deque()
        self._entered = 0
        self._alarm = 0

    def enter(self, group: _Group) -> None:
        """It is to draw a group."""
        self.groups[group] = None
        self.load += len(group.lengths)
        group.left = len(group.lengths)
        self._waiting.extend((int(length), group) for length in group.lengths)
        if self.up:
            self.advance()
            self._go_on()

    def clear(self) -> list[_Group]:
        """It draws nothing any more; returns what it had."""
        self.advance()
        groups = list(self.groups)
        self.groups.clear()
        self._drawing.clear()
        self._waiting.clear()
        self.load = 0
        self._alarm += 1
        return groups

    def stop(self) -> None:
        """It is lost; nobody knows yet."""
        self.advance()
        self.up = False
        self._alarm += 1
        self._drawing.clear()

    def advance(self) -> None:
        """Draws until now."""
        now = self._env.now
        if self._drawing:
            tokens = (now - self._read_at) / self._cluster.token_s(len(self._drawing))
            self._clock += tokens
            self._fleet.slot_s += (now - self._read_at) * len(self._drawing)
        self._read_at = now

    def _go_on(self) -> None:
        """Fills the slots, and sets the alarm for the next rollout that ends."""
        drawing, waiting = self._drawing, self._waiting
        while waiting and len(drawing) < self._cluster.slots:
            length, group = waiting.popleft()
            self._entered += 1
            heapq.heappush(drawing, (self._clock + length, self._entered, group))
        self._alarm += 1
        if drawing:
            wait = (drawing[0][0] - self._clock) * self._cluster.token_s(len(drawing))
            alarm = self._env.timeout(max(wait, 0.0), self._alarm)
            assert alarm.callbacks is not None
            alarm.callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm.value != self._alarm:
            return  # it was set again meanwhile
        self.advance()
        while self._drawing and self._drawing[0][0] <= self._clock + _SAME:
            group = heapq.heappop(self._drawing)[2]
            group.left -= 1
            if not group.left:
                del self.groups[group]
                self.load -= len(group.lengths)
                group.batch.left -= 1
                if not group.batch.left:
                    group.batch.done.succeed()
        self._go_on()


class Fleet:
    """The servers, and who draws what."""

    def __init__(self, env: simpy.Environment, cluster: Cluster, lengths: np.random.Generator):
        self.redrawn = 0
        self.failures = 0
        self.slot_s = 0.0
        self._env = env
        self._cluster = cluster
        self._lengths = lengths
        self.servers = [Server(env, cluster, self) for _ in range(cluster.servers)]
        self._queue: collections.deque[_Group] = collections.deque()

    def submit(self) -> _Batch:
        """One more batch."""
        cluster = self._cluster
        batch = _Batch(cluster.groups, self._env.event())
        lengths = cluster.lengths(cluster.rollouts, self._lengths).reshape(cluster.groups, cluster.group_size)
        self._queue.extend(_Group(row, batch) for row in lengths)
        self._dispatch()
        return batch

    def cancel(self) -> None:
        """Nothing that is out is wanted any more."""
        self._queue.clear()
        for server in self.servers:
            server.clear()

    def fail(self, server: Server) -> Generator[simpy.Event, Any, None]:
        """What becomes of a server that is lost; the process ends when it is back."""
        if not server.up:
            return
        self.failures += 1
        server.stop()
        yield self._env.timeout(self._cluster.server_notice_s)
        server.known_up = False
        lost = server.clear()
        self.redrawn += len(lost)
        self._queue.extendleft(reversed(lost))
        self._dispatch()
        if self._cluster.server_restart_s < NEVER_S:
            yield self._env.timeout(self._cluster.server_restart_s)
            server.known_up = server.up = True
            self._dispatch()

    def _dispatch(self) -> None:
        usable = [server for server in self.servers if server.known_up]
        while self._queue and usable:
            min(usable, key=_load).enter(self._queue.popleft())


def _load(server: Server) -> int:
    return server.load


@dataclasses.dataclass(eq=False)
class _Learner:
    """The learner's process, and what it has done."""

    env: simpy.Environment
    cluster: Cluster
    fleet: Fleet
    step: int = 0
    failures: int = 0
    reached: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    """When a step was made for the first time, and the seconds that slots had drawn by then."""

    def walk(self, steps: int, lose: Mapping[int, int]) -> Generator[Any, Any, None]:
        """So many steps; after step s the server lose[s] is lost."""
        env, cluster, saved, saved_at = self.env, self.cluster, 0, 0.0
        out: dict[int, _Batch] = {}
        self.reach()
        while self.step < steps:
            try:
                for number in range(self.step, self.step + cluster.staleness + 1):
                    if number not in out:
                        out[number] = self.fleet.submit()
                yield out[self.step].done
                yield env.timeout(cluster.learner_s)
            except simpy.Interrupt:
                yield from self._down()
                self.step, saved_at = saved, env.now
                out.clear()
                continue
            del out[self.step]
            self.step += 1
            if self.step == len(self.reached):
                self.reach()
            if env.now - saved_at >= cluster.checkpoint_every_s:
                saved, saved_at = self.step, env.now
            if self.step in lose:
                env.process(self.fleet.fail(self.fleet.servers[lose[self.step]]))

    def reach(self) -> None:
        """Books that a step is made."""
        for server in self.fleet.servers:
            server.advance()
        self.reached.append((self.env.now, self.fleet.slot_s))

    def _down(self) -> Generator[Any, Any, None]:
        """A host is lost: nothing goes on until all are started again, and another loss begins it anew."""
        while True:
            self.failures += 1
            self.fleet.cancel()
            try:
                yield self.env.timeout(self.cluster.learner_notice_s + self.cluster.learner_restart_s)
                return
            except simpy.Interrupt:
                continue


def simulate(
    cluster: Cluster, *, steps: int, warm_up: int = 0, seed: int = 0, lose: Mapping[int, int] | None = None
) -> Result:
    """So many steps after so many that are not counted.

    Args:
      cluster: what is simulated.
      steps: that are counted.
      warm_up: that are made before.
      seed: of lengths, and of failures, which do not depend on each other.
      lose: a step, of all that are made -> the server that is lost right after it.
    """
    env = simpy.Environment()
    lengths, hosts, servers = (np.random.default_rng([seed, part]) for part in range(3))
    fleet = Fleet(env, cluster, lengths)
    learner = _Learner(env, cluster, fleet)
    walk = env.process(learner.walk(warm_up + steps, lose or {}))

    def lose_one() -> None:
        env.process(fleet.fail(fleet.servers[servers.integers(cluster.servers)]))

    if cluster.learner_failures:
        env.process(_failing(env, cluster.learner_failures, hosts, walk.interrupt))
    if cluster.server_failures:
        env.process(_failing(env, cluster.server_failures, servers, lose_one))
    env.run(walk)
    (began, drawn_before), (ended, drawn) = learner.reached[warm_up], learner.reached[-1]
    seconds = ended - began
    return Result(
        steps=steps,
        seconds=seconds,
        goodput=steps * cluster.ideal_s / seconds,
        learning=steps * cluster.learner_s / seconds,
        busy=(drawn - drawn_before) / (seconds * cluster.servers * cluster.slots),
        learner_failures=learner.failures,
        server_failures=fleet.failures,
        redrawn=fleet.redrawn,
    )


def _failing(
    env: simpy.Environment, per_day: float, rng: np.random.Generator, fail: Callable[[], None]
) -> Generator[simpy.Event, Any, None]:
    """Failures at an even rate: exponential times between them."""
    while True:
        yield env.timeout(rng.exponential(DAY_S / per_day))
        fail()
