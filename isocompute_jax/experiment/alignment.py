"""Do the policy gradients of different problems pull the same way? Inner products and cosines, without sampling noise.

The gradient of a problem is that of its own terms of the training loss. Measured on n rollouts it is the true one plus
noise, which inflates the norm, so that cosines of measured gradients are too small. Rollouts are therefore cut into two
halves, each a group of its own with its own baseline, whose noises are independent:

    <g_i, g_j> is estimated by <(a_i + b_i) / 2, (a_j + b_j) / 2> for i != j, and by <a_i, b_i> for i = j,

a and b being the gradients of the halves. Both are unbiased for gradients of groups of n / 2 (advantages that are
divided by the standard deviation of the group depend on its size).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from isocompute_jax.learner.batches import Batch, microbatch_of
from isocompute_jax.learner.credit import Credit
from isocompute_jax.learner.objective import LossConfig, Params, Score, make_loss

MicrobatchGradients = Callable[[Params, Batch, Credit, Params | None], Float[Array, "M F"]]


@flax.struct.dataclass
class Alignment:
    """How the gradients of P problems align."""

    # unbiased estimates of the inner products of their gradients; on the diagonal of squared norms, which may be
    # negative where there is no signal
    inner: Float[np.ndarray, "P P"]
    # cosine of the two halves of each problem's rollouts: the share of a half's gradient that is no noise; NaN without
    # a gradient
    halves: Float[np.ndarray, "P"]

    @property
    def cosines(self) -> Float[np.ndarray, "P P"]:
        """[P, P]; single ones are noisy, and can exceed 1; NaN for problems whose squared norm is not above 0."""
        squares = np.diag(self.inner)
        norms = np.sqrt(np.where(squares > 0, squares, np.nan))
        return self.inner / norms[:, None] / norms


class MeanCosine(NamedTuple):
    """`value`, its jackknife `error` over problems, and how many `pairs`; NaN without a pair or without signal."""

    value: float
    error: float
    pairs: int


def microbatch_gradients(score: Score, config: LossConfig, *, features: int, seed: int) -> MicrobatchGradients:
    """Compiles (params, batch, credited, reference params) -> the gradient of each micro-batch's part of the loss.

    A gradient of D > `features` numbers is sketched: each is given a random sign, and those whose places differ by a
    multiple of `features` are added up. Inner products of sketches are unbiased, with an error of about
    |x| |y| / sqrt(features), and no more than one gradient is held at a time.

    Args:
      score: the model.
      config: the loss, as in training.
      features: F, numbers that are kept of a gradient; a model of no more parameters has its gradients as they are.
      seed: of the signs.
    """

    @jax.jit
    def gradients(
        params: Params, batch: Batch, credited: Credit, reference_params: Params | None
    ) -> Float[Array, "M F"]:
        loss = make_loss(score, config, credited, reference_params)

        def one(index: Array) -> Float[Array, "F"]:
            part = microbatch_of(batch, index, None)
            return _sketched(jax.grad(lambda p: loss(p, part)[0])(params), features, jax.random.key(seed))

        return jax.lax.map(one, jnp.arange(batch.tokens.shape[0]))

    return gradients


def _sketched(gradients: Params, features: int, key: Array) -> Float[Array, "F"]:
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(gradients)]
    if sum(leaf.size for leaf in leaves) <= features:
        return jnp.concatenate(leaves)
    total = jnp.zeros(features, jnp.float32)
    for own, leaf in zip(jax.random.split(key, len(leaves)), leaves, strict=True):
        signed = leaf * jax.random.rademacher(own, leaf.shape, jnp.float32)
        total += jnp.pad(signed, (0, -leaf.size % features)).reshape(-1, features).sum(axis=0)
    return total


def alignment(first: Float[np.ndarray, "P F"], second: Float[np.ndarray, "P F"]) -> Alignment:
    """From the gradients of two independent halves of each problem's rollouts.

    Args:
      first: [P, F] gradients, or sketches of them.
      second: [P, F].
    """
    a, b = (np.asarray(half, np.float64) for half in (first, second))
    own, norms = np.sum(a * b, axis=1), np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    inner = (a + b) @ (a + b).T / 4
    np.fill_diagonal(inner, own)
    return Alignment(inner, own / np.where(norms > 0, norms, np.nan))


def mean_cosine(
    inner: Float[np.ndarray, "P P"], rows: Bool[np.ndarray, "P"], columns: Bool[np.ndarray, "P"]
) -> MeanCosine:
    """Mean inner product of a problem of `rows` with another of `columns`, over the root of their mean squared norms.

    A ratio of means, and not a mean of ratios: it stays finite where single norms are lost in noise, and weighs
    problems as an update does.

    Args:
      inner: [P, P] of an `Alignment`.
      rows: [P] a set of problems.
      columns: [P] the same set, or another.
    """
    value = _ratio(inner, rows, columns)
    pairs = rows[:, None] & columns & ~np.eye(len(inner), dtype=bool)
    used = np.flatnonzero(rows | columns)
    draws = []
    for index in used:
        kept = np.arange(len(inner)) != index
        draws.append(_ratio(inner, rows & kept, columns & kept))
    left = np.array(draws)
    error = np.sqrt((len(left) - 1) * np.var(left)) if len(left) else np.nan
    return MeanCosine(value, float(error), int(np.count_nonzero(pairs | pairs.T) // 2))


def _ratio(inner: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> float:
    pairs = rows[:, None] & columns & ~np.eye(len(inner), dtype=bool)
    if not pairs.any():
        return float("nan")
    squares = [np.diag(inner)[each].mean() for each in (rows, columns)]
    return float(inner[pairs].mean() / np.sqrt(np.prod(squares))) if min(squares) > 0 else float("nan")


def by_problem(gradients: Float[np.ndarray, "M F"], problems: int) -> Sequence[Float[np.ndarray, "P F"]]:
    """Gradients of micro-batches, in the order first halves, second halves, as those two; parts of one are summed."""
    found = np.asarray(gradients, np.float64)
    parts = found.reshape(2, problems, -1, found.shape[-1]).sum(axis=2)
    return parts[0], parts[1]
