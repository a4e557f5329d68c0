"""What training carries from step to step, the optimizer, and the rules by which its learning rate changes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from isocompute_jax import sharding
from isocompute_jax.learner.objective import LossConfig, Params
from isocompute_jax.model import (
    LoraConfig,
    ModelConfig,
    abstract_adapters,
    abstract_params,
    adapter_shardings,
    param_shardings,
)
from isocompute_jax.options import check, described, option

Moments = Literal["float32", "bfloat16", "host"]
HOST = "pinned_host"
"""JAX's name of host memory that devices can reach."""


@described
@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (arXiv 1711.05101) and its learning-rate rule (arXiv 2603.12151)."""

    base_lr: float = option(1e-6, "Learning rate at `base_batch` rollouts per step.", above=0)
    base_batch: int = option(1024, "Rollouts per step at which the learning rate is `base_lr`.", low=1)
    lr_scaling_exponent: float = option(
        0.5, "The rate is base_lr x (B / base_batch)^exponent: 0.5 square root, 0 constant, 1 linear.", low=0, high=2
    )
    warmup_steps: int = option(10, "Linear warm-up, in steps.", low=0)
    b1: float = option(0.9, "Decay of the first moment.", low=0, below=1)
    b2: float = option(0.999, "Decay of the second moment.", low=0, below=1)
    eps: float = option(1e-8, "Added to the root of the second moment.", above=0)
    weight_decay: float = option(0.0, "Decoupled weight decay.", low=0)
    clip_norm: float = option(1.0, "Global norm above which gradients are scaled down.", above=0)
    moments: Moments = option(
        "float32",
        "How Adam's moments are kept between steps: float32; bfloat16, half the memory, the second rounded at random "
        "so that small changes add up; host, float32 in the host's memory.",
        later=True,
    )

    def __post_init__(self) -> None:
        check(self)


@flax.struct.dataclass
class TrainState:
    """Step counter ([] int32, steps taken), parameters that are trained, adapters or all, and optimizer state.

    The same tree holds shapes (`jax.ShapeDtypeStruct`) or shardings in place of arrays where those are asked for.
    """

    step: Any
    params: Any
    opt_state: Any


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """AdamW whose learning rate is an argument of `update`, so that runs differing in it share one compiled step.

    `update(updates, state, params, learning_rate=...)` returns -learning_rate x direction, to be added as it is.
    """
    adam = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
    direction = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        kept_in_bfloat16(adam) if config.moments == "bfloat16" else adam,
        optax.add_decayed_weights(config.weight_decay),
    )

    def update(
        updates: Params,
        state: optax.OptState,
        params: Params | None = None,
        *,
        learning_rate: float | Float[Array, ""] | None = None,
        **_extra: Any,
    ) -> tuple[Params, optax.OptState]:
        if learning_rate is None:
            raise ValueError("the optimizer of make_optimizer needs the step's learning_rate")
        directions, state = direction.update(updates, state, params)
        return jax.tree.map(lambda x: -learning_rate * x, directions), state

    return optax.GradientTransformationExtraArgs(direction.init, update)


def init_state(
    params: Params, optimizer: optax.GradientTransformation, shardings: TrainState | None = None
) -> TrainState:
    """The state before the first step, sharded from the start.

    Args:
      params: of any model. Kept at least in float32 (master weights): a bfloat16 weight cannot take an update a
        thousand times smaller than itself.
      optimizer: the step's.
      shardings: where the state lives (`state_shardings` for our model); None for one device.
    """
    if shardings is not None:
        params = jax.device_put(params, shardings.params)

    def init(params: Params) -> TrainState:
        # Copied, because the step may be told to reuse the state's memory while the caller keeps `params`.
        params = jax.tree.map(lambda x: jnp.copy(x.astype(jnp.promote_types(x.dtype, jnp.float32))), params)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return jax.jit(init, out_shardings=shardings)(params)


def state_shardings(
    config: ModelConfig,
    mesh: Mesh,
    optimizer: optax.GradientTransformation,
    *,
    moments: Moments = "float32",
    lora: LoraConfig | None = None,
) -> TrainState:
    """Where each part of our model's state lives: optimizer moments are sharded like their parameters.

    With `lora` the parameters are adapters.
    """
    if lora is None:
        params, shardings = abstract_params(config, config.float_dtype), param_shardings(config, mesh)
    else:
        params, shardings = abstract_adapters(config, lora), adapter_shardings(config, lora, mesh)
    of_moments = in_host_memory(shardings) if moments == "host" else shardings
    opt_state = sharding.like_params(mesh, jax.eval_shape(optimizer.init, params), params, of_moments)
    return TrainState(sharding.replicated(mesh), shardings, opt_state)


# --- how moments are kept


def kept_in_bfloat16(adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optax.scale_by_adam`, with its moments rounded to bfloat16 after each step.

    The first moment changes by a tenth a step, and is rounded to nearest. The second changes by a thousandth, less than
    bfloat16 resolves (1/256): rounded to nearest it would stand still, so it is rounded up or down at random, without
    bias (arXiv 2010.06192). The random numbers depend on the step alone: a run that is resumed repeats them.
    """

    def init(params: optax.Params) -> optax.OptState:
        return _cast(adam.init(params), jnp.bfloat16)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        directions, new = adam.update(updates, _cast(state, jnp.float32), params)
        assert isinstance(new, optax.ScaleByAdamState)
        leaves, structure = jax.tree.flatten(new.nu)
        key = jax.random.fold_in(jax.random.key(0), jnp.asarray(new.count))
        rounded = [randomly_rounded(x, jax.random.fold_in(key, i)) for i, x in enumerate(leaves)]
        return directions, _cast(new, jnp.bfloat16)._replace(nu=jax.tree.unflatten(structure, rounded))

    return optax.GradientTransformation(init, update)


