"""Log-probabilities and entropies of given tokens, computed in chunks so that [B, T, V] never exists.

Chunks run along the vocabulary. For each of them the head's columns are gathered once (where they are sharded), the
logits of all tokens of a device are computed, and the normaliser is carried on, as flash attention carries its own
(arXiv 2205.14135). The backward pass computes each chunk's logits once more, from the hidden states and each token's
normaliser; a chunk's gradient of the head is finished, in float32, when the chunk is, and goes to the device that
holds its columns. So whatever the number of chunks, the head is gathered once a pass, its gradient is reduced once,
and no device holds the whole of either. Chunks of tokens would need both, or collectives for each chunk.

On many devices each works on its own tokens and, where the vocabulary is sharded, on its own columns; normalisers are
then merged. The specs come from `sharding`: tokens lie as a `batch` does, those of cut rows device by device.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.head import Precision, head_table, logits, multiply, precision_of
from isocompute_jax.model.params import Params, param_specs

CHUNK_NUMBERS = 1 << 26
"""Logits that may exist at once on a device unless `chunk_tokens` says otherwise, and numbers of a chunk's columns of
the head: 256 MiB of float32 each."""
_LANES = 128
"""Chunks are multiples of it where they are as wide: what matrix units, and 16-bit tiles, divide evenly."""


def token_logprobs(
    config: ModelConfig,
    params: Params,
    hidden: Float[Array, "R M D"],
    targets: Int[Array, "R M"],
    *,
    temperature: float | Array,
    chunk_tokens: int | None,
    support: Int[Array, "R M K"] | None = None,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "R M"], Float[Array, "R M"]]:
    """Log-probability of `targets` and entropy of the tempered distribution softmax(logits / temperature), in nats.

    Where all logits fit into one chunk on one device, they are kept for the backward pass; otherwise they are
    recomputed, and what the head holds on a device beside its parameters and their gradient is about: a chunk of
    logits (and, in bf16_x3, as much again for the parts of its cotangent), the float32 gradient of the hidden states,
    and one chunk's columns of the head, whole, with their float32 gradient.

    Args:
      config: model shape; `config.head` names the precision.
      params: parameters (the head is read), in `config.dtype` or wider: the gradient of float32 masters is not
        rounded.
      hidden: [R, M, D] hidden states at the positions that predict `targets`.
      targets: [R, M] token ids.
      temperature: sampling temperature, a scalar > 0; it may be traced.
      chunk_tokens: logits that may exist at once on a device, counted in tokens: chunk_tokens x V numbers. None: as
        many as make 256 MiB of float32.
      support: ids of the only tokens that each could have been, -1 for none; where all are -1, of every token.
      mesh: where parameters and rows are sharded; None for one device.

    Returns:
      log-probabilities [R, M] and entropies [R, M], float32 (float64 for a float64 model).
    """
    shape = targets.shape
    hidden, targets = (_flat(x, mesh) for x in (hidden, targets))
    support = None if support is None else _flat(support, mesh)
    numbers = CHUNK_NUMBERS if chunk_tokens is None else chunk_tokens * config.vocab_size
    if (mesh is None or mesh.size == 1) and targets.size * config.vocab_size <= numbers:
        possible = None if support is None else _possible(support, 0, config.vocab_size)
        logprobs, entropies = _scores(logits(config, params, hidden) / temperature, targets, possible)
        return logprobs.reshape(shape), entropies.reshape(shape)
    # Every shard gets as many tokens.
    pad = -targets.size % sharding.shards(mesh, "batch")
    plan = _plan(config, targets.size + pad, numbers, mesh)
    scores: Any = _chunked(
        plan,
        jnp.pad(hidden, ((0, pad), (0, 0))),
        head_table(config, params),
        jnp.pad(targets, (0, pad)),
        None if support is None else jnp.pad(support, ((0, pad), (0, 0)), constant_values=-1),
        jnp.asarray(temperature, config.float_dtype),
    )
    logprobs, entropies = (_as_rows(x[: targets.size], shape, mesh) for x in scores)
    return logprobs, entropies


def _flat(x: Float[Array, "R M ..."] | Int[Array, "R M ..."], mesh: Mesh | None) -> Array:
    """[R x M, ...]; where rows are cut, the tokens of a device one after the other, so that they can stay there."""

    def flat(x: Array) -> Array:
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    rows, tokens = _cut_rows(mesh, x.shape)
    if mesh is None or not tokens:
        return flat(x)
    cut, joined = PartitionSpec(rows, tokens), PartitionSpec((*rows, *tokens))
    return jax.shard_map(flat, mesh=mesh, in_specs=cut, out_specs=joined)(x)


def _as_rows(x: Float[Array, "n"], shape: tuple[int, ...], mesh: Mesh | None) -> Float[Array, "R M"]:
    """The inverse of `_flat`."""
    rows, tokens = _cut_rows(mesh, shape)
    if mesh is None or not tokens:
        return x.reshape(shape)
    here = shape[0] // _size(mesh, rows), shape[1] // _size(mesh, tokens)
    cut, joined = PartitionSpec(rows, tokens), PartitionSpec((*rows, *tokens))
    return jax.shard_map(lambda x: x.reshape(here), mesh=mesh, in_specs=joined, out_specs=cut)(x)


def _cut_rows(mesh: Mesh | None, shape: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Mesh axes that packed rows [R, M, ...] are cut over, and those of their tokens."""
    if mesh is None:
        return (), ()
    return sharding.mesh_axes(mesh, shape[0], "rows"), sharding.mesh_axes(mesh, shape[1], "tokens")


