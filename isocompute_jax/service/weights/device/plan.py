"""The weight plan: which device sends which part of which tensor to which, made once from both shardings.

Links. A device has a network adapter of its own (as on H200 nodes), and reaches the devices of its own node without it.
The plan keeps the busiest adapter as idle as it can:

- A node is sent each byte once, by whichever of its devices wants it; that one hands it to the others of its node.
- Devices of the learner that hold the same part share the work of sending it.
- Nodes of servers pass on what they were sent, as soon as a learner's adapter would carry more than a receiver's must.

`links.py` counts what each adapter carries, and what it must at least.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

from isocompute_jax.records.tensors import Box, TensorSpec

BUCKET_BYTES = 64 << 20
GRAIN_BYTES = 4 << 20
"""Work is shared out in lumps of at most so many bytes."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A device and what it holds of the weights, or wants of them.

    Attributes:
      node: names its host.
      boxes: parts of tensors, none of which overlap.
    """

    node: str
    boxes: tuple[Box, ...]


@dataclasses.dataclass(frozen=True)
class Hop:
    """A message's way from one device to another.

    Attributes:
      source: rank that sends: learners' devices are 0 .. senders - 1, servers' follow.
      target: rank that receives.
      depth: hops before this one.
    """

    source: int
    target: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Message:
    """Boxes that travel as one run of bytes, one behind the other.

    Attributes:
      boxes: what it holds, each in row-major order.
      hops: its way, in order of depth; no rank receives it twice.
      bucket: the round in which its first hop is made.
    """

    boxes: tuple[Box, ...]
    hops: tuple[Hop, ...]
    bucket: int

    @functools.cached_property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(box.nbytes for box in self.boxes)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Every message of an update, in the order in which all ranks walk through them.

    Attributes:
      nodes: each rank's host.
      senders: how many of the ranks, the first ones, are the learner's.
      messages: those of earlier buckets first.
    """

    nodes: tuple[str, ...]
    senders: int
    messages: tuple[Message, ...]

    @functools.cached_property
    def rounds(self) -> tuple[tuple[tuple[int, Hop], ...], ...]:
        """For each round its (message, hop): a hop of depth d is made d rounds after its message's first."""
        last = max((m.bucket + hop.depth for m in self.messages for hop in m.hops), default=-1)
        rounds: list[list[tuple[int, Hop]]] = [[] for _ in range(last + 1)]
        for number, message in enumerate(self.messages):
            for hop in message.hops:
                rounds[message.bucket + hop.depth].append((number, hop))
        return tuple(map(tuple, rounds))

    def received(self, rank: int) -> Iterator[Message]:
        """The messages that a rank is sent."""
        return (message for message in self.messages if any(hop.target == rank for hop in message.hops))


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a tensor with the ranks that hold it and those that want it."""

    box: Box
    sources: tuple[int, ...]
    targets: tuple[int, ...]


@dataclasses.dataclass
class _Lump:
    """Pieces with the same ranks, which go the same way."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    nbytes: int = 0
    members: list[int] = dataclasses.field(default_factory=list)


def make_plan(
    tensors: Sequence[TensorSpec],
    senders: Sequence[Device],
    receivers: Sequence[Device],
    *,
    bucket_bytes: int = BUCKET_BYTES,
    grain_bytes: int = GRAIN_BYTES,
) -> Plan:
    """The plan of one update; equal arguments give equal plans.

    Args:
      tensors: of the model; buckets follow their order.
      senders: the learner's devices, with what each holds; copies may be held by several.
      receivers: the servers' devices, with what each wants.
      bucket_bytes: most bytes that one device first sends, or is sent, in one bucket.
      grain_bytes: most bytes that are shared out at a time.

    Raises:
      ValueError: something wanted is held by nobody.
    """
    nodes = tuple(device.node for device in (*senders, *receivers))
    grain = min(bucket_bytes, grain_bytes)
    cut: list[Piece] = []
    lumps: list[_Lump] = []
    filling: dict[tuple[tuple[int, ...], tuple[int, ...]], _Lump] = {}
    for piece in pieces(tensors, senders, receivers):
        kind = piece.sources, piece.targets
        for box, _ in piece.box.cut(grain):
            lump = filling.get(kind)
            if lump is None or lump.nbytes + box.nbytes > grain:
                lump = filling[kind] = _Lump(*kind)
                lumps.append(lump)
            lump.nbytes += box.nbytes
            cut.append(Piece(box, *kind))
            lump.members.append(len(cut) - 1)
    # What only few could send comes first: what has a choice then evens out what that has made uneven.
    routes = _Routes(nodes, len(senders), lumps)
    ways: dict[int, tuple[Hop, ...]] = {}
    for lump in sorted(lumps, key=lambda lump: (len(lump.sources), len(lump.targets))):
        ways.update(dict.fromkeys(lump.members, routes.choose(lump)))
    return Plan(nodes, len(senders), _messages(cut, ways, bucket_bytes))


def pieces(tensors: Sequence[TensorSpec], senders: Sequence[Device], receivers: Sequence[Device]) -> Iterator[Piece]:
    """Cuts every tensor along the edges of all boxes of it, as far as it is wanted.

    Raises:
      ValueError: something wanted is held by nobody.
    """
    held, wanted = _by_tensor(senders, 0), _by_tensor(receivers, len(senders))
    cells = functools.cache(_cells)  # layers are alike
    for tensor in tensors:
        for offset, shape, sources, targets in cells(
            tensor.shape, tuple(held[tensor.name]), tuple(wanted[tensor.name])
        ):
            box = Box(tensor.name, tensor.dtype, shape, offset)
            if not sources:
                raise ValueError(f"tensor {tensor.name!r}: {box} is wanted, and no sender holds it")
            yield Piece(box, sources, targets)


_Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A rank, and the offset and shape of a box that it holds."""
_Cell = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Offset, shape, sources, targets."""


def _by_tensor(devices: Sequence[Device], first: int) -> dict[str, list[_Place]]:
    places: dict[str, list[_Place]] = collections.defaultdict(list)
    for rank, device in enumerate(devices, first):
        for box in device.boxes:
            places[box.name].append((rank, box.offset, box.shape))
    return places


def _cells(shape: tuple[int, ...], held: tuple[_Place, ...], wanted: tuple[_Place, ...]) -> list[_Cell]:
    """The wanted cells of the grid that all edges of boxes make."""
    edges = [
        sorted({edge for _, offset, size in (*held, *wanted) for edge in (offset[axis], offset[axis] + size[axis])})
        for axis in range(len(shape))
    ]
    cells = []
    for bounds in itertools.product(*(itertools.pairwise(each) for each in edges)):
        targets = _covering(wanted, bounds)
        if targets:
            offset = tuple(low for low, _ in bounds)
            cells.append((offset, tuple(high - low for low, high in bounds), _covering(held, bounds), targets))
    return cells


def _covering(places: Sequence[_Place], bounds: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """The ranks with a box around a cell of the grid."""
    return tuple(
        rank
        for rank, offset, size in places
        if all(
            low <= start and stop <= low + length
            for low, length, (start, stop) in zip(offset, size, bounds, strict=True)
        )
    )


class _Routes:
    """Chooses ways, and keeps count of what each device's adapter carries.

    Args:
      nodes: each rank's host.
      senders: how many of the ranks are the learner's.
      lumps: all that will be sent. What a receiver's adapter must carry of them, others may carry as well.
    """

    def __init__(self, nodes: Sequence[str], senders: int, lumps: Sequence[_Lump]):
        self._nodes = nodes
        self._by_node = functools.cache(self._grouped)
        self._out = [0] * len(nodes)
        self._in = [0] * len(nodes)
        self._local = [0] * len(nodes)
        self._begun = 0
        into: collections.Counter[str] = collections.Counter()
        for lump in lumps:
            for node in self._by_node(lump.targets).keys() - self._by_node(lump.sources).keys():
                into[node] += lump.nbytes
        devices = collections.Counter(nodes[senders:])
        busiest = max((size / devices[node] for node, size in into.items()), default=0.0)
        self._share = busiest / max(1, sum(lump.nbytes for lump in lumps))

    def _grouped(self, ranks: tuple[int, ...]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(self._nodes[rank], []).append(rank)
        return found

    def choose(self, lump: _Lump) -> tuple[Hop, ...]:
        """The way of a lump over the adapters that have carried least so far."""
        wanted, held = self._by_node(lump.targets), self._by_node(lump.sources)
        hops: list[Hop] = []
        self._begun += lump.nbytes
        most = self._share * self._begun
        for node in sorted(wanted.keys() & held.keys()):
            source = min(held[node], key=lambda rank: (self._local[rank], rank))
            hops += self._enter(lump, source, wanted[node], 0, local=True)
        depths = dict.fromkeys(lump.sources, 0)  # of what each could send on
        # Those that have sent most come last, when most others can send in their place.
        away = sorted(wanted.keys() - held.keys(), key=lambda node: (sum(self._out[r] for r in wanted[node]), node))
        for number, node in enumerate(away):
            able = depths if number else lump.sources

            def cost(rank: int) -> tuple[bool, int, int, int]:
                full = self._out[rank] + lump.nbytes > most
                return full, 0 if full else depths[rank], self._out[rank], rank

            source = min(able, key=cost)
            entered = self._enter(lump, source, wanted[node], depths[source], local=False)
            depths[entered[0].target] = depths[source] + 1
            hops += entered
        return tuple(sorted(hops, key=lambda hop: (hop.depth, hop.source, hop.target)))

    def _enter(self, lump: _Lump, source: int, targets: Sequence[int], depth: int, *, local: bool) -> list[Hop]:
        """Into a node, then on to the others there that want it."""
        size, carried = lump.nbytes, self._local if local else self._in
        entry = min(targets, key=lambda rank: (carried[rank], self._local[rank], rank))
        carried[entry] += size
        (self._local if local else self._out)[source] += size
        self._local[entry] += size * (len(targets) - 1)
        others = [Hop(entry, rank, depth + 1) for rank in targets if rank != entry]
        return [Hop(source, entry, depth), *others]


def _messages(cut: Sequence[Piece], ways: dict[int, tuple[Hop, ...]], bucket_bytes: int) -> tuple[Message, ...]:
    """Pieces of one way and bucket make a message; buckets are filled in the order of the tensors."""
    found: list[Message] = []
    bucket, boxes = 0, collections.defaultdict(list)
    filled: collections.Counter[tuple[str, int]] = collections.Counter()

    def close() -> None:
        found.extend(Message(tuple(inside), way, bucket) for way, inside in boxes.items())

    @functools.cache
    def ends(way: tuple[Hop, ...]) -> set[tuple[str, int]]:
        return {("out", hop.source) for hop in way if hop.depth == 0} | {("in", hop.target) for hop in way}

    for number, piece in enumerate(cut):
        way = ways[number]
        own, size = ends(way), piece.box.nbytes
        if any(filled[end] + size > bucket_bytes for end in own):
            close()
            bucket, boxes = bucket + 1, collections.defaultdict(list)
            filled.clear()
        boxes[way].append(piece.box)
        for end in own:
            filled[end] += size
    close()
    return tuple(found)
