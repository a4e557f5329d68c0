"""Packing: rollouts of any length, whole and side by side, in rows of one length.

The sibling of `layout` for long completions, whose lengths differ most: there a row is as long as the longest
completion can be; here it holds as many sequences (a prompt and one of its completions) as fit. A sequence sees itself
alone (`PackedBatch.first`), and a prompt is read again for each of its rollouts.

The whole step is packed at once, on the host. The rows of a micro-batch are computed side by side on the shards of the
batch, and all wait for the slowest. Each costs the same but for its attention, which grows with the sum of the squares
of its sequences' lengths where a kernel skips what is masked: so rows of one micro-batch should be alike in that sum,
and so should the shards over the step. The same groups always give the same batch.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner.credit import Credit
from isocompute_jax.learner.routing import experts_of
from isocompute_jax.model import UNKNOWN
from isocompute_jax.records.errors import Field, InputError
from isocompute_jax.records.rollout import Completion, RolloutGroup

MOST_SIZES = 4
"""How many sizes the batches of one shape come in, at most: each is compiled once."""
UPDATES_A_SIZE = 64
"""Updates of a run for each size: on a small model fewer save less than the seconds of compiling one more."""


def sizes_worth(updates: int) -> int:
    """How many sizes the batches of a run of so many updates may come in."""
    return min(max(updates // UPDATES_A_SIZE, 1), MOST_SIZES)


@flax.struct.dataclass
class PackedBatch:
    """One batch, cut into M micro-batches of N rows of T tokens, several whole sequences in each row.

    A micro-batch is the same without the leading M; that is what a score function sees.
    """

    tokens: Int[Array | np.ndarray, "*M N T"]  # prompts and completions; 0 on padding
    # where the token's sequence begins in its row, so that token t has position t - first[t] and sees first[t]..t; its
    # own index on padding
    first: Int[Array | np.ndarray, "*M N T"]
    # True on trained tokens: of the token itself, whose log-probability comes from the hidden state before it
    mask: Bool[Array | np.ndarray, "*M N T"]
    sampler_logprobs: Float[Array | np.ndarray, "*M N T"]  # float32; zero on prompts and padding
    # which of the rollouts that `credit` saw the token belongs to, counted group by group; 0 on padding, whose
    # mask is False
    rollout: Int[Array | np.ndarray, "*M N T"]
    # [] int32, how many of the M hold sequences; the others are not computed
    num_microbatches: Int[Array | np.ndarray, ""] | np.int32
    # of the learner before the update; None when the batch is used once, on-policy
    old_logprobs: Float[Array | np.ndarray, "*M N T"] | None = None
    # of a teacher that the KL term is towards; None where that is the reference parameters' policy
    reference_logprobs: Float[Array | np.ndarray, "*M N T"] | None = None
    # experts that the sampler chose for the tokens, `UNKNOWN` where it did not say; None when it was not asked
    experts: Int[Array | np.ndarray, "*M N T L A"] | None = None
    # what each token could have been, as `Completion.support`; None where that is the whole vocabulary
    support: Int[Array | np.ndarray, "*M N T K"] | None = None

    axes: ClassVar[tuple[str, ...]] = ("rows", "tokens")

    @property
    def predicting_experts(self) -> Int[Array, "N T L A"] | None:
        """Of a micro-batch, the sampler's experts at the positions that its tokens were drawn from."""
        return None if self.experts is None else jnp.roll(jnp.asarray(self.experts), 1, axis=1)

    @property
    def segments(self) -> Int[Array | np.ndarray, "*M N T"]:
        """Rollouts that share the last axis (see `losses`): a number for each, its first index."""
        return self.first

    def credit_of_tokens(self, credited: Credit) -> Credit:
        """Credit of each token of a micro-batch, [N, T]."""
        mask, first = jnp.asarray(self.mask, jnp.int32), jnp.asarray(self.first)
        before = jnp.cumsum(mask, axis=-1) - mask
        before -= jnp.take_along_axis(before, first, axis=-1)
        # Each token is a rollout of one token here.
        return jax.tree.map(lambda x: x[..., 0], credited.of_tokens(jnp.asarray(self.rollout), before[..., None]))

    def metrics(self, shards: int = 1) -> dict[str, float | int]:
        """What a line of metrics says of the packing of a step, from the host's arrays.

        Returns:
          `padding`: share of the tokens computed that belong to no sequence; `attention_imbalance`: how much longer
          attention takes than if it were shared out evenly, every micro-batch waiting for its heaviest shard;
          `num_rows`: rows computed, of the last micro-batch the empty ones too.
        """
        attention, padding = _attention_and_padding(self, shards)
        _, rows, row_tokens = self.tokens.shape
        num_rows = len(attention) * rows
        if not num_rows:
            return {"padding": 0.0, "attention_imbalance": 1.0, "num_rows": 0}
        return {
            "padding": padding / (num_rows * row_tokens),
            "attention_imbalance": float(attention.max(axis=1).sum() / attention.mean(axis=1).sum()),
            "num_rows": num_rows,
        }


