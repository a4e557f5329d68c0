"""Every parameter, declared once: shape, logical axes, initialiser, Hugging Face name and layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig

Init = Literal["zeros", "ones", "normal", "uniform"]
Axes = tuple[str | None, ...]
Joined = tuple[tuple[int, ...], ...]
"""Dimensions of ours that each dimension of a Hugging Face tensor joins; see `ParamSpec.hf_dims`."""

Params = dict[str, Any]
"""Nested dict of arrays; `params["layers"][name]` is stacked over layers, [L, ...]."""


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter, which is one Hugging Face tensor, or one tensor a layer, or one part of such tensors."""

    shape: tuple[int, ...]  # shape, the leading L of layer parameters included
    axes: tuple[str | None, ...]  # logical axis of each dimension (see `sharding.RULES`)
    # `zeros`, `ones`, `normal` (standard deviation 0.02, as Qwen2), or `uniform` within 1 / sqrt(inputs) (as PEFT)
    init: Init
    # Hugging Face tensor name; `{layer}` and `{expert}` stand for the indices of stacked parameters, which are our
    # leading dimensions in this order
    hf_name: str
    # for each dimension of the Hugging Face tensor, the dimensions of ours (stacked ones not counted) that it joins, in
    # row-major order. ((1, 2), (0,)) stores [D, N, H] as [N x H, D], the [out, in] of a `torch.nn.Linear`.
    hf_dims: Joined
    # (index, count) where the Hugging Face tensor joins so many parameters along its last dimension; this is the index-
    # th of them
    part: tuple[int, int] = (0, 1)
    # our last dimension is a head whose RoPE rotates the pairs (x_i, x_{i + H/2}), as everywhere here; Hugging Face's
    # are neighbours (x_2i, x_{2i + 1})
    interleaved: bool = False

    @property
    def lead(self) -> int:
        """How many leading dimensions are stacked: 0, 1 (layers), or 2 (layers and experts)."""
        return sum(index in self.hf_name for index in ("{layer}", "{expert}"))

    def named(self, index: tuple[int, ...]) -> str:
        """Name of one tensor, by its index in the stacked dimensions."""
        return self.hf_name.format(**dict(zip(("layer", "expert"), index, strict=False)))

    @property
    def hf_names(self) -> list[str]:
        """Names of its tensors, in row-major order of the stacked dimensions."""
        return [self.named(index) for index in np.ndindex(*self.shape[: self.lead])]

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Our shape of one tensor: without the stacked dimensions."""
        return self.shape[self.lead :]

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """Hugging Face's shape of one tensor, or of our part of it."""
        return tuple(math.prod(self.tensor_shape[dim] for dim in joined) for joined in self.hf_dims)

    @property
    def hf_whole_shape(self) -> tuple[int, ...]:
        """Hugging Face's shape of one tensor, the parts of other parameters included."""
        *rest, last = self.hf_shape
        return (*rest, last * self.part[1])

    @property
    def hf_offset(self) -> int:
        """Where in the last dimension of the tensor our part begins."""
        return self.part[0] * self.hf_shape[-1]

    @property
    def hf_axes(self) -> tuple[str | None, ...]:
        """Logical axis of each dimension of `hf_shape`.

        Dimensions that are joined keep the axis of the first, (heads, head size) that of the heads: each shard holds
        the same numbers as before.
        """
        return tuple(self.axes[self.lead :][joined[0]] for joined in self.hf_dims)


# What Hugging Face makes of our dimensions: as they are; [in, out] as [out, in]; heads joined with their size; experts.
_SAME, _VECTOR, _TRANSPOSED = ((0,), (1,)), ((0,),), ((1,), (0,))
_TO_HEADS, _HEAD_BIAS, _FROM_HEADS = ((1, 2), (0,)), ((0, 1),), ((2,), (0, 1))
_EXPERTS = ((0,), (1,), (2,))


