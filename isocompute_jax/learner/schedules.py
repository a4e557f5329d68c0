"""The learning rate: scaled with the batch, warmed up, then constant (arXiv 2603.12151)."""

from __future__ import annotations

import optax

from isocompute_jax.learner.state import OptimizerConfig


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
