"""A plan: the compiled step of a config, what it holds and moves, and what a run of it costs; and `--dry_run`.

A plan that does not fit says which knob to turn, and by how much: each is compiled, not guessed. `--dry_run` of the
train main plans in this process, or in one whose Python has the topology's compiler.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.inputs import model_config_of
from isocompute_jax.model.flops import Flops, Work, step_flops
from isocompute_jax.plan.compile import CompiledStep, DoesNotCompile, Memory, compile_step, memory_of
from isocompute_jax.plan.cost import RunCost, price
from isocompute_jax.plan.courses import price_sizes, sizes_of
from isocompute_jax.plan.hlo import Collective, collectives
from isocompute_jax.plan.roofline import Sampling, StepTime, step_time
from isocompute_jax.plan.topology import Topology, find_compiler, parse_topology
from isocompute_jax.plan.unit import UnitFacts, compile_unit
from isocompute_jax.plan.work import Lengths, better_layout, lengths_of, work_of
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say
from isocompute_jax.records.run_files import write_atomic


@dataclasses.dataclass(frozen=True)
class Together:
    """Bytes of one device, by what it does: a learner that samples in its own process does both in turns."""

    # the step's peak, and beside it the sampler's weights, a reference policy that the step does not read, and the
    # gradients that its noise is measured with
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
    lengths: Lengths  # assumed of rollouts
    # bytes that the compiler said the step, or the sampler's unit, needs, where it refused it for memory
    refused: float | None = None
    # of the step; None, as what follows from it, where the compiler refused it
    compiled: CompiledStep | None = None
    memory: Memory | None = None  # of each device, in the step
    collectives: tuple[Collective, ...] = ()  # of an update
    work: Work | None = None  # tokens of an update, expected
    flops: Flops | None = None  # of an update
    time: StepTime | None = None  # of an update, estimated
    # of a run that samples in the learner's process; None where servers sample, or the compiler refused
    unit: UnitFacts | None = None
    together: Together | None = None  # what a device holds; None where the compiler refused
    sampling: Sampling | None = None  # of a step's rollouts, estimated; None where nothing was compiled to tell
    cost: RunCost | None = None  # of the run, estimated
    knobs: tuple[Knob, ...] = ()  # what would make it fit; empty where it fits
    # the other `config.packing.row_tokens` and the share of these FLOPs that it would compute, if it is better
    layout: tuple[int, float] | None = None
    scheduled: RunConfig | None = None  # the run, where `config` is that of its largest batches
    sizes: tuple[Plan, ...] = ()  # plans of the sizes of its batches, this one's among them

    @property
    def needed(self) -> float:
        """Bytes of a device, by the larger of the programs."""
        return (self.refused or 0.0) if self.together is None else self.together.peak

    @property
    def fits(self) -> bool:
        """Whether the programs and the reserve have room."""
        return self.together is not None and self.needed <= self.topology.device.usable


def dry_run(config: RunConfig, topology: Topology, *, advice: bool = True) -> Plan:
    """The plan of a config; of a run whose batches change their size, that of those that need most memory.

    Its cost is that of the whole run. Arguments and errors are those of `plan_size`, which plans each size.
    """
    if not (config.schedule.group_size or config.schedule.problems_per_batch):
        return plan_size(config, topology, advice=advice)
    plans = {size: plan_size(config.of_size(size), topology, advice=False) for size in sizes_of(config)}
    worst, largest = max(plans.items(), key=lambda item: item[1].needed)
    cost = None
    if all(plan.cost is not None for plan in plans.values()):
        found = {}
        for size, plan in plans.items():
            assert plan.time is not None
            found[size.problems, size.group_size] = plan.time.total, plan.unit
        cost = price_sizes(config, topology, largest.model_config, found)
    if advice and not largest.fits:
        largest = plan_size(config.of_size(worst), topology)
    return dataclasses.replace(largest, scheduled=config, sizes=tuple(plans.values()), cost=cost)


def plan_size(config: RunConfig, topology: Topology, *, advice: bool = True) -> Plan:
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
    lengths = lengths_of(config)
    try:
        compiled = compile_step(config, topology)
    except DoesNotCompile as error:
        knobs = tuple(advise(config, topology, error.needed)) if advice else ()
        return Plan(config, topology, model_config_of(config), lengths, refused=error.needed, knobs=knobs)
    shape, memory = compiled.model_config, memory_of(compiled)
    unit, refused = None, None
    if not config.plan.sampler_devices:
        try:
            unit = compile_unit(config, topology, shape, compiled.mesh)
        except DoesNotCompile as error:
            refused = error.needed
    work = work_of(config, compiled.batch_shape, lengths, shape)
    flops = step_flops(shape, work, adapters=config.adapters is not None)
    found = collectives(compiled.program.as_text() or "", num_devices=topology.size, microbatches=work.microbatches)
    weights = 2.0 * model.count_params(shape) / config.mesh.tensor
    passes = 3 * work.microbatches  # forward, and twice backward: for activations and for weights
    hosts = topology.hosts_of(compiled.mesh)
    time = step_time(topology.device, topology.size, flops, memory, found, hosts, gathered_bytes=weights * passes)
    sampling, cost = None, None
    if refused is None:
        sampling, cost = price(config, topology, shape, update=time.total, unit=unit)
    misfit = advice and memory.free(topology.device) < 0
    return Plan(
        config,
        topology,
        shape,
        lengths,
        refused=refused,
        compiled=compiled,
        memory=memory,
        collectives=tuple(found),
        work=work,
        flops=flops,
        time=time,
        unit=unit,
        together=None if refused is not None else together(config, memory, unit),
        sampling=sampling,
        cost=cost,
        knobs=tuple(advise(config, topology, memory.peak)) if misfit else (),
        layout=better_layout(config, shape, compiled.mesh, lengths, flops),
    )


def together(config: RunConfig, memory: Memory, unit: UnitFacts | None) -> Together:
    """What a device holds: masters, moments and the reference policy of a KL term stay while it samples."""
    # Of adapters the frozen weights are the reference too.
    reference = memory.params if config.loss.kl_coef and not memory.frozen else 0.0
    measuring = 3 * memory.gradients if config.schedule.noise_every else 0.0  # see `learner.noise`
    beside = 0.0 if config.loss.reads_reference else reference
    state = memory.params + memory.frozen + memory.moments + reference
    if unit is None:
        return Together(memory.peak + beside + measuring, 0.0)
    return Together(memory.peak + beside + measuring + unit.weights, unit.peak(state))


# --- what makes a step smaller


POLICIES = ("none", "dots", "attention_output", "full")
"""Of `compute.remat`, each keeping less than the one before."""


@dataclasses.dataclass(frozen=True)
class Knob:
    """A change of the config."""

    flags: tuple[str, ...]  # that make it
    saves: float  # bytes of each device
    fits: bool  # whether the step then fits, reserve included


def advise(config: RunConfig, topology: Topology, peak: float) -> Iterator[Knob]:
    """Changes that make a step smaller, one by one and then added up until it fits; the cheapest come first.

    Args:
      config: of the step.
      topology: that it was compiled for.
      peak: bytes that it needs.
    """
    budget = topology.device.usable
    useful: list[Mapping[str, object]] = []
    for changes in candidates(config):
        needed = _peak(config, changes, topology)
        if needed is None or needed >= peak:
            continue
        useful.append(changes)
        yield Knob(_flags(changes), peak - needed, needed <= budget)
        if needed <= budget:
            return
    if len(useful) > 1:
        together = {field: value for changes in useful for field, value in changes.items()}
        needed = _peak(config, together, topology)
        if needed is not None:
            yield Knob(_flags(together), peak - needed, needed <= budget)


def candidates(config: RunConfig) -> Iterator[Mapping[str, object]]:
    """Fields and values that take less memory: those that cost no time first, host memory last."""
    smallest = max(config.packing.row_tokens, 1)
    if config.recipe.microbatch_tokens > smallest:
        yield {"recipe.microbatch_tokens": max(config.recipe.microbatch_tokens // 2, smallest)}
    if config.compute.remat in POLICIES:
        for policy in POLICIES[POLICIES.index(config.compute.remat) + 1 :]:
            yield {"compute.remat": policy}
    if config.optimizer.moments == "float32":
        yield {"optimizer.moments": "bfloat16"}
    if config.loss.chunk_tokens is not None and config.loss.chunk_tokens > 1024:
        yield {"loss.chunk_tokens": config.loss.chunk_tokens // 4}
    yield from _shorter_rows(config)
    if config.optimizer.moments != "host":
        yield {"optimizer.moments": "host"}


def _shorter_rows(config: RunConfig) -> Iterator[Mapping[str, object]]:
    """Where each device has a row of its own, rows that two devices share, or four, and fewer of them at once."""
    mesh, row_tokens = config.mesh, config.packing.row_tokens
    rows = mesh.data * mesh.fsdp * mesh.expert
    if config.recipe.microbatch_tokens >= 2 * rows * row_tokens:
        return
    share = 2
    while row_tokens and mesh.fsdp % share == 0 and row_tokens % (share * mesh.context) == 0:
        yield {
            "mesh.fsdp": mesh.fsdp // share,
            "mesh.context": mesh.context * share,
            "recipe.microbatch_tokens": rows // share * row_tokens,
        }
        share *= 2


def _peak(config: RunConfig, changes: Mapping[str, object], topology: Topology) -> float | None:
    """Bytes that a config needs with changes; None where it cannot be compiled at all."""
    try:
        for field, value in changes.items():
            config = override(config, field, value)
        compiled = compile_step(config, topology)
    except DoesNotCompile as error:
        return error.needed
    except InputError:
        return None
    return memory_of(compiled).peak


def _flags(changes: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"--config.{field}={value}" for field, value in changes.items())


# --- the command


CHILD = "ISOCOMPUTE_AOT_PROCESS"
"""Set, to the kind of compiler, in the process that has one."""


def run(config: RunConfig, topology_name: str | None, *, arguments: Sequence[str], out: str | None) -> int:
    """Prints the plan of a config, and returns an exit code: 0 where it fits, 1 where it does not.

    Args:
      config: as it was given.
      topology_name: `--topology`; None for that of the config, or this machine's devices.
      arguments: of the train main, for a process that has to do it in this one's place.
      out: file for the figures, as JSON; None for none.

    Raises:
      InputError: a bad config or topology, or a compiler that is not installed.
    """
    resolved = config.resolved()
    topology = parse_topology(topology_name or config.plan.topology or "here")
    if topology.compiler is not None and os.environ.get(CHILD) != topology.compiler:
        python, environment = find_compiler(topology.compiler)
        command = [python, "-m", "isocompute_jax.train", *arguments]
        done = subprocess.run(command, env=environment | {CHILD: topology.compiler}, check=False)
        return done.returncode
    logging.getLogger("absl").setLevel(logging.ERROR)  # tokamax warns of each kernel that it has not tuned
    from isocompute_jax.plan.report import figures, report

    plan = dry_run(resolved, topology)
    say(report(plan), end="")
    if out:
        try:
            write_atomic(out, json.dumps(figures(plan), indent=1) + "\n")
        except OSError as error:
            raise InputError(f"--plan_out={out} cannot be written: {error.strerror}") from error
    return 0 if plan.fits else 1
