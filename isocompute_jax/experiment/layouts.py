"""How the groups of a run become batches: prompts shared by their rollouts, or whole rollouts packed into rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jax.sharding import Mesh

from isocompute_jax import learner, sharding
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import Batch, PackedBatch
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.rollout import RolloutGroup

LayOut = Callable[[Sequence[RolloutGroup], np.ndarray | None], Batch]
"""(groups, which of them [P], or None for all) -> host arrays of a compiled shape."""


def make_lay_out(
    config: RunConfig, model_config: ModelConfig, problems: int, group_size: int, mesh: Mesh | None
) -> LayOut:
    """The layout of batches of so many problems and rollouts of each; new shapes are logged.

    Raises:
      InputError: config.packing.row_tokens holds no sequence of the greatest length.
    """
    sampling, shards = config.sampling, 1 if mesh is None else sharding.batch_shards(mesh)
    sizes = {
        "problems_per_batch": problems,
        "group_size": group_size,
        "max_prompt_tokens": sampling.max_prompt_tokens,
        "max_tokens": sampling.max_tokens,
        "microbatch_tokens": config.recipe.microbatch_tokens,
        "batch_shards": shards,
        "routing": routing_of(config, model_config),
    }
    if not config.packing.row_tokens:
        shape = learner.batch_shape(**sizes)
        return lambda groups, kept: learner.layout(groups, shape, kept=kept)
    packed, seen = learner.pack_shape(**sizes, row_tokens=config.packing.row_tokens), learner.CompiledShapes()

    def lay_out(groups: Sequence[RolloutGroup], kept: np.ndarray | None) -> PackedBatch:
        batch = learner.pack(groups, packed, kept=kept)
        seen.note(batch)
        return batch

    return lay_out


def routing_of(config: RunConfig, model_config: ModelConfig) -> tuple[int, int] | None:
    """Layers and experts per token of the routing that batches carry; None where the learner does not ask for it."""
    return None if config.loss.routing == "own" else (model_config.num_layers, model_config.experts_per_token)


def layout_metrics(batch: Batch, mesh: Mesh | None) -> dict[str, float | int]:
    """What a line of metrics.jsonl says of the layout: of packed rows, how full and how even they are."""
    if not isinstance(batch, PackedBatch):
        return {}
    return learner.packing_metrics(batch, 1 if mesh is None else sharding.batch_shards(mesh))
