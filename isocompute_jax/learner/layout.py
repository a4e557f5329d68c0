"""Layout: from rollout groups of any length to the fixed-shape arrays of one update.

A row is one prompt with R of its rollouts, so that the prompt is read once for all of them. A group larger than a
micro-batch is cut into several rows. Rows are filled up to whole micro-batches, and only the micro-batches that hold a
row are computed. What a rollout is worth is not said here (see `credit`): each laid-out rollout knows its number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner.batches import TokenBatch
from isocompute_jax.learner.routing import experts_of
from isocompute_jax.model import UNKNOWN
from isocompute_jax.records.rollout import Completion, RolloutGroup


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The compiled shape: `microbatches` x `rows` x `rollouts` completions of `tokens`, `prompt` tokens before them.

    With `routing`, (layers, experts per token) of the model, batches carry the experts that the sampler chose.
    """

    microbatches: int
    rows: int
    rollouts: int
    tokens: int
    prompt: int
    routing: tuple[int, int] | None = None


def batch_shape(
    *,
    problems_per_batch: int,
    group_size: int,
    max_prompt_tokens: int,
    max_tokens: int,
    microbatch_tokens: int,
    batch_shards: int = 1,
    routing: tuple[int, int] | None = None,
) -> BatchShape:
    """Cuts a batch of problems x group_size rollouts into micro-batches of about `microbatch_tokens` tokens.

    Whole groups where they fit; a larger group is cut into its largest equal parts that do. Rows are a multiple of
    `batch_shards`, the number of parts the batch axis is sharded into.
    """
    budget = max(1, microbatch_tokens // (max_tokens * batch_shards))
    rollouts = max(part for part in range(1, min(group_size, budget) + 1) if group_size % part == 0)
    total_rows = problems_per_batch * (group_size // rollouts)
    # No more rows than the batch has: a micro-batch of padding would be computed for nothing.
    most = min(max(1, budget // rollouts), -(-total_rows // batch_shards)) * batch_shards
    microbatches = -(-total_rows // most)
    # As even as they can be, for the last one is computed whole.
    rows = -(-total_rows // (microbatches * batch_shards)) * batch_shards
    return BatchShape(microbatches, rows, rollouts, max_tokens, max_prompt_tokens, routing)


def layout(
    groups: Sequence[RolloutGroup],
    shape: BatchShape,
    *,
    kept: Bool[np.ndarray, "P"] | None = None,
    own: Bool[np.ndarray, "N"] | None = None,
) -> TokenBatch:
    """Lays the tokens of one step out, as host arrays: they travel with the call of the step, or by `place_batch`.

    Args:
      groups: P groups of G completions each.
      shape: the compiled shape.
      kept: [P] groups to lay out (`Credit.kept`: what has no weight need not be computed); None for all.
      own: [N] rows of a micro-batch that this process puts on its devices; of others it notes only which rollout lies
        where (`mask`, `rollout`). None for all.

    Raises:
      ValueError: the groups need more rows than the shape has.
      InputError: the shape has routing, and a completion does not say its experts.
    """
    size = len(groups[0].completions)
    parts = size // shape.rollouts
    chosen = range(len(groups)) if kept is None else np.flatnonzero(kept).tolist()
    used, total = len(chosen) * parts, shape.microbatches * shape.rows
    if used > total:
        raise ValueError(f"{len(chosen)} groups of {size} take {used} rows, and {shape} has {total}")
    batch = _empty(shape)
    for place, index in enumerate(chosen):
        rows = slice(place * parts, (place + 1) * parts)
        for row, completions in zip(range(rows.start, rows.stop), _rows_of(groups[index], shape.rollouts), strict=True):
            _place(batch, row, completions)
            if own is None or own[row % shape.rows]:
                _fill(batch, row, groups[index].prompt_tokens, completions)
        batch["rollout"][rows] = index * size + np.arange(size).reshape(parts, shape.rollouts)
    folded: dict[str, Any] = {
        name: x.reshape(shape.microbatches, shape.rows, *x.shape[1:]) for name, x in batch.items()
    }
    return TokenBatch(num_microbatches=np.int32(-(-used // shape.rows)), **folded)


def single_batch(
    prompt_tokens: Int[Array | np.ndarray, "P S"],
    prompt_mask: Bool[Array | np.ndarray, "P S"],
    tokens: Int[Array | np.ndarray, "P G T"],
    mask: Bool[Array | np.ndarray, "P G T"],
    *,
    sampler_logprobs: Float[Array | np.ndarray, "P G T"],
    old_logprobs: Float[Array | np.ndarray, "P G T"] | None = None,
) -> TokenBatch:
    """A batch of one micro-batch from arrays of your own; fields as in `TokenBatch`, a row for each group."""
    return TokenBatch(
        prompt_tokens=prompt_tokens[None],
        prompt_mask=prompt_mask[None],
        tokens=tokens[None],
        mask=mask[None],
        sampler_logprobs=sampler_logprobs[None],
        rollout=np.arange(tokens.shape[0] * tokens.shape[1], dtype=np.int32).reshape(1, *tokens.shape[:2]),
        num_microbatches=np.int32(1),
        old_logprobs=None if old_logprobs is None else old_logprobs[None],
    )


def trained_lengths(groups: Sequence[RolloutGroup]) -> Int[np.ndarray, "P G"]:
    """How many tokens of each rollout are trained on."""
    return np.array([[int(completion.mask.sum()) for completion in group.completions] for group in groups])


def padding_metrics(batch: TokenBatch) -> dict[str, float | int]:
    """What a line of metrics says of the padding of a step, from its host batch.

    Returns:
      `padding`: share of the tokens computed, prompts once a row, that belong to no prompt or rollout; `num_rows`: rows
      computed, of the last micro-batch the empty ones too.
    """
    used = int(batch.num_microbatches)
    mask, prompts = np.asarray(batch.mask)[:used], np.asarray(batch.prompt_mask)[:used]
    last = mask.shape[-1] - np.argmax(mask[..., ::-1], axis=-1)  # completions end with a token that was drawn
    lengths = np.where(mask.any(axis=-1), last, 0)
    filled = mask.any(axis=(-2, -1))
    tokens = int(lengths.sum() + prompts[filled].sum())
    return {"padding": 1 - tokens / (mask.size + prompts.size) if used else 0.0, "num_rows": filled.size}


def _empty(shape: BatchShape) -> dict[str, np.ndarray]:
    """A batch of padding rows, not yet folded into micro-batches."""
    rows, rollouts, tokens = shape.microbatches * shape.rows, shape.rollouts, shape.tokens
    prompt_mask = np.zeros((rows, shape.prompt), bool)
    prompt_mask[:, -1] = True  # padding rows still need one visible token
    batch = {
        "prompt_tokens": np.zeros((rows, shape.prompt), np.int32),
        "prompt_mask": prompt_mask,
        "tokens": np.zeros((rows, rollouts, tokens), np.int32),
        "mask": np.zeros((rows, rollouts, tokens), bool),
        "sampler_logprobs": np.zeros((rows, rollouts, tokens), np.float32),
        "rollout": np.zeros((rows, rollouts), np.int32),
    }
    if shape.routing is not None:
        batch["prompt_experts"] = np.full((rows, shape.prompt, *shape.routing), UNKNOWN, np.int16)
        batch["experts"] = np.full((*batch["tokens"].shape, *shape.routing), UNKNOWN, np.int16)
    return batch


def _rows_of(group: RolloutGroup, rollouts: int) -> Iterator[Sequence[Completion]]:
    """The completions of a group, row by row."""
    return (group.completions[start : start + rollouts] for start in range(0, len(group.completions), rollouts))


def _place(batch: dict[str, np.ndarray], row: int, completions: Sequence[Completion]) -> None:
    """Notes which tokens of a row are trained on."""
    for i, completion in enumerate(completions):
        batch["mask"][row, i, : len(completion.tokens)] = completion.mask


def _fill(batch: dict[str, np.ndarray], row: int, prompt: np.ndarray, completions: Sequence[Completion]) -> None:
    """Writes a prompt and some of its completions into a row of a batch that is not yet folded."""
    length = len(prompt)
    batch["prompt_tokens"][row, -length:] = prompt
    batch["prompt_mask"][row, -length:] = True
    for i, completion in enumerate(completions):
        batch["tokens"][row, i, : len(completion.tokens)] = completion.tokens
        batch["sampler_logprobs"][row, i, : len(completion.tokens)] = completion.logprobs
        if "experts" in batch:
            chosen = experts_of(completion, length, batch["experts"].shape[-2:])
            if i == 0:  # the prompt is read once for the rollouts of a row: with the experts of the first
                batch["prompt_experts"][row, -length:] = chosen[:length]
            batch["experts"][row, i, : len(completion.tokens) - 1] = chosen[length:]
