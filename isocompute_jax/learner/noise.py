"""Two-level gradient noise: how much of a step's gradient is signal, and how much differs between and within problems.

A step's gradient is a mean over P problems, each estimated from n rollouts. Write g_p for the true gradient of problem
p, G for its mean over problems, S_b for the covariance of g_p between problems, and S_w for that of one rollout's
estimate of g_p, on average over problems. A step then has the mean G and the covariance (S_b + S_w / n) / P, which is
McCandlish et al.'s gradient noise (arXiv 1812.06162) at two levels ("Critical Batch Size for LLM Policy Optimization",
HiLD at ICML 2026).

Each problem's rollouts are cut into halves a and b of h rollouts, each with a baseline of its own, so that their
gradients are independent given the problem. Problems are dealt to cells; x_a and x_b are the sums of the gradients of a
cell's problems, m of them. Over cells c, with x = (x_a + x_b) / 2,

    E[|sum_c x_c|^2 - sum_c |x_c|^2] = (P^2 - sum_c m_c^2) |G|^2      (pairs of problems of different cells)
    E[sum_c x_ca . x_cb]             = P tr S_b + sum_c m_c^2 |G|^2
    E[sum_c |x_ca - x_cb|^2 / 2]     = P tr S_w / h

whatever the sizes of cells: each of the three is estimated without bias, for problems that are drawn independently.
Together the cells hold each rollout once, so that all of this costs one forward and backward pass over the step, and
memory for three gradients more than the step has. For gradients that are normal the variances are, with K cells of
P / K problems, Sigma = S_b + S_w / h and Sigma_n = S_b + S_w / n,

    tr S_w: 2 tr(S_w^2) / K            tr S_b: (tr(Sigma^2) + tr(S_b^2)) / K + O(1 / K^2)
    |G|^2:  2 tr(Sigma_n^2) / P^2 x K / (K - 1) + 4 G' Sigma_n G / P

so that more cells make better estimates for the same work. Traces of covariances of high rank are known well from one
step; |G|^2, where tr Sigma_n / P is many times as large, is not, and wants averages over steps (`allocation.noise`).

The same in Adam's metric: each coordinate is divided by sqrt(v) + eps, v being the second moment before the update,
bias corrected, which these rollouts have no part in. A coordinate that never had a gradient (v = 0) has no metric yet,
and does not count.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from isocompute_jax import sharding
from isocompute_jax.learner.batches import Batch
from isocompute_jax.learner.credit import Credit, CreditConfig
from isocompute_jax.learner.objective import LossConfig, Params, Score, make_loss
from isocompute_jax.learner.state import OptimizerConfig, TrainState, brought_to_device
from isocompute_jax.learner.step import COMPILER_OPTIONS, accumulate_gradients, of_trained
from isocompute_jax.records.rollout import RolloutGroup

HalfGradient = Callable[..., Params]
AddCell = Callable[[Params, Any, Params, Params], tuple[Params, Float[Array, "2 4"]]]
METRICS = ("", "adam_")
"""What the names of estimates begin with: as they are, and in Adam's metric."""
ESTIMATES = ("gradient2", "between", "within")
"""|G|^2, tr S_b and tr S_w."""


def part_of(group: RolloutGroup, rollouts: slice) -> RolloutGroup:
    """Some completions of a graded group, as a group."""
    assert group.rewards is not None
    return dataclasses.replace(
        group,
        completions=group.completions[rollouts],
        rewards=group.rewards[rollouts],
        reward_metrics={},
        failures={},
    )


def half_of(sizes: Sequence[int]) -> int:
    """h, the rollouts of a half: n / 2, rounded down, where all groups have n; 2 where their sizes differ.

    Sizes that differ do so from step to step, and h has a compiled program: so it is the least that has a baseline.
    """
    return min(sizes) // 2 if len(set(sizes)) == 1 else 2


def halves_of(groups: Sequence[RolloutGroup]) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
    """The first and the second h rollouts of each group that has as many; further ones are not looked at.

    Groups of fewer than 4 have no two halves that have a baseline each, and are left out.
    """
    half = half_of([len(group.completions) for group in groups]) if groups else 0
    measured = [group for group in groups if len(group.completions) >= 4]
    return (
        [part_of(group, slice(0, half)) for group in measured],
        [part_of(group, slice(half, 2 * half)) for group in measured],
    )


def credit_of_halves(recipe: CreditConfig) -> CreditConfig:
    """How halves are credited: every problem counts, those without signal with a gradient of zero.

    The baseline leaves the rollout itself out, so that without a scale the gradient of a half is unbiased whatever its
    size. Divided by its group's standard deviation (`group_std`) it is not: it is that of the objective for groups of
    h, in which problems of rate p weigh otherwise than for groups of n. `batch_std` is one factor for the whole step,
    which no ratio of estimates sees. `token_mean` divides by the tokens of the step, a ratio of sums: a bias of order
    1 / P. Turns that are credited each by itself are compared within their half, where more of them are alone and weigh
    nothing.
    """
    return dataclasses.replace(recipe, zero_variance_groups="keep", baseline="leave_one_out")


def cells_of(problems: int, most: int, seed: Sequence[int]) -> list[Int[np.ndarray, "m"]]:
    """Deals problems to `most` cells or fewer, of m or m - 1 problems each; to which at random, by the seed."""
    cells = min(problems, most)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(problems), cells)]


