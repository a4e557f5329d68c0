"""Low-rank adapters (LoRA, arXiv 2106.09685): a matrix W stays as it is, and W + (alpha / r) A B is computed with.

Adapters are declared by the table of parameters: A has the rows of its W, B its columns, in their shapes and on their
mesh axes. In a tree of weights an adapted matrix is an `Adapted` in the place of the array, so that such trees go
wherever others go: through the layers' scan, into scores and samplers. `merged` makes arrays of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from isocompute_jax import sharding
from isocompute_jax.model.config import ModelConfig
from isocompute_jax.model.params import Axes, Params, ParamSpec, drawn, map_table, param_specs
from isocompute_jax.options import check, described, field_of, option
from isocompute_jax.records.errors import InputError

ALL = "all"
PREFIX = "base_model.model."
"""Stands before a tensor's name in PEFT's files."""


@described
@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapters that are trained in place of the weights.

    There is no dropout: what is trained would be another policy than the one that sampled.
    """

    rank: int = option(0, "r, columns of A and rows of B; 0 for no adapters: all weights are trained.", low=0)
    alpha: float = option(32.0, "A B is scaled by alpha / r.", above=0)
    targets: str = option(
        ALL,
        "Matrices that get adapters, by the names of their Hugging Face modules, comma-separated (q_proj, k_proj, "
        "v_proj, o_proj, gate_proj, up_proj, down_proj; experts have the last three each); all for all of them.",
    )
    start: str = option(
        "", "PEFT directory of the same model whose adapters training begins with; empty: A at random, B zero."
    )

    def __post_init__(self) -> None:
        check(self)
        for name, default in (("targets", ALL), ("start", ""), ("served", False)):
            if not self.rank and getattr(self, name) != default:
                what = f" = {getattr(self, name)!r} says something of adapters, and there are none without a "
                raise InputError(field_of(self, name), what, field_of(self, "rank"))

    served: bool = option(
        False,
        "The servers were started with --lora_rank and --lora_targets, so that adapters alone travel; else they are "
        "sent all weights, merged.",
        identity=False,
    )

    @property
    def scale(self) -> float:
        """alpha / r."""
        return self.alpha / self.rank


@flax.struct.dataclass
class Factors:
    """An adapter: A [*lead, *inputs, r] and B [*lead, r, *outputs] of a matrix [*lead, *inputs, *outputs]; or specs."""

    a: Any
    b: Any
    scale: float = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Adapted:
    """A frozen matrix and its adapter, in the place of an array of weights."""

    base: Any
    factors: Factors


Weight = Array | Adapted


def adapter_specs(config: ModelConfig, lora: LoraConfig) -> dict[str, Any]:
    """The table of the adapters: for each adapted parameter a `Factors` of `ParamSpec`, named as PEFT names them.

    Raises:
      InputError: a target that the model has not, or a rank above that of a matrix.
    """
    layers = param_specs(config)["layers"]
    modules: dict[str, list[str]] = {}
    for name, spec in layers.items():
        if spec.hf_name.endswith("_proj.weight"):  # not norms, routers and tensors of all experts together
            modules.setdefault(spec.hf_name.split(".")[-2], []).append(name)
    wanted = list(modules) if lora.targets == ALL else [name.strip() for name in lora.targets.split(",")]
    unknown = [name for name in wanted if name not in modules]
    if unknown:
        raise InputError(
            field_of(lora, "targets"),
            f" = {lora.targets!r}: this {config.architecture} has no {unknown[0]!r} that can be adapted; it has "
            f"{', '.join(modules)}",
        )
    names = {name for module in wanted for name in modules[module]}
    narrowest = layers[min(sorted(names), key=lambda name: min(layers[name].hf_shape))]
    if lora.rank > min(narrowest.hf_shape):
        name, most = narrowest.hf_name.split(".")[-2], min(narrowest.hf_shape)
        rank = f" = {lora.rank} is above {most}, the rank that {name} {narrowest.hf_shape} can have; lower it"
        raise InputError(field_of(lora, "rank"), rank)
    return {"layers": {name: _adapter_spec(spec, lora) for name, spec in layers.items() if name in names}}