def _possible(support: Int[Array, "n K"], first: Array | int, width: int) -> Bool[Array, "n v"]:
    """Which of the `width` tokens from `first` on are among those of the support, or whether all are."""
    inside = (support >= first) & (support < first + width)
    places = jnp.where(inside, support - first, width)  # which is outside, and dropped
    rows = jnp.arange(len(support))[:, None]
    listed = jnp.zeros((len(support), width), bool).at[rows, places].set(True, mode="drop")
    return listed | jnp.all(support < 0, axis=-1, keepdims=True)


def _scores(
    scaled: Float[Array, "n V"], targets: Int[Array, "n"], possible: Bool[Array, "n V"] | None
) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    """log softmax(scaled)[target] and the entropy -sum(p log p), of the possible tokens; None for all."""
    normalizer = jax.nn.logsumexp(scaled, axis=-1, keepdims=True, where=possible)
    logprobs = scaled - normalizer
    if possible is not None:  # first: what is not possible may be far above what is, and its exp infinite
        logprobs = jnp.where(possible, logprobs, 0.0)
    p = jnp.exp(logprobs)
    if possible is not None:
        p = jnp.where(possible, p, 0.0)
    # A masked sum, not a gather: it needs no all-gather when the vocabulary is sharded.
    chosen = jnp.arange(scaled.shape[-1]) == targets[..., None]
    picked = jnp.sum(jnp.where(chosen, logprobs, 0.0), axis=-1)
    return picked, -jnp.sum(p * logprobs, axis=-1)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How the work is cut; hashable, so that it can be a static argument."""

    precision: Precision  # of the head's products
    dtype: str  # what the head is rounded to
    tied: bool  # whether the table is [V, D] rather than [D, V]
    width: int  # columns of a chunk
    mesh: Mesh | None  # None for one device
    tokens: tuple[str, ...] = ()  # mesh axes that the tokens are cut over
    embed: tuple[str, ...] = ()  # mesh axes that the table's D is cut over; among `tokens` (`sharding.RULES`)
    vocab: tuple[str, ...] = ()  # mesh axes that its V is cut over

    @property
    def table_spec(self) -> PartitionSpec:
        return PartitionSpec(*((self.vocab, self.embed) if self.tied else (self.embed, self.vocab)))


def _plan(config: ModelConfig, tokens: int, numbers: int, mesh: Mesh | None) -> _Plan:
    """Chunks of the vocabulary of up to `numbers` logits on a device, as even as multiples of 128 allow."""
    columns, cut = config.vocab_size, {}
    if mesh is not None:
        spec = param_specs(config)["embed" if config.tied_embeddings else "head"]
        embed, vocab = (
            sharding.mesh_axes(mesh, spec.shape[spec.axes.index(name)], name) for name in ("embed", "vocab")
        )
        batch = sharding.mesh_axes(mesh, tokens, "batch")
        cut = {"tokens": batch, "embed": embed, "vocab": vocab}
        columns //= _size(mesh, vocab)
        tokens //= _size(mesh, batch)
    # With few tokens it is the gathered columns, and their gradient, that take memory.
    width = min(columns, max(1, numbers // max(1, tokens)), max(1, CHUNK_NUMBERS // config.embed_dim))
    lanes = _LANES if width >= _LANES else 1
    chunks = -(-columns // (width // lanes * lanes))
    width = min(columns, -(-columns // (chunks * lanes)) * lanes)
    return _Plan(precision_of(config), config.dtype, config.tied_embeddings, width, mesh, **cut)


def _size(mesh: Mesh, axes: tuple[str, ...]) -> int:
    """Parts that these mesh axes make."""
    return functools.reduce(lambda size, axis: size * mesh.shape[axis], axes, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(
    plan: _Plan, hidden: Array, table: Array, targets: Array, support: Array | None, temperature: Array
) -> tuple[Array, Array]:
    """Log-probabilities and entropies of n tokens: [n D], the head, [n], [n K] or None, a scalar to [n], [n]."""
    return _chunked_forward(plan, hidden, table, targets, support, temperature)[0]


def _chunked_forward(
    plan: _Plan, hidden: Array, table: Array, targets: Array, support: Array | None, temperature: Array
) -> tuple[tuple[Array, Array], tuple[Array | None, ...]]:
    tokens, rows = PartitionSpec(plan.tokens), PartitionSpec(plan.tokens, None)
    in_specs = (rows, plan.table_spec, tokens, rows, PartitionSpec())
    forward = _on_each_device(plan, functools.partial(_forward, plan), in_specs, (tokens, tokens, tokens))
    logprobs, entropies, normalizers = forward(hidden, table, targets, support, temperature)
    return (logprobs, entropies), (hidden, table, targets, support, temperature, normalizers, entropies)


def _chunked_backward(
    plan: _Plan, saved: tuple[Array | None, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, None, None, Array]:
    tokens, rows = PartitionSpec(plan.tokens), PartitionSpec(plan.tokens, None)
    in_specs = (rows, plan.table_spec, tokens, rows, PartitionSpec(), tokens, tokens, tokens, tokens)
    out_specs = (rows, plan.table_spec, PartitionSpec())
    backward = _on_each_device(plan, functools.partial(_backward, plan), in_specs, out_specs)
    hidden, table, temperature = backward(*saved, *cotangents)
    return hidden, table, None, None, temperature


_chunked.defvjp(_chunked_forward, _chunked_backward)


def _on_each_device(
    plan: _Plan, function: Callable[..., tuple[Array, ...]], in_specs: Any, out_specs: Any
) -> Callable[..., tuple[Array, ...]]:
    """`function` of the parts that a device holds; of the whole where there is one."""
    if plan.mesh is None:
        return function
    return jax.shard_map(function, mesh=plan.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _forward(
    plan: _Plan, hidden: Array, table: Array, targets: Array, support: Array | None, temperature: Array
) -> tuple[Array, Array, Array]:
    """Log-probabilities, entropies and normalisers of a device's tokens.

    Over the columns seen so far it carries, for each token, the largest logit m, the mass sum(exp(l - m)), the moment
    sum(exp(l - m) (l - m)), and the target's logit. Relative to m, nothing overflows and no large numbers cancel.
    """
    wide = temperature.dtype

    def add(index: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        top, mass, moment, picked = carry
        chunk = _chunk(plan, table, targets, support, index)
        scaled = _scaled(plan, hidden, chunk, temperature)
        above = jnp.maximum(top, jnp.max(scaled, axis=-1, where=chunk.fresh, initial=_lowest(wide)))
        shifted = jnp.where(chunk.fresh, scaled - above[:, None], 0.0)
        weights = jnp.where(chunk.fresh, jnp.exp(shifted), 0.0)
        mass, moment = _moved(top - above, mass, moment)
        picked = picked + jnp.sum(jnp.where(chunk.chosen, scaled, 0.0), axis=-1)
        return above, mass + jnp.sum(weights, axis=-1), moment + jnp.sum(weights * shifted, axis=-1), picked

    zero = jnp.zeros(targets.shape, wide)
    carry = (jnp.full(targets.shape, _lowest(wide)), zero, zero, zero)
    top, mass, moment, picked = jax.lax.fori_loop(0, _num_chunks(plan, table), add, carry)
    if plan.vocab:
        above = jax.lax.pmax(top, plan.vocab)
        mass, moment = jax.lax.psum(_moved(top - above, mass, moment), plan.vocab)
        top, picked = above, jax.lax.psum(picked, plan.vocab)
    log_mass = jnp.log(mass)
    return picked - top - log_mass, log_mass - moment / mass, top + log_mass


def _backward(
    plan: _Plan,
    hidden: Array,
    table: Array,
    targets: Array,
    support: Array | None,
    temperature: Array,
    normalizers: Array,
    entropies: Array,
    to_logprobs: Array,
    to_entropies: Array,
) -> tuple[Array, Array, Array]:
    """Cotangents of hidden states, head and temperature, chunk by chunk; sums are float32 at least.

    Of a logit l_j with p_j = exp(l_j - normaliser), H the entropy: d logprob = [j = target] - p_j and
    d H = -p_j (log p_j + H). A logit is homogeneous in the hidden states and in 1 / temperature, hence
    d / d temperature = -(hidden . d hidden) / temperature.
    """
    wide = temperature.dtype

    def add(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        to_hidden, to_table = carry
        chunk = _chunk(plan, table, targets, support, index)
        logprobs = _scaled(plan, hidden, chunk, temperature) - normalizers[:, None]
        p = jnp.where(chunk.fresh, jnp.exp(jnp.where(chunk.fresh, logprobs, 0.0)), 0.0)
        by_entropy = -p * (logprobs + entropies[:, None])
        to_scaled = to_logprobs[:, None] * (chunk.chosen - p) + to_entropies[:, None] * by_entropy
        to_logits = to_scaled / temperature
        equation = "nv,vd->nd" if plan.tied else "nv,dv->nd"
        to_hidden = multiply(equation, to_logits, chunk.head, plan.precision, start=to_hidden)
        equation = "nv,nd->vd" if plan.tied else "nv,nd->dv"
        to_head = _reduced(plan, multiply(equation, to_logits, hidden, plan.precision))
        here = jax.lax.dynamic_slice_in_dim(to_table, chunk.start, plan.width, axis=not plan.tied)
        to_table = jax.lax.dynamic_update_slice_in_dim(to_table, here + to_head, chunk.start, axis=not plan.tied)
        return to_hidden, to_table

    zeros = jnp.zeros(hidden.shape, wide), jnp.zeros(table.shape, wide)
    to_hidden, to_table = jax.lax.fori_loop(0, _num_chunks(plan, table), add, zeros)
    if plan.vocab:
        to_hidden = jax.lax.psum(to_hidden, plan.vocab)
    to_temperature = -jnp.sum(hidden * to_hidden) / temperature
    if plan.tokens:
        to_temperature = jax.lax.psum(to_temperature, plan.tokens)
    return to_hidden.astype(hidden.dtype), to_table.astype(table.dtype), to_temperature


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Some columns of the head."""

    start: Array  # the first, among the device's
    head: Array  # [v, D] or [D, v], in the model's dtype
    # [1, v] or [n, v], False for columns that an earlier chunk has had (the last chunk is as wide as the others, and
    # overlaps with the one before), and for what is not in a token's support
    fresh: Array
    chosen: Array  # [n, v], True for each token's target


