"""The learner's step of a config, compiled for devices that are not here: shapes in, a program out, no weights read."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, Sharding

from isocompute_jax import model, sharding
from isocompute_jax.accelerators import Device
from isocompute_jax.experiment import build
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.inputs import check_length, check_mesh, model_config_of
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.learner import (
    Batch,
    BatchShape,
    Credit,
    PackShape,
    TrainState,
    TreeShape,
)
from isocompute_jax.learner.batches import batch_shardings
from isocompute_jax.learner.state import HOST
from isocompute_jax.model import LoraConfig, ModelConfig, Params
from isocompute_jax.plan.topology import Topology
from isocompute_jax.records.errors import InputError


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """One update of a run, compiled."""

    model_config: ModelConfig  # the model
    mesh: Mesh  # of the topology's devices
    state: TrainState  # shapes, dtypes and shardings of what training carries
    frozen: Params | None  # the same of the weights that adapters belong to
    batch_shape: BatchShape | PackShape | TreeShape  # of a step's tokens
    program: jax.stages.Compiled  # what the compiler made
    lower_s: float  # seconds that tracing took
    compile_s: float  # seconds that the compiler took


def plan_mesh(config: RunConfig, topology: Topology) -> Mesh:
    """The mesh of the config, of the topology's devices: also of one device, which training uses without a mesh.

    Raises:
      InputError: the mesh has another number of devices than the topology.
    """
    sizes = dataclasses.asdict(config.mesh)
    count = 1
    for size in sizes.values():
        count *= size
    if count != topology.size:
        axes = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise InputError(
            f"config.mesh: {axes} are {count} devices, and --topology={topology.name} has {topology.size}: set the "
            "axes so that they multiply to it, or name another topology"
        )
    try:
        return sharding.make_mesh(**sizes, devices=topology.devices())
    except NotImplementedError as error:
        raise InputError(f"config.mesh: {error}") from error  # axes of a slice are not cut


def compile_step(config: RunConfig, topology: Topology) -> CompiledStep:
    """Compiles what training would run on these devices.

    Args:
      config: the run's, resolved; its model needs a config.json alone.
      topology: the devices.

    Raises:
      InputError: the model, the mesh and the topology do not go together.
    """
    model_config = model_config_of(config)
    check_length(config, model_config)
    check_mesh(config.mesh, model_config)
    mesh = plan_mesh(config, topology)
    programs = build.make_programs(
        model_config, config.loss, config.optimizer, mesh, config.adapters, temperature=config.temperature
    )
    problems = config.problems_per_batch if config.block else config.problems_per_update
    shape = shape_of(config, model_config, problems, config.group_size, mesh, block=config.block)
    state, frozen = _abstract_state(config.adapters, model_config, programs), None
    if config.adapters is not None:
        where = model.param_shardings(model_config, mesh)
        frozen = jax.tree.map(_placed, model.abstract_params(model_config), where)
    rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding.replicated(mesh))
    reference = (frozen or state.params) if config.loss.reads_reference and not config.teacher else None
    start = time.perf_counter()
    step: Any = programs.train_step  # jitted
    batch = abstract_batch(shape, mesh)
    if config.keeps_old_logprobs:
        batch = dataclasses.replace(batch, old_logprobs=batch.sampler_logprobs)
    if config.teacher:
        batch = dataclasses.replace(batch, reference_logprobs=batch.sampler_logprobs)
    lowered = step.lower(state, batch, _abstract_credit(config, mesh), rate, reference, None, frozen)
    lowered_at = time.perf_counter()
    program = compiled_for(lowered)
    took = lowered_at - start, time.perf_counter() - lowered_at
    return CompiledStep(model_config, mesh, state, frozen, shape, program, *took)


class DoesNotCompile(Exception):
    """The compiler refuses a program that needs more memory than a device has: `needed` bytes."""

    def __init__(self, needed: float, message: str):
        super().__init__(message)
        self.needed = needed


def compiled_for(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a step, or the sampler's unit; where the compiler refuses for memory, says how much it wanted.

    Without a device to tune them on, XLA's Triton products take their tiles from a rule that has none for some shapes:
    then it is compiled with cuBLAS's.

    Raises:
      DoesNotCompile: it needs more memory than a device has.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "tile sizes" in str(error) or "No supported config" in str(error):
            return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})
        wanted = re.search(r"Used ([\d.]+)([KMGT]) of|\(([\d.]+)([KMGT])\) exceeds available", str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or wanted is None:
            raise
        number, unit = (wanted[1], wanted[2]) if wanted[1] else (wanted[3], wanted[4])
        raise DoesNotCompile(float(number) * 2 ** (10 * (1 + "KMGT".index(unit))), str(error)) from error


def abstract_batch(shape: BatchShape | PackShape | TreeShape, mesh: Mesh) -> Batch:
    """Shapes, dtypes and shardings of a step's largest batch, as `learner.place_batch` puts it on the devices."""
    one = dataclasses.replace(shape, microbatches=1).lay_out([])
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((shape.microbatches, *x.shape[1:]) if x.ndim else (), x.dtype), one
    )
    return jax.tree.map(_placed, batch, batch_shardings(batch, mesh))