def _adapter_spec(spec: ParamSpec, lora: LoraConfig) -> Factors:
    outputs, inputs = spec.hf_dims
    rank, lead = lora.rank, spec.lead

    def part(letter: str, shape: tuple[int, ...], axes: tuple[str | None, ...], init: Any, dims: Any) -> ParamSpec:
        name = PREFIX + spec.hf_name.replace(".weight", f".lora_{letter}.weight")
        return ParamSpec(spec.shape[:lead] + shape, spec.axes[:lead] + axes, init, name, dims)

    size, axes = spec.tensor_shape, spec.axes[lead:]
    a = part(
        "A",
        (*(size[dim] for dim in inputs), rank),
        (*(axes[dim] for dim in inputs), None),
        "uniform",
        ((len(inputs),), tuple(range(len(inputs)))),
    )
    b = part(
        "B",
        (rank, *(size[dim] for dim in outputs)),
        (None, *(axes[dim] for dim in outputs)),
        "zeros",
        (tuple(range(1, 1 + len(outputs))), (0,)),
    )
    return Factors(a, dataclasses.replace(b, interleaved=spec.interleaved), lora.scale)


def init_adapters(config: ModelConfig, lora: LoraConfig, key: Array) -> Params:
    """As PEFT begins, in float32: A uniform within 1 / sqrt(inputs), B zero, so that the first policy is the base's."""
    return drawn(adapter_specs(config, lora), key, config.float_dtype)


def abstract_adapters(config: ModelConfig, lora: LoraConfig) -> Params:
    """`jax.ShapeDtypeStruct` of every adapter."""
    return map_table(lambda spec: jax.ShapeDtypeStruct(spec.shape, config.float_dtype), adapter_specs(config, lora))


def adapter_shardings(config: ModelConfig, lora: LoraConfig, mesh: Mesh) -> Params:
    """`NamedSharding` of every adapter."""
    return map_table(lambda spec: sharding.named_sharding(mesh, spec.shape, spec.axes), adapter_specs(config, lora))


def with_adapters(base: Params, adapters: Params) -> Params:
    """The weights that are computed with."""
    layers = {name: Adapted(base["layers"][name], adapter) for name, adapter in adapters["layers"].items()}
    return {**base, "layers": {**base["layers"], **layers}}


def merged(params: Params) -> Params:
    """Weights without adapters: W + scale A B, summed in float32 and rounded to the dtype of W."""
    return jax.tree.map(lambda x: _sum(x) if isinstance(x, Adapted) else x, params, is_leaf=_is_adapted)


def scaled_adapters(params: Params) -> Params:
    """The adapters of adapted weights, with the scale in B."""
    adapters = {name: x.factors for name, x in params["layers"].items() if _is_adapted(x)}
    return {"layers": {name: x.replace(b=x.scale * x.b) for name, x in adapters.items()}}


def is_adapted(params: Params) -> bool:
    """Whether there are adapters in these weights."""
    return any(map(_is_adapted, jax.tree.leaves(params, is_leaf=_is_adapted)))


def _is_adapted(node: Any) -> bool:
    return isinstance(node, Adapted)


def _sum(weight: Adapted) -> Array:
    a, b, base = weight.factors.a, weight.factors.b, weight.base
    lead = tuple(range(a.ndim + b.ndim - 2 - base.ndim))
    wide = jnp.promote_types(base.dtype, jnp.float32)
    product = jax.lax.dot_general(
        a.astype(wide),
        b.astype(wide),
        (((a.ndim - 1,), (len(lead),)), (lead, lead)),
        precision=jax.lax.Precision.HIGHEST,
    )
    return (base.astype(wide) + weight.factors.scale * product).astype(base.dtype)


def frozen(weight: Weight) -> Array:
    """The matrix itself."""
    return weight.base if isinstance(weight, Adapted) else weight


def map_weight(function: Callable[[Array, Axes], Any], weight: Weight, rows: Axes, columns: Axes) -> Any:
    """`function` of each array of a weight and the logical axes of its dimensions.

    Args:
      function: (array, axes) -> what takes its place.
      weight: [*lead, one input, one output].
      rows: axes of the leading dimensions and of the input.
      columns: of the leading dimensions and of the output.
    """
    whole = (*rows, columns[-1])
    if not isinstance(weight, Adapted):
        return function(weight, whole)
    adapter = weight.factors
    a, b = function(adapter.a, (*rows, None)), function(adapter.b, (*columns[:-1], None, columns[-1]))
    return Adapted(function(weight.base, whole), Factors(a, b, adapter.scale))


def rows_joined(weight: Weight) -> Weight:
    """[inputs, ..., D] as one matrix [all inputs, D]."""

    def joined(x: Float[Array, "... D"]) -> Float[Array, "I D"]:
        return x.reshape(-1, x.shape[-1])

    if not isinstance(weight, Adapted):
        return joined(weight)
    return Adapted(joined(weight.base), weight.factors.replace(a=joined(weight.factors.a)))  # pyright: ignore
