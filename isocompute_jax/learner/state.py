"""What training carries from step to step, and the optimizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from isocompute_jax import sharding
from isocompute_jax.model import ModelConfig, Params, abstract_params, cast_params, param_shardings


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning-rate rule (REFERENCE section 1).

    Attributes:
      base_lr: learning rate at `base_batch` rollouts per step.
      base_batch: rollouts per step at which the learning rate is `base_lr`.
      lr_scaling_exponent: learning rate = base_lr x (B / base_batch)^exponent: 0.5 square root, 0 constant, 1 linear.
      warmup_steps: linear warm-up, in steps.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: decoupled weight decay.
      clip_norm: global norm above which gradients are scaled down.
    """

    base_lr: float = 1e-6
    base_batch: int = 1024
    lr_scaling_exponent: float = 0.5
    warmup_steps: int = 10
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0


@flax.struct.dataclass
class TrainState:
    """Step counter ([] int32, steps taken), parameters and optimizer state.

    The same tree holds shapes (`jax.ShapeDtypeStruct`) or shardings in place of arrays where those are asked for.
    """

    step: Any
    params: Params
    opt_state: Any


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clipping, Adam and decoupled weight decay, without the learning rate.

    The learning rate multiplies the result in `train_step`, where it is an argument: runs that differ in it alone
    share one compiled program.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps),
        optax.add_decayed_weights(config.weight_decay),
    )


def init_state(
    params: Params, config: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh | None = None
) -> TrainState:
    """The state before the first step, sharded over `mesh` from the start.

    Parameters are kept at least in float32 (master weights): a bfloat16 weight cannot take an update a thousand times
    smaller than itself.
    """
    shardings = None if mesh is None else state_shardings(config, mesh, optimizer)
    if shardings is not None:
        params = jax.device_put(params, shardings.params)

    def init(params: Params) -> TrainState:
        # Copied, because the step may be told to reuse the state's memory while the caller keeps `params`.
        params = jax.tree.map(jnp.copy, cast_params(params, config.float_dtype))
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return jax.jit(init, out_shardings=shardings)(params)


def state_shardings(config: ModelConfig, mesh: Mesh, optimizer: optax.GradientTransformation) -> TrainState:
    """Where each part of the state lives: optimizer moments are sharded like their parameters."""
    params = abstract_params(config, config.float_dtype)
    shardings = param_shardings(config, mesh)
    opt_state = sharding.like_params(mesh, jax.eval_shape(optimizer.init, params), params, shardings)
    return TrainState(sharding.replicated(mesh), shardings, opt_state)
