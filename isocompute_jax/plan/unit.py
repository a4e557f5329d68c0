"""The sampler's program of a run that samples in the learner's process: compiled beside the step, and what it costs.

It is `sampling.sample_unit`, the very function that runs, on the copy of the weights that an update makes for it. Its
cost is said as it is compiled: weights, keys and values are read where they lie, those of all positions that a
completion may reach, whatever it has so far. A unit ends with its longest completion, and no other takes a place that
is free.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.accelerators import Device
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.samplers import held_bytes, rollouts_per_dispatch
from isocompute_jax.model import ModelConfig
from isocompute_jax.model.flops import active_matrices, head_matrix
from isocompute_jax.plan.compile import bytes_of, compiled_for
from isocompute_jax.plan.hlo import token_loop
from isocompute_jax.plan.roofline import BANDWIDTH, PRODUCTS, Range, wire_seconds
from isocompute_jax.plan.topology import Topology
from isocompute_jax.plan.work import Lengths
from isocompute_jax.sampling.in_process import Unit, UnitShape, sample_unit, unit_shape

SCORE_BYTES = 16
"""That a score of attention moves: written in float32, read for the highest and for the weight, which is written and
read in two bytes."""
LAUNCH = (2e-6, 5e-6)
"""Seconds from one kernel of a GPU to the next where each is short: assumed."""


@dataclasses.dataclass(frozen=True)
class UnitFacts:
    """What the compiler said of a unit."""

    problems: int  # of a unit
    rollouts: int  # of each of its problems
    shards: int  # parts that its problems are cut into
    # bytes of each device: the parameters in the dtype that the model computes in; 0 where they are the learner's own
    weights: float
    temporaries: float  # keys and values, scores
    moved: float  # what else comes in, and what comes out
    wire_bytes: float  # that a device receives for each token
    wire_s: float  # seconds that this takes at full speed
    launches: int  # kernels for each token, one by one; 0 where it is no GPU
    compile_s: float  # seconds that the compiler took

    @property
    def together(self) -> int:
        """Rollouts that are decoded at once."""
        return self.problems * self.rollouts

    def units(self, rollouts: int) -> int:
        """How many draw so many rollouts."""
        return -(-rollouts // self.together)

    def peak(self, state: float) -> float:
        """Bytes of a device while it samples, beside a learner's state."""
        return state + self.weights + self.temporaries + self.moved


def compile_unit(config: RunConfig, topology: Topology, model_config: ModelConfig, mesh: Mesh) -> UnitFacts:
    """Compiles the unit that training would draw its first turns in.

    Args:
      config: the run's, resolved.
      topology: the devices.
      model_config: the model.
      mesh: of the topology's devices.

    Raises:
      InputError: not one rollout has room beside the learner's state.
      DoesNotCompile: the compiler refuses it for memory.
    """
    sampling = config.sampling
    device = topology.device if topology.known else None
    shards = sharding.shards(mesh, "batch")
    most = rollouts_per_dispatch(config, model_config, mesh, device)
    shape = unit_shape(config.problems_per_batch, config.group_size, most, batch_shards=shards)
    params = model.abstract_sampling_params(model_config, mesh)
    _, copy = held_bytes(model_config, mesh)
    unit = abstract_unit(shape, sampling.max_prompt_tokens, mesh)
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding.replicated(mesh))
    start = time.perf_counter()
    program = compiled_for(
        sample_unit.lower(
            params, unit, scalar, scalar, config=model_config, max_tokens=sampling.max_tokens, stop_tokens=(0,),
            routing=config.loss.routing != "own", mesh=mesh,
        )
    )  # fmt: skip
    stats: Any = program.memory_analysis()
    size = bytes_of(params, host=False)
    sent, launches = token_loop(program.as_text() or "", num_devices=topology.size)
    hosts = topology.hosts_of(mesh)
    return UnitFacts(
        problems=shape.problems,
        rollouts=shape.rollouts,
        shards=shards,
        weights=copy,
        temporaries=stats.temp_size_in_bytes,
        moved=stats.argument_size_in_bytes - size + stats.output_size_in_bytes,
        wire_bytes=sum(one.count * one.wire_bytes for one in sent),
        wire_s=sum(one.count * wire_seconds(one, topology.device, hosts) for one in sent),
        launches=launches if topology.compiler == "gpu" else 0,
        compile_s=time.perf_counter() - start,
    )


def abstract_unit(shape: UnitShape, prompt: int, mesh: Mesh) -> Unit:
    """Shapes, dtypes and shardings of a unit, as the sampler in process places it."""

    def array(dtype: Any, *size: int) -> Any:
        axes = ("batch", None)[: len(size)]
        return jax.ShapeDtypeStruct(size, dtype, sharding=sharding.named_sharding(mesh, size, axes))

    problems, rollouts = shape.problems, shape.rollouts
    return Unit(
        tokens=array(jnp.int32, problems, prompt),
        mask=array(jnp.bool_, problems, prompt),
        key_words=array(jnp.uint32, problems, 5),
        rollouts=array(jnp.uint32, problems, rollouts),
        budgets=array(jnp.int32, problems, rollouts),
        active=array(jnp.bool_, problems),
    )


def keys_bytes(config: RunConfig, model_config: ModelConfig, facts: UnitFacts) -> float:
    """Of one device: keys and values of all positions that a unit's rollouts may reach, and of its prompts."""
    width = jnp.dtype(model_config.dtype).itemsize
    token = 2.0 * width * model_config.num_layers * model_config.num_kv_heads * model_config.head_dim
    rows, sampling = facts.problems / facts.shards, config.sampling
    positions = rows * (facts.rollouts * max(1, sampling.max_tokens - 1) + sampling.max_prompt_tokens)
    return token / config.mesh.tensor * positions


def unit_time(
    config: RunConfig, model_config: ModelConfig, device: Device, lengths: Lengths, facts: UnitFacts
) -> Range:
    """Seconds of one unit, until the longest of its rollouts has stopped.

    At the quick end a token takes as long as the slowest of memory, links and products, at the slow end all of them one
    after the other.
    """
    rows, tensor = facts.problems / facts.shards, config.mesh.tensor
    local = rows * facts.rollouts
    weights = float(jnp.dtype(model_config.dtype).itemsize) * model.count_params(model_config) / tensor
    matrices = 2.0 * (active_matrices(model_config) + head_matrix(model_config))
    pairs = 4.0 * model_config.num_layers * model_config.num_heads * model_config.head_dim
    reach = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    products = local * (matrices + pairs * reach) / tensor
    scores = SCORE_BYTES * local * model_config.num_layers * model_config.num_heads * reach / tensor
    moved = weights + keys_bytes(config, model_config, facts) + scores
    read = 2.0 * active_matrices(model_config) * rows * config.sampling.max_prompt_tokens / tensor
    rounds = int(lengths.sample(facts.together).max()) - 1
    found = []
    for end, together in ((0, max), (1, sum)):
        parts = (
            moved / (device.memory_bandwidth * BANDWIDTH[end]),
            facts.wire_s / BANDWIDTH[end],
            products / (device.flops * PRODUCTS[end]),
        )
        token = together(parts) + facts.launches * LAUNCH[end]
        found.append(read / (device.flops * PRODUCTS[end]) + rounds * token)
    return Range(*found)
