"""What one rank does of a plan: the messages that it has room for, and its sends and receives, round by round."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import invalid
from isocompute_jax.service.weights.coverage import checked_box, overlap
from isocompute_jax.service.weights.device.plan import Device, Plan
from isocompute_jax.service.weights.device.transport import Move
from isocompute_jax.service.weights.weight_file import aligned


@dataclasses.dataclass(frozen=True)
class Step:
    """A send or a receive.

    Attributes:
      message: index into `Schedule.messages`.
      peer: to, or from, which rank.
      outgoing: whether it is sent.
    """

    message: int
    peer: int
    outgoing: bool


@dataclasses.dataclass(frozen=True)
class Schedule:
    """One rank's part of a plan.

    Attributes:
      rank: whose.
      messages: the boxes of each message that passes through it.
      rounds: its steps in each round of the plan; rounds in which it has none are empty.
    """

    rank: int
    messages: tuple[tuple[Box, ...], ...]
    rounds: tuple[tuple[Step, ...], ...]

    def starts(self) -> tuple[tuple[int, ...], int]:
        """Where each message begins in memory that holds them all, and the size of that."""
        starts, end = [], 0
        for boxes in self.messages:
            starts.append(aligned(end))
            end = starts[-1] + sum(box.nbytes for box in boxes)
        return tuple(starts), end

    def moves(self, number: int, addresses: Mapping[int, int]) -> list[Move]:
        """The steps of a round, of messages that lie at the given addresses."""
        return [
            Move(
                self.rank,
                step.peer,
                step.outgoing,
                addresses[step.message],
                sum(box.nbytes for box in self.messages[step.message]),
            )
            for step in self.rounds[number]
        ]


def schedules(plan: Plan) -> list[Schedule]:
    """Every rank's part of a plan."""
    own: list[dict[int, int]] = [{} for _ in plan.nodes]  # of each rank: message -> its number there
    rounds: list[list[tuple[Step, ...]]] = [[] for _ in plan.nodes]
    for hops in plan.rounds:
        steps: list[list[Step]] = [[] for _ in plan.nodes]
        for message, hop in hops:
            for rank, peer in ((hop.source, hop.target), (hop.target, hop.source)):
                number = own[rank].setdefault(message, len(own[rank]))
                steps[rank].append(Step(number, peer, rank == hop.source))
        for rank, each in enumerate(steps):
            rounds[rank].append(tuple(each))
    return [
        Schedule(rank, tuple(plan.messages[message].boxes for message in own[rank]), tuple(rounds[rank]))
        for rank in range(len(plan.nodes))
    ]


def check_schedule(schedule: Schedule, wanted: Sequence[Box]) -> None:
    """Refuses a schedule by which a rank would not be sent each number that it wants, and nothing else.

    Args:
      schedule: the rank's.
      wanted: by the rank; none of them overlap.

    Raises:
      Refusal: names the first tensor that is wrong.
    """
    incoming = collections.Counter(step.message for steps in schedule.rounds for step in steps if not step.outgoing)
    wholes: dict[str, list[Box]] = collections.defaultdict(list)
    for whole in wanted:
        wholes[whole.name].append(whole)
    sent: dict[str, list[Box]] = {name: [] for name in wholes}
    for number, boxes in enumerate(schedule.messages):
        if incoming[number] != 1:
            raise invalid(f"rank {schedule.rank} would be sent message {number} {incoming[number]} times")
        for box in boxes:
            if not any(_inside(box, whole) for whole in wholes.get(box.name, ())):
                raise invalid(f"rank {schedule.rank} would be sent a part of tensor {box.name!r} that it does not want")
            sent[box.name].append(box)
    for name, boxes in sent.items():
        count = sum(math.prod(whole.shape) for whole in wholes[name])
        if overlap(boxes) or sum(math.prod(box.shape) for box in boxes) != count:
            raise invalid(f"rank {schedule.rank} would not be sent all that it wants of tensor {name!r} once")


def _inside(box: Box, whole: Box) -> bool:
    return all(
        low <= start and start + size <= low + length
        for start, size, low, length in zip(box.offset, box.shape, whole.offset, whole.shape, strict=True)
    )


def schedule_to_message(schedule: Schedule, index: Mapping[str, int]) -> pb.TransferSchedule:
    """As it travels; `index` is that of each tensor in the request."""
    return pb.TransferSchedule(
        rank=schedule.rank,
        messages=[
            pb.TransferMessage(boxes=[convert.box_to_message(box, index) for box in boxes])
            for boxes in schedule.messages
        ],
        rounds=[
            pb.TransferRound(
                steps=[pb.TransferStep(message=s.message, peer=s.peer, outgoing=s.outgoing) for s in steps]
            )
            for steps in schedule.rounds
        ],
    )


def message_to_schedule(message: pb.TransferSchedule, tensors: Sequence[TensorSpec]) -> Schedule:
    """Back again; `tensors` are those of the request.

    Raises:
      Refusal: a box does not lie in its tensor, or a step names a message that is not there.
    """
    messages = tuple(tuple(checked_box(box, tensors) for box in each.boxes) for each in message.messages)
    rounds = tuple(
        tuple(Step(step.message, step.peer, step.outgoing) for step in each.steps) for each in message.rounds
    )
    if any(step.message >= len(messages) for each in rounds for step in each):
        raise invalid(f"a step of rank {message.rank} names a message that is not there")
    return Schedule(message.rank, messages, rounds)


def device_to_message(device: Device, index: Mapping[str, int]) -> pb.Rank:
    """A server's device as it travels; `index` is that of each tensor in the reply."""
    return pb.Rank(node=device.node, wanted=[convert.box_to_message(box, index) for box in device.boxes])


def message_to_device(message: pb.Rank, tensors: Sequence[TensorSpec]) -> Device:
    """Back again; `tensors` are those of the reply.

    Raises:
      Refusal: a box does not lie in its tensor.
    """
    return Device(message.node, tuple(checked_box(box, tensors) for box in message.wanted))
