"""What training carries from step to step, and the optimizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from isocompute_jax import sharding
from isocompute_jax.learner.moments import Moments, in_host_memory, kept_in_bfloat16
from isocompute_jax.learner.objective import Params
from isocompute_jax.model import ModelConfig, abstract_params, param_shardings
from isocompute_jax.options import check, described, field_of, option
from isocompute_jax.records.errors import InputError


@described
@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (arXiv 1711.05101) and its learning-rate rule (arXiv 2603.12151)."""

    base_lr: float = option(1e-6, "Learning rate at `base_batch` rollouts per step, above 0.")
    base_batch: int = option(1024, "Rollouts per step at which the learning rate is `base_lr`.", low=1)
    lr_scaling_exponent: float = option(
        0.5, "Learning rate = base_lr x (B / base_batch)^exponent: 0.5 square root, 0 constant, 1 linear."
    )
    warmup_steps: int = option(10, "Linear warm-up, in steps.", low=0)
    b1: float = option(0.9, "Decay of the first moment.", low=0, high=1)
    b2: float = option(0.999, "Decay of the second moment.", low=0, high=1)
    eps: float = option(1e-8, "Added to the root of the second moment.", low=0)
    weight_decay: float = option(0.0, "Decoupled weight decay.", low=0)
    clip_norm: float = option(1.0, "Global norm above which gradients are scaled down, above 0.")
    moments: Moments = option(
        "float32",
        "How Adam's moments are kept between steps: float32; bfloat16, half the memory, the second rounded at random "
        "so that small changes add up; host, float32 in the host's memory.",
        later=True,
    )

    def __post_init__(self) -> None:
        check(self)
        for name in ("base_lr", "clip_norm"):
            value = getattr(self, name)
            if not value > 0:
                raise InputError(field_of(self, name), f" = {value} must be above 0")


@flax.struct.dataclass
class TrainState:
    """Step counter ([] int32, steps taken), parameters and optimizer state.

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
    config: ModelConfig, mesh: Mesh, optimizer: optax.GradientTransformation, *, moments: Moments = "float32"
) -> TrainState:
    """Where each part of our model's state lives: optimizer moments are sharded like their parameters."""
    params = abstract_params(config, config.float_dtype)
    shardings = param_shardings(config, mesh)
    of_moments = in_host_memory(shardings) if moments == "host" else shardings
    opt_state = sharding.like_params(mesh, jax.eval_shape(optimizer.init, params), params, of_moments)
    return TrainState(sharding.replicated(mesh), shardings, opt_state)
