"""What a step computes: batches of tokens, cut into micro-batches, in one of three layouts.

`TokenBatch` (made by `layout`) reads a prompt once for all of its rollouts, and pads completions to one length.
`TreeBatch` (made by `trees`) reads whatever rollouts of a prompt have in common once.
`PackedBatch` (made by `packing`) holds whole rollouts of any length side by side. What a rollout is worth is not said
here (see `credit`): each laid-out rollout knows its number.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import sharding
from isocompute_jax.learner.credit import Credit


@flax.struct.dataclass
class TokenBatch:
    """One batch, cut into M micro-batches of N rows of R rollouts of T tokens; S prompt tokens.

    A micro-batch is the same without the leading M; that is what a score function sees.
    """

    prompt_tokens: Int[Array | np.ndarray, "*M N S"]  # left-padded
    prompt_mask: Bool[Array | np.ndarray, "*M N S"]  # False on padding
    tokens: Int[Array | np.ndarray, "*M N R T"]  # completion tokens, right-padded
    mask: Bool[Array | np.ndarray, "*M N R T"]  # True on trained tokens
    sampler_logprobs: Float[Array | np.ndarray, "*M N R T"]  # float32; zero on padding
    # which of the P x G rollouts that `credit` saw this is, counted group by group; any on padding rows, whose mask is
    # False
    rollout: Int[Array | np.ndarray, "*M N R"]
    # [] int32, how many of the M hold rows; the others are not computed
    num_microbatches: Int[Array | np.ndarray, ""] | np.int32
    # of the learner before the update; None when the batch is used once, on-policy
    old_logprobs: Float[Array | np.ndarray, "*M N R T"] | None = None
    # experts that the sampler chose for the prompt's tokens, `UNKNOWN` where it did not say; None when it was not asked
    prompt_experts: Int[Array | np.ndarray, "*M N S L A"] | None = None
    # the same of the completions' tokens; the last is never read
    experts: Int[Array | np.ndarray, "*M N R T L A"] | None = None

    axes: ClassVar[tuple[str | None, ...]] = ("batch",)
    """Logical axes of a micro-batch's arrays, as far as they are cut."""

    @property
    def predicting_experts(self) -> Int[Array, "N R T L A"] | None:
        """Of a micro-batch, the sampler's experts at the positions that its tokens were drawn from."""
        if self.experts is None or self.prompt_experts is None:
            return None
        before = jnp.asarray(self.experts)[:, :, :-1]
        last = jnp.asarray(self.prompt_experts)[:, None, -1:]
        return jnp.concatenate([jnp.broadcast_to(last, (*before.shape[:2], 1, *before.shape[3:])), before], axis=2)

    @property
    def segments(self) -> None:
        """Rollouts that share the last axis (see `losses`): none do."""
        return None

    def credit_of_tokens(self, credited: Credit) -> Credit:
        """Credit of each token of a micro-batch, [N, R, 1]."""
        return jax.tree.map(lambda x: x[..., None], credited.of(jnp.asarray(self.rollout)))


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
    # which of the P x G rollouts that `credit` saw the token belongs to, counted group by group; 0 on padding, whose
    # mask is False
    rollout: Int[Array | np.ndarray, "*M N T"]
    # [] int32, how many of the M hold sequences; the others are not computed
    num_microbatches: Int[Array | np.ndarray, ""] | np.int32
    # of the learner before the update; None when the batch is used once, on-policy
    old_logprobs: Float[Array | np.ndarray, "*M N T"] | None = None
    # experts that the sampler chose for the tokens, `UNKNOWN` where it did not say; None when it was not asked
    experts: Int[Array | np.ndarray, "*M N T L A"] | None = None

    axes: ClassVar[tuple[str | None, ...]] = ("rows", "tokens")

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
        return credited.of(jnp.asarray(self.rollout))


