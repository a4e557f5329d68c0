"""How much a step is expected to compute, from its compiled shape and the assumed lengths of rollouts."""

from __future__ import annotations

import math

from jax.sharding import Mesh

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.learner import BatchShape, PackShape, TreeShape
from isocompute_jax.model import ModelConfig
from isocompute_jax.model.flops import Flops, Work, step_flops
from isocompute_jax.plan.lengths import Lengths

FILLED = 0.97
"""Share of packed rows that holds tokens (BENCHMARKS.md, "Packed rows")."""
WORTH_SAYING = 0.9
"""Of a step's FLOPs, those of the other layout that are worth a line."""
LONGEST_PADDED = 2048
"""Padded completions hold [T, prompt + T] scores: beyond so many tokens they are no choice, whatever they save."""


def work_of(
    config: RunConfig, shape: BatchShape | PackShape | TreeShape, lengths: Lengths, model_config: ModelConfig
) -> Work:
    """Of one update in which every group takes part; rollouts are taken to share their prompts and nothing more."""
    rollouts = config.problems_per_update * config.group_size
    seen = _seen(model_config, lengths)
    if isinstance(shape, PackShape):
        tokens, pairs = rollouts * lengths.sequence, rollouts * lengths.pairs * seen
        microbatches = math.ceil(tokens / FILLED / (shape.rows * shape.row_tokens))
        microbatches = min(max(microbatches, 1), shape.microbatches)
        positions = float(microbatches * shape.rows * shape.row_tokens)
        return Work(rollouts, tokens, positions, pairs, pairs, microbatches)
    if isinstance(shape, TreeShape):
        prompts = config.problems_per_update
        nodes = prompts * lengths.prompt + rollouts * (lengths.mean - 1)
        microbatches = min(max(math.ceil(nodes / (shape.rows * shape.nodes)), 1), shape.microbatches)
        positions = float(microbatches * shape.rows * shape.nodes)
        pairs = rollouts * (lengths.prompt * lengths.mean + lengths.moment(2) / 2) * seen
        return Work(rollouts, nodes, positions, pairs, positions * shape.nodes, microbatches)
    rows, prompts = shape.microbatches * shape.rows, rollouts // shape.rollouts
    own = rollouts * (lengths.prompt * lengths.mean + lengths.moment(2) / 2)
    return Work(
        rollouts=rollouts,
        tokens=prompts * lengths.prompt + rollouts * lengths.mean,
        positions=float(rows * (shape.prompt + shape.rollouts * shape.tokens)),
        pairs=(own + prompts * lengths.prompt**2 / 2) * seen,
        computed_pairs=float(rows * (shape.prompt**2 + shape.rollouts * shape.tokens * (shape.prompt + shape.tokens))),
        microbatches=shape.microbatches,
    )


def _seen(config: ModelConfig, lengths: Lengths) -> float:
    """Share of causal pairs that the layers see, in their mean: local ones see those within chunks."""
    if config.local_layers is None:
        return 1.0
    local = sum(config.local_layers) / config.num_layers
    return 1 - local + local * lengths.pairs_within(config.attention_chunk) / lengths.pairs


def better_layout(
    config: RunConfig, model_config: ModelConfig, mesh: Mesh, lengths: Lengths, flops: Flops
) -> tuple[int, float] | None:
    """Whether the other layout computes clearly less: packed rows where prompts are shared, or the other way round.

    Rows repeat a prompt for each of its rollouts, padding fills completions up to the longest. So rows win where
    max_tokens exceeds the mean completion by more than prompts have tokens.

    Args:
      config: the run's, resolved.
      model_config: its model.
      mesh: of the learner.
      lengths: assumed of rollouts.
      flops: of a step as it is configured.

    Returns:
      `config.packing.row_tokens` of the other layout, and its share of these FLOPs; None where it saves little.
    """
    if isinstance(shape_of(config, model_config, config.problems_per_update, config.group_size, mesh), TreeShape):
        return None  # which repeat nothing
    longest = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    other = 0 if config.packing.row_tokens else -(-longest // 128) * 128
    if not other and (longest > LONGEST_PADDED or config.mesh.context > 1):
        return None
    changed = override(config, "packing.row_tokens", other)
    shape = shape_of(changed, model_config, changed.problems_per_update, changed.group_size, mesh)
    found = step_flops(model_config, work_of(changed, shape, lengths, model_config))
    share = (found.computed + found.computed_float32) / (flops.computed + flops.computed_float32)
    return (other, share) if share < WORTH_SAYING else None
