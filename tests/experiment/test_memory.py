"""Sizes that no memory holds are refused before a run starts; where memory runs out, step and remedy are named."""

import dataclasses
import types
from typing import Any

import jax
import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.accelerators import GIB
from isocompute_jax.allocation.schedule import BatchSize, ScheduleConfig
from isocompute_jax.experiment import loop, memory
from isocompute_jax.records.errors import InputError
from tests.experiment import builders

LENGTHS: dict[str, Any] = {"max_prompt_tokens": 5, "max_tokens": 7, "microbatch_tokens": 64}


@pytest.mark.parametrize(
    "shape",
    [
        learner.batch_shape(problems_per_batch=6, group_size=8, **LENGTHS),
        learner.batch_shape(problems_per_batch=6, group_size=8, block=2, routing=(3, 2), **LENGTHS),
        learner.pack_shape(problems_per_batch=6, group_size=8, row_tokens=16, **LENGTHS),
        learner.pack_shape(problems_per_batch=6, group_size=8, row_tokens=16, routing=(3, 2), **LENGTHS),
        learner.tree_shape(problems_per_batch=6, group_size=8, row_nodes=32, **LENGTHS),
    ],
    ids=lambda shape: type(shape).__name__,
)
def test_bytes_are_those_of_the_smallest_batch(shape):
    sizes = [sum(np.asarray(x).nbytes for x in jax.tree.leaves(blank)) for blank in shape.blanks()]
    assert shape.least_bytes == min(sizes) - 4  # how many micro-batches there are
    shapes = {tuple(np.shape(x) for x in jax.tree.leaves(blank)) for blank in shape.blanks()}
    assert len(shapes) == len(getattr(shape, "sizes", [1]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group_size": 64}, "config.group_size = 64: a step of 4 x 64 rollouts of up to 2 tokens takes"),
        ({"schedule": ScheduleConfig("4@0,64@128")}, "config.schedule.group_size = '4@0,64@128': a step of 4 x 64 "),
        (
            {"group_size": 8, "schedule": ScheduleConfig(problems_per_batch="4@0,16@128")},
            "config.schedule.problems_per_batch = '4@0,16@128': a step of 16 x 8 ",
        ),
        (
            {"group_size": 8, "schedule": ScheduleConfig("auto", largest=40)},
            "config.schedule.largest = 40: a step of 4 x 32 ",
        ),
    ],
)
def test_a_size_beyond_the_machine_is_refused(base_run, changes, says, monkeypatch):
    config = dataclasses.replace(base_run, **changes).resolved()
    memory.check_batches(config, builders.MODEL, None, None)
    monkeypatch.setattr(memory, "machine_memory", lambda: 64 * 1100.0)  # which 64 rollouts fit into
    with pytest.raises(InputError) as raised:
        memory.check_batches(config, builders.MODEL, None, None)
    assert str(raised.value).startswith(says) and "of this machine's memory" in str(raised.value)
    memory.check_batches(base_run.resolved(), builders.MODEL, None, None)


def device_of(usable: float) -> Any:
    return types.SimpleNamespace(usable=usable)


def test_a_size_beyond_a_device_is_refused(base_run):
    memory.check_batches(base_run.resolved(), builders.MODEL, None, device_of(GIB))
    with pytest.raises(InputError, match="GiB of each device before anything is computed"):
        memory.check_batches(base_run.resolved(), builders.MODEL, None, device_of(1000.0))


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    machine = memory.machine_memory()
    for text, found in (("1000\n", 1000.0), ("max\n", machine), (f"{2**62}\n", machine)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(memory, "LIMIT", tmp_path / "memory.max")
        assert memory.machine_memory() == found
    monkeypatch.setattr(memory, "LIMIT", tmp_path / "none")
    assert machine >= memory.machine_memory() > GIB / 4


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.\nIn detail:"),
    ],
)
def test_what_ran_out_of_memory_is_named(base_run, tmp_path, error):
    with pytest.raises(memory.OutOfMemory) as raised, memory.named(base_run, tmp_path, 7, BatchSize(4, 64)):
        raise error
    text = str(raised.value)
    assert text.startswith("step 7, of 4 x 64 rollouts, ran out of memory (") and "\n" not in text
    assert "config.recipe.microbatch_tokens = 32 if its update did" in text and "group_size, here 64" in text
    assert "fork" not in text
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    from_checkpoint = pytest.raises(memory.OutOfMemory, match=f"config.fork={tmp_path} goes on from this run's last")
    with from_checkpoint, memory.named(base_run, tmp_path, 7, BatchSize(4, 64)):
        raise error
    with pytest.raises(jax.errors.JaxRuntimeError), memory.named(base_run, tmp_path, 7, BatchSize(4, 64)):
        raise jax.errors.JaxRuntimeError("INTERNAL: no")


def test_an_n_that_no_memory_holds_begins_no_run(base_run, tmp_path):
    config = dataclasses.replace(base_run, max_compute=2**50, schedule=ScheduleConfig(f"4@0,{2**40}@128"))
    with pytest.raises(InputError, match=r"a step of 4 x 1,099,511,627,776 rollouts .* takes [\d,]+ GiB"):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
