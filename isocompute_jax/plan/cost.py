"""What a whole run costs: its steps, and what lies between them and at its ends. Estimates; nothing was run.

Counted: updates, sampling, weights on their way to servers, evaluations, the idle ends of asynchronous runs, the last
checkpoint and exports, and the curation that went before. Not counted: starting and compiling, grading, servers'
pauses while they load weights, checkpoints in the background, and what is lost when something dies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax

from isocompute_jax import model
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig
from isocompute_jax.model import ModelConfig
from isocompute_jax.plan.roofline import BANDWIDTH, Range, Sampling, sampling_time
from isocompute_jax.plan.topology import Topology
from isocompute_jax.plan.unit import UnitFacts, keys_bytes, unit_time
from isocompute_jax.plan.work import lengths_of
from isocompute_jax.records.tensors import DTYPE_BYTES

GPUS_OF_HOST, CHIPS_OF_HOST = 8, 4
GB = 1e9
SHARED = (6.3 * GB, 3.2 * GB)
"""Bytes per second of weights that servers read from a file on their host, once for all: as measured on a CPU
(BENCHMARKS.md, "Weights"), and half of it."""
STREAM = (2.7 * GB, 1.8 * GB)
"""Bytes per second that one process streams, to all of its servers together: likewise, the range measured."""
WRITTEN = (1.16 * GB, 0.56 * GB)
"""Bytes per second of a checkpoint that is waited for, and of an export, from each host: likewise (BENCHMARKS.md,
"Checkpoints")."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a run."""

    name: str  # what it is
    seconds: Range  # it takes, in all
    devices: int  # that are held for it

    @property
    def device_hours(self) -> Range:
        """What is paid for it."""
        return self.seconds.times(self.devices / 3600)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Seconds of the parts of a run."""

    update: Range  # all updates of a step
    drawing: Range  # a step's rollouts, none being under way before
    steady: Range  # the same where the window never runs empty
    weights: Range  # sending new weights to the servers, for each step
    evaluation: Range  # all evaluations
    closing: Range  # the last checkpoint, and all exports
    curation: Range  # solve rates of the problems, before the run


@dataclasses.dataclass(frozen=True)
class RunCost:
    """Estimated cost of a whole run."""

    step: Range  # seconds of a step, sampling and weights included
    weights: Range  # seconds of it in which new weights are sent
    parts: tuple[Part, ...]  # of the run; those that take no time are left out
    wall_hours: Range  # of all parts
    device_hours: Range  # of learner and sampler, at work or waiting
    learner: Range  # share of a step in which the learner updates
    sampler: Range  # share of a step in which the sampler samples


def run_cost(spans: Spans, *, num_steps: int, learner_devices: int, sampler_devices: int, overlapped: bool) -> RunCost:
    """Device-hours of a run: both kinds of device are paid for while they wait.

    New weights are sent by the learner, which waits until every server has them. Where rollouts are sampled meanwhile
    (`overlapped`), a step takes as long as the slower side; the first batch is waited for from an empty window, and
    during the last update nothing is left to sample.

    Args:
      spans: seconds of the parts.
      num_steps: of the run.
      learner_devices: of the mesh.
      sampler_devices: beside them; 0 where the learner's sample in turns.
      overlapped: whether rollouts are sampled while the learner updates (`max_staleness`).
    """
    learning, ends = spans.update + spans.weights, Range(0.0, 0.0)
    if overlapped and sampler_devices:
        drawing = spans.steady
        step = Range(max(learning.low, drawing.low), max(learning.high, drawing.high))
        whole = spans.drawing + learning  # of the first batch, and of the last
        ends = Range(max(whole.low - step.low, 0.0), max(whole.high - step.high, 0.0))
    else:
        drawing = spans.steady if overlapped else spans.drawing
        step = learning + drawing
    both = learner_devices + sampler_devices
    parts = (
        Part("steps", step.times(num_steps), both),
        Part("idle ends", ends, both),
        Part("evaluations", spans.evaluation, both),
        Part("last checkpoint and exports", spans.closing, both),
        Part("curation", spans.curation, sampler_devices or learner_devices),
    )
    parts = tuple(part for part in parts if part.seconds.high)
    wall, hours = Range(0.0, 0.0), Range(0.0, 0.0)
    for part in parts:
        wall, hours = wall + part.seconds.times(1 / 3600), hours + part.device_hours
    return RunCost(step, spans.weights, parts, wall, hours, _share(spans.update, step), _share(drawing, step))


def _share(part: Range, step: Range) -> Range:
    ends = part.low / step.low, part.high / step.high
    return Range(min(ends), max(ends))


def spans_of(
    config: RunConfig,
    topology: Topology,
    *,
    update: Range,
    sampling: Sampling,
    draw: Callable[[int], Range],
    weight_bytes: float,
    state_bytes: float,
    sent_bytes: float | None = None,
    whole: RunConfig | None = None,
) -> Spans:
    """Seconds of each part of a run.

    Args:
      config: of the run, resolved.
      topology: of the learner.
      update: seconds of all updates of a step.
      sampling: of a step's rollouts.
      draw: seconds in which so many rollouts are sampled from an empty window.
      weight_bytes: of one copy of the model in the dtype that it computes in.
      state_bytes: of a checkpoint.
      sent_bytes: of an update of the servers; None where that is all weights.
      whole: the run that is evaluated and exported, where `config` is that of some of its batches.
    """
    whole = whole or config
    weights = Range(0.0, 0.0)
    if config.plan.sampler_devices:
        pushed = weight_bytes if sent_bytes is None else sent_bytes
        weights = push_time(config, topology, pushed, sampling.copies).times(1 / config.updates_per_phase)
    times, rollouts = evaluations_of(whole)
    sets = len(config.evaluation.sets)
    exports = 1 + (whole.num_steps // config.export_every if config.export_every else 0)
    written = state_bytes / processes(topology) + exports * weight_bytes  # exports are written by one process
    curated = config.plan.curation_rollouts
    return Spans(
        update=update,
        drawing=sampling.seconds,
        steady=sampling.steady,
        weights=weights,
        evaluation=draw(rollouts // sets).times(sets * times) if rollouts else Range(0.0, 0.0),  # one after the other
        closing=Range(*(written / rate for rate in WRITTEN)),
        curation=draw(curated) if curated else Range(0.0, 0.0),
    )


def push_path(config: RunConfig, topology: Topology) -> str:
    """How weights travel: as `service.push` says; `auto` is `shared` where servers stand on the learner's host.

    `nccl` goes from GPU to GPU.
    """
    push = config.service.push
    if push != "auto":
        return push
    together = topology.size + config.plan.sampler_devices
    return "shared" if topology.compiler == "gpu" and topology.hosts == 1 and together <= GPUS_OF_HOST else "stream"


def push_time(config: RunConfig, topology: Topology, weight_bytes: float, copies: int) -> Range:
    """Seconds in which every copy of the sampler gets new weights.

    A file is laid down once on each of the learner's hosts, and read by all servers of a host at once. Of a stream each
    of the learner's hosts sends its share, to one server after the other; on TPUs one server has all chips of its host,
    and their copies. By NCCL the learner's first device sends each server the whole.
    """
    path = push_path(config, topology)
    if path == "shared":
        return Range(*(weight_bytes / rate for rate in SHARED))
    if path == "stream":
        servers = copies if topology.compiler != "tpu" else -(-config.plan.sampler_devices // CHIPS_OF_HOST)
        return Range(*(servers * weight_bytes / processes(topology) / rate for rate in STREAM))
    link = (
        topology.device.network if topology.size + config.plan.sampler_devices > GPUS_OF_HOST else topology.device.link
    )
    return Range(*(copies * weight_bytes / (link * share) for share in BANDWIDTH))


def processes(topology: Topology) -> int:
    """Of the learner: one for each host."""
    return topology.hosts if topology.compiler != "tpu" else -(-topology.size // CHIPS_OF_HOST)


def evaluations_of(config: RunConfig) -> tuple[int, int]:
    """How often a run is evaluated, and the rollouts of each time, of sets of `plan.evaluation_problems`."""
    sizes = [config.plan.evaluation_problems] * len(config.evaluation.sets)
    found: EvaluationConfig = config.evaluation.settled(sizes, config.max_compute)
    problems = sum(min(size, found.max_problems or size) for size in sizes)
    points = dataclasses.replace(config, evaluation=found).evaluation_points
    return (len(points) if sizes else 0), problems * found.samples


MOMENT_BYTES = {"float32": 8, "bfloat16": 4, "host": 8}
"""Bytes of a parameter's two moments, by `optimizer.moments`."""


