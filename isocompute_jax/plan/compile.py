"""The learner's step of a config, compiled for devices that are not here: shapes in, a program out, no weights read."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, Sharding

from isocompute_jax import model, sharding
from isocompute_jax.experiment import build
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import BatchShape, Credit, TokenBatch, TrainState
from isocompute_jax.model import ModelConfig
from isocompute_jax.plan.topology import Topology
from isocompute_jax.records.errors import InputError


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """One update of a run, compiled.

    Attributes:
      model_config: the model.
      mesh: of the topology's devices.
      state: shapes, dtypes and shardings of what training carries.
      batch_shape: of a step's tokens.
      program: what the compiler made.
      lower_s: seconds that tracing took.
      compile_s: seconds that the compiler took.
    """

    model_config: ModelConfig
    mesh: Mesh
    state: TrainState
    batch_shape: BatchShape
    program: jax.stages.Compiled
    lower_s: float
    compile_s: float


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
        said = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise InputError(
            f"config.mesh: {said} are {count} devices, and --topology={topology.name} has {topology.size}: set the "
            "axes so that they multiply to it, or name another topology"
        )
    return sharding.make_mesh(**sizes, devices=topology.devices())


def compile_step(config: RunConfig, topology: Topology) -> CompiledStep:
    """Compiles what training would run on these devices.

    Args:
      config: the run's, resolved; its model needs a config.json alone.
      topology: the devices.

    Raises:
      InputError: the model, the mesh and the topology do not go together.
    """
    model_config = model.load_config(config.model, dtype=config.dtype)
    model.check_length(model_config, config.sampling.max_prompt_tokens, config.sampling.max_tokens)
    mesh = plan_mesh(config, topology)
    programs = build.make_programs(
        model_config, config.loss, config.optimizer, mesh, temperature=config.sampling.temperature, donate=True
    )
    shape = build.shape_of(config, config.problems_per_batch, config.group_size, mesh)
    state = _abstract_state(model_config, programs)
    rollouts = jax.ShapeDtypeStruct(
        (config.problems_per_batch, config.group_size), jnp.float32, sharding=sharding.replicated(mesh)
    )
    rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding.replicated(mesh))
    reference = state.params if config.loss.kl_coef else None
    start = time.perf_counter()
    lowered = programs.train_step.lower(
        state, abstract_batch(shape, mesh), Credit(rollouts, rollouts, rollouts), rate, reference
    )
    lowered_at = time.perf_counter()
    program = lowered.compile()
    return CompiledStep(model_config, mesh, state, shape, program, lowered_at - start, time.perf_counter() - lowered_at)


def abstract_batch(shape: BatchShape, mesh: Mesh) -> TokenBatch:
    """Shapes, dtypes and shardings of a step's tokens, as `learner.place_batch` lays them out."""
    lead = (shape.microbatches, shape.rows)
    tokens = (*lead, shape.rollouts, shape.tokens)

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        axes = (None, "batch", *[None] * (len(shape) - 2))[: len(shape)]
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.named_sharding(mesh, shape, axes))

    return TokenBatch(
        prompt_tokens=array((*lead, shape.prompt), jnp.int32),
        prompt_mask=array((*lead, shape.prompt), jnp.bool_),
        tokens=array(tokens, jnp.int32),
        mask=array(tokens, jnp.bool_),
        sampler_logprobs=array(tokens, jnp.float32),
        rollout=array((*lead, shape.rollouts), jnp.int32),
        num_microbatches=array((), jnp.int32),
    )


def _abstract_state(model_config: ModelConfig, programs: build.Programs) -> TrainState:
    """What `learner.init_state` makes of our model's parameters, without making it."""
    params = model.abstract_params(model_config, model_config.float_dtype)
    opt_state = jax.eval_shape(programs.optimizer.init, params)
    state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, opt_state)

    def placed(x: Any, where: Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    return jax.tree.map(placed, state, programs.shardings)
