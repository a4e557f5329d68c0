"""A plan: the compiled step of a config, what it holds and moves, and what a run of it costs."""

from __future__ import annotations

import dataclasses

from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import model_config_of
from isocompute_jax.model.flops import Flops, Work, step_flops
from isocompute_jax.plan.advice import Knob, advise
from isocompute_jax.plan.compile import CompiledStep, DoesNotCompile, compile_step
from isocompute_jax.plan.cost import RunCost
from isocompute_jax.plan.hlo import Collective, collectives
from isocompute_jax.plan.lengths import Lengths, lengths_of
from isocompute_jax.plan.memory import Memory, memory_of
from isocompute_jax.plan.pricing import price
from isocompute_jax.plan.roofline import Sampling, StepTime, step_time
from isocompute_jax.plan.topology import Topology
from isocompute_jax.plan.unit import UnitFacts, compile_unit
from isocompute_jax.plan.work import better_layout, work_of
from isocompute_jax.records.errors import InputError


@dataclasses.dataclass(frozen=True)
class Together:
    """Bytes of one device, by what it does: a learner that samples in its own process does both in turns."""

    # the step's peak, and beside it the sampler's weights and a reference policy that the step does not read
    updating: float
    sampling: float  # the sampler's peak, and the learner's state beside it; 0 where servers sample

    @property
    def peak(self) -> float:
        """What the device must hold."""
        return max(self.updating, self.sampling)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a run before it starts."""

    config: RunConfig  # of the run, resolved
    topology: Topology  # of the learner
    model_config: model.ModelConfig  # the model's shape
    compiled: CompiledStep | None  # the step; None where the compiler refused it for memory
    refused: float | None  # bytes that the compiler said the step, or the sampler's unit, needs, where it refused it
    memory: Memory | None  # of each device, in the step; None where the compiler refused
    collectives: tuple[Collective, ...]  # of an update
    work: Work | None  # tokens of an update, expected
    flops: Flops | None  # of an update
    time: StepTime | None  # of an update, estimated
    lengths: Lengths  # assumed of rollouts
    # of a run that samples in the learner's process; None where servers sample, or the compiler refused
    unit: UnitFacts | None
    together: Together | None  # what a device holds; None where the compiler refused
    sampling: Sampling | None  # of a step's rollouts, estimated; None where nothing was compiled to tell
    cost: RunCost | None  # of the run, estimated
    knobs: tuple[Knob, ...]  # what would make it fit; empty where it fits
    # the other `config.packing.row_tokens` and the share of these FLOPs that it would compute, if it is better
    layout: tuple[int, float] | None = None

    @property
    def needed(self) -> float:
        """Bytes of a device, by the larger of the programs."""
        return (self.refused or 0.0) if self.together is None else self.together.peak

    @property
    def fits(self) -> bool:
        """Whether the programs and the reserve have room."""
        return self.together is not None and self.needed <= self.topology.device.usable


def dry_run(config: RunConfig, topology: Topology, *, advice: bool = True) -> Plan:
    """Compiles the programs of a config for a topology, and works out what a run takes.

    Those are the learner's step and, where no servers sample (`plan.sampler_devices`), the sampler's unit.

    Args:
      config: resolved; of its model, config.json is read alone.
      topology: of the learner.
      advice: where the step does not fit, compile others that may.

    Raises:
      InputError: config, model and topology do not go together; or there is no room to sample in the process.
    """
    if config.service.remote and not config.plan.sampler_devices:
        raise InputError(
            "config.plan.sampler_devices = 0, and config.service names servers: say how many devices they have, "
            "--config.plan.sampler_devices=N"
        )
    try:
        compiled = compile_step(config, topology)
    except DoesNotCompile as error:
        knobs = tuple(advise(config, topology, error.needed)) if advice else ()
        shape, lengths = model_config_of(config), lengths_of(config)
        return Plan(
            config, topology, shape, None, error.needed, None, (), None, None, None, lengths, None, None, None, None,
            knobs,
        )  # fmt: skip
    shape, memory, lengths = compiled.model_config, memory_of(compiled.program, compiled.state), lengths_of(config)
    unit, refused = None, None
    if not config.plan.sampler_devices:
        try:
            unit = compile_unit(config, topology, shape, compiled.mesh)
        except DoesNotCompile as error:
            refused = error.needed
    work = work_of(config, compiled.batch_shape, lengths, shape)
    flops = step_flops(shape, work)
    found = tuple(
        collectives(compiled.program.as_text() or "", num_devices=topology.size, microbatches=work.microbatches)
    )
    weights = 2.0 * model.count_params(shape) / config.mesh.tensor
    passes = 3 * work.microbatches  # forward, and twice backward: for activations and for weights
    hosts = topology.hosts_of(compiled.mesh)
    time = step_time(topology.device, topology.size, flops, memory, found, hosts, gathered_bytes=weights * passes)
    priced = None if refused is not None else price(config, topology, shape, update=time.total, unit=unit)
    knobs: tuple[Knob, ...] = ()
    if advice and memory.free(topology.device) < 0:
        knobs = tuple(advise(config, topology, memory.peak))
    return Plan(
        config, topology, shape, compiled, refused, memory, found, work, flops, time, lengths, unit,
        None if refused is not None else together(config, memory, unit),
        None if priced is None else priced.sampling,
        None if priced is None else priced.cost,
        knobs, better_layout(config, shape, compiled.mesh, lengths, flops),
    )  # fmt: skip


def together(config: RunConfig, memory: Memory, unit: UnitFacts | None) -> Together:
    """What a device holds: masters, moments and the reference policy of a KL term stay while it samples."""
    reference = memory.params if config.loss.kl_coef else 0.0
    beside = 0.0 if config.loss.reads_reference else reference
    state = memory.params + memory.moments + reference
    if unit is None:
        return Together(memory.peak + beside, 0.0)
    return Together(memory.peak + beside + unit.weights, unit.peak(state))
