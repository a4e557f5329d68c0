"""Checkpoints: written in the background, whole or absent, checked before they are read, kept or deleted as told."""

import contextlib
import errno
import gc
import json
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from isocompute_jax.learner import TrainState, checkpoint
from isocompute_jax.learner.checkpoint import Checkpointer, Mark, Retention, names
from isocompute_jax.records import checksums
from isocompute_jax.records.errors import InputError, RunError

LOOP = {"ledger": {"step": 3}, "stream": [1, 2.5, None]}


def state_of(step: int, sharding=None) -> TrainState:
    """Every number depends on the step; one array is too large to be stored inline in the index."""
    rng = np.random.default_rng(step)
    arrays = {"w": rng.standard_normal((256, 16), np.float32), "b": rng.standard_normal(8, np.float32)}
    state = TrainState(np.int32(step), arrays, {"mu": {name: x.astype(jnp.bfloat16) for name, x in arrays.items()}})
    return jax.tree.map(jnp.asarray if sharding is None else lambda x: jax.device_put(x, sharding(x)), state)


def over(*devices) -> object:
    """Shardings of the first dimension over devices, where it can be cut."""
    mesh = jax.sharding.Mesh(np.array(devices), ("fsdp",))
    return lambda x: NamedSharding(mesh, PartitionSpec("fsdp" if x.ndim == 2 else None) if x.ndim else PartitionSpec())


def assert_equal(ours: TrainState, theirs: TrainState) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def saved(directory: pathlib.Path, *steps: int, **options) -> Checkpointer:
    """A checkpointer that has saved these steps, and has been left."""
    with Checkpointer(directory, state_of(0), **options) as checkpointer:
        for step in steps:
            checkpointer.save(state_of(step), LOOP)
    return checkpointer


def restored(directory: pathlib.Path) -> int | None:
    """What a new process restores, compared with what was saved."""
    with Checkpointer(directory, state_of(0)) as checkpointer:
        found = checkpointer.restore()
        if found is None:
            return None
        state, loop = found
        assert_equal(state, state_of(int(state.step)))
        assert {**loop, "mark": None} == {**LOOP, "mark": None}
        return int(state.step)


# --- written in the background


@pytest.fixture
def held(monkeypatch):
    """Storage that is slow: nothing becomes whole until the event is set."""
    event, write = threading.Event(), checksums.write_sums

    def slowly(directory, **options):
        assert event.wait(30)
        write(directory, **options)

    monkeypatch.setattr(checksums, "write_sums", slowly)
    yield event
    event.set()


def test_a_step_does_not_wait_and_may_overwrite_what_is_being_saved(held, tmp_path):
    with Checkpointer(tmp_path, state_of(0)) as checkpointer:
        state = state_of(1)
        checkpointer.save(state, LOOP)
        assert checkpointer.busy and names(tmp_path) == []  # it returned, and nothing is whole
        update = jax.jit(lambda state: jax.tree.map(lambda x: x * 0, state), donate_argnums=0)
        jax.block_until_ready(update(state))
        held.set()
        checkpointer.wait()
        assert not checkpointer.busy and names(tmp_path) == [1]
    assert restored(tmp_path) == 1


def test_what_was_saved_can_be_donated(tmp_path, monkeypatch):
    """Its memory is used again: a copy would be a second state."""
    monkeypatch.setattr(checkpoint, "WAITED_S", 60.0)  # on a busy machine a small one takes its time too
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = jax.block_until_ready(step(state_of(3)))
    with Checkpointer(tmp_path, state_of(0)) as checkpointer:
        checkpointer.save(state, LOOP)
        checkpointer.wait_before_donation()
        assert not checkpointer.busy
        before = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state.params)]
        after = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(step(state).params)]
    assert after == before


def test_who_asks_before_the_first_save_makes_nothing(tmp_path):
    """Of several processes only one asks, and orbax has all of them meet when its manager is made."""
    with Checkpointer(tmp_path / "run", state_of(1)) as checkpointer:
        assert not checkpointer.busy
    assert not (tmp_path / "run").exists()


def test_leaving_waits_and_so_does_the_next(held, tmp_path):
    with Checkpointer(tmp_path, state_of(0)) as checkpointer:
        checkpointer.save(state_of(1), LOOP)
        threading.Timer(0.05, held.set).start()
        checkpointer.save(state_of(2), LOOP)
        assert names(tmp_path) == [1]
    assert sorted(names(tmp_path)) == [1, 2]


def test_the_same_step_is_saved_once(tmp_path):
    saved(tmp_path, 1, 1)
    before = (tmp_path / "1").stat()
    saved(tmp_path, 1)
    assert (tmp_path / "1").stat() == before


