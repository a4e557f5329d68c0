"""One group of rollouts of one problem: how hard it pushes towards what was solved.

Rewards are 0 or 1, and the policy is tabular: a softmax over answers, of which some solve the problem, p of its weight
in all. A group of n rollouts, k of them solved, has the advantages A_i = (r_i - k / n) / scale. As they sum to zero,
the policy gradient (1 / n) sum_i A_i grad log pi(a_i) raises the logit of each solving answer a by s_k pi(a) / p on
average, and lowers that of each other one by s_k pi(a) / (1 - p), with the **signal** of the group

    s_k = k (n - k) / n^2 / scale_k.

So one number per group says what it does to the log-odds of solving the problem, whatever the number of answers
(`allocation.estimator.group_signals`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float


def log_share_of_groups(
    log_odds: Float[Array | np.ndarray, "*S"], group_sizes: Float[Array | np.ndarray, "*S"], *, most: int
) -> Float[Array, "*S K"]:
    """[..., most + 1] log probability that k of n rollouts solve the problem: of Binomial(n, p), -inf beyond n.

    Args:
      log_odds: log p / (1 - p); far from 0 it says more than p would.
      group_sizes: n, as floats.
      most: largest n.
    """
    log_odds, group_sizes = jnp.asarray(log_odds), jnp.asarray(group_sizes)
    n, k = group_sizes[..., None], jnp.arange(most + 1.0)
    inside = k <= n
    rest = jnp.where(inside, n - k, 0.0)
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
    solved, failed = jax.nn.log_sigmoid(log_odds)[..., None], jax.nn.log_sigmoid(-log_odds)[..., None]
    return jnp.where(inside, ways + k * solved + rest * failed, -jnp.inf)


def signal_moments(
    log_odds: Float[Array | np.ndarray, "*S"],
    group_sizes: Float[Array | np.ndarray, "*S"],
    signals: Float[Array | np.ndarray, "*S K"],
) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
    """Mean and variance of a group's signal.

    Args:
      log_odds: of solving the problem.
      group_sizes: n, as floats.
      signals: s_k, of `group_signals`, each padded to the largest n.
    """
    share = jnp.exp(log_share_of_groups(log_odds, group_sizes, most=signals.shape[-1] - 1))
    mean = jnp.sum(share * signals, axis=-1)
    return mean, jnp.sum(share * (signals - mean[..., None]) ** 2, axis=-1)
