"""A plan carried out between real processes on NumPy buffers, against the file that weights else go by."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import pathlib

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
import pytest

from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.plan import Device, make_plan
from isocompute_jax.service.weights.device.receiver import Receiver
from isocompute_jax.service.weights.device.schedule import (
    Schedule,
    check_schedule,
    message_to_schedule,
    schedule_to_message,
    schedules,
)
from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.shared_file import SharedFolder
from isocompute_jax.service.weights.weight_file import BITS, WeightWriter
from tests.service.weights.device.fake_nccl import Fake

TENSORS = [
    TensorSpec("a", "bfloat16", (48, 40)),
    TensorSpec("b", "bfloat16", (64,)),
    TensorSpec("c", "bfloat16", (8, 6, 10)),
]
WAIT_S = 20


def part(tensor, axis, index, count):
    offset, shape = [0] * len(tensor.shape), list(tensor.shape)
    shape[axis] //= count
    offset[axis] = index * shape[axis]
    return Box(tensor.name, tensor.dtype, tuple(shape), tuple(offset))


def sides():
    """Two learners cut by rows; two nodes of two ranks each cut by columns; b is whole everywhere."""
    a, b, c = TENSORS
    senders = [Device("learner", (part(a, 0, i, 2), b.box, part(c, 0, i, 2))) for i in range(2)]
    columns = [(part(a, 1, i, 2), b.box, part(c, 2, i, 2)) for i in range(2)]
    return senders, [Device(node, boxes) for node, boxes in itertools.product(("s", "t"), columns)]


def join(kind: str, folder: str, ranks):
    if kind == "sockets":
        return SocketTransport(folder, ranks, 6, timeout_s=WAIT_S)
    fake = Fake(pathlib.Path(folder))
    libraries = fake.libraries()
    return nccl.NcclTransport(libraries, libraries.unique_id(), {rank: rank for rank in ranks}, 6, timeout_s=WAIT_S)


def child(kind: str, folder: str, schedule: Schedule, updates: int, pipe) -> None:
    """A server's rank: what it has of each tensor after every update, as bits."""
    memory = np.zeros(schedule.starts()[1], np.uint8)
    receiver = Receiver(join(kind, folder, [schedule.rank]), schedule, memory.ctypes.data)
    for _ in range(updates):
        receiver.begin()
        receiver.join()
        found = [
            (each.box, memory[each.start :][: each.box.nbytes].tobytes())
            for p in receiver.placed.values()
            for each in p
        ]
        pipe.send(found)
    pipe.recv()
    receiver.close()


def test_a_schedule_that_leaves_something_out_or_brings_too_much_is_refused():
    senders, receivers = sides()
    work = schedules(make_plan(TENSORS, senders, receivers, bucket_bytes=512))[2]
    wanted = receivers[0].boxes
    check_schedule(work, wanted)
    first, *others = work.messages
    for messages, said in (
        ((first[1:], *others), "would not be sent all that it wants of tensor"),
        (((first[0], *first), *others), "would not be sent all that it wants of tensor"),
        (((TENSORS[0].box, *first), *others), "a part of tensor 'a' that it does not want"),
        ((first, *others, first), "times"),
    ):
        with pytest.raises(Refusal, match=said):
            check_schedule(dataclasses.replace(work, messages=tuple(messages)), wanted)


@pytest.mark.parametrize("kind", ["sockets", "nccl"])
def test_ranks_get_their_parts_of_the_file(tmp_path, kind):
    (tmp_path / "group").mkdir()
    senders, receivers = sides()
    plan = make_plan(TENSORS, senders, receivers, bucket_bytes=512, grain_bytes=128)
    assert max(hop.depth for message in plan.messages for hop in message.hops) > 0 and len(plan.rounds) > 3
    work = schedules(plan)
    index = {tensor.name: i for i, tensor in enumerate(TENSORS)}
    assert [message_to_schedule(schedule_to_message(each, index), TENSORS) for each in work] == work
    context = multiprocessing.get_context("spawn")
    pipes = []
    for schedule in work[2:]:
        ours, theirs = context.Pipe()
        context.Process(target=child, args=(kind, str(tmp_path / "group"), schedule, 2, theirs), daemon=True).start()
        pipes.append(ours)
    transport = join(kind, str(tmp_path / "group"), [0, 1])
    folder = SharedFolder(tmp_path / "files")
    for update in range(2):
        random = np.random.default_rng(update)
        writer = WeightWriter(folder.new_file(), TENSORS)
        wholes = {tensor.name: random.integers(0, 1 << 16, tensor.shape, np.uint16) for tensor in TENSORS}
        for tensor in TENSORS:
            writer.write(tensor.box, wholes[tensor.name])
        memories = []
        for schedule in work[:2]:
            packed = [
                np.concatenate([wholes[b.name][b.slices].reshape(-1) for b in boxes]) for boxes in schedule.messages
            ]
            memories.append(packed)
        for number in range(len(plan.rounds)):
            moves = [
                move
                for schedule, packed in zip(work[:2], memories, strict=True)
                for move in schedule.moves(number, {i: each.ctypes.data for i, each in enumerate(packed)})
            ]
            if moves:
                transport.exchange(moves, timeout_s=WAIT_S)
        data = pathlib.Path(writer.weights.path).read_bytes()
        filed = {
            tensor.name: np.frombuffer(data, BITS[2], tensor.nbytes // 2, start).reshape(tensor.shape)
            for tensor, start in zip(TENSORS, writer.weights.starts, strict=True)
        }
        for device, pipe in zip(receivers, pipes, strict=True):
            found = pipe.recv()
            assert sum(box.nbytes for box, _ in found) == sum(box.nbytes for box in device.boxes)
            for box, numbers in found:
                assert numbers == filed[box.name][box.slices].tobytes()
    for pipe in pipes:
        pipe.send("end")
    transport.close()
    folder.remove()
