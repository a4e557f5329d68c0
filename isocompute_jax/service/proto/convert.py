"""Between messages and records: the one place that knows both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, FinishReason
from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb

FINISH_REASONS: dict[FinishReason, pb.FinishReason] = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
}
FRAME_BYTES = 16
"""What a completion's tag and length take in the message that holds it, at most."""
EXPERT = np.dtype("<i2")
FINISHED: dict[int, FinishReason] = {int(value): reason for reason, value in FINISH_REASONS.items()}


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
    )


def completion_to_message(index: int, completion: Completion) -> pb.Completion:
    """One finished rollout."""
    routing = {}
    if completion.experts is not None:
        _, layers, active = completion.experts.shape
        experts = completion.experts.astype(EXPERT).tobytes()
        routing = {"experts": experts, "expert_layers": layers, "experts_per_token": active}
    return pb.Completion(
        index=index,
        tokens=completion.tokens.tolist(),
        logprobs=completion.logprobs.tolist(),
        finish_reason=FINISH_REASONS[completion.finish_reason],
        spans=[pb.VersionSpan(version=v, length=n) for v, n in version_spans(completion.policy_versions)],
        **routing,
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


def message_to_completion(message: pb.Completion) -> Completion:
    """One finished rollout.

    Raises:
      ValueError: its parts do not fit together.
    """
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
