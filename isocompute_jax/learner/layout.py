"""Layout: from rollout groups of any length to the fixed-shape arrays of one update.

A row is one prompt with R of its rollouts, so that the prompt is read once for all of them. A group larger than a
micro-batch is cut into several rows, and so is each group of a step whose groups are of unequal size: its last row may
be filled up with padding. Rows are filled up to whole micro-batches, and only the micro-batches that hold a
row are computed. What a rollout is worth is not said here (see `credit`): each laid-out rollout knows its number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner.credit import Credit, first_numbers, rows_of
from isocompute_jax.learner.routing import experts_of
from isocompute_jax.model import UNKNOWN
from isocompute_jax.records.rollout import Completion, RolloutGroup


class RolloutRows:
    """A batch in which each rollout has a last axis of its own."""

    mask: Any  # [*M, N, R, T] bool
    rollout: Any  # [*M, N, R] int32

    @property
    def segments(self) -> None:
        """Rollouts that share the last axis (see `losses`): none do."""
        return None

    def credit_of_tokens(self, credited: Credit) -> Credit:
        """Credit of each token of a micro-batch, [N, R, 1] or [N, R, T]."""
        mask = jnp.asarray(self.mask, jnp.int32)
        return credited.of_tokens(jnp.asarray(self.rollout), jnp.cumsum(mask, axis=-1) - mask)


@flax.struct.dataclass
class TokenBatch(RolloutRows):
    """One batch, cut into M micro-batches of N rows of R rollouts of T tokens; S prompt tokens.

    A micro-batch is the same without the leading M; that is what a score function sees.
    """

    prompt_tokens: Int[Array | np.ndarray, "*M N S"]  # left-padded
    prompt_mask: Bool[Array | np.ndarray, "*M N S"]  # False on padding
    tokens: Int[Array | np.ndarray, "*M N R T"]  # completion tokens, right-padded
    mask: Bool[Array | np.ndarray, "*M N R T"]  # True on trained tokens
    sampler_logprobs: Float[Array | np.ndarray, "*M N R T"]  # float32; zero on padding
    # which of the rollouts that `credit` saw this is, counted group by group; any on padding, whose mask is False
    rollout: Int[Array | np.ndarray, "*M N R"]
    # [] int32, how many of the M hold rows; the others are not computed
    num_microbatches: Int[Array | np.ndarray, ""] | np.int32
    # of the learner before the update; None when the batch is used once, on-policy
    old_logprobs: Float[Array | np.ndarray, "*M N R T"] | None = None
    # of a teacher that the KL term is towards; None where that is the reference parameters' policy
    reference_logprobs: Float[Array | np.ndarray, "*M N R T"] | None = None
    # experts that the sampler chose for the prompt's tokens, `UNKNOWN` where it did not say; None when it was not asked
    prompt_experts: Int[Array | np.ndarray, "*M N S L A"] | None = None
    # the same of the completions' tokens; the last is never read
    experts: Int[Array | np.ndarray, "*M N R T L A"] | None = None
    # what each token could have been, as `Completion.support`; None where that is the whole vocabulary
    support: Int[Array | np.ndarray, "*M N R T K"] | None = None

    axes: ClassVar[tuple[str, ...]] = ("batch",)
    """Logical axes of a micro-batch's arrays, as far as they are cut."""

    @property
    def predicting_experts(self) -> Int[Array, "N R T L A"] | None:
        """Of a micro-batch, the sampler's experts at the positions that its tokens were drawn from."""
        if self.experts is None or self.prompt_experts is None:
            return None
        before = jnp.asarray(self.experts)[:, :, :-1]
        last = jnp.asarray(self.prompt_experts)[:, None, -1:]
        return jnp.concatenate([jnp.broadcast_to(last, (*before.shape[:2], 1, *before.shape[3:])), before], axis=2)

    def metrics(self, shards: int = 1) -> dict[str, float | int]:
        """What a line of metrics says of the padding of a step, from the host's arrays.

        Returns:
          `padding`: share of the tokens computed, prompts once a row, that belong to no prompt or rollout; `num_rows`:
          rows computed, of the last micro-batch the empty ones too.
        """
        used = int(self.num_microbatches)
        mask, prompts = np.asarray(self.mask)[:used], np.asarray(self.prompt_mask)[:used]
        last = mask.shape[-1] - np.argmax(mask[..., ::-1], axis=-1)  # completions end with a token that was drawn
        lengths = np.where(mask.any(axis=-1), last, 0)
        filled = mask.any(axis=(-2, -1))
        tokens = int(lengths.sum() + prompts[filled].sum())
        return {"padding": 1 - tokens / (mask.size + prompts.size) if used else 0.0, "num_rows": filled.size}


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The compiled shape: `microbatches` x `rows` x `rollouts` completions of `tokens`, `prompt` tokens before them.

    With `routing`, (layers, experts per token) of the model, batches carry the experts that the sampler chose; with
    `top_k` which tokens, up to so many, it chose each among.
    """

    microbatches: int
    rows: int
    rollouts: int
    tokens: int
    prompt: int
    routing: tuple[int, int] | None = None
    top_k: int = 0

    axis: ClassVar[str] = "batch"
    """Logical axis that the rows of a micro-batch are cut along."""
    least: ClassVar[str] = "a completion"
    """What a micro-batch has on each shard at least."""

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of completions of a micro-batch."""
        return self.rows * self.rollouts * self.tokens

    @property
    def least_bytes(self) -> int:
        """Of the arrays of a batch."""
        experts = 2 * self.routing[0] * self.routing[1] if self.routing else 0
        row = self.rollouts * (self.tokens * (9 + experts + 4 * self.top_k) + 4) + self.prompt * (5 + experts)
        return self.microbatches * self.rows * row

    def blanks(self) -> list[TokenBatch]:
        """A batch of padding alone, of the one size that batches come in."""
        return [self.lay_out([])]

    def lay_out(
        self,
        groups: Sequence[RolloutGroup],
        *,
        kept: Bool[np.ndarray, "P"] | None = None,
        own: Bool[np.ndarray, "N"] | None = None,
    ) -> TokenBatch:
        """Lays the tokens of one step out, as host arrays: they travel with the call of the step, or by `place_batch`.

        Args:
          groups: P groups; none for a batch of padding alone.
          kept: [P] groups to lay out (`Credit.kept`: what has no weight need not be computed); None for all.
          own: [N] rows of a micro-batch that this process puts on its devices; of others it notes only which rollout
            lies where (`mask`, `rollout`). None for all.

        Raises:
          ValueError: the groups need more rows than the shape has.
          InputError: the shape has routing, and a completion does not say its experts; or top_k, and not its support.
        """
        chosen = range(len(groups)) if kept is None else np.flatnonzero(kept).tolist()
        numbers = first_numbers(groups)
        rows = [
            (groups[index], int(numbers[index]), first)
            for index in chosen
            for first in range(0, len(groups[index].completions), self.rollouts)
        ]
        used, total = len(rows), self.microbatches * self.rows
        if used > total:
            sizes = sorted({len(groups[index].completions) for index in chosen})
            raise ValueError(
                f"{len(chosen)} groups of {' or '.join(map(str, sizes))} take {used} rows, and {self} has {total}"
            )
        batch = _empty(self)
        for row, (group, number, first) in enumerate(rows):
            completions = group.completions[first : first + self.rollouts]
            _place(batch, row, completions)
            if own is None or own[row % self.rows]:
                _fill(batch, row, group.prompt_tokens, completions)
            batch["rollout"][row, : len(completions)] = number + first + np.arange(len(completions))
        folded: dict[str, Any] = {
            name: x.reshape(self.microbatches, self.rows, *x.shape[1:]) for name, x in batch.items()
        }
        return TokenBatch(num_microbatches=np.int32(-(-used // self.rows)), **folded)


def batch_shape(
    *,
    problems_per_batch: int,
    group_size: int,
    max_prompt_tokens: int,
    max_tokens: int,
    microbatch_tokens: int,
    batch_shards: int = 1,
    routing: tuple[int, int] | None = None,
    top_k: int = 0,
    block: int | None = None,
) -> BatchShape:
    """Cuts a batch of problems x group_size rollouts into micro-batches of about `microbatch_tokens` tokens.

    Whole groups where they fit; a larger group is cut into its largest equal parts that do. Rows are a multiple of
    `batch_shards`, the number of parts the batch axis is sharded into.

    With a `block`, groups may be of unequal size, each a multiple of it: up to `problems_per_batch` of them, of so many
    rollouts in all. Rows then have the length with which the worst deal takes the fewest tokens, prompts included.
    """
    budget = max(1, microbatch_tokens // (max_tokens * batch_shards))
    if block is None:
        rollouts = max(part for part in range(1, min(group_size, budget) + 1) if group_size % part == 0)
        total_rows = problems_per_batch * (group_size // rollouts)
    else:
        rollouts, total_rows = min(
            _rows_of_any_deal(problems_per_batch, problems_per_batch * group_size // block, block, budget),
            key=lambda shape: (shape[1] * (max_prompt_tokens + shape[0] * max_tokens), shape[1]),
        )
    # No more rows than the batch has: a micro-batch of padding would be computed for nothing.
    most = min(max(1, budget // rollouts), -(-total_rows // batch_shards)) * batch_shards
    microbatches = -(-total_rows // most)
    # As even as they can be, for the last one is computed whole.
    rows = -(-total_rows // (microbatches * batch_shards)) * batch_shards
    return BatchShape(microbatches, rows, rollouts, max_tokens, max_prompt_tokens, routing, top_k)


def _rows_of_any_deal(problems: int, blocks: int, block: int, budget: int) -> Iterator[tuple[int, int]]:
    """Lengths R of rows, up to `budget` rollouts, and the most rows that any deal of blocks to the problems takes.

    R is a part of a block, or m blocks. Each problem has at least one block, which opens a row; a further row takes m
    blocks more.
    """
    if budget < block:
        part = max(part for part in range(1, budget + 1) if block % part == 0)
        yield part, blocks * (block // part)
    for m in range(1, min(budget // block, blocks) + 1):
        yield m * block, min(problems, blocks) + max(blocks - problems, 0) // m


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
    """How many tokens of each rollout are trained on; 0 beyond the rollouts of a smaller group."""
    return rows_of([[int(completion.mask.sum()) for completion in group.completions] for group in groups])


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
    if shape.top_k:
        batch["support"] = np.full((*batch["tokens"].shape, shape.top_k), -1, np.int32)
    return batch


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
        if "support" in batch:
            batch["support"][row, i, : len(completion.tokens)] = completion.support_of(batch["support"].shape[-1])
