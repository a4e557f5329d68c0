"""Between messages and records: the one place that knows both.

Chunks of weights are read and written without the copies that the protobuf library makes of their data. Only messages
in the form that every protobuf library writes are read here; all others go to the library, so that what is accepted
does not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import LOWEST, ROUNDING, Completion, FinishReason
from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb

FINISH_REASONS: dict[FinishReason, pb.FinishReason] = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
}
FRAME_BYTES = 16
"""What a completion's tag and length take in the message that holds it, at most."""
EXPERT, TOKEN = np.dtype("<i2"), np.dtype("<i4")
FINISHED: dict[int, FinishReason] = {int(value): reason for reason, value in FINISH_REASONS.items()}

_LEN, _FIXED64 = 2, 1
_CHUNK = pb.UpdateWeightsRequest.CHUNK_FIELD_NUMBER << 3 | _LEN
_BOX = pb.WeightChunk.BOX_FIELD_NUMBER << 3 | _LEN
_DATA = pb.WeightChunk.DATA_FIELD_NUMBER << 3 | _LEN
_CHECKSUM = pb.WeightChunk.CHECKSUM_FIELD_NUMBER << 3 | _FIXED64
_GAPS = pb.WeightChunk.GAPS_FIELD_NUMBER << 3 | _LEN


def request_to_message(
    request: SampleRequest,
    *,
    group_id: str,
    session: str | None = None,
    policy_version: int | None = None,
) -> pb.SampleRequest:
    """The message that asks for a group; `session` and `policy_version` as the .proto says."""
    return pb.SampleRequest(
        group_id=group_id,
        problem_id=request.problem_id,
        seed=request.seed,
        step=request.step,
        prompt_tokens=request.prompt_tokens.tolist(),
        group_size=request.group_size,
        temperature=request.params.temperature,
        top_p=request.params.top_p,
        max_tokens=request.params.max_tokens,
        stop_token_ids=request.stop_tokens,
        session=session,
        policy_version=policy_version,
        first_rollout=request.first_rollout,
        turn=request.turn,
        budgets=request.budgets,
        top_k=request.params.top_k,
    )


def completion_to_message(index: int, completion: Completion) -> pb.Completion:
    """One finished rollout."""
    more: dict[str, Any] = {}
    if completion.experts is not None:
        _, layers, active = completion.experts.shape
        experts = completion.experts.astype(EXPERT).tobytes()
        more = {"experts": experts, "expert_layers": layers, "experts_per_token": active}
    if completion.support is not None:
        width = completion.support.shape[1]
        more |= {"support": completion.support.astype(TOKEN).tobytes(), "support_width": width}
    return pb.Completion(
        index=index,
        tokens=completion.tokens.tolist(),
        logprobs=completion.logprobs.tolist(),
        finish_reason=FINISH_REASONS[completion.finish_reason],
        spans=[pb.VersionSpan(version=v, length=n) for v, n in version_spans(completion.policy_versions)],
        **more,
    )


def completions_to_replies(ready: Iterable[tuple[int, Completion]], max_bytes: int) -> Iterator[pb.SampleReply]:
    """Finished rollouts in as few messages of at most `max_bytes` bytes as may be; a larger one goes alone."""
    completions: list[pb.Completion] = []
    size = 0
    for index, completion in ready:
        message = completion_to_message(index, completion)
        needed = message.ByteSize() + FRAME_BYTES
        if completions and size + needed > max_bytes:
            yield pb.SampleReply(completions=completions)
            completions, size = [], 0
        completions.append(message)
        size += needed
    if completions:
        yield pb.SampleReply(completions=completions)


def checked_completion(
    message: pb.Completion,
    request: SampleRequest,
    *,
    vocab_size: int,
    experts: tuple[int, int, int] | None,
    support: bool,
) -> Completion:
    """One finished rollout of a group that was asked for, once every number of it has been looked at.

    With `experts`, the model's layers, experts of a token and of a layer, it must say which were chosen, and with
    `support` which tokens could be drawn, of which all rollouts then say equally many; else neither is read.

    Raises:
      ValueError: it is not what was asked for; says which number of which token.
    """
    if message.index >= request.group_size:
        raise ValueError("it was not asked for")
    for name, is_read in (("experts", experts), ("support", support)):
        if not is_read:
            message.ClearField(name)
    try:
        drawn = message_to_completion(message)
    except OverflowError as error:
        raise ValueError(f"it has a token id or a version that cannot be ({error})") from error
    length, budget = len(drawn.tokens), request.budget(message.index)
    if length > budget:
        raise ValueError(f"it has more than {budget} tokens")
    layers, of_token, count = experts or (0, 0, 0)
    shape = len(request.prompt_tokens) + length - 1, layers, of_token
    if experts and (drawn.experts is None or drawn.experts.shape != shape):
        raise ValueError(f"it does not have experts of shape {shape}")
    for what, numbers, low, high in (
        ("id", drawn.tokens, 0, vocab_size - 1),
        ("log-probability", drawn.logprobs, LOWEST, ROUNDING),
        ("expert", drawn.experts, -1, count - 1),
        ("possible id", drawn.support, -1, vocab_size - 1),
    ):
        if numbers is not None and len(bad := np.argwhere(~((numbers >= low) & (numbers <= high)))):
            place = tuple(bad[0])
            raise ValueError(f"it has at token {place[0]} the {what} {numbers[place]}, outside {low} .. {high}")
    stops = np.isin(drawn.tokens, request.stop_tokens)
    # Of a request without stop tokens nobody can tell why it stopped.
    ended = length == budget if drawn.finish_reason == "length" else stops[-1] or not request.stop_tokens
    if stops[:-1].any() or not ended:
        raise ValueError(
            f"it ended by {drawn.finish_reason!r} after {length} of {budget} tokens, with the id {drawn.tokens[-1]}: "
            f"one ends with the first of {list(request.stop_tokens)}, or when it has so many"
        )
    if support:
        drawn = dataclasses.replace(drawn, support=drawn.support_of(min(request.params.top_k, vocab_size)))
    return drawn