def _chunk(plan: _Plan, table: Array, targets: Array, support: Array | None, index: Array) -> _Chunk:
    axis = 0 if plan.tied else 1
    columns = table.shape[axis]
    start = jnp.minimum(index * plan.width, columns - plan.width)
    head = jax.lax.dynamic_slice_in_dim(table, start, plan.width, axis).astype(plan.dtype)
    if plan.embed:
        head = _gathered(plan, head)
    local = start + jnp.arange(plan.width)
    fresh = (local >= index * plan.width)[None]
    first = jax.lax.axis_index(plan.vocab) * columns if plan.vocab else 0
    if support is not None:
        fresh = fresh & _possible(support, first + start, plan.width)
    return _Chunk(start, head, fresh, fresh & (targets[:, None] == first + local))


def _scaled(plan: _Plan, hidden: Array, chunk: _Chunk, temperature: Array) -> Array:
    """A chunk's logits over the temperature, [n, v]."""
    equation = "nd,vd->nv" if plan.tied else "nd,dv->nv"
    return multiply(equation, hidden, chunk.head, plan.precision) / temperature


def _gathered(plan: _Plan, head: Array) -> Array:
    """The whole D of a chunk's columns, of which each device has a part."""
    if not plan.tied:
        return jax.lax.all_gather(head, plan.embed, tiled=True)
    # Along a new leading axis: XLA would rather turn the whole table round than gather along the last one.
    parts = jax.lax.all_gather(head, plan.embed).swapaxes(0, 1)
    return parts.reshape(parts.shape[0], parts.shape[1] * parts.shape[2])


def _reduced(plan: _Plan, to_head: Array) -> Array:
    """The sum over all tokens of a chunk's gradient, of which each device keeps its part of D."""
    if plan.embed:
        assert plan.mesh is not None
        if plan.tied:
            parts = _size(plan.mesh, plan.embed)
            to_head = to_head.reshape(to_head.shape[0], parts, to_head.shape[1] // parts).swapaxes(0, 1)
        to_head = jax.lax.psum_scatter(to_head, plan.embed, tiled=not plan.tied)
    others = tuple(axis for axis in plan.tokens if axis not in plan.embed)
    return jax.lax.psum(to_head, others) if others else to_head


def _moved(shift: Array, mass: Array, moment: Array) -> tuple[Array, Array]:
    """Mass and moment relative to a largest logit that is `shift` <= 0 away from theirs."""
    decay = jnp.exp(shift)
    return mass * decay, (moment + mass * shift) * decay


def _num_chunks(plan: _Plan, table: Array) -> int:
    return -(-table.shape[0 if plan.tied else 1] // plan.width)


def _lowest(dtype: jnp.dtype) -> Array:
    """Below every logit, and far enough from the end of the range for differences to be finite."""
    return jnp.asarray(jnp.finfo(dtype).min / 4, dtype)
