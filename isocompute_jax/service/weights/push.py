"""What `UpdateWeights` is sent: a manifest of the outbox's file, or the file in chunks over several streams.

Senders are numbered over all learner hosts: host h of H with s calls each has the numbers h * s .. h * s + s - 1 of
H * s. A host that sends a manifest while others stream fills its other calls with nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import xxhash

from isocompute_jax.records.tensors import DTYPE_BYTES
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.chunks import write_chunk
from isocompute_jax.service.weights.outbox import FileBox, Parcel

CHUNK_BYTES = 1 << 20
"""Of a streamed push: smaller ones cost more calls, larger ones no longer fit the processor's cache."""


@dataclasses.dataclass(frozen=True)
class Push:
    """One version of the weights for one endpoint.

    Attributes:
      parcel: this host's share.
      session: names the learner.
      in_flight: what becomes of groups that are being sampled.
      shared: by manifest; else streamed.
      streams: parallel calls of a streamed push.
      process_index: this learner host.
      process_count: learner hosts.
    """

    parcel: Parcel
    session: str
    in_flight: pb.InFlight
    shared: bool
    streams: int
    process_index: int = 0
    process_count: int = 1

    @property
    def calls(self) -> int:
        """Calls of this host. All hosts make the same number, whichever way each of them sends."""
        return 1 if self.shared and self.process_count == 1 else self.streams

    def messages(self, call: int) -> Iterator[bytes]:
        """The serialised messages of one call, from its header to its end."""
        parcel = self.parcel
        header = pb.WeightsHeader(
            session=self.session,
            version=parcel.version,
            tensors=convert.tensors_to_messages(parcel.tensors),
            in_flight=self.in_flight,
            sender=self.process_index * self.calls + call,
            senders=self.process_count * self.calls,
        )
        yield pb.UpdateWeightsRequest(header=header).SerializeToString()
        sent = 0
        if self.shared and call == 0:
            sent = sum(map(parcel.nbytes, parcel.boxes))
            yield pb.UpdateWeightsRequest(manifest=manifest(parcel)).SerializeToString()
        elif not self.shared:
            for box in share(chunks(parcel), call, self.calls):
                data = parcel.data[box.start : box.start + parcel.nbytes(box)]
                sent += len(data)
                yield write_chunk(box_message(box), data, xxhash.xxh3_64_intdigest(data))
        yield pb.UpdateWeightsRequest(end=pb.WeightsEnd(bytes=sent)).SerializeToString()


def manifest(parcel: Parcel) -> pb.Manifest:
    """Names a parcel's file."""
    return pb.Manifest(
        path=parcel.path,
        size=parcel.size,
        checksum=parcel.checksum,
        boxes=map(box_message, parcel.boxes),
        starts=[box.start for box in parcel.boxes],
    )


def box_message(box: FileBox) -> pb.Box:
    """A box, without where it stands in the file."""
    return pb.Box(tensor=box.tensor, offset=box.offset, shape=box.shape)


def chunks(parcel: Parcel) -> list[FileBox]:
    """The boxes of a parcel, cut so that none is much larger than `CHUNK_BYTES`."""
    return [
        chunk for box in parcel.boxes for chunk in cut(box, DTYPE_BYTES[parcel.tensors[box.tensor].dtype], CHUNK_BYTES)
    ]


def cut(box: FileBox, itemsize: int, limit: int) -> Iterator[FileBox]:
    """Cuts a box into boxes of at most `limit` bytes that each are one run of the file; a number is never cut.

    Along its first axis where one of its rows fits the limit, else each row by itself.
    """
    if math.prod(box.shape) * itemsize <= limit:
        if math.prod(box.shape):
            yield box
        return
    row = math.prod(box.shape[1:]) * itemsize
    step = max(1, limit // row)
    for low in range(0, box.shape[0], step):
        rows = FileBox(
            box.tensor,
            (box.offset[0] + low, *box.offset[1:]),
            (min(step, box.shape[0] - low), *box.shape[1:]),
            box.start + low * row,
        )
        if row <= limit:
            yield rows
            continue
        inner = FileBox(box.tensor, rows.offset[1:], rows.shape[1:], rows.start)
        for part in cut(inner, itemsize, limit):
            yield dataclasses.replace(part, offset=(rows.offset[0], *part.offset), shape=(1, *part.shape))


def share(boxes: list[FileBox], call: int, calls: int) -> list[FileBox]:
    """The boxes that one of several calls sends: a run of consecutive ones, so that it reads the file in order."""
    return boxes[len(boxes) * call // calls : len(boxes) * (call + 1) // calls]
