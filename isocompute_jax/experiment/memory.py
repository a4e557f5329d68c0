"""Memory that the batches of a run take: sizes that no memory holds are refused before it starts.

What is certain then is counted, and no more: the arrays of a step's batch on the devices and on the host, and the
records of its rollouts. What an update needs beside them grows with `recipe.microbatch_tokens`, and what sampling needs
with `sampling.max_rollouts_per_dispatch`: n changes neither. A dry run (`train --dry_run`) counts all of it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from isocompute_jax import sharding
from isocompute_jax.accelerators import GIB, Device
from isocompute_jax.allocation.auto import doubled
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.layouts import shape_of
from isocompute_jax.learner import checkpoint
from isocompute_jax.model import ModelConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import CONFIG, InputError, RunError

ROLLOUT_BYTES = 600
"""Of the record of a rollout, four arrays, beside its tokens."""
LIMIT = pathlib.Path("/sys/fs/cgroup/memory.max")
"""What a container may have; says `max` without a limit."""


class OutOfMemory(RunError):
    """A step did not fit: what it was computed from may be gone, so that nothing is checkpointed."""


def check_batches(config: RunConfig, model_config: ModelConfig, mesh: Mesh | None, device: Device | None) -> None:
    """Holds every size of a run's batches to the memory that there is.

    Args:
      config: the run's.
      model_config: the model's shape.
      mesh: the learner's.
      device: what is known of its devices; None where that is nothing, as of CPUs.

    Raises:
      InputError: the batch of a step takes more than a device, or this machine, has.
    """
    of_device, of_machine = device.usable if device else float("inf"), machine_memory()
    for field, size in sizes_of(config):
        problems = config.of_size(size).problems_laid_out
        shape = shape_of(config, model_config, problems, size.group_size, mesh, block=config.block)
        for needed, have, whose in (
            (shape.least_bytes / sharding.shards(mesh, shape.axis), of_device, "of each device"),
            (shape.least_bytes + ROLLOUT_BYTES * size.rollouts, of_machine, "of this machine's memory"),
        ):
            if needed > have:
                raise InputError(
                    f"{field}: a step of {size.problems:,} x {size.group_size:,} rollouts of up to "
                    f"{config.sampling.max_tokens:,} tokens takes {needed / GIB:,.0f} GiB {whose} before anything is "
                    f"computed, and there are {have / GIB:,.0f}: end at a smaller n, or lower "
                    f"{CONFIG.problems_per_batch} or {CONFIG.sampling.max_tokens}"
                )


def sizes_of(config: RunConfig) -> Iterator[tuple[str, BatchSize]]:
    """The sizes that a run may come to, and the field that says so."""
    schedule, field = config.schedule, f"{CONFIG.group_size} = {config.group_size}"
    if schedule.text:
        field = f"{CONFIG.schedule.group_size} = {schedule.group_size!r}"
    if schedule.problems_per_batch and not schedule.group_size:
        field = f"{CONFIG.schedule.problems_per_batch} = {schedule.problems_per_batch!r}"
    for size in config.batch_sizes:
        yield field, size
    if schedule.kind == "auto":
        largest = BatchSize(
            max(size.problems for size in config.batch_sizes), doubled(config.group_size, schedule.largest)
        )
        if largest.rollouts <= config.max_compute:
            yield f"{CONFIG.schedule.largest} = {schedule.largest}", largest


def machine_memory() -> float:
    """Bytes that this process may have: the machine's, or its container's."""
    found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):
        found = min(found, float(LIMIT.read_text()))
    return found


@contextlib.contextmanager
def named(config: RunConfig, path: pathlib.Path, step: int, size: BatchSize) -> Iterator[None]:
    """Around a step: where memory runs out it is said of which step, and what to do.

    Raises:
      OutOfMemory: it did.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        forked = checkpoint.names(path / run_files.CHECKPOINTS)
        raise OutOfMemory(
            f"step {step}, of {size.problems} x {size.group_size} rollouts, ran out of memory ({why:.200}): lower "
            f"{CONFIG.recipe.microbatch_tokens} = {config.recipe.microbatch_tokens} if its update did, "
            f"{CONFIG.sampling.max_rollouts_per_dispatch} if its sampling did, or group_size, here {size.group_size}; "
            "with another --workdir"
            + (f", where {CONFIG.fork}={path} goes on from this run's last checkpoint" if forked else "")
        ) from error
