"""Policies of recomputation: the same gradients, and less memory between the two passes."""

import typing

import jax
import jax.numpy as jnp
import optax
import pytest

from isocompute_jax import model
from tests.model.tiny import random_params, tiny_config

DEEP = {"num_layers": 4, "embed_dim": 32, "mlp_dim": 128, "dtype": "float32"}
TOKENS = jnp.arange(4 * 60).reshape(4, 60) % 12


def loss(params, config):
    hidden, _ = model.prefill(config, params, TOKENS, jnp.ones_like(TOKENS, bool))
    return jnp.sum(hidden**2)


def gradient(config):
    return jax.jit(jax.grad(loss), static_argnums=1).lower(model.abstract_params(config), config).compile()


POLICIES = [name for name in typing.get_args(model.Remat) if name not in ("none", "full")]


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", *POLICIES])
def test_a_policy_changes_memory_and_not_the_gradient(remat):
    plain, other = (gradient(tiny_config(**DEEP, remat=name)) for name in ("none", remat))
    params = random_params(tiny_config(**DEEP))
    expected, found = plain(params), other(params)
    difference = jax.tree.map(lambda a, b: a - b, found, expected)
    assert optax.tree.norm(difference) < 1e-5 * optax.tree.norm(expected)
    assert kept(other) < 0.9 * kept(plain)


def kept(program) -> int:
    return program.memory_analysis().temp_size_in_bytes