def price(
    config: RunConfig,
    topology: Topology,
    model_config: ModelConfig,
    *,
    update: Range,
    unit: UnitFacts | None,
    whole: RunConfig | None = None,
) -> tuple[Sampling, RunCost]:
    """Sampling of a step, and what a run costs.

    Args:
      config: the run's, resolved.
      topology: of the learner.
      model_config: the model.
      update: seconds of one update.
      unit: the compiled unit of a run that samples in the learner's process; None where servers sample.
      whole: the run, where `config` is that of its batches of one size.
    """
    count = model.count_params(model_config)
    trained, lora = count, config.adapters
    if lora is not None:
        trained = sum(math.prod(x.shape) for x in jax.tree.leaves(model.abstract_adapters(model_config, lora)))
    sampling, draw = _sampled(config, topology, model_config, unit)
    spans = spans_of(
        config,
        topology,
        update=update.times(passes_per_step(config)),
        sampling=sampling,
        draw=draw,
        weight_bytes=float(count) * DTYPE_BYTES[model_config.dtype],
        state_bytes=float(trained) * (4 + MOMENT_BYTES[config.optimizer.moments]),
        sent_bytes=4.0 * trained if lora is not None and lora.served else None,
        whole=whole,
    )
    return sampling, run_cost(
        spans,
        num_steps=config.num_steps,
        learner_devices=topology.size,
        sampler_devices=config.plan.sampler_devices,
        overlapped=config.overlapped,
    )


def passes_per_step(config: RunConfig) -> float:
    """What a step computes, in updates on one mini-batch: a batch that is scored first takes a third of them more.

    Of the three products of an update, scoring has the forward one; a reference policy in the reward is scored as well.
    Measuring the gradient's noise takes all of a step's rollouts forward and backward once more, each `noise_every`-th
    step.
    """
    scored = config.scores_first + (config.loss.kl_coef > 0 and config.loss.kl_in == "reward")
    measured = 1 / config.schedule.noise_every if config.schedule.noise_every else 0.0
    return config.updates_per_step + (scored / 3 + measured) * config.recipe.minibatches


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
