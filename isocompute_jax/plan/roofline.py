"""How long a step takes at the published peaks of its devices: an estimate, as a range of stated efficiencies.

Nothing was executed. The quick end overlaps all communication and reaches a good share of the peak; the slow end
overlaps none of it. Where a real step lies between them, only the hardware says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from isocompute_jax.accelerators import Device
from isocompute_jax.model import ModelConfig, count_params
from isocompute_jax.model.flops import Flops, active_matrices, head_matrix
from isocompute_jax.plan.compile import Memory
from isocompute_jax.plan.hlo import Collective
from isocompute_jax.plan.work import Lengths

PRODUCTS = (0.75, 0.45)
"""Share of the peak that matrix products reach: at the quick end, and at the slow one."""
BANDWIDTH = (0.9, 0.6)
"""The same of memory bandwidth, and of links."""
USABLE = 0.9
"""Share of a sampler's memory that weights and keys may take."""
TICK = 64
"""Decoded tokens between two looks at who has finished."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Seconds, or what is made of them: the quick and the slow end."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Range:
        """Both ends multiplied."""
        return Range(self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Estimated seconds of one update, and its parts."""

    products: Range
    memory: Range
    links: Range
    total: Range
    mfu: Range


def step_time(
    device: Device,
    num_devices: int,
    flops: Flops,
    memory: Memory,
    collectives: Sequence[Collective],
    hosts: Sequence[int],
    *,
    gathered_bytes: float,
) -> StepTime:
    """The roofline of an update.

    Args:
      device: what one can do.
      num_devices: how many share the work evenly.
      flops: of the step, over all devices.
      memory: of one device.
      collectives: of the program.
      hosts: of each device, in the order of the mesh; devices of one host are joined by `device.link`.
      gathered_bytes: weights that a device reads for all micro-batches, forward and backward.
    """
    at_peak = (flops.computed / device.flops + flops.computed_float32 / device.flops_float32) / num_devices
    # The update reads gradients, weights and moments, and writes the last two. Moments on the host are not counted.
    moved = memory.gradients + 2 * (memory.params + memory.moments) + gathered_bytes
    in_memory = moved / device.memory_bandwidth
    on_links = sum(one.count * wire_seconds(one, device, hosts) for one in collectives)
    products = Range(*(at_peak / share for share in PRODUCTS))
    reading, sending = (Range(*(seconds / share for share in BANDWIDTH)) for seconds in (in_memory, on_links))
    low = max(products.low, sending.low) + reading.low
    high = products.high + reading.high + sending.high
    mfu = flops.model / (num_devices * device.flops)
    return StepTime(products, reading, sending, Range(low, high), Range(mfu / high, mfu / low))


def wire_seconds(collective: Collective, device: Device, hosts: Sequence[int]) -> float:
    """One run of a collective at full speed: the slower of the links within hosts and those between.

    A ring over several hosts crosses each host's network adapters once; all of a host's members of the group share the
    crossing (hierarchical rings, one through each adapter).
    """
    slowest = collective.wire_bytes / device.link
    for group in collective.groups:
        members = [hosts[i] for i in group if i < len(hosts)]
        if len(set(members)) > 1:
            together = min(members.count(host) for host in set(members))
            slowest = max(slowest, collective.wire_bytes / (together * device.network))
    return slowest


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Estimated sampling of one step's rollouts."""

    seconds: Range  # for all of them, when none is under way before (on-policy)
    steady: Range  # the same when the window never runs empty (asynchronous): no tail
    copies: int  # of the model
    in_flight: int  # rollouts decoded at once, over all copies
    room: int  # for how many the keys have room
    weight_bytes: float  # of a copy, read for each token
    token_bytes: float  # of one token's keys and values, all layers
    tokens_per_s: Range  # decoded, in the steady state


def sampling_time(
    config: ModelConfig,
    device: Device,
    lengths: Lengths,
    *,
    rollouts: int,
    devices: int,
    tensor: int,
    in_flight: int,
) -> Sampling:
    """The decode roofline of servers: each token reads the weights once for all rollouts of a copy, and each its keys.

    Args:
      config: the model, sampled in bfloat16.
      device: of the sampler.
      lengths: of rollouts.
      rollouts: of one step.
      devices: of the sampler.
      tensor: devices that hold one copy.
      in_flight: decoded at once, over all copies; 0 for as many as there are and memory holds.
    """
    copies = max(devices // tensor, 1)
    weights = 2.0 * count_params(config)
    token_bytes = 2.0 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    spare = USABLE * device.memory * tensor - weights
    room = copies * max(int(spare / (token_bytes * lengths.context)), 0)
    slots = min(in_flight or rollouts, max(room, copies), rollouts)
    per_copy = -(-slots // copies)
    drawn = lengths.sample(-(-rollouts // copies))

    def tick(batch: int, context: float, end: int) -> float:
        """Seconds for one more token of each of `batch` rollouts of a copy."""
        read = _weights_read(config, weights, batch) + batch * context * token_bytes
        width = 4.0 * config.num_layers * config.num_heads * config.head_dim
        products = batch * (2.0 * (active_matrices(config) + head_matrix(config)) + width * context)
        return max(
            read / (tensor * device.memory_bandwidth * BANDWIDTH[end]),
            products / (tensor * device.flops * PRODUCTS[end]),
        )

    prefill = 2.0 * active_matrices(config) * lengths.prompt * len(drawn)  # of each rollout: prompts are not shared
    seconds, steady, rates = [], [], []
    for end in (0, 1):
        once = prefill / (tensor * device.flops * PRODUCTS[end])
        full = tick(per_copy, lengths.context, end)
        seconds.append(
            once + _until_all_finished(drawn, per_copy, lengths.prompt, lambda b, c, end=end: tick(b, c, end))
        )
        steady.append(once + full * float(drawn.sum()) / per_copy)
        rates.append(copies * per_copy / full)
    return Sampling(
        Range(*seconds), Range(*steady), copies, slots, room, weights, token_bytes, Range(min(rates), max(rates))
    )


def _weights_read(config: ModelConfig, weights: float, batch: int) -> float:
    """Of experts, those that some rollout of the batch is sent to, if all are equally liked."""
    if not config.num_experts:
        return weights
    experts = 2.0 * 3 * config.num_layers * config.num_experts * config.embed_dim * config.mlp_dim
    touched = 1 - (1 - config.experts_per_token / config.num_experts) ** batch
    return weights - experts * (1 - touched)


def _until_all_finished(lengths: np.ndarray, slots: int, prompt: float, tick: Callable[[int, float], float]) -> float:
    """Seconds until rollouts of these lengths are done, each slot taking the next when its own has finished."""
    waiting = list(lengths[slots:][::-1])
    left = lengths[:slots].astype(float).copy()
    done = np.zeros(len(left))
    total = 0.0
    while len(left):
        stride = min(TICK, float(left.min()))
        total += stride * tick(len(left), prompt + float(done.mean()))
        left, done = left - stride, done + stride
        for slot in np.flatnonzero(left <= 0):
            if waiting:
                left[slot], done[slot] = waiting.pop(), 0.0
        keep = left > 0
        left, done = left[keep], done[keep]
    return total
