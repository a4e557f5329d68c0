"""Many problems that share a model: what one problem learns moves the others.

Problem j has the log-odds z_j of being solved (two answers, as in `exchange`), and the model computes them from
features: a step that pushes problem i by its signal s_i moves problem j by K_ij s_i, with K the kernel of the
features (each problem's own is 1). The exact expected update of a batch that holds every problem equally often is

    z <- z + eta(n) / P  K E[s(z)].

A signal is largest where a problem is solved about half of the time and vanishes where it is never or always solved, so
that even without overlap what is nearly solved is learned first. Overlap (K_ij > 0) carries those gains over to
problems that have no signal of their own; competition (K_ij < 0: answers that exclude each other) takes from them, and
then n and M no longer exchange: a problem that the others have pushed down gives a signal in fewer of its groups, and
only a larger group finds what it is rarely solved by.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from isocompute_jax.theory.exchange import Rule, walk
from isocompute_jax.theory.signal import group_signals


def even_kernel(problems: int, overlap: float) -> Float[np.ndarray, "P P"]:
    """1 for a problem with itself, `overlap` with each other one.

    Raises:
      ValueError: no features have this kernel: overlap is below -1 / (problems - 1), or above 1.
    """
    least = -1.0 / max(problems - 1, 1)
    if not least <= overlap <= 1.0:
        raise ValueError(f"overlap = {overlap}: {problems} problems can have {least:.3g} to 1")
    return (1.0 - overlap) * np.eye(problems) + overlap


def solve_rates(
    start: Float[np.ndarray, "P"],
    kernel: Float[np.ndarray, "P P"],
    times: Sequence[int],
    rule: Rule,
    *,
    group_size: int,
) -> Float[np.ndarray, "T P"]:
    """Solve rate of every problem after each number of steps, of the exact expected update; no random numbers.

    Args:
      start: solve rates before, between 0 and 1.
      kernel: K; symmetric, with no negative eigenvalue.
      times: numbers of steps, rising.
      rule: how steps are made.
      group_size: n.

    Raises:
      ValueError: a start that is 0 or 1, a kernel of other shape or that no features have, times that do not rise.
    """
    start = np.asarray(start, np.float64)
    if not np.all((start > 0) & (start < 1)):
        raise ValueError("every problem must start between 0 and 1: one that is never solved has no signal")
    if kernel.shape != (len(start), len(start)) or not np.allclose(kernel, kernel.T):
        raise ValueError(f"the kernel of {len(start)} problems is symmetric, with a row for each; got {kernel.shape}")
    if np.linalg.eigvalsh(kernel)[0] < -1e-9 * len(start):
        raise ValueError("the kernel has a negative eigenvalue: there are no features that have it")
    if np.any(np.diff([0, *times]) < 0):
        raise ValueError(f"times = {list(times)} must rise")
    signals = group_signals(group_size, advantage_scale=rule.advantage_scale, baseline=rule.baseline)
    with jax.enable_x64(True):
        gain = np.asarray(rule.rate_at(group_size)) / len(start) * kernel
        sizes = np.full(len(start), float(group_size))
        odds = walk(np.log(start / (1 - start)), np.diff([0, *times]), sizes, signals, gain, push=jnp.matmul)
        return np.asarray(jax.nn.sigmoid(odds))


def evenness(gains: Float[np.ndarray, "... P"]) -> Float[np.ndarray, "..."]:
    """How evenly gains are spread over problems: (sum g)^2 / (P sum g^2), from 1 / P (one has all) to 1 (Jain's index).

    Losses count as no gain; NaN where nobody gained.
    """
    found = np.maximum(np.asarray(gains, np.float64), 0.0)
    with np.errstate(invalid="ignore"):
        return found.sum(-1) ** 2 / (found.shape[-1] * (found**2).sum(-1))
