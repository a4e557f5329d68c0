"""The arithmetic limit: what a step must compute, over the rate at which this machine multiplies matrices.

python -m benchmarks.peers.limit bfloat16    # prints the rate, in GFLOP/s
"""

from __future__ import annotations

import dataclasses
import sys

from benchmarks.peers.job import Job
from benchmarks.shared import median_seconds
from isocompute_jax.model import ModelConfig
from isocompute_jax.model.flops import active_matrices, head_matrix

SIZE = 2048
"""Rows and columns of the matrices of the measured product."""


@dataclasses.dataclass(frozen=True)
class Flops:
    """Of one step, every product once, each prompt read once for its group, without padding."""

    prefill: float  # reading the prompts, to sample
    decode: float  # drawing the completions, a token at a time, from their keys
    forward: float  # the loss
    backward: float  # its gradient, which takes twice as much

    @property
    def total(self) -> float:
        return self.prefill + self.decode + self.forward + self.backward


def step_flops(shape: ModelConfig, job: Job, *, prompt: float, completion: float) -> Flops:
    """The account of one step.

    A product of [M, K] and [K, N] is 2 M K N; attention 4 N H a pair of query and key in each layer. A completion of
    T tokens is T distributions and T - 1 positions that are read: the first comes of its prompt's last position.

    Args:
      shape: the model's.
      job: how many prompts and completions.
      prompt: mean tokens of a prompt.
      completion: mean tokens of a completion.
    """
    body, head = 2.0 * active_matrices(shape), 2.0 * head_matrix(shape)
    pair = 4.0 * shape.num_layers * shape.num_heads * shape.head_dim
    read = completion - 1
    prompts = job.problems_per_batch * (body * prompt + pair * prompt * (prompt + 1) / 2)
    pairs = read * prompt + read * (read + 1) / 2
    completions = job.rollouts * (body * read + head * completion + pair * pairs)
    return Flops(prompts, completions, prompts + completions, 2 * (prompts + completions))


def product_rate(dtype: str, repeats: int = 15) -> float:
    """FLOP/s of a product of square matrices on all cores."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((SIZE, SIZE), dtype)
    product = jax.jit(jnp.matmul)
    return 2.0 * SIZE**3 / median_seconds(lambda: jax.block_until_ready(product(matrix, matrix)), repeats, warm_up=1)


if __name__ == "__main__":
    print(f"{product_rate(sys.argv[1]) / 1e9:.1f}")
