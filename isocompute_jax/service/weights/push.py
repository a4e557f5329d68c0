"""What `UpdateWeights` is sent: a manifest of the outbox's file, or the file in chunks over several streams.

Senders are numbered over all learner hosts: host h of H with s calls each has the numbers h * s .. h * s + s - 1 of
H * s. A host that sends a manifest while others stream fills its other calls with nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import xxhash

from isocompute_jax.records.tensors import Box
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.chunks import write_chunk
from isocompute_jax.service.weights.outbox import Parcel

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
        index = {tensor.name: i for i, tensor in enumerate(parcel.tensors)}
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
            sent = sum(box.nbytes for box in parcel.boxes)
            yield pb.UpdateWeightsRequest(manifest=manifest(parcel, index)).SerializeToString()
        elif not self.shared:
            for box, start in share(chunks(parcel), call, self.calls):
                data = parcel.data[start : start + box.nbytes]
                sent += len(data)
                yield write_chunk(convert.box_to_message(box, index), data, xxhash.xxh3_64_intdigest(data))
        yield pb.UpdateWeightsRequest(end=pb.WeightsEnd(bytes=sent)).SerializeToString()


def manifest(parcel: Parcel, index: Mapping[str, int]) -> pb.Manifest:
    """Names a parcel's file; `index` is that of each tensor in the header."""
    return pb.Manifest(
        path=parcel.path,
        size=len(parcel.data),
        checksum=parcel.checksum,
        boxes=[convert.box_to_message(box, index) for box in parcel.boxes],
        starts=parcel.starts,
    )


def chunks(parcel: Parcel) -> list[tuple[Box, int]]:
    """The boxes of a parcel, cut to at most `CHUNK_BYTES` each, and the byte of its file at which each begins."""
    return [
        (chunk, start + inside)
        for box, start in zip(parcel.boxes, parcel.starts, strict=True)
        for chunk, inside in box.cut(CHUNK_BYTES)
    ]


def share(chunks: list[tuple[Box, int]], call: int, calls: int) -> list[tuple[Box, int]]:
    """The chunks that one of several calls sends: a run of consecutive ones, so that it reads the file in order."""
    return chunks[len(chunks) * call // calls : len(chunks) * (call + 1) // calls]
