"""How the groups of a run become batches: prompts shared by their rollouts, or whole rollouts packed into rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from jax.sharding import Mesh

from isocompute_jax import learner, sharding
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import Batch, BatchShape, PackedBatch, PackShape
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.rollout import RolloutGroup

LOG = logging.getLogger(__name__)

LayOut = Callable[[Sequence[RolloutGroup], np.ndarray | None], Batch]
"""(groups, which of them [P], or None for all) -> host arrays of a compiled shape."""


def make_lay_out(
    config: RunConfig,
    model_config: ModelConfig,
    problems: int,
    group_size: int,
    mesh: Mesh | None,
    *,
    what: str = "the step",
) -> LayOut:
    """The layout of batches of so many problems and rollouts of each; new shapes are logged, as those of `what`.

    Raises:
      InputError: config.packing.row_tokens holds no sequence of the greatest length.
    """
    shape = shape_of(config, model_config, problems, group_size, mesh)
    if isinstance(shape, BatchShape):
        return lambda groups, kept: learner.layout(groups, shape, kept=kept)
    seen = learner.CompiledShapes(what)

    def lay_out(groups: Sequence[RolloutGroup], kept: np.ndarray | None) -> PackedBatch:
        batch = learner.pack(groups, shape, kept=kept)
        seen.note(batch)
        return batch

    return lay_out


def shape_of(
    config: RunConfig, model_config: ModelConfig, problems: int, group_size: int, mesh: Mesh | None
) -> BatchShape | PackShape:
    """The compiled shape of batches of so many problems and rollouts of each.

    Raises:
      InputError: config.packing.row_tokens holds no sequence of the greatest length.
    """
    sizes = {
        "problems_per_batch": problems,
        "group_size": group_size,
        "max_prompt_tokens": config.sampling.max_prompt_tokens,
        "max_tokens": config.sampling.max_tokens,
        "microbatch_tokens": config.recipe.microbatch_tokens,
        "batch_shards": sharding.batch_shards(mesh),
        # Batches carry the sampler's experts where the learner asks for them.
        "routing": (
            None if config.loss.routing == "own" else (model_config.num_layers, model_config.experts_per_token)
        ),
    }
    if config.packing.row_tokens:
        return learner.pack_shape(**sizes, row_tokens=config.packing.row_tokens)
    return learner.batch_shape(**sizes)


def log_larger_microbatch(config: RunConfig, model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Says where a micro-batch has more tokens than the config asks for: it holds a row, or a rollout, per shard."""
    shape = shape_of(config, model_config, config.problems_per_batch, config.group_size, mesh)
    packed = isinstance(shape, PackShape)
    tokens = shape.rows * (shape.row_tokens if packed else shape.rollouts * shape.tokens)
    if tokens > config.recipe.microbatch_tokens:
        LOG.info(
            "config.recipe.microbatch_tokens = %d is raised to %d: %s on each of %d shards of the batch",
            config.recipe.microbatch_tokens,
            tokens,
            "a row" if packed else "a completion",
            sharding.batch_shards(mesh),
        )


def layout_metrics(batch: Batch, mesh: Mesh | None) -> dict[str, float | int]:
    """What a line of metrics.jsonl says of the layout: of packed rows, how full and how even they are."""
    if not isinstance(batch, PackedBatch):
        return {}
    return learner.packing_metrics(batch, sharding.batch_shards(mesh))