def _abstract_credit(config: RunConfig, mesh: Mesh) -> Credit:
    """Of P x G rollouts, or of B where a policy deals them, on every device."""
    size = (config.rollouts_per_step,) if config.block else (config.problems_per_batch, config.group_size)
    zeros = jax.eval_shape(lambda: jnp.zeros(size))
    whole = jax.ShapeDtypeStruct(zeros.shape, zeros.dtype, sharding=sharding.replicated(mesh))
    return jax.tree.map(lambda _: whole, jax.eval_shape(lambda x: Credit(x, x, x), zeros))


def _abstract_state(lora: LoraConfig | None, model_config: ModelConfig, programs: build.Programs) -> TrainState:
    """What `learner.init_state` makes of our model's parameters, or of adapters, without making it."""
    if lora is None:
        params = model.abstract_params(model_config, model_config.float_dtype)
    else:
        params = model.abstract_adapters(model_config, lora)
    opt_state = jax.eval_shape(programs.optimizer.init, params)
    state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, opt_state)
    return jax.tree.map(_placed, state, programs.shardings)


def _placed(x: Any, where: Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    params: float  # that are trained: master weights, or adapters
    gradients: float  # summed over micro-batches, among the temporaries
    moments: float  # of the optimizer, on the device
    batch: float  # everything else that comes in: tokens, credit, reference weights
    temporaries: float  # the others: activations, gathered weights, one micro-batch's gradients
    outputs: float  # that reuse no argument
    peak: float  # arguments + outputs - aliased + temporaries
    on_host: float  # of the state, in the host's memory
    frozen: float = 0.0  # weights that adapters belong to

    def free(self, device: Device) -> float:
        """What the step and the stated reserve leave of what JAX takes; negative where it does not fit."""
        return device.usable - self.peak


def memory_of(compiled: CompiledStep) -> Memory:
    """The compiler's analysis, divided by what the state says of its own size."""
    stats, state, frozen = cast(Any, compiled.program.memory_analysis()), compiled.state, 0.0
    if compiled.frozen is not None:
        frozen = bytes_of(compiled.frozen, host=False)
    params, moments = bytes_of(state.params, host=False), bytes_of(state.opt_state, host=False)
    gradients = params  # of the same shapes and dtypes
    temporaries, outputs = stats.temp_size_in_bytes, stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Memory(
        params=params,
        gradients=min(gradients, temporaries),
        moments=moments,
        batch=stats.argument_size_in_bytes - params - frozen - moments,
        temporaries=max(temporaries - gradients, 0.0),
        outputs=outputs,
        peak=stats.argument_size_in_bytes + outputs + temporaries,
        on_host=bytes_of(state.params, host=True) + bytes_of(state.opt_state, host=True),
        frozen=frozen,
    )


def bytes_of(tree: Any, *, host: bool) -> float:
    """Bytes of one device's share of abstract arrays in one of its two memories."""
    return float(
        sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(tree)
            if (leaf.sharding.memory_kind == HOST) == host
        )
    )
