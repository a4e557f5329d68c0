"""Weight chunks between bytes and memory without the copies that the protobuf library makes of their data.

Only messages in the form that every protobuf library writes are read here; all others go to the library, so that what
is accepted does not change.
"""

from __future__ import annotations

import dataclasses

from isocompute_jax.service.proto import sampler_pb2 as pb

_LEN, _FIXED64 = 2, 1
_CHUNK = pb.UpdateWeightsRequest.CHUNK_FIELD_NUMBER << 3 | _LEN
_BOX = pb.WeightChunk.BOX_FIELD_NUMBER << 3 | _LEN
_DATA = pb.WeightChunk.DATA_FIELD_NUMBER << 3 | _LEN
_CHECKSUM = pb.WeightChunk.CHECKSUM_FIELD_NUMBER << 3 | _FIXED64


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A `WeightChunk` whose data still lie in the message that brought them."""

    box: pb.Box
    data: memoryview
    checksum: int


def read_request(message: bytes) -> Chunk | pb.UpdateWeightsRequest:
    """Parses an `UpdateWeightsRequest`; one that holds a chunk becomes a `Chunk`.

    Raises:
      google.protobuf.message.DecodeError: it is none.
    """
    try:
        chunk = _read_chunk(memoryview(message))
    except IndexError:  # it ends too early
        chunk = None
    if chunk is not None:
        return chunk
    request = pb.UpdateWeightsRequest.FromString(message)
    if request.WhichOneof("part") == "chunk":
        return Chunk(request.chunk.box, memoryview(request.chunk.data), request.chunk.checksum)
    return request


def write_chunk(box: pb.Box, data: memoryview, checksum: int) -> bytes:
    """The bytes of an `UpdateWeightsRequest` with one chunk; its data are copied once."""
    box_bytes = box.SerializeToString()
    head = b"".join([bytes([_BOX]), _varint(len(box_bytes)), box_bytes, bytes([_DATA]), _varint(len(data))])
    tail = bytes([_CHECKSUM]) + checksum.to_bytes(8, "little")
    size = len(head) + len(data) + len(tail)
    return b"".join([bytes([_CHUNK]), _varint(size), head, data, tail])


def _read_chunk(message: memoryview) -> Chunk | None:
    """The chunk that a message is; None when the message is anything else, or unusual."""
    if not message or message[0] != _CHUNK:
        return None
    size, at = _read_varint(message, 1)
    if at + size != len(message):
        return None
    box, data, checksum = None, memoryview(b""), 0
    seen = 0
    while at < len(message):
        tag = message[at]
        if tag <= seen:  # repeated, or in another order
            return None
        seen = tag
        if tag == _CHECKSUM and at + 9 <= len(message):
            checksum = int.from_bytes(message[at + 1 : at + 9], "little")
            at += 9
            continue
        if tag not in (_BOX, _DATA):
            return None
        size, at = _read_varint(message, at + 1)
        if at + size > len(message):
            return None
        if tag == _BOX:
            box = pb.Box.FromString(message[at : at + size].tobytes())
        else:
            data = message[at : at + size]
        at += size
    return Chunk(pb.Box() if box is None else box, data, checksum)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """A length, and where it ends; it has at most five bytes, as no message is longer than 2 GiB."""
    value = 0
    for shift in range(0, 35, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