def randomly_rounded(x: Float[Array, "..."], key: Array) -> Float[Array, "..."]:
    """x >= 0 in bfloat16, rounded to one of its two neighbours with a mean of x."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(((bits + noise) >> 16).astype(jnp.uint16), jnp.bfloat16)


def in_host_memory(shardings: Any) -> Any:
    """The same shardings, in the host's memory."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind(HOST), shardings)


def brought_to_device(tree: Any, shardings: Any) -> Any:
    """A tree, in a jitted function, with those of its arrays copied to the device that live in the host's memory."""

    def bring(x: Array, sharding: Any) -> Array:
        return jax.device_put(x, sharding.with_memory_kind("device")) if sharding.memory_kind == HOST else x

    return jax.tree.map(bring, tree, shardings)


def _cast(state: Any, dtype: Any) -> Any:
    return state._replace(**{name: optax.tree.cast(getattr(state, name), dtype) for name in ("mu", "nu")})


# --- what changes from step to step by a rule


def batch_scaled_learning_rate(*, base_lr: float, base_batch: int, rollouts_per_step: int, exponent: float) -> float:
    """base_lr x (B / base_batch)^exponent: 0.5 is the square-root rule, 0 constant, 1 linear.

    IsoCompute Playbook (arXiv 2603.12151): 1e-6 at B = 1,024, square root.
    """
    return base_lr * (rollouts_per_step / base_batch) ** exponent


def warmup_constant(peak: float, *, warmup_steps: int) -> optax.Schedule:
    """Linear from peak / warmup_steps at step 0 to `peak` at step warmup_steps - 1, then constant.

    The first update has a learning rate above zero, so that no sampled batch is spent on nothing.
    """
    if warmup_steps <= 1:
        return optax.constant_schedule(peak)
    return optax.linear_schedule(peak / warmup_steps, peak, transition_steps=warmup_steps - 1)


def make_schedule(config: OptimizerConfig, *, rollouts_per_step: int) -> optax.Schedule:
    """The learning rate of each step (0-based) for a batch of `rollouts_per_step` rollouts."""
    peak = batch_scaled_learning_rate(
        base_lr=config.base_lr,
        base_batch=config.base_batch,
        rollouts_per_step=rollouts_per_step,
        exponent=config.lr_scaling_exponent,
    )
    return warmup_constant(peak, warmup_steps=config.warmup_steps)


def adapted_entropy_coef(coef: float, entropy: float, config: LossConfig) -> tuple[float, float]:
    """The weight of an entropy bonus that holds entropy near a target (Skywork-OR1, arXiv 2505.22312).

    c grows by a constant where entropy is below the target, falls by it where it is above, and stays in [0, max]; the
    bonus acts only while entropy is at the target or below.

    Args:
      coef: c of the last step; `config.entropy_coef` before the first.
      entropy: of the policy that sampled this step's rollouts, in nats per token.
      config: target, constant and bound.

    Returns:
      c of this step, and the weight that its updates use.
    """
    change = config.entropy_coef_change if entropy < config.entropy_target else -config.entropy_coef_change
    coef = min(max(coef + change, 0.0), config.entropy_coef_max)
    return coef, coef if entropy <= config.entropy_target else 0.0
