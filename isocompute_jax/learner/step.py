"""One update: jitted, sharded, split into micro-batches under global denominators, for any model and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from isocompute_jax import sharding
from isocompute_jax.learner.batches import Batch, microbatch_of
from isocompute_jax.learner.credit import Credit
from isocompute_jax.learner.objective import Loss, LossConfig, Metrics, Params, Score, finish_metrics, make_loss, merge
from isocompute_jax.learner.state import TrainState, brought_to_device
from isocompute_jax.model import with_adapters

COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    # It has cuBLAS write a projection right into the stack of what layers keep, and where the layer itself needs that
    # projection too, multiplies once more: a fifth of the products of `remat=dots` (tests/aot/test_layouts.py counts).
    "gpu": {"xla_gpu_enable_dynamic_slice_fusion": False},
}
"""Of the step, by the platform that it is compiled for."""


@runtime_checkable
class TrainStep(Protocol):
    """One update; see `make_train_step`."""

    def __call__(
        self,
        state: TrainState,
        tokens: Batch,
        credited: Credit,
        learning_rate: float | Float[Array, ""] | None = None,
        reference_params: Params | None = None,
        entropy_coef: float | Float[Array, ""] | None = None,
        frozen: Params | None = None,
    ) -> tuple[TrainState, Metrics]:
        """The state after the update, and float32 scalars."""
        ...


def make_train_step(
    score: Score,
    loss_config: LossConfig,
    optimizer: optax.GradientTransformation,
    *,
    shardings: TrainState | None = None,
    donate: bool = False,
) -> TrainStep:
    """Compiles the step: `train_step(state, tokens, credited, learning_rate=None, ...)`, see `TrainStep`.

    The step returns the new state and a dict of float32 scalars. Micro-batches are summed, never averaged: weights
    hold the denominators of the whole batch. When no rollout takes part (every group had zero variance), parameters
    and optimizer state, moments included, stay as they are, and the step still counts. An `entropy_coef` that is given
    stands in for the config's. With `frozen` weights the state's parameters are adapters to them (`model.lora`), and
    the score sees both. It is compiled with options of its own (`COMPILER_OPTIONS`), which JAX allows of the
    outermost program alone: on GPUs no other jitted function can call it.

    Args:
      score: the model: `make_score` for ours, or a function of your own.
      loss_config: what to minimise.
      optimizer: from `make_optimizer`, which takes the step's `learning_rate`; or any of optax's, used as in every
        optax program: it brings its own learning rate, and ignores the step's.
      shardings: where the state lives (`state_shardings` for our model); None for one device.
      donate: reuse the old state's memory (the caller must not touch the old state again).
    """
    mesh = _mesh_of(shardings)
    with_extras = optax.with_extra_args_support(optimizer)

    def train_step(
        state: TrainState,
        tokens: Batch,
        credited: Credit,
        learning_rate: Float[Array, ""] | None = None,
        reference_params: Params | None = None,
        entropy_coef: Float[Array, ""] | None = None,
        frozen: Params | None = None,
    ) -> tuple[TrainState, Metrics]:
        loss = of_trained(make_loss(score, loss_config, credited, reference_params, entropy_coef), frozen)
        gradients, metrics = accumulate_gradients(loss, state.params, tokens, shardings)
        old = state.opt_state if shardings is None else brought_to_device(state.opt_state, shardings.opt_state)

        def updated() -> tuple[Params, Any]:
            updates, opt_state = with_extras.update(gradients, old, state.params, learning_rate=learning_rate)
            return optax.apply_updates(state.params, updates), opt_state

        params, opt_state = if_any(jnp.any(credited.takes_part), updated, (state.params, old))
        metrics = {**finish_metrics(metrics), "gradient_norm": optax.tree.norm(gradients)}
        return TrainState(state.step + 1, params, opt_state), metrics

    out_shardings = None if mesh is None else (shardings, sharding.replicated(mesh))
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    # On a CPU a branch: half of the memory traffic, and none without rollouts. Accelerators, whose memory is full,
    # select: what a branch returns would be a second state.
    if_any = _branch if device.platform == "cpu" and mesh is None else _select
    return jax.jit(
        train_step,
        donate_argnums=0 if donate else (),
        out_shardings=out_shardings,
        compiler_options=COMPILER_OPTIONS.get(device.platform),
    )


Updated = Callable[[], tuple[Params, Any]]


def _branch(stepped: Array, updated: Updated, kept: tuple[Params, Any]) -> tuple[Params, Any]:
    return jax.lax.cond(stepped, updated, lambda: kept)


def _select(stepped: Array, updated: Updated, kept: tuple[Params, Any]) -> tuple[Params, Any]:
    return jax.tree.map(lambda new, old: jnp.where(stepped, new, old), updated(), kept)


def of_trained(loss: Loss, frozen: Params | None) -> Loss:
    """A loss of weights as one of adapters to frozen ones; itself where there are none."""
    if frozen is None:
        return loss
    return lambda adapters, batch: loss(with_adapters(frozen, adapters), batch)


def accumulate_gradients(
    loss: Loss, params: Params, batch: Batch, shardings: TrainState | None
) -> tuple[Params, Metrics]:
    """Sums gradients and metrics over the micro-batches that hold rows (a dynamic number, one compiled program).

    The sums are sharded like the parameters, and so is each micro-batch's gradient before it is added.
    """
    mesh = _mesh_of(shardings)

    def one(index: Array) -> tuple[Params, Metrics]:
        (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(params, microbatch_of(batch, index, mesh))
        if shardings is not None:
            gradients = jax.lax.with_sharding_constraint(gradients, shardings.params)
        return gradients, jax.lax.stop_gradient(metrics)

    def add(index: Array, total: tuple[Params, Metrics]) -> tuple[Params, Metrics]:
        gradients, metrics = one(index)
        summed = {name: merge(name)(total[1][name], value) for name, value in metrics.items()}
        return jax.tree.map(jnp.add, total[0], gradients), summed

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, jnp.int32(0)))
    if batch.tokens.shape[0] == 1:
        # A loop over one micro-batch is loop-invariant: XLA would hoist it and compute it even for no rows at all.
        return jax.lax.cond(batch.num_microbatches > 0, lambda: one(jnp.int32(0)), lambda: zeros)
    return jax.lax.fori_loop(0, batch.num_microbatches, add, zeros)


def _mesh_of(shardings: TrainState | None) -> Mesh | None:
    return None if shardings is None else shardings.step.mesh
