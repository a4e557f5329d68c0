"""Programs of the next size, compiled while this one's steps are made: none is left to the switch, no bit differs."""

import dataclasses
import threading
import types
from typing import Any

import jax
import pytest

from isocompute_jax.allocation.auto import Controller
from isocompute_jax.allocation.schedule import BatchSize, ScheduleConfig
from isocompute_jax.compiling import WRITTEN
from isocompute_jax.experiment import ahead, loop
from isocompute_jax.experiment.config import MeshConfig, PackingConfig, RecipeConfig
from isocompute_jax.experiment.loop_state import Ledger
from isocompute_jax.model import LoraConfig
from isocompute_jax.records import run_files
from tests.experiment import builders


@pytest.fixture(scope="module")
def compiled():
    """(step, thread) of each program that is compiled, one after the other."""
    found: list[tuple[int, str]] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event == WRITTEN:
            found.append((STEP[0], threading.current_thread().name))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


STEP = [0]


def run(config, path, compiled, *, on: bool) -> list[tuple[int, str]]:
    """Makes a run in which nothing is compiled yet; what it compiled."""
    jax.clear_caches()
    compiled.clear()
    step = loop.step

    def noted(parts, state):
        STEP[0] = state.step + 1
        return step(parts, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "step", noted)
        patch.setattr(loop, "compiles_ahead", lambda parts: on)
        loop.train(config, path)
    return list(compiled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "changes", "left"),
    [
        (ScheduleConfig("4@0,8@64", problems_per_batch="4@0,2@160", noise_every=2), {"mesh": MeshConfig(fsdp=2)}, 0),
        (ScheduleConfig("8@0,16@128"), {"packing": PackingConfig(trees="on")}, 0),
        (ScheduleConfig("4@0,8@64", noise_every=2), {"lora": LoraConfig(2), "recipe": RecipeConfig(epochs=2)}, 0),
        (
            ScheduleConfig("4@0,8@64", noise_every=2),
            {"lora": LoraConfig(2), "recipe": RecipeConfig(epochs=2), "mesh": MeshConfig(fsdp=2)},
            0,
        ),
        # the units of a deal depend on it
        (ScheduleConfig("4@0,8@64", per_problem="variance"), {"recipe": RecipeConfig(epochs=2, minibatches=2)}, 1),
    ],
    ids=["padded on two devices", "trees", "adapters", "adapters on two devices", "dealt"],
)
def test_a_switch_compiles_nothing(base_run, schedule, changes, left, compiled, tmp_path):
    evaluation = dataclasses.replace(base_run.evaluation, points=2)
    config = dataclasses.replace(base_run, max_compute=256, schedule=schedule, evaluation=evaluation, **changes)
    without = run(config, tmp_path / "without", compiled, on=False)
    found = run(config, tmp_path / "with", compiled, on=True)
    builders.assert_same_run(tmp_path / "with", tmp_path / "without")
    lines = builders.log_lines(tmp_path / "with", run_files.METRICS)
    sizes = [(line["group_size"], line["problems_per_batch"]) for line in lines]
    switches = [step + 1 for step in range(1, len(sizes)) if sizes[step] != sizes[step - 1]]
    assert switches
    for step in switches:
        assert found.count((step, "MainThread")) <= left < 2 <= without.count((step, "MainThread"))
    assert {thread for _, thread in without} == {"MainThread"}
    assert {thread for _, thread in found} == {"MainThread", "ahead"}


@dataclasses.dataclass
class Program:
    """Compiles nothing, once it may."""

    may: threading.Event
    done: int = 0
    fault: Exception | None = None

    def __call__(self) -> None:
        assert self.may.wait(10)
        self.done += 1
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def following(monkeypatch):
    """An `Ahead`, what it compiles for 2 x 8 rollouts, and how to tell it that the next size is another."""
    programs = [Program(threading.Event()), Program(threading.Event())]
    monkeypatch.setattr(ahead, "sizes_after", lambda parts, state: state.sizes)
    monkeypatch.setattr(ahead, "programs_of", lambda parts, learner, size: programs)
    compiling = ahead.Ahead(True)
    yield compiling, programs
    for program in programs:
        program.may.set()
    compiling.close()


def comes(*sizes: BatchSize) -> Any:
    return types.SimpleNamespace(learner=None, sizes=list(sizes))


def test_each_size_is_begun_once_and_waited_for(following):
    compiling, programs = following
    size = BatchSize(2, 8)
    for _ in range(3):
        compiling.follow(None, comes(size))
    compiling.wait(BatchSize(2, 4))  # of another nothing is being compiled
    assert [program.done for program in programs] == [0, 0]
    for program in programs:
        program.may.set()
    compiling.wait(size)
    compiling.follow(None, comes(size))
    compiling.follow(None, comes())
    assert [program.done for program in programs] == [1, 1]


def test_what_fails_ahead_is_said_and_left_to_the_switch(following, caplog):
    compiling, programs = following
    programs[0].fault = RuntimeError("no room")
    programs[0].may.set()
    compiling.follow(None, comes(BatchSize(2, 8)))
    compiling.wait(BatchSize(2, 8))
    [record] = caplog.records
    assert "steps of 2 x 8 rollouts were not compiled ahead" in record.message and "no room" in record.message
    assert programs[1].done == 0


def test_a_run_that_ends_begins_no_further_program(following):
    compiling, programs = following
    compiling.follow(None, comes(BatchSize(2, 8)))
    threading.Timer(0.1, programs[0].may.set).start()
    compiling.close()
    programs[1].may.set()
    assert [program.done for program in programs] == [1, 0]


@pytest.mark.parametrize(
    ("schedule", "compute", "n", "after"),
    [
        (ScheduleConfig("4@0,8@128", problems_per_batch="4@0,2@128"), 0, 0, [BatchSize(2, 8)]),
        (ScheduleConfig("4@0,8@128,8@200,16@300"), 128, 0, [BatchSize(4, 16)]),
        (ScheduleConfig("4@0,8@128"), 128, 0, []),
        (ScheduleConfig("4@0,64@1400"), 0, 0, []),  # which no step is paid of
        (ScheduleConfig("auto", largest=16), 128, 8, [BatchSize(4, 16)]),
        (
            ScheduleConfig("auto", problems_per_batch="4@0,2@512"),
            128,
            8,
            [BatchSize(4, 16), BatchSize(4, 32), BatchSize(2, 8)],
        ),
        (ScheduleConfig("auto", largest=16), 128, 16, []),
        (ScheduleConfig("auto"), 1500, 8, []),
    ],
)
def test_the_sizes_that_may_come_next(base_run, schedule, compute, n, after):
    config = dataclasses.replace(base_run, schedule=schedule, max_compute=1536)
    state: Any = types.SimpleNamespace(
        ledger=Ledger(compute=compute), controller=Controller(n, schedule.largest) if n else None, group_size=n
    )
    parts: Any = types.SimpleNamespace(config=config)
    assert ahead.sizes_after(parts, state) == after