@flax.struct.dataclass
class TreeBatch:
    """One batch, cut into M micro-batches of N rows of W nodes, of E edges, and of R rollouts of T tokens.

    A node is a token that rollouts have read, with all that came before it; an edge is a node and the token after it.
    A micro-batch is the same without the leading M; that is what a score function sees.
    """

    axes: ClassVar[tuple[str | None, ...]] = ("batch",)

    # tokens of prompts, and of completions but their last, depth first; 0 on padding
    nodes: Int[Array | np.ndarray, "*M N W"]
    # of the node in its sequence; a tree begins at 0, and so does each node of padding
    positions: Int[Array | np.ndarray, "*M N W"]
    # where the node's descendants end: node t sees node s if s <= t < ends[s]; its own index on padding, which nobody
    # sees
    ends: Int[Array | np.ndarray, "*M N W"]
    edge_nodes: Int[Array | np.ndarray, "*M N E"]  # nodes that edges leave; any on padding
    edge_tokens: Int[Array | np.ndarray, "*M N E"]  # tokens that they lead to
    edges: Int[Array | np.ndarray, "*M N R T"]  # the edge of each completion token; any on padding
    # as in `TokenBatch`
    tokens: Int[Array | np.ndarray, "*M N R T"]
    mask: Bool[Array | np.ndarray, "*M N R T"]
    sampler_logprobs: Float[Array | np.ndarray, "*M N R T"]
    rollout: Int[Array | np.ndarray, "*M N R"]
    num_microbatches: Int[Array | np.ndarray, ""] | np.int32
    old_logprobs: Float[Array | np.ndarray, "*M N R T"] | None = None

    @property
    def segments(self) -> None:
        """Rollouts that share the last axis (see `losses`): none do."""
        return None

    def credit_of_tokens(self, credited: Credit) -> Credit:
        """Credit of each token of a micro-batch, [N, R, 1]."""
        return jax.tree.map(lambda x: x[..., None], credited.of(jnp.asarray(self.rollout)))


MOST_SIZES = 4
"""How many sizes the batches of one shape come in, at most: each is compiled once."""
UPDATES_A_SIZE = 64
"""Updates of a run for each size: on a small model fewer save less than the seconds of compiling one more."""


def sizes_worth(updates: int) -> int:
    """How many sizes the batches of a run of so many updates may come in."""
    return min(max(updates // UPDATES_A_SIZE, 1), MOST_SIZES)


Batch = TokenBatch | PackedBatch | TreeBatch
AnyBatch = TypeVar("AnyBatch", bound=TokenBatch | PackedBatch | TreeBatch)


def place_batch(batch: AnyBatch, mesh: Mesh | None) -> AnyBatch:
    """Puts a host batch on the devices, sharded along its axes: of several processes each puts its own rows there."""
    if mesh is None:
        return batch
    return jax.tree.map(sharding.placed, batch, batch_shardings(batch, mesh))


def batch_shardings(batch: AnyBatch, mesh: Mesh) -> AnyBatch:
    """`NamedSharding` of every array of a batch, which may be abstract."""
    return jax.tree.map(lambda x: sharding.named_sharding(mesh, x.shape, _padded((None, *batch.axes), x.ndim)), batch)


def _padded(axes: tuple[str | None, ...], rank: int) -> tuple[str | None, ...]:
    return (*axes, *[None] * rank)[:rank]


def microbatch_of(batch: AnyBatch, index: Array, mesh: Mesh | None) -> AnyBatch:
    """Micro-batch `index`, without the leading M; it stays sharded along its axes."""

    def cut(x: Array) -> Array:
        if x.ndim == 0:  # how many there are
            return jnp.ones_like(x)
        part = jax.lax.dynamic_index_in_dim(x, index, keepdims=False)
        if mesh is None:
            return part
        where = sharding.named_sharding(mesh, part.shape, _padded(batch.axes, part.ndim))
        return jax.lax.with_sharding_constraint(part, where)

    return jax.tree.map(cut, batch)
