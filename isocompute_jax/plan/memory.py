"""Where a device's memory goes in the learner's step, by the compiler's own account."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from isocompute_jax.accelerators import Device
from isocompute_jax.learner import TrainState
from isocompute_jax.learner.state import HOST


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    params: float  # master weights
    gradients: float  # summed over micro-batches, among the temporaries
    moments: float  # of the optimizer, on the device
    batch: float  # everything else that comes in: tokens, credit, reference weights
    temporaries: float  # the others: activations, gathered weights, one micro-batch's gradients
    outputs: float  # that reuse no argument
    peak: float  # arguments + outputs - aliased + temporaries
    on_host: float  # of the state, in the host's memory

    def free(self, device: Device) -> float:
        """What the step and the stated reserve leave of what JAX takes; negative where it does not fit."""
        return device.usable - self.peak


def memory_of(program: jax.stages.Compiled, state: TrainState) -> Memory:
    """The compiler's analysis, divided by what the state says of its own size."""
    stats: Any = program.memory_analysis()
    params, moments = bytes_of(state.params, host=False), bytes_of(state.opt_state, host=False)
    gradients = params  # of the same shapes and dtypes
    temporaries, outputs = stats.temp_size_in_bytes, stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Memory(
        params=params,
        gradients=min(gradients, temporaries),
        moments=moments,
        batch=stats.argument_size_in_bytes - params - moments,
        temporaries=max(temporaries - gradients, 0.0),
        outputs=outputs,
        peak=stats.argument_size_in_bytes + outputs + temporaries,
        on_host=bytes_of(state.params, host=True) + bytes_of(state.opt_state, host=True),
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
