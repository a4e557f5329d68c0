"""A run that is killed or interrupted, wherever that is, and started again equals an undisturbed one, bit for bit."""

import fcntl
import os
import pathlib
import signal
import time

import numpy as np
import pytest

from isocompute_jax import app, model
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import override
from isocompute_jax.learner.checkpoint import Checkpointer
from isocompute_jax.records import run_files
from isocompute_jax.sampling import TRAIN, InProcessSampler
from tests.experiment import builders
from tests.experiment.processes import LOGS, said, unfinished_checkpoint, wait_for, written
from tests.experiment.samplers import Makes

# --- in processes of their own


@pytest.fixture(scope="module")
def config(often, tmp_path_factory) -> pathlib.Path:
    """What the processes run."""
    return builders.write_config(tmp_path_factory.mktemp("processes") / "config.json", often)


@pytest.fixture(scope="module")
def reference(processes, config) -> pathlib.Path:
    """The undisturbed run, in a process of its own, which also fills the compile cache: once for all workers."""
    workdir = processes.path / "undisturbed"
    with open(processes.path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (workdir / run_files.DONE).exists():
            processes.finish(config, workdir)
    return workdir


def whole_checkpoint(workdir: pathlib.Path) -> bool:
    """Whether there is one to resume from."""
    path = workdir / run_files.CHECKPOINTS
    return path.exists() and any(entry.name.isdigit() for entry in path.iterdir())


MOMENTS = ("log", "start-up", "checkpoint", "log", "whole checkpoint")


@pytest.mark.slow
def test_killed_at_random_moments_ends_the_same(processes, config, reference, tmp_path):
    rng = np.random.default_rng(0)
    workdir = tmp_path / "run"
    for moment in MOMENTS:
        with processes.train(config, workdir) as process:
            appended, growth = written(workdir), rng.integers(1, 6000)
            if moment == "start-up":
                time.sleep(rng.uniform(0.1, 1.0))
            elif moment == "whole checkpoint":
                wait_for(process, lambda: whole_checkpoint(workdir))
            else:
                wait_for(process, lambda appended=appended, growth=growth: appended() >= growth)
            if moment == "checkpoint":
                wait_for(process, lambda: unfinished_checkpoint(workdir))
            process.send(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        assert not (workdir / run_files.DONE).exists()
    steps = [len((workdir / name).read_bytes().splitlines()) for name in LOGS]
    assert steps[0] > 0 and steps[1] > 0  # it had come somewhere
    for name in LOGS:  # what a kill within a write, or a full disk, leaves
        with open(workdir / name, "a", encoding="utf-8") as file:
            file.write('{"step": 99, "comp')
    assert "resuming from step" in processes.finish(config, workdir)
    builders.assert_same_run(workdir, reference)


@pytest.mark.slow
def test_refused_beside_and_interrupted_once_and_twice_ends_the_same(base_run, processes, config, reference, tmp_path):
    # No checkpoint but the one that Ctrl-C asks for.
    seldom = builders.write_config(tmp_path / "config.json", base_run)
    workdir = tmp_path / "run"
    with processes.train(seldom, workdir) as process:
        log = workdir / run_files.METRICS
        wait_for(process, lambda: log.exists() and log.stat().st_size > 0)
        process.send(signal.SIGSTOP)  # it would end before another one has started
        command = [f"--resolved_config={seldom}", f"--workdir={workdir}"]
        with processes.start("isocompute_jax.train", command, tmp_path / "second") as second:
            assert second.wait() == app.BAD_INPUT
        [_, line] = (tmp_path / "second").read_text().splitlines()  # the first says who grades what
        assert line.startswith(f"error: another run is at work in {workdir} (") and "pid" in line
    with processes.train(seldom, workdir) as process:
        appended = written(workdir)
        wait_for(process, lambda: appended() > 0)
        process.send(signal.SIGINT)
        code, output = process.wait(), said(workdir)
    assert code == app.INTERRUPTED, output
    assert "killed before its first checkpoint: it begins again" in output
    assert output.count("error: interrupted; the same command resumes from the last checkpoint\n") == 1
    assert "Traceback" not in output
    step = len(run_files.read_lines(workdir / run_files.METRICS))
    assert [entry.name for entry in (workdir / run_files.CHECKPOINTS).iterdir()] == [str(step)]
    before = len(output)
    with processes.train(config, workdir) as process:  # a checkpoint after every step: the second falls into one
        appended = written(workdir)
        wait_for(process, lambda: appended() > 0)
        process.send(signal.SIGINT)
        time.sleep(0.02)
        process.send(signal.SIGINT)
        code, output = process.wait(), said(workdir)[before:]
    assert code == app.INTERRUPTED, output
    assert f"resuming from step {step}" in output and "Traceback" not in output
    assert output.count("error: interrupted; the same command resumes") == 1
    processes.finish(config, workdir)
    builders.assert_same_run(workdir, reference)


# --- in this process, where every effect can be hit


class Killed(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


@pytest.fixture
def effects(monkeypatch):
    """Counts what a run does to files; `effects["fatal"]` is the one before which it dies."""
    counts = {"made": 0, "fatal": -1, "names": []}

    def fatal(owner, name):
        original = getattr(owner, name)

        def effect(*args, **kwargs):
            if counts["made"] == counts["fatal"]:
                raise Killed
            counts["made"] += 1
            counts["names"].append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, effect)

    for name in ("append_line", "write_atomic", "cut_back"):
        fatal(run_files, name)
    fatal(Checkpointer, "save")
    fatal(model, "save_checkpoint")
    fatal(os, "replace")
    return counts


@pytest.mark.slow
def test_dying_before_any_effect_ends_the_same(often, effects, tmp_path):
    config = override(often, "max_compute", 2 * often.rollouts_per_step)
    loop.train(config, tmp_path / "whole")
    names = list(effects["names"])
    # Every kind of effect, the first and the last time.
    chosen = {names.index(name) for name in names} | {len(names) - 1 - names[::-1].index(name) for name in names}
    assert {"append_line", "write_atomic", "save", "save_checkpoint", "replace"} <= set(names)
    for fatal in sorted(chosen):
        effects.update(made=0, fatal=fatal)
        workdir = tmp_path / str(fatal)
        with pytest.raises(Killed):
            loop.train(config, workdir)
        assert not (workdir / run_files.DONE).exists()
        effects.update(fatal=-1)
        loop.train(config, workdir)
        builders.assert_same_run(workdir, tmp_path / "whole")


@pytest.mark.slow
def test_interrupted_in_the_first_evaluation_ends_the_same(base_run, undisturbed, tmp_path):
    class Interrupting(InProcessSampler):
        signals = 1

        def completed(self, *, lane=TRAIN):
            if lane != TRAIN and self.signals:
                type(self).signals -= 1
                os.kill(os.getpid(), signal.SIGINT)
            yield from super().completed(lane=lane)

    interrupting, workdir = Makes(Interrupting), tmp_path / "run"
    assert app.exit_code(lambda: loop.train(base_run, workdir, make_sampler=interrupting)) == app.INTERRUPTED
    assert [entry.name for entry in (workdir / run_files.CHECKPOINTS).iterdir()] == ["0"]
    loop.train(base_run, workdir)
    builders.assert_same_run(workdir, undisturbed)
