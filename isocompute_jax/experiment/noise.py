"""Two-level gradient noise of a run: measured on one step in K, on the rollouts that the step trains on anyway.

It reads weights, moments and rollouts as they are before the update, and changes none of them: a run with it is, bit
for bit, the run without it, but for the columns `noise/...` of its log. What is estimated, and how, is in
`learner.noise`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import learner, sharding
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.build import Parts, made_of
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.experiment.updates import credited_by
from isocompute_jax.learner import (
    BatchShape,
    Credit,
    LossConfig,
    OptimizerConfig,
    PackShape,
    TrainState,
    TreeShape,
    noise,
)
from isocompute_jax.model import LoraConfig, ModelConfig, Params
from isocompute_jax.records.rollout import RolloutGroup

MOST_CELLS = 16
"""More of them make estimates less noisy, at the price of more and smaller computations."""


class NoisePrograms(NamedTuple):
    """What the noise is measured with, compiled once for all runs of a process that agree on it."""

    zeros: Callable[[Params], Params]
    gradient: noise.HalfGradient
    add_cell: noise.AddCell


def noise_columns(parts: Parts, state: TrainState, groups: Sequence[RolloutGroup], *, step: int) -> dict[str, float]:
    """Columns `noise/gradient2`, `between`, `within` of metrics.jsonl, and, once there are moments, `noise/adam_...`.

    None where fewer than two problems have four rollouts, nor of a metric in which they are not finite.

    Args:
      parts: of the run.
      state: the learner's, before the update.
      groups: that the step sampled, those without signal among them.
      step: updates before this one; with the run's seed it says which problems are measured together.
    """
    config, mesh = parts.config, parts.inputs.mesh
    halves = noise.halves_of([group for group in groups if not group.dropped])
    problems = len(halves[0])
    if problems < 2:
        return {}
    half = len(halves[0][0].completions)
    credited = credit_of(config, [*halves[0], *halves[1]])
    signal = np.any(np.reshape(credited.advantages, (2, problems, -1)) != 0, axis=-1)
    cells = noise.cells_of(problems, MOST_CELLS, (config.seed, step))
    shape = shape_of(config, parts.inputs.model_config, max(map(len, cells)), half, mesh, batches=1)
    own = None if mesh is None else sharding.own_part(mesh, shape.rows, shape.axis)

    def gradient(side: int, cell: np.ndarray) -> Params:
        credit: Credit = jax.tree.map(lambda x: x[cell + side * problems], credited)
        kept = signal[side, cell]  # the gradient of the others is zero
        tokens = shape.lay_out([halves[side][index] for index in cell], kept=kept, own=own)
        credit = credit.padded(max(map(len, cells)))
        return programs.gradient(state.params, learner.place_batch(tokens, mesh), credit, parts.frozen)

    programs = programs_of(parts)
    parts.team.arrive()
    total, found = programs.zeros(state.params), []
    for cell in cells:
        if signal[:, cell].any():  # all products of the others are zero
            total, products = programs.add_cell(total, state.opt_state, gradient(0, cell), gradient(1, cell))
            found.append(products)
    products = np.array(jax.device_get(found), np.float64).reshape(-1, 2, 4)
    sizes, columns = np.array([len(cell) for cell in cells]), {}
    for metric, name in enumerate(noise.METRICS):
        of_cells = products[:, metric]
        of_metric = noise.estimates(of_cells[:, :3], of_cells[-1, 3] if found else 0.0, sizes, half)
        if all(map(math.isfinite, of_metric.values())):
            columns |= {f"noise/{name}{estimate}": value for estimate, value in of_metric.items()}
    return columns


def credit_of(config: RunConfig, halves: Sequence[RolloutGroup]) -> Credit:
    """What half-groups are worth, penalties on length among it, but no term of the loss that stands in the reward."""
    return learner.credit(**credited_by(config, halves), recipe=noise.credit_of_halves(config.recipe))


def cell_shape(parts: Parts, size: BatchSize) -> tuple[int, BatchShape | PackShape | TreeShape] | None:
    """Problems of the largest cell of a step of a size, and the shape of their halves; None where none is measured."""
    config = parts.config
    half = noise.half_of([size.group_size])
    if size.problems < 2 or half < 2 or config.block:
        return None
    problems = -(-size.problems // min(size.problems, MOST_CELLS))
    return problems, shape_of(config, parts.inputs.model_config, problems, half, parts.inputs.mesh, batches=1)


def programs_of(parts: Parts) -> NoisePrograms:
    """What the noise of a run is measured with."""
    config, inputs = parts.config, parts.inputs
    return make_programs(
        inputs.model_config, config.loss, config.optimizer, inputs.mesh, config.adapters, temperature=config.temperature
    )


@functools.lru_cache(maxsize=16)
def make_programs(
    model_config: ModelConfig,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh | None,
    lora: LoraConfig | None,
    *,
    temperature: float,
) -> NoisePrograms:
    """As `build.make_programs`, whose arguments these are."""
    _, shardings, score_at = made_of(model_config, loss, optimizer, mesh, lora)
    return NoisePrograms(
        noise.make_zeros(shardings),
        noise.make_gradient(score_at(temperature), loss, shardings=shardings),
        noise.make_add_cell(optimizer, shardings=shardings),
    )
