"""What changes from step to step by a rule: the learning rate (arXiv 2603.12151), the weight of the entropy bonus."""

from __future__ import annotations

import optax

from isocompute_jax.learner.objective import LossConfig
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
