"""How many rollouts the sampler in the learner's process decodes at once: as many as its devices have room for."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.accelerators import GIB, Device, claimed, known_device
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.sampling.units import UnitShape, largest_unit, unit_bytes

ELSEWHERE = 512
"""Rollouts at once on devices whose memory is not known, as that of CPUs is not."""
MOMENTS = {"float32": 2.0, "bfloat16": 1.0, "host": 0.0}
"""Of `optimizer.moments`: what lies on the device, in copies of the master weights."""
REMEDY = (
    "sample from vLLM servers, which hold the keys of what has been drawn and no more (--config.service.endpoints, "
    "docs/clusters.md)"
)


def device_of(mesh: Mesh | None) -> Device | None:
    """What is known of the devices that a run samples on in its process; None for CPUs."""
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    known = known_device(device.device_kind)
    return None if known is None else claimed(known)


def rollouts_per_dispatch(
    config: RunConfig, model_config: ModelConfig, mesh: Mesh | None, device: Device | None
) -> int:
    """Completions decoded at once: `sampling.max_rollouts_per_dispatch`, or what has room beside the learner's state.

    Args:
      config: the run's, resolved.
      model_config: its model.
      mesh: of the learner, which samples on it in turns.
      device: what is known of its devices; None where that is nothing.

    Raises:
      InputError: not one rollout a device has room; or the config wants more than JAX takes of them.
    """
    sampling, most = config.sampling, config.sampling.max_rollouts_per_dispatch
    if device is None:
        return most or ELSEWHERE
    shards, tensor = sharding.shards(mesh, "batch"), config.mesh.tensor
    masters = _share(model.abstract_params(model_config, model_config.float_dtype), model_config, mesh)
    copy = 0.0 if model_config.dtype == "float32" else masters / 2
    lengths = {"prompt": sampling.max_prompt_tokens, "tokens": sampling.max_tokens}
    if most:
        one = UnitShape(shards, max(most // shards, 1))
        needed = unit_bytes(model_config, one, **lengths, batch_shards=shards, tensor=tensor)
        taken = device.share * device.memory
        if masters + copy + needed <= taken:
            return most
        raise InputError(
            f"config.sampling.max_rollouts_per_dispatch = {most}: their keys and values, of up to "
            f"{sum(lengths.values()):,} tokens each, take {needed / GIB:.0f} GiB of each device, which has "
            f"{taken / GIB:.0f} for weights too. Set it to 0, for as many as have room; or {REMEDY}"
        )
    state = masters * (1 + MOMENTS[config.optimizer.moments] + bool(config.loss.kl_coef))
    room = device.usable - state - copy
    found = largest_unit(
        model_config, room, group_size=_smallest_group(config), **lengths, batch_shards=shards, tensor=tensor
    )
    if not found:
        raise InputError(
            f"config.sampling.max_tokens = {sampling.max_tokens}: beside the learner's state ({state / GIB:.0f} GiB of "
            f"each device, which has {device.usable / GIB:.0f}) there is no room to sample one rollout of that length "
            f"in the learner's process. Lower it, or {REMEDY}"
        )
    return found


def _smallest_group(config: RunConfig) -> int:
    """Rollouts that share a prompt, at least: in training, in evaluation, and where rollouts have several turns."""
    sampling, evaluation = config.sampling, config.evaluation
    if sampling.thinking.high or sampling.tool.name != "none":
        return 1
    return min(config.group_size, evaluation.samples or evaluation.k) if evaluation.sets else config.group_size


def check_dispatch(config: RunConfig, model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Raises InputError where a run samples in its own process, and its devices have no room for that."""
    if not config.service.remote:
        rollouts_per_dispatch(config, model_config, mesh, device_of(mesh))


def _share(params: Any, model_config: ModelConfig, mesh: Mesh | None) -> float:
    """Bytes of abstract parameters that each device has."""
    if mesh is None:
        return float(sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(params)))
    parts = jax.tree.map(
        lambda x, where: math.prod(where.shard_shape(x.shape)) * x.dtype.itemsize,
        params,
        model.param_shardings(model_config, mesh),
    )
    return float(sum(jax.tree.leaves(parts)))