def param_specs(config: ModelConfig) -> dict[str, Any]:
    """The table: a tree of `ParamSpec` with the structure of the parameters."""
    v, d = config.vocab_size, config.embed_dim
    specs: dict[str, Any] = {
        "embed": ParamSpec((v, d), ("vocab", "embed"), "normal", "model.embed_tokens.weight", _SAME),
        "layers": {**_attention_specs(config), **_mlp_specs(config)},
        "final_norm": ParamSpec((d,), (None,), "ones", "model.norm.weight", _VECTOR),
    }
    if not config.tied_embeddings:
        specs["head"] = ParamSpec((d, v), ("embed", "vocab"), "normal", "lm_head.weight", _TRANSPOSED)
    return specs


def _attention_specs(config: ModelConfig) -> dict[str, ParamSpec]:
    """Of every layer's attention; biases and norms of heads where the family has them."""
    d, n, k, h = config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim

    def layer(
        shape: tuple[int, ...], axes: Axes, init: Init, name: str, hf_dims: Joined, interleaved: bool = False
    ) -> ParamSpec:
        name = f"model.layers.{{layer}}.{name}"
        return ParamSpec((config.num_layers, *shape), (None, *axes), init, name, hf_dims, interleaved=interleaved)

    pairs = config.local_layers is not None  # Llama 4 alone stores the pairs of RoPE as neighbours
    specs = {
        "attention_norm": layer((d,), (None,), "ones", "input_layernorm.weight", _VECTOR),
        "wq": layer((d, n, h), ("embed", "heads", None), "normal", "self_attn.q_proj.weight", _TO_HEADS, pairs),
        "wk": layer((d, k, h), ("embed", "kv_heads", None), "normal", "self_attn.k_proj.weight", _TO_HEADS, pairs),
        "wv": layer((d, k, h), ("embed", "kv_heads", None), "normal", "self_attn.v_proj.weight", _TO_HEADS),
        "wo": layer((n, h, d), ("heads", None, "embed"), "normal", "self_attn.o_proj.weight", _FROM_HEADS),
    }
    if config.attention_bias:
        specs |= {
            "bq": layer((n, h), ("heads", None), "zeros", "self_attn.q_proj.bias", _HEAD_BIAS),
            "bk": layer((k, h), ("kv_heads", None), "zeros", "self_attn.k_proj.bias", _HEAD_BIAS),
            "bv": layer((k, h), ("kv_heads", None), "zeros", "self_attn.v_proj.bias", _HEAD_BIAS),
        }
    if config.qk_norm:
        specs |= {
            "q_norm": layer((h,), (None,), "ones", "self_attn.q_norm.weight", _VECTOR),
            "k_norm": layer((h,), (None,), "ones", "self_attn.k_norm.weight", _VECTOR),
        }
    return specs


def _mlp_specs(config: ModelConfig) -> dict[str, ParamSpec]:
    """Of every layer's MLP, or of its router and experts."""
    layers, d, f, e = config.num_layers, config.embed_dim, config.mlp_dim, config.num_experts
    prefix = "model.layers.{layer}."
    lead, where, mlp = (layers,), (None,), prefix + "mlp."
    specs = {
        "mlp_norm": ParamSpec((layers, d), (None, None), "ones", f"{prefix}post_attention_layernorm.weight", _VECTOR)
    }
    if config.shared_expert:
        return specs | _shared_and_routed_specs(config)
    if e:
        axes = (None, "embed", None)
        specs["router"] = ParamSpec((layers, d, e), axes, "normal", f"{prefix}mlp.gate.weight", _TRANSPOSED)
        lead, where, mlp = (layers, e), (None, "experts"), prefix + "mlp.experts.{expert}."
    up, down = (*where, "embed", "mlp"), (*where, "mlp", "embed")
    return specs | {
        "w_gate": ParamSpec((*lead, d, f), up, "normal", mlp + "gate_proj.weight", _TRANSPOSED),
        "w_up": ParamSpec((*lead, d, f), up, "normal", mlp + "up_proj.weight", _TRANSPOSED),
        "w_down": ParamSpec((*lead, f, d), down, "normal", mlp + "down_proj.weight", _TRANSPOSED),
    }


