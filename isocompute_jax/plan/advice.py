"""Which knob to turn where a step does not fit, and by how much: each is compiled, not guessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.plan.compile import DoesNotCompile, compile_step
from isocompute_jax.plan.memory import memory_of
from isocompute_jax.plan.topology import Topology
from isocompute_jax.records.errors import InputError

POLICIES = ("none", "dots", "attention_output", "full")
"""Of `compute.remat`, each keeping less than the one before."""


@dataclasses.dataclass(frozen=True)
class Knob:
    """A change of the config.

    Attributes:
      flags: that make it.
      saves: bytes of each device.
      fits: whether the step then fits, reserve included.
    """

    flags: tuple[str, ...]
    saves: float
    fits: bool


def advise(config: RunConfig, topology: Topology, peak: float) -> Iterator[Knob]:
    """Changes that make a step smaller, one by one and then added up until it fits; the cheapest come first.

    Args:
      config: of the step.
      topology: that it was compiled for.
      peak: bytes that it needs.
    """
    budget = topology.device.memory - topology.device.reserve
    useful: dict[str, object] = {}
    single: list[tuple[str, float]] = []
    for field, value in candidates(config):
        needed = _peak(override(config, field, value), topology)
        if needed is None or needed >= peak:
            continue
        single.append((field, peak - needed))
        useful[field] = value
        yield Knob((_flag(field, value),), peak - needed, needed <= budget)
        if needed <= budget:
            return
    if len(useful) > 1:
        changed = config
        for field, value in useful.items():
            changed = override(changed, field, value)
        needed = _peak(changed, topology)
        if needed is not None:
            flags = tuple(_flag(field, value) for field, value in useful.items())
            yield Knob(flags, peak - needed, needed <= budget)


def candidates(config: RunConfig) -> Iterator[tuple[str, object]]:
    """Fields and values that take less memory: those that cost no time first, host memory last."""
    smallest = max(config.packing.row_tokens, 1)
    if config.recipe.microbatch_tokens > smallest:
        yield "recipe.microbatch_tokens", max(config.recipe.microbatch_tokens // 2, smallest)
    if config.compute.remat in POLICIES:
        for policy in POLICIES[POLICIES.index(config.compute.remat) + 1 :]:
            yield "compute.remat", policy
    if config.optimizer.moments == "float32":
        yield "optimizer.moments", "bfloat16"
    if config.loss.chunk_tokens is not None and config.loss.chunk_tokens > 1024:
        yield "loss.chunk_tokens", config.loss.chunk_tokens // 4
    if config.optimizer.moments != "host":
        yield "optimizer.moments", "host"


def _peak(config: RunConfig, topology: Topology) -> float | None:
    """Bytes that a config needs; None where it cannot be compiled at all."""
    try:
        compiled = compile_step(config, topology)
    except DoesNotCompile as error:
        return error.needed
    except InputError:
        return None
    return memory_of(compiled.program, compiled.state).peak


def _flag(field: str, value: object) -> str:
    return f"--config.{field}={value}"
