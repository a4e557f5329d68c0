"""Experts: each row by its own group's matrix, whatever the balance, and gradients that agree with a plain loop."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.model.experts import experts, route
from isocompute_jax.model.grouped_product import block_rows, grouped_product, megablox_outer, megablox_product
from tests.model.tiny import LLAMA4, tiny_config

SIZES = {
    "even": [10, 10, 10, 10], "empty": [0, 25, 0, 15], "one": [0, 0, 40, 0], "last": [1, 0, 0, 39],
    "first": [40, 0, 0, 0],
}  # fmt: skip


@jax.jit
def product_and_gradients(x, w, sizes, towards):
    """By blocks: the product, and the gradients of rows and matrices where its own is `towards`."""
    out, pullback = jax.vjp(lambda x, w: grouped_product(x, w, sizes, "blocks"), x, w)
    return out, *pullback(towards)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_rows_meet_their_own_group_s_matrix(sizes):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(4, 6, 5)).astype(np.float32)
    towards = rng.normal(size=(40, 5)).astype(np.float32)
    groups = np.repeat(np.arange(4), sizes)
    expected = (
        np.einsum("md,mdf->mf", x, w[groups]),
        np.einsum("mf,mdf->md", towards, w[groups]),
        np.stack([x[groups == e].T @ towards[groups == e] for e in range(4)]),
    )
    for ours, theirs in zip(product_and_gradients(x, w, np.asarray(sizes), towards), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "sizes",
    [[10, 0, 20, 5], *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ([100, 0, 200, 40], [0, 0, 340, 0]))],
)
def test_rows_of_no_group_are_zero_and_move_nothing(sizes):
    """The blocks, and the kernels for TPUs as Pallas interprets them: 340 rows, which fill no whole tile."""
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=(340, size)).astype(np.float32) for size in (128, 256))
    w, used, groups = rng.normal(size=(4, 128, 256)).astype(np.float32), sum(sizes), np.repeat(np.arange(4), sizes)
    left = 340 - used

    def padded(rows):
        return np.vstack([rows, np.zeros((left, rows.shape[1]), rows.dtype)])

    expected = (
        padded(np.einsum("md,mdf->mf", x[:used], w[groups])),
        padded(np.einsum("mf,mdf->md", y[:used], w[groups])),
        np.stack([x[:used][groups == e].T @ y[:used][groups == e] for e in range(4)]),
    )

    @jax.jit
    def megablox(x, y, w, sizes):
        return (
            megablox_product(x, w, sizes, interpret=True)[:used],
            megablox_product(y, w, sizes, transposed=True, interpret=True)[:used],
            megablox_outer(x, y, sizes, jnp.float32, interpret=True),
        )

    given = np.asarray(sizes, np.int32)
    for ours, theirs in zip(product_and_gradients(x, w, given, y), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    cut = (expected[0][:used], expected[1][:used], expected[2])
    for ours, theirs in zip(megablox(x, y, w, given), cut, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


MIXTURE = ("router", "w_gate", "w_up", "w_down")

MOE = dict(attention_bias=False, qk_norm=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "rows", "axes"),
    [
        (MOE, 8, dict(fsdp=2, expert=2, tensor=2)), (MOE, 8, dict(data=2, expert=4)),
        (MOE, 8, dict(data=2, fsdp=2, tensor=2)), (MOE, 3, dict(expert=8)), (LLAMA4, 8, dict(expert=2, tensor=4)),
        (LLAMA4, 3, dict(fsdp=2, expert=2, tensor=2)),
    ],
    ids=str,
)  # fmt: skip
def test_eight_devices_compute_what_one_does(family, rows, axes):
    """The sum over experts, where tokens went, and every gradient, the router's and the tokens' included.

    Three rows do not divide over the devices; experts are chosen by a softmax, and by Llama 4's sigmoid.
    """
    config = tiny_config(**family | dict(num_experts=8, experts_per_token=3))
    rng = np.random.default_rng(3)
    layer, x = random_layer(rng, config), jnp.asarray(rng.normal(size=(rows, 1, 5, 16)), jnp.float32)
    towards = jnp.asarray(rng.normal(size=x.shape), jnp.float32)

    def loss(layer, x, mesh):
        out, routed = experts(config, layer, x, mesh=mesh)
        return jnp.sum(out * towards), (out, routed)

    program = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)
    mesh = sharding.make_mesh(**axes)
    places = {name: sharding.named_sharding(mesh, layer[name].shape, spec.axes[1:]) for name, spec in specs(config)}
    (_, (out, routed)), gradients = program(layer, x, None)
    (_, (out8, routed8)), gradients8 = program(jax.device_put(layer, places), x, mesh)
    np.testing.assert_allclose(out8, out, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(routed8.experts, routed.experts)
    np.testing.assert_allclose(routed8.entropy, routed.entropy, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(routed8.own, routed.own)
    for ours, theirs in zip(jax.tree.leaves(gradients8), jax.tree.leaves(gradients), strict=True):
        assert np.linalg.norm(np.asarray(ours - theirs)) < 1e-5 * np.linalg.norm(np.asarray(theirs))


def specs(config):
    return [(name, spec) for name, spec in model.param_specs(config)["layers"].items() if name in MIXTURE]


def random_layer(rng, config):
    return {
        name: jnp.asarray(rng.normal(size=spec.shape[1:]) / spec.shape[-2] ** 0.5, jnp.float32)
        for name, spec in specs(config)
    }


def test_no_tokens_are_no_work():
    """A completion of one token has none to extend."""
    config = tiny_config(num_experts=4, experts_per_token=2, attention_bias=False, qk_norm=True)
    layer, x = random_layer(np.random.default_rng(0), config), jnp.asarray(np.zeros((2, 3, 0, 16), np.float32))

    @jax.jit
    def of_no_tokens(layer):
        out, pullback = jax.vjp(lambda layer: experts(config, layer, x)[0], layer)
        return out, pullback(out)[0]

    out, gradient = of_no_tokens(layer)
    assert out.shape == x.shape
    assert gradient.keys() == layer.keys() and not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_blocks_cost_little_more_than_their_rows():
    """Of the rows of a batch of 8,192 tokens, 8 of 128 experts each, blocks fill up less than a tenth."""
    rng = np.random.default_rng(1)
    sizes = np.bincount(rng.integers(0, 128, 8192 * 8), minlength=128)
    rows = block_rows(8192 * 8, 128)
    assert np.sum(-(-sizes // rows)) * rows < 1.1 * sizes.sum()
    assert block_rows(4, 4) == 8 and block_rows(10**9, 2) == 128


routed_by = jax.jit(route, static_argnums=0)


def test_tokens_are_routed_to_the_most_probable_experts():
    """A hand-worked router: logits 0, ln 2, ln 4, ln 1 give probabilities 1/8, 2/8, 4/8, 1/8."""
    given = dict(num_experts=4, experts_per_token=2, attention_bias=False, qk_norm=True)
    router, x = np.log(np.array([[1.0, 2.0, 4.0, 1.0]], np.float32)), np.ones((1, 1), np.float32)
    weights, routed = routed_by(tiny_config(**given), router, x)
    assert routed.experts.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[2 / 3, 1 / 3]], rtol=1e-6)
    weights, _ = routed_by(tiny_config(**given, normalized_routing=False), router, x)
    np.testing.assert_allclose(weights, [[0.5, 0.25]], rtol=1e-6)


def test_a_sigmoid_scales_what_an_expert_reads():
    """Of logits 0, ln 3, ln 9, -1 each has its own: 9/10 for the best, 3/4 for the second."""
    config = tiny_config(**LLAMA4 | dict(experts_per_token=2))
    router, one = np.array([[0.0, math.log(3), math.log(9), -1.0]], np.float32), np.ones((1, 1), np.float32)
    weights, routed = routed_by(config, router, one)
    assert routed.experts.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[0.9, 0.75]], rtol=1e-6)
    # Of an expert that is replayed it is its own score's; the second is not known.
    weights, routed = routed_by(config, router, one, np.array([[3, -1]], np.int32))
    assert (routed.experts.tolist(), routed.own.tolist()) == ([[3, 1]], [[2, 1]])
    np.testing.assert_allclose(weights, [[1 / (1 + math.e), 0.75]], rtol=1e-6)
    # Where scores are large, probabilities of all but one round to 0 and sigmoids to 1: the order remains.
    _, routed = routed_by(config, np.array([[150.0, 400.0, 250.0, 200.0]], np.float32), one)
    assert routed.experts.tolist() == [[1, 2]]

    rng = np.random.default_rng(6)
    layer, x = jax.tree.map(np.asarray, random_layer(rng, config)), rng.normal(size=(5, 16)).astype(np.float32)
    scores = x @ np.asarray(layer["router"])
    expected = np.zeros_like(x)
    for token, given in enumerate(x):
        for expert in np.argsort(-scores[token])[:2]:
            read = given / (1 + np.exp(-scores[token, expert]))
            gate, up = read @ layer["w_gate"][expert], read @ layer["w_up"][expert]
            expected[token] += gate / (1 + np.exp(-gate)) * up @ layer["w_down"][expert]
    found, _ = jax.jit(experts, static_argnums=0)(config, layer, jnp.asarray(x))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_one_expert_for_all_is_its_mlp():
    """With identical experts the router cannot matter."""
    config = tiny_config(num_experts=3, experts_per_token=2, attention_bias=False, qk_norm=True)
    rng = np.random.default_rng(2)
    gate, up = (rng.normal(size=(16, 24)).astype(np.float32) for _ in range(2))
    down = rng.normal(size=(24, 16)).astype(np.float32)
    layer = {"router": rng.normal(size=(16, 3)).astype(np.float32)}
    layer |= {name: np.stack([w] * 3) for name, w in (("w_gate", gate), ("w_up", up), ("w_down", down))}
    x = rng.normal(size=(2, 5, 16)).astype(np.float32)
    expected = (x @ gate / (1 + np.exp(-(x @ gate))) * (x @ up)) @ down
    found, _ = jax.jit(experts, static_argnums=0)(config, layer, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
