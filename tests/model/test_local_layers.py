"""Layers that attend within chunks: in packed rows as in sequences alone, and by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.model.layers import blockwise_attention
from isocompute_jax.model.local_layers import chunk_starts, places, same_chunk
from tests.model.tiny import LLAMA4, random_params, tiny_config

CONFIG = tiny_config(**LLAMA4)
LENGTHS = (7, 9, 3)
ROW = 24


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [False, True])
def test_packed_rows_are_sequences_alone(gradients):
    """Hidden states, or the gradients of a sum; chunks are counted from each sequence's own first token."""
    params = random_params(CONFIG)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, CONFIG.vocab_size, length) for length in LENGTHS]
    starts = np.cumsum([0, *LENGTHS])
    tokens = np.zeros(ROW, np.int32)
    first = np.arange(ROW)  # padding sees itself
    for text, start in zip(texts, starts, strict=False):
        tokens[start : start + len(text)], first[start : start + len(text)] = text, start
    padded = np.stack([np.pad(text, (0, max(LENGTHS) - len(text))) for text in texts])
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    towards = rng.normal(size=(sum(LENGTHS), CONFIG.embed_dim)).astype(np.float32)

    def packed(params, first):
        hidden, _ = model.packed_hidden(CONFIG, params, jnp.asarray(tokens)[None], first, mesh=None)
        return hidden[0, : sum(LENGTHS)]

    def alone(params, _):
        hidden, _ = model.prefill(CONFIG, params, jnp.asarray(padded), jnp.asarray(mask))
        return hidden[np.nonzero(mask)]

    def computed(hidden):
        function = jax.grad(lambda p, f: jnp.sum(hidden(p, f) * towards)) if gradients else hidden
        return jax.tree.leaves(jax.jit(function)(params, jnp.asarray(first)[None]))

    for a, b in zip(computed(packed), computed(alone), strict=True):
        assert np.linalg.norm(np.asarray(a - b)) < 1e-5 * np.linalg.norm(np.asarray(b))


def test_what_a_query_sees():
    """Chunks of four: position 6 sees 4 to 6."""
    positions = jnp.arange(10)
    starts = chunk_starts(CONFIG, positions)
    assert starts is not None and starts.tolist() == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8]
    seen = same_chunk(CONFIG, jnp.tril(jnp.ones((10, 10), bool)), positions, positions)
    assert seen is not None and np.flatnonzero(seen[6]).tolist() == [4, 5, 6]
    assert chunk_starts(tiny_config(), positions) is None
    assert CONFIG.local_layers == (True, False) and tiny_config().local_layers is None


def test_temperature_by_hand():
    """Of floor 3 and scale 0.5: 1 below position 2, 1 + ln(2) / 2 from there, 1 + ln(3) / 2 from 5."""
    found = places(CONFIG, jnp.array([0, 1, 2, 4, 5, 7])).temperature
    assert found is not None
    expected = 1 + np.log([1, 1, 2, 2, 3, 3]) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert places(dataclasses.replace(CONFIG, query_scaling=None), jnp.arange(3)).temperature is None


def test_blocks_before_all_chunks_are_not_read():
    """Whatever they hold; those read are computed as before."""
    rng = np.random.default_rng(1)
    q = jnp.asarray(rng.normal(size=(2, 1, 4, 8)), jnp.float32)
    keys = rng.normal(size=(5, 2, 2, 4, 8)).astype(np.float32)  # blocks, sequences, heads, positions, size
    values = rng.normal(size=keys.shape).astype(np.float32)
    positions, first = jnp.array([[18], [13]]), jnp.array([[16], [12]])

    def attended(keys):
        blocks = jnp.asarray(keys)
        return blockwise_attention(
            q, positions, lambda i: (blocks[i], jnp.asarray(values)[i]), num_blocks=jnp.int32(5), first=first
        )

    found = attended(keys)
    keys[:3] = np.nan
    np.testing.assert_array_equal(attended(keys), found)
    for row, (start, end) in enumerate([(16, 19), (12, 14)]):
        k, v = (x[:, row].swapaxes(1, 2).reshape(20, 2, 8)[start:end] for x in (keys, values))
        scores = np.einsum("krh,skh->krs", np.asarray(q)[row, 0].reshape(2, 2, 8), k) / 8**0.5
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(
            found[row, 0], np.einsum("krs,skh->krh", weights, v).reshape(4, 8), rtol=0, atol=1e-5
        )
