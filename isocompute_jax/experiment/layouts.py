"""How the groups of a run become batches: trees, prompts shared by rollouts, or whole rollouts packed into rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from jax.sharding import Mesh

from isocompute_jax import learner, sharding
from isocompute_jax.experiment.config import ROWS, RunConfig, SamplingConfig
from isocompute_jax.learner import Batch, BatchShape, PackShape, TreeShape
from isocompute_jax.learner.batches import CompiledShapes
from isocompute_jax.learner.packing import sizes_worth
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.errors import InputError, fields_called
from isocompute_jax.records.rollout import RolloutGroup

LOG = logging.getLogger(__name__)

SHORT = 64
"""Sequences of up to so many tokens become trees by themselves: attention of their rows is dense."""
MANY = 32
"""Of fewer rollouts, laying trees out costs about what they save."""

LayOut = Callable[[Sequence[RolloutGroup], np.ndarray | None], Batch]
"""(groups, which of them [P], or None for all) -> host arrays of a compiled shape."""


def make_lay_out(
    config: RunConfig,
    model_config: ModelConfig,
    problems: int,
    group_size: int,
    mesh: Mesh | None,
    *,
    batches: int | None = None,
    what: str = "the step",
    own_rows: bool = True,
    block: int | None = None,
) -> LayOut:
    """The layout of `batches` of so many problems and rollouts of each; new shapes are logged, as those of `what`.

    Where several processes share the mesh, each writes only the rows that it has on its devices, unless `own_rows` is
    False; the few short rows of trees are written by all. For groups of unequal size see `shape_of`.

    Raises:
      InputError: config.packing.row_tokens holds no sequence of the greatest length.
    """
    shape = shape_of(config, model_config, problems, group_size, mesh, batches, block)
    own = sharding.own_part(mesh, shape.rows, shape.axis) if mesh is not None and own_rows else None
    seen = CompiledShapes(what)

    def lay_out(groups: Sequence[RolloutGroup], kept: np.ndarray | None) -> Batch:
        with fields_called("config.loss."):  # a sampler may not say its experts
            batch = shape.lay_out(groups, kept=kept, own=own)
        if not isinstance(shape, BatchShape):  # which has one size
            seen.note(batch)
        return batch

    return lay_out


def shape_of(
    config: RunConfig,
    model_config: ModelConfig,
    problems: int,
    group_size: int,
    mesh: Mesh | None,
    batches: int | None = None,
    block: int | None = None,
) -> BatchShape | PackShape | TreeShape:
    """The compiled shape of batches of so many problems and rollouts of each.

    `batches` is how many of them the run has, None for as many as it has updates: few have few sizes. With a `block`
    groups may be of unequal size, each a multiple of it: as many problems at most, and so many rollouts in all. A
    mini-batch of a step may then get nearly all of them, so that `problems` are those of the step.

    Raises:
      InputError: config.packing.row_tokens holds no sequence of the greatest length, or trees are not for this model.
    """
    sizes = {
        "problems_per_batch": problems,
        "group_size": group_size,
        "max_prompt_tokens": config.sampling.max_prompt_tokens,
        "max_tokens": config.sampling.max_tokens,
        "microbatch_tokens": config.recipe.microbatch_tokens,
    }
    shards = sharding.shards(mesh, "batch")
    most = sizes_worth(config.num_steps * config.updates_per_step if batches is None else batches)
    # Batches carry the sampler's experts where the learner asks for them.
    chosen = None if config.loss.routing == "own" else (model_config.num_layers, model_config.experts_per_token)
    top_k = min(config.sampling.top_k, model_config.vocab_size)
    with fields_called("config.sampling.", ROWS):
        if _in_trees(config, model_config, problems * group_size):
            nodes = config.packing.row_tokens or row_nodes(config.sampling)
            return learner.tree_shape(**sizes, batch_shards=shards, row_nodes=nodes, most_sizes=most)
        if row_tokens := config.packing.row_tokens:
            rows = sharding.shards(mesh, "rows")
            return learner.pack_shape(
                **sizes, row_tokens=row_tokens, batch_shards=rows, most_sizes=most, routing=chosen, top_k=top_k
            )
        return learner.batch_shape(**sizes, routing=chosen, top_k=top_k, batch_shards=shards, block=block)


def _in_trees(config: RunConfig, model_config: ModelConfig, rollouts: int) -> bool:
    """Whether so many rollouts are laid out as trees.

    Raises:
      InputError: they cannot be, and the config wants it.
    """
    wanted, experts = config.packing.trees, bool(model_config.num_experts)
    if wanted == "on" and experts:
        raise InputError(
            "config.packing.trees = 'on', but the model is a mixture of experts, whose routing is counted for each "
            "rollout: leave it at auto"
        )
    longest = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    short = longest <= SHORT and rollouts >= MANY and not config.packing.row_tokens
    return wanted == "on" or (wanted == "auto" and short and not experts and not config.sampling.top_k)


def row_nodes(sampling: SamplingConfig) -> int:
    """Nodes of a row of trees: room for several rollouts of the greatest length, and no more scores than need be."""
    longest = sampling.max_prompt_tokens + sampling.max_tokens
    return max(64, -(-2 * longest // 32) * 32)


def log_larger_microbatch(config: RunConfig, model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Says where a micro-batch has more tokens than the config asks for: it holds a row, or a rollout, per shard."""
    shape = shape_of(config, model_config, config.problems_laid_out, config.group_size, mesh, block=config.block)
    if shape.microbatch_tokens > config.recipe.microbatch_tokens:
        LOG.info(
            "config.recipe.microbatch_tokens = %d is raised to %d: %s on each of %d shards of the batch",
            config.recipe.microbatch_tokens,
            shape.microbatch_tokens,
            shape.least,
            sharding.shards(mesh, shape.axis),
        )
