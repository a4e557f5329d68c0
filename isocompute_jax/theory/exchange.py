"""One problem by itself: how the group size n and the number of steps M buy each other.

The policy is a softmax over `answers` answers, one of which solves the problem; the others are alike, and stay so. Then
the exact expected update moves the log-odds z of solving it by

    z <- z + eta(n) E[s] answers / (answers - 1),

with the signal s of a group (`signal`), and late, when the error e = 1 - p is small, E[s] is in proportion to e: so e
falls as 1 / t, and only the constant tells how much a rollout is worth:

    advantages              E[s] / e            e t, at a constant rate
    centred                 (n - 1) / n         n / ((n - 1) eta)
    leave-one-out           1                   1 / eta
    over the group's std    (n - 1) / sqrt(n)   sqrt(n) / ((n - 1) eta)

times (answers - 1) / answers. n and M exchange, e in proportion to 1 / (n t) (the IsoCompute Playbook's single-problem
theory), where the rate makes up for what is missing: in proportion to n with centred advantages, to sqrt(n) with
GRPO's. At a constant rate with centred advantages, a rollout more in the group is worth nearly nothing late.

Many problems that share a model: what one problem learns moves the others.

Problem j has the log-odds z_j of being solved (two answers), and the model computes them from features: a step that
pushes problem i by its signal s_i moves problem j by K_ij s_i, with K the kernel of the features (each problem's own
is 1). The exact expected update of a batch that holds every problem equally often is

    z <- z + eta(n) / P  K E[s(z)].

A signal is largest where a problem is solved about half of the time and vanishes where it is never or always solved, so
that even without overlap what is nearly solved is learned first. Overlap (K_ij > 0) carries those gains over to
problems that have no signal of their own; competition (K_ij < 0: answers that exclude each other) takes from them, and
then n and M no longer exchange: a problem that the others have pushed down gives a signal in fewer of its groups, and
only a larger group finds what it is rarely solved by.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from isocompute_jax.allocation.estimator import AdvantageScale, Baseline, group_signals
from isocompute_jax.theory.signal import signal_moments

RateRule = Literal["constant", "sqrt", "linear"]

POWERS: dict[RateRule, float] = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
RULES: dict[float, RateRule] = {power: rule for rule, power in POWERS.items()}


@dataclasses.dataclass(frozen=True)
class Rule:
    """How steps are made."""

    advantage_scale: AdvantageScale = "none"  # as in `group_signals`
    baseline: Baseline = "group_mean"  # likewise
    rate_rule: RateRule = "constant"  # how the learning rate grows with n
    rate: float = 1.0  # eta at n = `reference_group_size`
    reference_group_size: float = 8  # see `rate`

    def rate_at(self, group_size: float | np.ndarray) -> float | np.ndarray:
        """eta(n)."""
        return self.rate * (group_size / self.reference_group_size) ** POWERS[self.rate_rule]


def suboptimality(
    group_sizes: Sequence[int], times: Sequence[int], rule: Rule, *, answers: int = 2, start: float = 0.5
) -> Float[np.ndarray, "N T"]:
    """1 - p after each number of steps, of the exact expected update; no random numbers.

    Args:
      group_sizes: n, at least 2 each.
      times: numbers of steps, rising.
      rule: how steps are made.
      answers: of the softmax, one of which solves the problem.
      start: p at the beginning.

    Raises:
      ValueError: a group of less than 2, less than 2 answers, or times that do not rise.
    """
    if answers < 2 or not 0 < start < 1:
        raise ValueError(f"answers = {answers}, start = {start}: there must be 2 answers or more, and 0 < start < 1")
    if np.any(np.diff([0, *times]) < 0):
        raise ValueError(f"times = {list(times)} must rise")
    signals, sizes = _padded(group_sizes, rule)
    gains = rule.rate_at(sizes) * answers / (answers - 1)
    first = np.full(len(sizes), np.log(start / (1 - start)))
    with jax.enable_x64(True):  # late steps are a millionth of the log-odds
        odds = walk(first, np.diff([0, *times]), sizes, signals, np.asarray(gains, np.float64), push=jnp.multiply)
        return np.asarray(jax.nn.sigmoid(-odds)).T


def late_constant(group_sizes: Sequence[int], rule: Rule, *, answers: int = 2) -> Float[np.ndarray, "N"]:
    """What (1 - p) t tends to: derived from the groups in which all but one rollout solved the problem."""
    n = np.asarray(group_sizes, np.float64)
    signals, sizes = _padded(group_sizes, rule)
    all_but_one = signals[np.arange(len(n)), np.asarray(group_sizes) - 1]  # of them there are n e
    return (answers - 1) / answers / (rule.rate_at(sizes) * n * all_but_one)


def _padded(group_sizes: Sequence[int], rule: Rule) -> tuple[Float[np.ndarray, "N K"], Float[np.ndarray, "N"]]:
    """s_k of each n, and n as floats."""
    most = max(group_sizes)
    make = functools.partial(group_signals, advantage_scale=rule.advantage_scale, baseline=rule.baseline, most=most)
    return np.stack([make(n) for n in group_sizes]), np.asarray(group_sizes, np.float64)


@functools.partial(jax.jit, static_argnames="push")
def walk(
    first: Float[Array, "N"],
    spans: Array,
    sizes: Float[Array, "N"],
    signals: Float[Array, "*S K"],
    gains: Array,
    *,
    push: Callable[[Array, Array], Array],
) -> Float[Array, "T N"]:
    """The log-odds after each span of steps, each of which adds push(gains, E[s]) to them.

    Args:
      first: log-odds before.
      spans: numbers of steps.
      sizes: n, as floats.
      signals: s_k of each n, or of all of them.
      gains: what the mean signals [N] are multiplied by.
      push: how: element by element, or as a matrix product.
    """

    def step(_: int, odds: Float[Array, "N"]) -> Float[Array, "N"]:
        return odds + push(gains, signal_moments(odds, sizes, signals)[0])

    def span(odds: Float[Array, "N"], steps: Array) -> tuple[Float[Array, "N"], Float[Array, "N"]]:
        odds = jax.lax.fori_loop(0, steps, step, odds)
        return odds, odds

    return jax.lax.scan(span, first, spans)[1]


# --- many problems that share a model


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
