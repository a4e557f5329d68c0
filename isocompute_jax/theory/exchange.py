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

from isocompute_jax.theory.signal import AdvantageScale, Baseline, group_signals, signal_moments

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