def test_what_a_killed_process_left_is_not_restored_and_goes(tmp_path):
    saved(tmp_path, 1)
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    assert restored(tmp_path) == 1
    saved(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


# --- a disk that is full


@contextlib.contextmanager
def largest_file(size: int):
    """A limit on the size of files: writes fail in orbax's threads as on a full disk, and it needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # other writes, which orbax gives up
def test_a_failed_write_is_said_by_the_next_save_which_may_succeed(tmp_path):
    with Checkpointer(tmp_path, state_of(0)) as checkpointer:
        checkpointer.save(state_of(1), LOOP)
        checkpointer.wait()
        with largest_file(4096):
            checkpointer.save(state_of(2), LOOP)
            with pytest.raises(OSError, match="File too large") as caught:
                checkpointer.save(state_of(3), LOOP)
        assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "2")
        assert names(tmp_path) == [1]
        checkpointer.save(state_of(3), LOOP)
    assert restored(tmp_path) == 3
    del caught, checkpointer
    gc.collect()  # so that those are met here


def test_a_failed_write_is_said_at_the_end(tmp_path, monkeypatch, caplog):
    def fails(*_, **__):
        raise ValueError("the storage is gone")

    monkeypatch.setattr(checksums, "write_sums", fails)
    with pytest.raises(RunError, match=r"/2 could not be written \(the storage is gone\). Earlier ones are kept"):
        saved(tmp_path, 2)
    with pytest.raises(KeyError), Checkpointer(tmp_path, state_of(0)) as checkpointer:  # the end has its own reason
        checkpointer.save(state_of(2), LOOP)
        raise KeyError
    assert "the storage is gone" in caplog.text and names(tmp_path) == []


def test_no_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 20, 1 << 20, 0))
    with pytest.raises(OSError, match="No space left on device"):
        saved(tmp_path, 1)
    assert not list(tmp_path.iterdir())


# --- damaged


def largest(path: pathlib.Path) -> pathlib.Path:
    return max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def garble(file: pathlib.Path, place: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 0x10
    file.write_bytes(data)


DAMAGES = {
    "a byte of an array": lambda path: garble(largest(path)),
    "the end of an array": lambda path: largest(path).write_bytes(largest(path).read_bytes()[:-1]),
    "an array": lambda path: largest(path).unlink(),
    "an index": lambda path: garble(path / "state" / "manifest.ocdbt"),
    "the shapes": lambda path: (path / "state" / "_METADATA").write_text("{"),
    "half of the loop's JSON": lambda path: (path / "loop" / "metadata").write_text('{"ledger": {"st'),
    "all arrays": lambda path: shutil.rmtree(path / "state"),
    "everything": lambda path: [shutil.rmtree(path), path.mkdir()],
    "the checksums": lambda path: (path / checksums.SUMS).unlink(),
    "the end of the checksums": lambda path: (path / checksums.SUMS).write_text(""),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_restored(what, tmp_path, caplog):
    saved(tmp_path, 1, 2)
    DAMAGES[what](tmp_path / "2")
    assert restored(tmp_path) == 1
    [warning] = [record.getMessage() for record in caplog.records if record.name.startswith("isocompute_jax")]
    assert warning.startswith("checkpoint 2 is damaged: ") and "2.corrupt" in warning
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2.corrupt"]


def test_the_step_of_a_damaged_checkpoint_can_be_saved_again(tmp_path):
    saved(tmp_path, 1, 2)
    for found in (["1", "2.corrupt"], ["1", "2.corrupt", "2.corrupt.1"]):
        garble(largest(tmp_path / "2"))
        assert restored(tmp_path) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == found
        saved(tmp_path, 2)
    assert restored(tmp_path) == 2


def test_every_byte_that_matters_is_checked(tmp_path):
    """Of each file one byte, but of those in which orbax notes times, and which it can do without."""
    saved(tmp_path / "whole", 1)
    files = [file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*") if file.is_file()]
    assert len(files) > 8
    for number, name in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", copy)
        garble(copy / name)
        if name.name in ("_CHECKPOINT_METADATA", "commit_success.txt") and name.parent.name == "1":
            assert restored(copy) == 1
        else:
            with pytest.raises(InputError, match=r"no checkpoint is whole \(1.corrupt\)"):
                restored(copy)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(tmp_path):
    saved(tmp_path, 1, 2)
    for step in (1, 2):
        garble(largest(tmp_path / str(step)))
    for _ in range(2):  # nor when it is started once more
        with pytest.raises(InputError, match=r"no checkpoint is whole \(1.corrupt, 2.corrupt\)"):
            restored(tmp_path)
    (tmp_path / "1.corrupt").rename(tmp_path / "1")
    garble(largest(tmp_path / "1"))  # the same bit again
    assert restored(tmp_path) == 1


def test_checkpoints_of_earlier_releases_have_no_checksums(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "1" / checksums.SUMS).unlink()
    (tmp_path / "1" / "loop" / "metadata").write_text(json.dumps(LOOP))
    assert restored(tmp_path) == 1
    # What orbax reads first and alone: a read that fails beside others is outlived by them, and they then find no loop.
    (tmp_path / "1" / "state" / "_METADATA").write_text("{")
    with pytest.raises(RunError, match=r"/1 cannot be read .* move it away"):
        restored(tmp_path)


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert restored(tmp_path / "new") is None


# --- elsewhere


def test_a_checkpoint_is_restored_onto_another_mesh(tmp_path):
    eight, two, one = jax.devices()[:8], jax.devices()[:2], jax.devices()[:1]
    for here, there in ((eight, two), (two, one), (one, eight)):
        directory = tmp_path / f"{len(here)}"
        with Checkpointer(directory, state_of(0, over(*here))) as checkpointer:
            checkpointer.save(state_of(1, over(*here)), LOOP)
        like = state_of(0, over(*there))
        with Checkpointer(directory, like) as checkpointer:
            state, _ = checkpointer.restore() or pytest.fail("nothing there")
        assert_equal(state, state_of(1))
        same = jax.tree.map(lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim), state, like)
        assert all(jax.tree.leaves(same))


class Process:
    """A process of `checkpoint_process.py`, and what it has said so far."""

    def __init__(self, directory: pathlib.Path, port: int, count: int, index: int, devices: int, task: str):
        numbers = map(str, (count, index, devices))
        self.said = directory.parent / f"{task}-{count}-{index}-{devices}.txt"
        with open(self.said, "w") as file:
            command = [sys.executable, "-m", PROCESS, str(directory), f"127.0.0.1:{port}", *numbers, task]
            self.popen = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def lines(self) -> list[str]:
        return [line for line in self.said.read_text().splitlines() if "Gloo" not in line]

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + 120
        while line not in self.lines():
            assert self.popen.poll() is None and time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


PROCESS = "tests.learner.checkpoint_process"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.slow
def test_processes_that_are_killed_while_they_save_together(tmp_path):
    """The last whole one is restored: by two processes, by one with two devices and by one with one, bit for bit."""
    with contextlib.ExitStack() as stack:

        def started(count: int, devices: int, task: str) -> list[Process]:
            port = free_port()
            made = [Process(tmp_path / "run", port, count, index, devices, task) for index in range(count)]
            for process in made:
                stack.callback(process.kill)
            return made

        first, second = started(2, 1, "save")
        first.wait_for("writing")
        for process in (first, second):
            process.wait_for("went on")
        second.kill()
        assert first.popen.poll() is None
        first.kill()
        [saved] = {process.lines()[0] for process in (first, second)}
        assert saved.startswith("saved first 1 ")
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["1", "2.orbax-checkpoint-tmp"]
        for count, devices in ((2, 1), (1, 2), (1, 1)):
            for process in started(count, devices, "restore"):
                assert process.popen.wait(120) == 0, process.said.read_text()
                assert process.lines() == [saved.replace("saved", "restored")]
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["1"]


# --- which are kept


def test_the_last_the_best_and_milestones_are_kept(tmp_path):
    scores = {1: 0.1, 2: 0.9, 3: None, 4: 0.5, 5: 0.9, 6: 0.2, 7: None, 8: 0.3, 9: None}

    def save(*steps):
        retention = Retention(keep_last=2, keep_best=2)
        with Checkpointer(tmp_path, state_of(0), retention=retention) as checkpointer:
            checkpointer.restore()
            for step in steps:
                checkpointer.save(state_of(step), LOOP, mark=Mark(milestone=step % 4 == 0, score=scores[step]))
        return sorted(names(tmp_path))

    assert save(1, 2, 3) == [1, 2, 3]
    assert save(4, 5, 6) == [2, 4, 5, 6]  # a new process knows the marks
    assert save(7, 8, 9) == [2, 4, 5, 8, 9]


def test_retention_keeps_what_it_says():
    checkpoints = [types.SimpleNamespace(step=step) for step in range(1, 7)]

    def kept(retention, **marks):
        retention.marks = {int(name[1:]): mark for name, mark in marks.items()}
        preserved = retention.should_preserve(checkpoints)
        return [info.step for info, preserve in zip(checkpoints, preserved, strict=True) if preserve]

    assert kept(Retention(keep_last=2)) == [5, 6]
    assert kept(Retention(keep_last=9)) == [1, 2, 3, 4, 5, 6]
    assert kept(Retention(keep_last=1), _2=Mark(score=1.0), _3=Mark(milestone=True)) == [3, 6]
    assert kept(Retention(keep_last=1, keep_best=1), _2=Mark(score=1.0), _4=Mark(score=1.0)) == [4, 6]
    assert kept(Retention(keep_last=1, keep_best=3), _2=Mark(score=-1.0), _4=Mark(score=-2.0)) == [2, 4, 6]
