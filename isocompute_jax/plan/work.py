"""How much a step is expected to compute, from its compiled shape and the assumed lengths of rollouts."""

from __future__ import annotations

import math

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import BatchShape
from isocompute_jax.plan.flops import Work
from isocompute_jax.plan.lengths import Lengths

FILLED = 0.97
"""Share of packed rows that holds tokens (BENCHMARKS.md, "Packing")."""


def work_of(config: RunConfig, shape: BatchShape, lengths: Lengths) -> Work:
    """Of one step in which every group takes part."""
    rollouts = config.rollouts_per_step
    rows = shape.microbatches * shape.rows
    full = rows * (shape.prompt**2 + shape.rollouts * shape.tokens * (shape.prompt + shape.tokens))
    prompts = config.problems_per_batch * (config.group_size // shape.rollouts)
    mean, prompt = lengths.mean, lengths.prompt
    own = rollouts * (prompt * mean + lengths.moment(2) / 2)
    return Work(
        rollouts=rollouts,
        tokens=prompts * prompt + rollouts * mean,
        positions=rows * (shape.prompt + shape.rollouts * shape.tokens),
        pairs=own + prompts * prompt**2 / 2,
        computed_pairs=float(full),
        microbatches=shape.microbatches,
    )


def expected_microbatches(tokens: float, row_tokens: int, rows: int) -> int:
    """Of packed rows that are as full as they usually are."""
    return max(math.ceil(tokens / FILLED / row_tokens / rows), 1)