def make_gradient(score: Score, loss: LossConfig, *, shardings: TrainState | None = None) -> HalfGradient:
    """Compiles `gradient(params, tokens, credited, frozen=None)`, one program for all cells of a shape.

    The policy-gradient term alone is looked at: no KL, no entropy.
    """
    policy = dataclasses.replace(loss, kl_coef=0.0, entropy_coef=0.0, entropy_target=0.0)

    def gradient(params: Params, tokens: Batch, credited: Credit, frozen: Params | None = None) -> Params:
        loss = of_trained(make_loss(score, policy, credited, None), frozen)
        return accumulate_gradients(loss, params, tokens, shardings)[0]

    return _compiled(gradient, shardings, None if shardings is None else shardings.params)


def make_add_cell(optimizer: OptimizerConfig, *, shardings: TrainState | None = None) -> AddCell:
    """Compiles `add_cell(total, opt_state, a, b) -> (total, products)`, given the gradients of a cell's halves.

    x = (a + b) / 2 is added to `total`, a tree like the parameters, which is not to be used again. `products` are, in
    float32, raw and in Adam's metric (NaN without Adam, and before its first update): a . b, |a - b|^2, |x|^2, and
    |total|^2 with the cell in it.
    """

    def add_cell(total: Params, opt_state: Any, a: Params, b: Params) -> tuple[Params, Float[Array, "2 4"]]:
        mean = jax.tree.map(lambda x, y: (x + y) / 2, a, b)
        total = jax.tree.map(jnp.add, total, mean)
        apart = jax.tree.map(jnp.subtract, a, b)
        pairs = ((a, b), (apart, apart), (mean, mean), (total, total))
        weights = adam_weights(opt_state, optimizer, shardings)
        raw = [inner(x, y) for x, y in pairs]
        scaled = [jnp.float32(jnp.nan) if weights is None else inner(x, y, weights) for x, y in pairs]
        return total, jnp.stack([jnp.stack(raw), jnp.stack(scaled)])

    where = None if shardings is None else (shardings.params, sharding.replicated(shardings.step.mesh))
    return _compiled(add_cell, shardings, where, donate=True)


def make_zeros(shardings: TrainState | None = None) -> Callable[[Params], Params]:
    """Compiles what makes the first `total`, from parameters."""
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    return _compiled(zeros, shardings, None if shardings is None else shardings.params)


def _compiled(function: Callable[..., Any], shardings: TrainState | None, where: Any, *, donate: bool = False) -> Any:
    """With the options of a step, results lying `where` says, and the first argument's memory used again."""
    device = jax.local_devices()[0] if shardings is None else shardings.step.mesh.devices.flat[0]
    return jax.jit(
        function,
        donate_argnums=0 if donate else (),
        out_shardings=where,
        compiler_options=COMPILER_OPTIONS.get(device.platform),
    )


def inner(x: Params, y: Params, weights: Params | None = None) -> Float[Array, ""]:
    """sum_i w_i x_i y_i over all coordinates of two trees, in float32."""

    def of_leaf(x: Array, y: Array, weight: Array | float = 1.0) -> Array:
        return jnp.sum(weight * x.astype(jnp.float32) * y.astype(jnp.float32))

    trees = (x, y) if weights is None else (x, y, weights)
    return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(of_leaf, *trees))))


def adam_weights(opt_state: Any, config: OptimizerConfig, shardings: TrainState | None) -> Params | None:
    """1 / (sqrt(v) + eps)^2 of each coordinate, 0 where v = 0; None where the optimizer is not Adam."""
    adam = adam_state(opt_state)
    if adam is None:
        return None
    moment = adam.nu if shardings is None else brought_to_device(adam.nu, adam_state(shardings.opt_state).nu)
    corrected = 1 - jnp.float32(config.b2) ** adam.count

    def weight(nu: Array) -> Array:
        deviation = jnp.sqrt(nu.astype(jnp.float32) / corrected)
        known = jnp.where(nu > 0, 1 / jnp.square(deviation + config.eps), 0.0)
        return jnp.where(adam.count > 0, known, jnp.nan)

    return jax.tree.map(weight, moment)


def adam_state(opt_state: Any) -> Any:
    """The part of an optimizer's state that has Adam's moments, or of a tree like it; None without one."""

    def is_adam(x: Any) -> bool:
        return isinstance(x, optax.ScaleByAdamState)

    return next(filter(is_adam, jax.tree.leaves(opt_state, is_leaf=is_adam)), None)


def estimates(
    products: Float[np.ndarray, "C 3"], total2: float, sizes: Int[np.ndarray, "K"], half: int
) -> dict[str, float]:
    """Unbiased estimates of |G|^2, tr S_b and tr S_w in one metric; the first two can be negative.

    Args:
      products: of the K >= 2 cells, or of those that have any: x_a . x_b, |x_a - x_b|^2 and |x|^2, of gradients as
        parts of the mean over all halves.
      total2: squared norm of the sum of x over cells.
      sizes: m, problems of each of the K cells, those without signal among them.
      half: h, rollouts of a half.
    """
    problems, squares = int(np.sum(sizes)), int(np.sum(np.square(sizes)))
    # What a half is in the mean over 2 P halves, times 2 P, is the gradient of its problem.
    together, apart, means = np.asarray(products, np.float64).sum(axis=0).tolist()
    scale = (2 * problems) ** 2
    gradient2 = scale * (total2 - means) / (problems**2 - squares)
    between = (scale * together - squares * gradient2) / problems
    return dict(zip(ESTIMATES, map(float, (gradient2, between, scale * half * apart / (2 * problems))), strict=True))
