"""Which knob to turn where a step does not fit, and by how much: each is compiled, not guessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.plan.compile import DoesNotCompile, compile_step
from isocompute_jax.plan.memory import memory_of
from isocompute_jax.plan.topology import Topology
from isocompute_jax.records.errors import InputError

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
    return memory_of(compiled.program, compiled.state).peak


def _flags(changes: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"--config.{field}={value}" for field, value in changes.items())