def _shared_and_routed_specs(config: ModelConfig) -> dict[str, ParamSpec]:
    """Of every layer's router, experts and shared expert (Llama 4): the experts of a layer are one tensor."""
    layers, d, f, e = config.num_layers, config.embed_dim, config.mlp_dim, config.num_experts

    def layer(
        shape: tuple[int, ...], axes: Axes, name: str, hf_dims: Joined, part: tuple[int, int] = (0, 1)
    ) -> ParamSpec:
        name = f"model.layers.{{layer}}.feed_forward.{name}"
        return ParamSpec((layers, *shape), (None, *axes), "normal", name, hf_dims, part)

    up, down, gate_up = ("embed", "mlp"), ("mlp", "embed"), "experts.gate_up_proj"
    return {
        "router": layer((d, e), ("embed", None), "router.weight", _TRANSPOSED),
        "w_gate": layer((e, d, f), ("experts", *up), gate_up, _EXPERTS, (0, 2)),
        "w_up": layer((e, d, f), ("experts", *up), gate_up, _EXPERTS, (1, 2)),
        "w_down": layer((e, f, d), ("experts", *down), "experts.down_proj", _EXPERTS),
        "shared_gate": layer((d, f), up, "shared_expert.gate_proj.weight", _TRANSPOSED),
        "shared_up": layer((d, f), up, "shared_expert.up_proj.weight", _TRANSPOSED),
        "shared_down": layer((f, d), down, "shared_expert.down_proj.weight", _TRANSPOSED),
    }


def spec_leaves(table: Any) -> list[ParamSpec]:
    """Every spec of a table, or of a model's, in the order of the leaves of the parameters."""
    return jax.tree.leaves(param_specs(table) if isinstance(table, ModelConfig) else table, is_leaf=_is_spec)


def map_specs(function: Callable[..., Any], config: ModelConfig, *trees: Any) -> Any:
    """Applies `function` to every spec of the table, and to the leaves of `trees` that belong to it."""
    return map_table(function, param_specs(config), *trees)


def map_table(function: Callable[..., Any], table: Any, *trees: Any) -> Any:
    """The same of any table."""
    return jax.tree.map(function, table, *trees, is_leaf=_is_spec)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Random parameters in `config.dtype`, as Qwen2 initialises them (normal 0.02, zero biases, unit norms)."""
    return drawn(param_specs(config), key, config.dtype)


def drawn(table: Any, key: jax.Array, dtype: Any) -> Any:
    """What a table says training begins with, in `dtype`."""
    specs, structure = jax.tree.flatten(table, is_leaf=_is_spec)
    dtype = jnp.dtype(dtype)

    def draw(spec: ParamSpec, key: jax.Array) -> jax.Array:
        match spec.init:
            case "normal":
                return (0.02 * jax.random.normal(key, spec.shape)).astype(dtype)
            case "uniform":
                bound = spec.hf_shape[-1] ** -0.5
                return jax.random.uniform(key, spec.shape, minval=-bound, maxval=bound).astype(dtype)
        return jnp.full(spec.shape, {"zeros": 0.0, "ones": 1.0}[spec.init], dtype)

    keys = jax.random.split(key, len(specs))
    return jax.tree.unflatten(structure, [draw(spec, key) for spec, key in zip(specs, keys, strict=True)])


def abstract_params(config: ModelConfig, dtype: Any = None) -> Params:
    """`jax.ShapeDtypeStruct` of every parameter, in `dtype` (default `config.dtype`)."""
    dtype = jnp.dtype(config.dtype if dtype is None else dtype)
    return map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype), config)


def cast_params(params: Params, dtype: Any) -> Params:
    """Every parameter in `dtype`; those that have it already are passed through."""
    dtype = jnp.dtype(dtype)
    return jax.tree.map(lambda x: x if x.dtype == dtype else x.astype(dtype), params)


def param_shardings(config: ModelConfig, mesh: Mesh) -> Params:
    """`NamedSharding` of every parameter."""
    return map_specs(lambda spec: sharding.named_sharding(mesh, spec.shape, spec.axes), config)


def count_params(config: ModelConfig) -> int:
    """Number of parameters (tied embeddings counted once)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_params(config)))


def all_finite(params: Any) -> bool:
    """Whether every number of a tree of arrays is one; every process that holds parts of them must ask."""
    return bool(_all_finite(params))


@jax.jit
def _all_finite(params: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


def _is_spec(node: Any) -> bool:
    return isinstance(node, ParamSpec)
