"""The sending end of a transfer: parameters on the learner's devices are packed there, and sent round by round."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.model import ModelConfig
from isocompute_jax.model.hf_devices import HeldBox
from isocompute_jax.records.tensors import DTYPE_BYTES, Box
from isocompute_jax.service.weights.device.schedule import Schedule
from isocompute_jax.service.weights.device.transport import Move, Transport
from isocompute_jax.service.weights.weight_file import aligned

ROUND_S = 60.0
"""Longest wait for one round: for the slowest of the ranks."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Numbers that one slice takes out of a device's shard: equal boxes of layers, or experts, that follow each other.

    Attributes:
      leaf: which parameter.
      lead: how many of the shard's dimensions are stacked (layers, experts).
      start: where the slice begins in the shard.
      shape: of the slice.
      at: the number in the buffer at which it begins.
    """

    leaf: int
    lead: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    at: int


@dataclasses.dataclass(frozen=True)
class Packed:
    """What a rank sends in one round, in one buffer.

    Attributes:
      runs: what it is made of.
      steps: (peer, byte at which the message begins, its bytes), in order.
    """

    runs: tuple[Run, ...]
    steps: tuple[tuple[int, int, int], ...]


class Outgoing:
    """This process's devices as ranks of a group.

    Args:
      config: model shape; `config.dtype` is what weights travel in.
      held: by rank, what `device_boxes` says that the device holds.
      schedules: by rank, what the plan wants of the device.
      devices: by rank.
    """

    def __init__(
        self,
        config: ModelConfig,
        held: Mapping[int, Sequence[HeldBox]],
        schedules: Mapping[int, Schedule],
        devices: Mapping[int, Any],
    ):
        self._dtype = jnp.dtype(config.dtype)
        self._devices = devices
        self._rounds: dict[int, list[Packed]] = {}
        self._sizes: dict[int, int] = {}
        for rank, schedule in schedules.items():
            packed = [_packed(steps, schedule, held[rank]) for steps in _outgoing(schedule)]
            ends = [start + size for each in packed for _, start, size in each.steps]
            self._rounds[rank] = packed
            self._sizes[rank] = max(ends, default=0) // self._dtype.itemsize
        self._count = max((len(rounds) for rounds in self._rounds.values()), default=0)

    def send(self, leaves: Sequence[jax.Array], transport: Transport, progress: Callable[[], None]) -> None:
        """Sends everything; while one round is on its way the next one is packed. Blocks.

        Args:
          leaves: of `to_hf_layout`.
          transport: of the ranks.
          progress: called after each round.

        Raises:
          TransferError: it did not come through.
        """
        shards = {
            rank: [next(s.data for s in leaf.addressable_shards if s.device == device) for leaf in leaves]
            for rank, device in self._devices.items()
        }
        buffers = [
            {
                rank: jax.device_put(np.zeros(size, self._dtype), self._devices[rank])
                for rank, size in self._sizes.items()
            }
            for _ in range(2)
        ]
        self._pack(0, shards, buffers[0])
        for number in range(self._count):
            ready, following = buffers[number % 2], buffers[(number + 1) % 2]
            jax.block_until_ready(ready)
            self._pack(number + 1, shards, following)
            moves = list(self._moves(number, ready))
            if moves:
                transport.exchange(moves, timeout_s=ROUND_S)
            progress()

    def _pack(self, number: int, shards: Mapping[int, Sequence[jax.Array]], buffers: dict[int, jax.Array]) -> None:
        """Puts what the round sends into the buffers; the devices do it in their own time."""
        for rank, rounds in self._rounds.items():
            for run in rounds[number].runs if number < len(rounds) else ():
                shard = shards[rank][run.leaf]
                buffers[rank] = _put(buffers[rank], shard, np.array(run.start), run.at, shape=run.shape)

    def _moves(self, number: int, buffers: Mapping[int, Any]) -> Iterator[Move]:
        for rank, rounds in self._rounds.items():
            if number < len(rounds) and rounds[number].steps:
                address = buffers[rank].unsafe_buffer_pointer()
                yield from (Move(rank, peer, True, address + at, size) for peer, at, size in rounds[number].steps)


@functools.partial(jax.jit, donate_argnums=0, static_argnames="shape")
def _put(buffer: jax.Array, shard: jax.Array, start: jax.Array, at: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    """Writes a slice of a shard into a buffer, in place."""
    part = jax.lax.dynamic_slice(shard, tuple(start[i] for i in range(shard.ndim)), shape)
    return jax.lax.dynamic_update_slice(buffer, part.reshape(-1), (at,))


def _outgoing(schedule: Schedule) -> Iterator[list[tuple[int, int]]]:
    """For each round (message, peer) of what is sent."""
    for steps in schedule.rounds:
        yield [(step.message, step.peer) for step in steps if step.outgoing]


def _packed(steps: Sequence[tuple[int, int]], schedule: Schedule, held: Sequence[HeldBox]) -> Packed:
    """Lays the messages of a round one behind the other; one that goes to several peers is packed once."""
    by_name = _by_name(tuple(held))
    starts: dict[int, tuple[int, int]] = {}
    runs: list[Run] = []
    end = 0
    for message, _ in steps:
        if message in starts:
            continue
        start = end = aligned(end)
        for box in schedule.messages[message]:
            _append(runs, _run(box, by_name[box.name], end // DTYPE_BYTES[box.dtype]))
            end += box.nbytes
        starts[message] = start, end - start
    return Packed(tuple(runs), tuple((peer, *starts[message]) for message, peer in steps))


@functools.lru_cache(maxsize=1)  # the rounds of one rank follow each other
def _by_name(held: tuple[HeldBox, ...]) -> dict[str, list[HeldBox]]:
    found: dict[str, list[HeldBox]] = {}
    for each in held:
        found.setdefault(each.box.name, []).append(each)
    return found


def _run(box: Box, candidates: Sequence[HeldBox], at: int) -> Run:
    """A box of a message as a slice of the shard that holds it."""
    for each in candidates:
        inside = tuple(low - first for low, first in zip(box.offset, each.box.offset, strict=True))
        ends = zip(inside, box.shape, each.box.shape, strict=True)
        if all(low >= 0 and low + size <= whole for low, size, whole in ends):
            return Run(each.leaf, len(each.index), (*each.index, *inside), (*(1 for _ in each.index), *box.shape), at)
    raise AssertionError(f"{box} is held by another device")


def _append(runs: list[Run], run: Run) -> None:
    """Adds a run; where it goes on with the last one, that one becomes longer."""
    if runs and run.lead:
        last, axis = runs[-1], run.lead - 1
        following = (*last.start[:axis], last.start[axis] + last.shape[axis], *last.start[axis + 1 :])
        here = last.leaf, following, last.shape[axis + 1 :], last.at + math.prod(last.shape)
        if here == (run.leaf, run.start, run.shape[axis + 1 :], run.at):
            shape = (*last.shape[:axis], last.shape[axis] + 1, *last.shape[axis + 1 :])
            runs[-1] = dataclasses.replace(last, shape=shape)
            return
    runs.append(run)