def message_to_completion(message: pb.Completion) -> Completion:
    """One finished rollout. Raises ValueError: its parts do not fit together."""
    length = len(message.tokens)
    spans = np.array([span.length for span in message.spans], np.int64)
    if length < 1 or len(message.logprobs) != length or spans.sum() != length:
        raise ValueError(
            f"completion {message.index} has {length} tokens, {len(message.logprobs)} log-probabilities and "
            f"{spans.sum()} versions"
        )
    if message.finish_reason not in FINISHED:
        raise ValueError(f"completion {message.index} has the unknown finish_reason {message.finish_reason}")
    return Completion.drawn(
        np.array(message.tokens, np.int32),
        np.array(message.logprobs, np.float32),
        np.repeat(np.array([span.version for span in message.spans], np.int32), spans),
        FINISHED[message.finish_reason],
        _experts(message),
        _support(message),
    )


def _experts(message: pb.Completion) -> np.ndarray | None:
    """[tokens, layers, experts per token], or None where the server does not say it."""
    if not message.HasField("experts"):
        return None
    of_token = EXPERT.itemsize * message.expert_layers * message.experts_per_token
    if not of_token or len(message.experts) % of_token:
        raise ValueError(
            f"completion {message.index} has {len(message.experts)} bytes of experts, for {message.expert_layers} "
            f"layers and {message.experts_per_token} of a token"
        )
    shape = (len(message.experts) // of_token, message.expert_layers, message.experts_per_token)
    return np.frombuffer(message.experts, EXPERT).reshape(shape)


def _support(message: pb.Completion) -> np.ndarray | None:
    """[tokens, width] ids, or None where the server does not say it."""
    if not message.HasField("support"):
        return None
    if len(message.support) != TOKEN.itemsize * len(message.tokens) * message.support_width:
        raise ValueError(
            f"completion {message.index} has {len(message.support)} bytes of what could be drawn, for "
            f"{len(message.tokens)} tokens of {message.support_width}"
        )
    return np.frombuffer(message.support, TOKEN).reshape(len(message.tokens), message.support_width)


def version_spans(versions: np.ndarray) -> list[tuple[int, int]]:
    """[T] versions as runs of (version, length)."""
    ends = [*np.flatnonzero(np.diff(versions)) + 1, len(versions)]
    starts = [0, *ends[:-1]]
    return [(int(versions[start]), int(end - start)) for start, end in zip(starts, ends, strict=True)]


def tensors_to_messages(tensors: Iterable[TensorSpec]) -> list[pb.Tensor]:
    """The tensors of a model."""
    return [pb.Tensor(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape) for tensor in tensors]


def box_to_message(box: Box, index: Mapping[str, int]) -> pb.Box:
    """A box; `index` is that of each tensor in the header."""
    return pb.Box(tensor=index[box.name], offset=box.offset, shape=box.shape)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A `WeightChunk` whose data still lie in the message that brought them."""

    box: pb.Box
    data: memoryview
    checksum: int
    gaps: memoryview | None = None


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
        chunk = request.chunk
        gaps = memoryview(chunk.gaps) if chunk.HasField("gaps") else None
        return Chunk(chunk.box, memoryview(chunk.data), chunk.checksum, gaps)
    return request


def write_chunk(box: pb.Box, data: memoryview, checksum: int, gaps: memoryview | None = None) -> bytes:
    """The bytes of an `UpdateWeightsRequest` with one chunk; its data are copied once."""
    box_bytes = box.SerializeToString()
    head = b"".join([bytes([_BOX]), _varint(len(box_bytes)), box_bytes, bytes([_DATA]), _varint(len(data))])
    tail = bytes([_CHECKSUM]) + checksum.to_bytes(8, "little")
    if gaps is not None:
        tail = b"".join([tail, bytes([_GAPS]), _varint(len(gaps)), gaps])
    size = len(head) + len(data) + len(tail)
    return b"".join([bytes([_CHUNK]), _varint(size), head, data, tail])


def _read_chunk(message: memoryview) -> Chunk | None:
    """The chunk that a message is; None when the message is anything else, or unusual."""
    if not message or message[0] != _CHUNK:
        return None
    size, at = _read_varint(message, 1)
    if at + size != len(message):
        return None
    box, data, checksum, gaps = None, memoryview(b""), 0, None
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
        if tag not in (_BOX, _DATA, _GAPS):
            return None
        size, at = _read_varint(message, at + 1)
        if at + size > len(message):
            return None
        if tag == _BOX:
            box = pb.Box.FromString(message[at : at + size].tobytes())
        elif tag == _GAPS:
            gaps = message[at : at + size]
        else:
            data = message[at : at + size]
        at += size
    return Chunk(pb.Box() if box is None else box, data, checksum, gaps)


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
