"""From what the compilers said of a config's programs to what a run of it costs: arithmetic, compiling nothing.

So the figures of one compilation price every run whose programs are the same, whatever its length and its evaluations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import model_config_of
from isocompute_jax.model import ModelConfig
from isocompute_jax.plan.cost import RunCost, run_cost, spans_of
from isocompute_jax.plan.lengths import lengths_of
from isocompute_jax.plan.roofline import Range, Sampling, sampling_time
from isocompute_jax.plan.topology import Topology, parse_topology
from isocompute_jax.plan.unit import UnitFacts, keys_bytes, unit_time
from isocompute_jax.records.tensors import DTYPE_BYTES

MOMENT_BYTES = {"float32": 8, "bfloat16": 4, "host": 8}
"""Bytes of a parameter's two moments, by `optimizer.moments`."""


@dataclasses.dataclass(frozen=True)
class Price:
    """Sampling of a step, and the run."""

    sampling: Sampling
    cost: RunCost


def price(
    config: RunConfig, topology: Topology, model_config: ModelConfig, *, update: Range, unit: UnitFacts | None
) -> Price:
    """What a run costs.

    Args:
      config: the run's, resolved.
      topology: of the learner.
      model_config: the model.
      update: seconds of one update.
      unit: the compiled unit of a run that samples in the learner's process; None where servers sample.
    """
    count = model.count_params(model_config)
    sampling, draw = _sampled(config, topology, model_config, unit)
    spans = spans_of(
        config,
        topology,
        update=update.times(passes_per_step(config)),
        sampling=sampling,
        draw=draw,
        weight_bytes=float(count) * DTYPE_BYTES[model_config.dtype],
        state_bytes=float(count) * (4 + MOMENT_BYTES[config.optimizer.moments]),
    )
    cost = run_cost(
        spans,
        num_steps=config.num_steps,
        learner_devices=topology.size,
        sampler_devices=config.plan.sampler_devices,
        overlapped=config.overlapped,
    )
    return Price(sampling, cost)


def price_again(config: RunConfig, figures: Mapping[str, Any]) -> RunCost:
    """What a run costs whose programs are those of a dry run (`report.figures`), compiling nothing.

    Args:
      config: of the run, resolved.
      figures: of a plan that fits.
    """
    unit = UnitFacts(**figures["unit"]) if figures.get("unit") else None
    topology, model_config = parse_topology(figures["topology"]), model_config_of(config)
    return price(config, topology, model_config, update=Range(*figures["step_s"]), unit=unit).cost


def passes_per_step(config: RunConfig) -> float:
    """What a step computes, in updates on one mini-batch: a batch that is scored first takes a third of them more.

    Of the three products of an update, scoring has the forward one; a reference policy in the reward is scored as well.
    """
    scored = config.scores_first + (config.loss.kl_coef > 0 and config.loss.kl_in == "reward")
    return config.updates_per_step + scored * config.recipe.minibatches / 3


def _sampled(
    config: RunConfig, topology: Topology, model_config: ModelConfig, unit: UnitFacts | None
) -> tuple[Sampling, Callable[[int], Range]]:
    """Sampling of a step, and a function that says how long so many rollouts take from nothing."""
    lengths = lengths_of(config)
    if unit is None:

        def served(rollouts: int) -> Sampling:
            return sampling_time(
                model_config,
                topology.device,
                lengths,
                rollouts=rollouts,
                devices=config.plan.sampler_devices,
                tensor=config.plan.sampler_tensor,
                in_flight=config.plan.rollouts_in_flight,
            )

        return served(config.rollouts_per_step), lambda rollouts: served(rollouts).seconds
    once = unit_time(config, model_config, topology.device, lengths, unit)
    seconds = once.times(unit.units(config.rollouts_per_step))
    tokens = config.rollouts_per_step * lengths.mean
    found = Sampling(
        seconds=seconds,
        steady=seconds,
        copies=unit.shards,
        in_flight=unit.together,
        room=unit.together,
        weight_bytes=2.0 * model.count_params(model_config),
        token_bytes=keys_bytes(config, model_config, unit) * unit.shards / unit.together / config.sampling.max_tokens,
        tokens_per_s=Range(tokens / seconds.high, tokens / seconds.low),
    )
    return found, lambda rollouts: once.times(unit.units(rollouts))
