"""How much a step is expected to compute, from its compiled shape and the assumed lengths of rollouts."""

from __future__ import annotations

import math

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import BatchShape, PackShape, TreeShape
from isocompute_jax.plan.flops import Work
from isocompute_jax.plan.lengths import Lengths

FILLED = 0.97
"""Share of packed rows that holds tokens (BENCHMARKS.md, "Packed rows")."""


def work_of(config: RunConfig, shape: BatchShape | PackShape | TreeShape, lengths: Lengths) -> Work:
    """Of one step in which every group takes part; rollouts are taken to share their prompts and nothing more."""
    rollouts = config.rollouts_per_step
    if isinstance(shape, PackShape):
        tokens, pairs = rollouts * lengths.sequence, rollouts * lengths.pairs
        microbatches = math.ceil(tokens / FILLED / (shape.rows * shape.row_tokens))
        microbatches = min(max(microbatches, 1), shape.microbatches)
        positions = float(microbatches * shape.rows * shape.row_tokens)
        return Work(rollouts, tokens, positions, pairs, pairs, microbatches)
    if isinstance(shape, TreeShape):
        prompts = config.problems_per_batch
        nodes = prompts * lengths.prompt + rollouts * (lengths.mean - 1)
        microbatches = min(max(math.ceil(nodes / (shape.rows * shape.nodes)), 1), shape.microbatches)
        positions = float(microbatches * shape.rows * shape.nodes)
        pairs = rollouts * (lengths.prompt * lengths.mean + lengths.moment(2) / 2)
        return Work(rollouts, nodes, positions, pairs, positions * shape.nodes, microbatches)
    rows, prompts = shape.microbatches * shape.rows, rollouts // shape.rollouts
    own = rollouts * (lengths.prompt * lengths.mean + lengths.moment(2) / 2)
    return Work(
        rollouts=rollouts,
        tokens=prompts * lengths.prompt + rollouts * lengths.mean,
        positions=float(rows * (shape.prompt + shape.rollouts * shape.tokens)),
        pairs=own + prompts * lengths.prompt**2 / 2,
        computed_pairs=float(rows * (shape.prompt**2 + shape.rollouts * shape.tokens * (shape.prompt + shape.tokens))),
        microbatches=shape.microbatches,
    )