@dataclasses.dataclass(frozen=True)
class PackShape:
    """Up to `microbatches` micro-batches of `rows` rows of `row_tokens` tokens, the rows cut into `shards` parts.

    With `routing`, (layers, experts per token) of the model, batches carry the experts that the sampler chose; with
    `top_k` which tokens, up to so many, it chose each among. A run has up to `most_sizes` of its `sizes` compiled.
    """

    microbatches: int
    rows: int
    row_tokens: int
    shards: int = 1
    routing: tuple[int, int] | None = None
    most_sizes: int = MOST_SIZES
    top_k: int = 0

    axis: ClassVar[str] = "rows"
    least: ClassVar[str] = "a row"

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a micro-batch, padding included."""
        return self.rows * self.row_tokens

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of micro-batches that batches come in, ascending: the most, its half, and so on.

        A step computes only the micro-batches that hold sequences, so the next size up costs host memory alone.
        """
        return tuple(sorted({-(-self.microbatches // 2**i) for i in range(self.most_sizes)}))

    @property
    def least_bytes(self) -> int:
        """Of the arrays of the smallest batch."""
        experts = 2 * self.routing[0] * self.routing[1] if self.routing else 0
        return min(self.sizes) * self.rows * self.row_tokens * (17 + experts + 4 * self.top_k)

    def blanks(self) -> list[PackedBatch]:
        """Batches of padding alone, one of each size that batches come in, the largest first."""
        sizes = reversed(self.sizes)
        return [self._folded(_empty(self, size), size, 0) for size in sizes]

    def _folded(self, arrays: dict[str, np.ndarray], size: int, microbatches: int) -> PackedBatch:
        folded: dict[str, Any] = {name: x.reshape(size, self.rows, *x.shape[1:]) for name, x in arrays.items()}
        return PackedBatch(num_microbatches=np.int32(microbatches), **folded)

    def lay_out(
        self,
        groups: Sequence[RolloutGroup],
        *,
        kept: Bool[np.ndarray, "P"] | None = None,
        own: Bool[np.ndarray, "N"] | None = None,
    ) -> PackedBatch:
        """Packs the rollouts of one step, as host arrays: they travel with the call of the step, or by `place_batch`.

        Args:
          groups: P groups, of any sizes; none for a batch of padding alone.
          kept: [P] groups to pack (`Credit.kept`: what has no weight need not be computed); None for all.
          own: [N] rows of a micro-batch that this process puts on its devices; of others it notes only which rollout
            lies where (`first`, `mask`, `rollout`). None for all.

        Raises:
          ValueError: a sequence is longer than a row, a prompt is empty, or the rollouts need more rows than there are.
          InputError: the shape has routing, and a completion does not say its experts; or top_k, and not its support.
        """
        sequences = [s for s in _sequences(groups) if kept is None or kept[s.group]]
        for sequence in sequences:
            if not len(sequence.prompt) or sequence.length > self.row_tokens:
                raise ValueError(
                    f"problem {groups[sequence.group].problem_id!r}: a prompt of {len(sequence.prompt)} and a "
                    f"completion of {len(sequence.completion.tokens)} tokens; rows hold {self.row_tokens}, and a "
                    "prompt is not empty"
                )
        rows = arrange([sequence.length for sequence in sequences], self)
        microbatches = len(rows) // self.rows
        if microbatches > self.microbatches:
            total = self.microbatches * self.rows
            raise ValueError(f"{len(sequences)} rollouts take {len(rows)} rows, and {self} has {total}")
        size = min(size for size in self.sizes if size >= microbatches)
        batch = _empty(self, size)
        for row, members in enumerate(rows):
            start = 0
            for member in members:
                _place(batch, row, start, sequences[member])
                if own is None or own[row % self.rows]:
                    _fill(batch, row, start, sequences[member])
                start += sequences[member].length
        return self._folded(batch, size, microbatches)


def pack_shape(
    *,
    problems_per_batch: int,
    group_size: int,
    max_prompt_tokens: int,
    max_tokens: int,
    row_tokens: int,
    microbatch_tokens: int,
    batch_shards: int = 1,
    routing: tuple[int, int] | None = None,
    most_sizes: int = MOST_SIZES,
    top_k: int = 0,
) -> PackShape:
    """The shape of steps of problems x group_size rollouts, for rollouts of whatever lengths.

    A micro-batch has about `microbatch_tokens` tokens, over all of its shards, and at least a row for each of
    `batch_shards`, the number of parts that the batch axis is sharded into. Steps come in several numbers of them,
    `most_sizes` at most (see `sizes_worth`).

    Raises:
      InputError: a row holds no sequence of the greatest length.
    """
    longest = max_prompt_tokens + max_tokens
    if longest > row_tokens:
        raise InputError(
            Field("row_tokens"),
            f" = {row_tokens}, but a prompt and its completion take up to {longest} tokens (",
            Field("max_prompt_tokens"),
            f" = {max_prompt_tokens} and ",
            Field("max_tokens"),
            f" = {max_tokens}), and a sequence lies in one row; raise ",
            Field("row_tokens"),
            f" to {longest}, or lower one of the others",
        )
    # A row is opened only for what fits in no other (see `best_fit`), so all but the last hold at least that many.
    most_rows = -(-problems_per_batch * group_size // (row_tokens // longest))
    per_shard = min(max(1, microbatch_tokens // (row_tokens * batch_shards)), -(-most_rows // batch_shards))
    rows = per_shard * batch_shards
    return PackShape(-(-most_rows // rows), rows, row_tokens, batch_shards, routing, most_sizes, top_k)


def unpack(batch: PackedBatch, values: Array | np.ndarray, groups: Sequence[RolloutGroup]) -> list[np.ndarray | None]:
    """What an array says of the tokens of each completion.

    Args:
      batch: from `PackShape.lay_out`.
      values: [M, N, T, ...], such as log-probabilities of the batch's tokens.
      groups: what was packed, groups that were not kept included.

    Returns:
      [tokens of the completion, ...] for each rollout, in the order of `PackedBatch.rollout`; None for what is not in
      the batch.
    """
    first, rollout, values = np.asarray(batch.first), np.asarray(batch.rollout), np.asarray(values)
    if values.shape[:3] != first.shape:
        raise ValueError(f"values {values.shape} are not of a batch {first.shape}")
    # A sequence has at least two tokens, a piece of padding one.
    begins = (first[..., :-1] == np.arange(first.shape[-1] - 1)) & (first[..., 1:] == first[..., :-1])
    sequences = list(_sequences(groups))
    found: list[np.ndarray | None] = [None] * len(sequences)
    for microbatch, row, start in zip(*np.nonzero(begins), strict=True):
        number = int(rollout[microbatch, row, start])
        sequence = sequences[number]
        found[number] = values[microbatch, row, start + len(sequence.prompt) : start + sequence.length]
    return found


# --- which sequences share a row, and which rows a micro-batch


def arrange(lengths: Sequence[int], shape: PackShape) -> list[list[int]]:
    """The members of each row, from the lengths of sequences: micro-batch by micro-batch, and there shard by shard.

    As many rows as best fit needs, filled up to whole micro-batches. If they have room enough, sequences are spread
    over them by attention; where they do not, only the longest, which have most of it.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    falling = [lengths[i] for i in order]
    tight = best_fit(falling, shape.row_tokens)
    num_rows = -(-len(tight) // shape.rows) * shape.rows
    for longest in (len(falling), len(falling) // 2, len(falling) // 4):
        spread = _spread(falling, num_rows, shape.row_tokens, longest)
        if spread is not None:
            break
    else:
        spread = tight + [[] for _ in range(num_rows - len(tight))]
    squares = [sum(falling[i] ** 2 for i in row) for row in spread]
    return [[order[i] for i in spread[row]] for row in _balance(squares, shape)]


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of indices by best fit decreasing: each into the fullest row with room, or a new one if there is none.

    At most 11/9 of the fewest rows possible, and 4 more (Johnson et al. 1974).

    Args:
      lengths: descending, none above `capacity`.
      capacity: of a row.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens that are free, row), ascending
    for index, length in enumerate(lengths):
        place = bisect.bisect_left(room, (length, 0))
        if place < len(room):
            free, row = room.pop(place)
        else:
            free, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        bisect.insort(room, (free - length, row))
    return rows


def _spread(lengths: Sequence[int], num_rows: int, capacity: int, longest: int) -> list[list[int]] | None:
    """`num_rows` rows: the `longest` first sequences where attention is least so far, the others by best fit.

    The longest processing time first (Graham 1969), among the rows that have room. None if a sequence finds no row.
    """
    rows: list[list[int]] = [[] for _ in range(num_rows)]
    room = np.full(num_rows, capacity)
    attention = np.zeros(num_rows, np.int64)
    for index, length in enumerate(lengths):
        fits = np.flatnonzero(room >= length)
        if not len(fits):
            return None
        row = fits[np.argmin((attention if index < longest else room)[fits])]
        rows[row].append(index)
        room[row] -= length
        attention[row] += length**2
    return rows


def _balance(squares: Sequence[int], shape: PackShape) -> Iterator[int]:
    """Rows in the order of the batch, by their attention: rows that are alike side by side, the heaviest first.

    Within a micro-batch each shard gets as many rows; the heaviest share goes to the shard that has done least so far.
    """
    falling = sorted(range(len(squares)), key=lambda row: (-squares[row], row))
    per_shard = shape.rows // shape.shards
    totals = np.zeros(shape.shards, np.int64)
    for start in range(0, len(falling), shape.rows):
        shares: list[list[int]] = [[] for _ in range(shape.shards)]
        weights = np.zeros(shape.shards, np.int64)
        for row in falling[start : start + shape.rows]:
            open_shares = [i for i, share in enumerate(shares) if len(share) < per_shard]
            share = min(open_shares, key=lambda i: weights[i])
            shares[share].append(row)
            weights[share] += squares[row]
        shard_of_share = np.empty(shape.shards, np.int64)
        shard_of_share[np.argsort(-weights, kind="stable")] = np.argsort(totals, kind="stable")
        totals[shard_of_share] += weights
        for share in np.argsort(shard_of_share):
            yield from shares[share]


# --- what a batch looks like


def shard_attention(batch: PackedBatch, shards: int) -> Float[np.ndarray, "M S"]:
    """Pairs of a query and a key that it sees, in each micro-batch that is computed and each shard of its rows."""
    return _attention_and_padding(batch, shards)[0]


def _attention_and_padding(batch: PackedBatch, shards: int) -> tuple[Float[np.ndarray, "M S"], int]:
    """As in `shard_attention`, and how many tokens belong to no sequence."""
    first = np.asarray(batch.first)[: int(batch.num_microbatches)]
    used, rows, row_tokens = first.shape
    alone = first == np.arange(row_tokens, dtype=first.dtype)
    alone[..., :-1] &= first[..., 1:] != first[..., :-1]  # the first of several: a sequence has at least two tokens
    padding = alone.sum(axis=-1)
    # A query t sees t - first[t] + 1 keys; one of padding sees itself, and no attention is needed for it.
    pairs = row_tokens * (row_tokens + 1) / 2 - first.sum(axis=-1, dtype=np.float64) - padding
    return pairs.reshape(used, shards, rows // shards).sum(axis=-1), int(padding.sum())


# --- the arrays


class _Sequence(NamedTuple):
    """A rollout with its prompt: its number, and the index of its group."""

    number: int
    group: int
    prompt: np.ndarray
    completion: Completion

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion.tokens)


def _sequences(groups: Sequence[RolloutGroup]) -> Iterator[_Sequence]:
    """All rollouts of a step, group by group."""
    number = 0
    for index, group in enumerate(groups):
        for completion in group.completions:
            yield _Sequence(number, index, group.prompt_tokens, completion)
            number += 1


def _empty(shape: PackShape, size: int) -> dict[str, np.ndarray]:
    """Padding of `size` micro-batches, not yet folded into them."""
    rows, row_tokens = size * shape.rows, shape.row_tokens
    batch = {
        "tokens": np.zeros((rows, row_tokens), np.int32),
        "first": np.tile(np.arange(row_tokens, dtype=np.int32), (rows, 1)),
        "mask": np.zeros((rows, row_tokens), bool),
        "sampler_logprobs": np.zeros((rows, row_tokens), np.float32),
        "rollout": np.zeros((rows, row_tokens), np.int32),
    }
    if shape.routing is not None:
        batch["experts"] = np.full((rows, row_tokens, *shape.routing), UNKNOWN, np.int16)
    if shape.top_k:
        batch["support"] = np.full((rows, row_tokens, shape.top_k), -1, np.int32)
    return batch


def _place(batch: dict[str, np.ndarray], row: int, start: int, sequence: _Sequence) -> None:
    """Notes that a sequence lies in a row from `start` on."""
    split, end = start + len(sequence.prompt), start + sequence.length
    batch["first"][row, start:end] = start
    batch["mask"][row, split:end] = sequence.completion.mask
    batch["rollout"][row, start:end] = sequence.number


def _fill(batch: dict[str, np.ndarray], row: int, start: int, sequence: _Sequence) -> None:
    """Writes what a sequence is into a row from `start` on."""
    split, end = start + len(sequence.prompt), start + sequence.length
    batch["tokens"][row, start:split] = sequence.prompt
    batch["tokens"][row, split:end] = sequence.completion.tokens
    batch["sampler_logprobs"][row, split:end] = sequence.completion.logprobs
    if "experts" in batch:
        routing = batch["experts"].shape[-2:]
        batch["experts"][row, start : end - 1] = experts_of(sequence.completion, len(sequence.prompt), routing)
    if "support" in batch:
        batch["support"][row, split:end] = sequence.completion.support_of(batch["support"].shape[-1])
