"""Every parameter, declared once: shape, logical axes, initialiser and Hugging Face name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig

Params = dict[str, Any]
"""Nested dict of arrays; `params["layers"][name]` is stacked over layers, [L, ...]."""


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter.

    Attributes:
      shape: shape, the leading L of layer parameters included.
      axes: logical axis of each dimension (see `sharding.RULES`).
      init: `zeros`, `ones`, or `normal` (standard deviation 0.02, as Qwen2).
      hf_name: Hugging Face tensor name; `{layer}` stands for the layer index of stacked parameters.
      hf_linear: stored by Hugging Face as a `torch.nn.Linear` weight, [out, in] flattened.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: str
    hf_name: str
    hf_linear: bool = False

    @property
    def stacked(self) -> bool:
        """Whether the leading dimension is the layer."""
        return "{layer}" in self.hf_name


def param_specs(config: ModelConfig) -> dict[str, Any]:
    """The table: a tree of `ParamSpec` with the structure of the parameters."""
    v, d, f, layers = config.vocab_size, config.embed_dim, config.mlp_dim, config.num_layers
    n, k, h = config.num_heads, config.num_kv_heads, config.head_dim

    def layer(shape: tuple[int, ...], axes: tuple[str | None, ...], init: str, name: str, linear: bool = False) -> Any:
        return ParamSpec((layers, *shape), (None, *axes), init, "model.layers.{layer}." + name, linear)

    specs: dict[str, Any] = {
        "embed": ParamSpec((v, d), ("vocab", "embed"), "normal", "model.embed_tokens.weight"),
        "layers": {
            "attention_norm": layer((d,), (None,), "ones", "input_layernorm.weight"),
            "wq": layer((d, n, h), ("embed", "heads", None), "normal", "self_attn.q_proj.weight", True),
            "bq": layer((n, h), ("heads", None), "zeros", "self_attn.q_proj.bias"),
            "wk": layer((d, k, h), ("embed", "kv_heads", None), "normal", "self_attn.k_proj.weight", True),
            "bk": layer((k, h), ("kv_heads", None), "zeros", "self_attn.k_proj.bias"),
            "wv": layer((d, k, h), ("embed", "kv_heads", None), "normal", "self_attn.v_proj.weight", True),
            "bv": layer((k, h), ("kv_heads", None), "zeros", "self_attn.v_proj.bias"),
            "wo": layer((n, h, d), ("heads", None, "embed"), "normal", "self_attn.o_proj.weight", True),
            "mlp_norm": layer((d,), (None,), "ones", "post_attention_layernorm.weight"),
            "w_gate": layer((d, f), ("embed", "mlp"), "normal", "mlp.gate_proj.weight", True),
            "w_up": layer((d, f), ("embed", "mlp"), "normal", "mlp.up_proj.weight", True),
            "w_down": layer((f, d), ("mlp", "embed"), "normal", "mlp.down_proj.weight", True),
        },
        "final_norm": ParamSpec((d,), (None,), "ones", "model.norm.weight"),
    }
    if not config.tied_embeddings:
        specs["head"] = ParamSpec((d, v), ("embed", "vocab"), "normal", "lm_head.weight", True)
    return specs


def map_specs(function: Callable[[ParamSpec], Any], config: ModelConfig) -> Any:
    """Applies `function` to every spec of the table."""
    return jax.tree.map(function, param_specs(config), is_leaf=lambda node: isinstance(node, ParamSpec))


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Random parameters in `config.dtype`, as Qwen2 initialises them (normal 0.02, zero biases, unit norms)."""
    specs, structure = jax.tree.flatten(param_specs(config), is_leaf=lambda node: isinstance(node, ParamSpec))
    dtype = jnp.dtype(config.dtype)

    def draw(spec: ParamSpec, key: jax.Array) -> jax.Array:
        if spec.init == "normal":
            return (0.02 * jax.random.normal(key, spec.shape)).astype(dtype)
        return jnp.full(spec.shape, {"zeros": 0.0, "ones": 1.0}[spec.init], dtype)

    keys = jax.random.split(key, len(specs))
    return jax.tree.unflatten(structure, [draw(spec, key) for spec, key in zip(specs, keys, strict=True)])


def abstract_params(config: ModelConfig, dtype: Any = None) -> Params:
    """`jax.ShapeDtypeStruct` of every parameter, in `dtype` (default `config.dtype`)."""
    dtype = jnp.dtype(config.dtype if dtype is None else dtype)
    return map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype), config)


def cast_params(params: Params, dtype: Any) -> Params:
    """Every parameter in `dtype`; those that have it already are passed through."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def param_shardings(config: ModelConfig, mesh: Mesh) -> Params:
    """`NamedSharding` of every parameter."""
    return map_specs(lambda spec: sharding.named_sharding(mesh, spec.shape, spec.axes), config)


def count_params(config: ModelConfig) -> int:
    """Number of parameters (tied embeddings counted once)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(config)))
