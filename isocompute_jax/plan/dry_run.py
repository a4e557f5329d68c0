"""A plan: the compiled step of a config, what it holds and moves, and what a run of it costs."""

from __future__ import annotations

import dataclasses

from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import model_config_of
from isocompute_jax.model.flops import Flops, Work, step_flops
from isocompute_jax.plan.advice import Knob, advise
from isocompute_jax.plan.compile import CompiledStep, DoesNotCompile, compile_step
from isocompute_jax.plan.hlo import Collective, collectives
from isocompute_jax.plan.lengths import Lengths, lengths_of
from isocompute_jax.plan.memory import Memory, memory_of
from isocompute_jax.plan.roofline import RunCost, Sampling, StepTime, run_cost, sampling_time, step_time
from isocompute_jax.plan.topology import Topology
from isocompute_jax.plan.work import better_layout, work_of


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a run before it starts.

    Attributes:
      config: of the run, resolved.
      topology: of the learner.
      model_config: the model's shape.
      compiled: the step; None where the compiler refused it for memory.
      refused: bytes that the compiler said the step needs, where it refused it.
      memory: of each device; None where the compiler refused.
      collectives: of an update.
      work: tokens of an update, expected.
      flops: of an update.
      time: of an update, estimated.
      lengths: assumed of rollouts.
      sampling: of a step's rollouts, estimated.
      cost: of the run, estimated.
      knobs: what would make it fit; empty where it fits.
      layout: the other `config.packing.row_tokens` and the share of these FLOPs that it would compute, if it is better.
    """

    config: RunConfig
    topology: Topology
    model_config: model.ModelConfig
    compiled: CompiledStep | None
    refused: float | None
    memory: Memory | None
    collectives: tuple[Collective, ...]
    work: Work | None
    flops: Flops | None
    time: StepTime | None
    lengths: Lengths
    sampling: Sampling
    cost: RunCost | None
    knobs: tuple[Knob, ...]
    layout: tuple[int, float] | None = None

    @property
    def fits(self) -> bool:
        """Whether the step and the reserve have room."""
        return self.memory is not None and self.memory.free(self.topology.device) >= 0


def dry_run(config: RunConfig, topology: Topology, *, advice: bool = True) -> Plan:
    """Compiles the step of a config for a topology, and works out what a run takes.

    Args:
      config: resolved; of its model, config.json is read alone.
      topology: of the learner.
      advice: where the step does not fit, compile others that may.

    Raises:
      InputError: config, model and topology do not go together.
    """
    try:
        compiled = compile_step(config, topology)
    except DoesNotCompile as error:
        knobs = tuple(advise(config, topology, error.needed)) if advice else ()
        return _without_program(config, topology, error.needed, knobs)
    memory = memory_of(compiled.program, compiled.state)
    lengths = lengths_of(config)
    work = work_of(config, compiled.batch_shape, lengths, compiled.model_config)
    flops = step_flops(compiled.model_config, work)
    hosts = [device.process_index if topology.compiler == "gpu" else 0 for device in compiled.mesh.devices.flat]
    found = tuple(
        collectives(compiled.program.as_text() or "", num_devices=topology.size, microbatches=work.microbatches)
    )
    weights = 2.0 * model.count_params(compiled.model_config) / config.mesh.tensor
    passes = 3 * work.microbatches  # forward, and twice backward: for activations and for weights
    time = step_time(topology.device, topology.size, flops, memory, found, hosts, gathered_bytes=weights * passes)
    state = 0.0 if config.plan.sampler_devices else memory.params + memory.moments
    sampling = _sampling(config, compiled.model_config, topology, lengths, state)
    cost = run_cost(
        time.total.times(passes_per_step(config)),
        sampling,
        num_steps=config.num_steps,
        learner_devices=topology.size,
        sampler_devices=config.plan.sampler_devices,
        overlapped=config.max_staleness > 0 and config.asynchrony != "phases",
    )
    knobs: tuple[Knob, ...] = ()
    if advice and memory.free(topology.device) < 0:
        knobs = tuple(advise(config, topology, memory.peak))
    return Plan(
        config, topology, compiled.model_config, compiled, None, memory, found, work, flops, time, lengths, sampling,
        cost, knobs, better_layout(config, compiled.model_config, compiled.mesh, lengths, flops),
    )  # fmt: skip


def passes_per_step(config: RunConfig) -> float:
    """What a step computes, in updates on one mini-batch: a batch that is scored first takes a third of them more.

    Of the three products of an update, scoring has the forward one; a reference policy in the reward is scored as well.
    """
    scored = config.scores_first + (config.loss.kl_coef > 0 and config.loss.kl_in == "reward")
    return config.updates_per_step + scored * config.recipe.minibatches / 3


def _without_program(config: RunConfig, topology: Topology, needed: float, knobs: tuple[Knob, ...]) -> Plan:
    """What is left to say where the compiler refused the step."""
    model_config, lengths = model_config_of(config), lengths_of(config)
    sampling = _sampling(config, model_config, topology, lengths, 0.0)
    return Plan(
        config, topology, model_config, None, needed, None, (), None, None, None, lengths, sampling, None, knobs
    )


def _sampling(
    config: RunConfig, model_config: model.ModelConfig, topology: Topology, lengths: Lengths, occupied: float
) -> Sampling:
    """Of a step's rollouts, on devices of which `occupied` bytes hold a learner's state."""
    return sampling_time(
        model_config,
        topology.device,
        lengths,
        rollouts=config.rollouts_per_step,
        devices=config.plan.sampler_devices or topology.size,
        tensor=config.plan.sampler_tensor,
        in_flight=config.plan.rollouts_in_flight,
        occupied=occupied,
    )
