"""Several learner processes are one run: the same numbers, however many, and whichever of them is killed."""

import dataclasses
import json
import re
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment import checkpoints, loop
from isocompute_jax.experiment.config import CheckpointsConfig, MeshConfig, PackingConfig, RunConfig, TrackConfig
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.model import LoraConfig
from isocompute_jax.records import run_files
from tests.experiment import builders
from tests.experiment.learners import Learners, Source, lines, log_of

pytestmark = pytest.mark.slow
STALL_S = 5

INTEGERS = ("step", "compute", "tokens", "trained_tokens", "num_rows", "evaluation_rollouts", "evaluation_tokens")


@pytest.fixture(scope="module", params=[0, 4], ids=["all weights", "adapters"])
def one_step(base_run, tmp_path_factory, request):
    """A run of one step on eight devices."""
    config = dataclasses.replace(base_run, mesh=MeshConfig(data=2, fsdp=4), max_compute=base_run.rollouts_per_step)
    config = dataclasses.replace(config, lora=LoraConfig(request.param))
    return builders.write_config(tmp_path_factory.mktemp("eight") / "config.json", config)


SOURCES: dict[int, Source] = {1: "flags", 2: "jobset", 4: "tpu pod"}


def test_the_first_step_is_the_same_of_one_process_two_pods_of_a_jobset_and_four_of_a_tpu_slice(
    processes, one_step, tmp_path
):
    found = {}
    for count, source in SOURCES.items():
        Learners(processes, count, 8 // count, source).finish(one_step, tmp_path / str(count))
        found[count] = tmp_path / str(count)
        assert_introduced(found[count], count)
    states = {count: builders.final_checkpoint(path)[0] for count, path in found.items()}
    [alone] = builders.log_lines(found[1], run_files.METRICS)
    for count in (2, 4):
        for ours, theirs in zip(states[1], states[count], strict=True):  # Adam's first moments are gradients
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
        [line] = builders.log_lines(found[count], run_files.METRICS)
        assert line.keys() == alone.keys()
        for name, value in alone.items():
            if name in INTEGERS or not isinstance(value, float):
                assert line[name] == value, name
            else:
                assert line[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
        assert (found[count] / "model" / "model.safetensors").exists()
        adapter = found[count] / "model-adapter" / "adapter_model.safetensors"
        assert adapter.exists() == bool(run_files.read_run(found[count]).config["config"]["lora"]["rank"])
        assert len(json.loads((found[count] / run_files.CONFIG).read_text())["devices"]) == 8


def assert_introduced(workdir, count):
    """The log says in one line who the processes are, who told them, and which mesh they have; alone nobody does."""
    said = [log_of(workdir, index).read_text() for index in range(count)]
    name = r"process {} \([\w.-]+, pid \d+\)"
    line = (
        f"{count} processes, found by {SOURCES[count]}: {', '.join(map(name.format, range(count)))}; "
        rf"mesh data 2 x fsdp 4 over 8 devices \(cpu\), {8 // count} of them here\n"
    )
    assert len(re.findall(line, said[0])) == (count > 1) and not any("found by" in text for text in said[1:])


@pytest.fixture(scope="module")
def two(processes):
    return Learners(processes, 2, 1)


@pytest.fixture(scope="module")
def run(often) -> RunConfig:
    """24 steps on two devices, with exports; what is drawn is kept, so that its order shows."""
    track = TrackConfig(rollouts=often.problems_per_batch)
    return dataclasses.replace(often, mesh=MeshConfig(fsdp=2), export_every=6, track=track)


@pytest.fixture(scope="module")
def config(run, tmp_path_factory):
    return builders.write_config(tmp_path_factory.mktemp("two") / "config.json", run)


@pytest.fixture(scope="module")
def keeping(run, tmp_path_factory):
    """The same, and every checkpoint is kept."""
    changed = dataclasses.replace(run, checkpoints=CheckpointsConfig(keep_every=1))
    return builders.write_config(tmp_path_factory.mktemp("keeping") / "config.json", changed)


@pytest.fixture(scope="module")
def undisturbed(two, keeping, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    two.finish(keeping, workdir)
    return workdir


def test_rows_that_each_writes_for_itself_are_trained_on_over_switches(two, run, tmp_path):
    """Of padded rows each process has only its own tokens; what the run finds is what one process finds."""
    schedule, packing = ScheduleConfig("4@0,8@128"), PackingConfig(trees="off")
    config = dataclasses.replace(run, schedule=schedule, packing=packing, max_compute=256, export_every=0)
    two.finish(builders.write_config(tmp_path / "config.json", config), tmp_path / "two")
    loop.train(config, tmp_path / "one")
    ours, theirs = (builders.log_lines(tmp_path / name, run_files.METRICS) for name in ("two", "one"))
    assert [line["group_size"] for line in ours] == [4] * 8 + [8] * 4
    for name in INTEGERS:
        assert [line[name] for line in ours] == [line[name] for line in theirs], name
    for name in ("reward", "loss", "gradient_norm"):
        assert [line[name] for line in ours] == pytest.approx([line[name] for line in theirs], rel=1e-3, abs=1e-6)


def assert_exported(workdir, other):
    names = [f"step-{step}" for step in (6, 12, 18, 24)]
    for path in (workdir, other):
        assert sorted(entry.name for entry in (path / run_files.EXPORTS).iterdir()) == sorted(names)
    for name in names:
        ours, theirs = (path / run_files.EXPORTS / name / "model.safetensors" for path in (workdir, other))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_whichever_is_killed_the_others_end_with_its_name_and_the_run_resumes(two, config, undisturbed, tmp_path):
    """From the last checkpoint that is whole, at that: the last one of all is damaged after the second kill."""
    workdir = tmp_path / "run"
    for victim, after in ((1, 3), (0, 8)):
        codes, took = two.kill(config, workdir, victim=victim, after=after)
        assert codes == [1] and took < 20
        assert f"process {victim} (" in (said := log_of(workdir, 1 - victim).read_text()) and "has died" in said
        assert "Traceback" not in said
    *_, before, last = builders.kept_checkpoints(workdir)
    builders.garble(workdir / run_files.CHECKPOINTS / str(last))
    two.finish(config, workdir)
    said = log_of(workdir, 0).read_text()
    assert f"checkpoint {last} is damaged: state/" in said and f"resuming from step {before}\n" in said
    assert "damaged" not in log_of(workdir, 1).read_text()
    shutil.rmtree(workdir / run_files.CHECKPOINTS / f"{last}.corrupt")
    builders.assert_same_run(workdir, undisturbed)
    assert builders.kept_checkpoints(workdir) == [23, 24]
    assert_exported(workdir, undisturbed)


def test_one_that_does_not_come_to_the_update_is_named_by_all(two, config, tmp_path):
    """Its main thread hangs and the others wait in the collective, while all of them beat."""
    with two.running(config, tmp_path / "run", f"--stall_s={STALL_S}", own={0: ["--hangs"]}) as run:
        assert [process.wait() for process in run] == [1, 1]
    for index in (0, 1):
        said = log_of(tmp_path / "run", index).read_text()
        assert "error: process 0 (" in said and f"is awaited for {STALL_S} s" in said and "Traceback" not in said
    assert lines(tmp_path / "run") == 2


@pytest.fixture(scope="module")
def killed(two, keeping, tmp_path_factory):
    """A run that ended with one of its processes, after some steps: the first was stopped, and the other named it."""
    workdir = tmp_path_factory.mktemp("killed") / "run"
    codes, took = two.kill(keeping, workdir, victim=0, after=6, number=signal.SIGSTOP, stall_s=STALL_S)
    assert codes == [1] and took < STALL_S + 8
    said = log_of(workdir, 1).read_text()
    # Whichever of its threads finds out first: the one that listens, or one that sends.
    assert re.search(rf"process 0 \(.*\) (has not been heard of for {STALL_S} s|takes nothing any more)", said), said
    assert "Traceback" not in said
    return workdir


def test_a_run_of_two_processes_continues_on_one(killed, run, undisturbed, tmp_path, monkeypatch):
    """The state is that of two, bit for bit; the next gradient agrees up to rounding, counts and data order exactly."""
    workdir, restored = tmp_path / "run", []
    shutil.copytree(killed, workdir)
    last = builders.kept_checkpoints(killed)[-1]
    resume = checkpoints.resume

    def watched(*args):
        state = resume(*args)  # its arrays are copied here: the first step takes them for its own
        restored.append((state, builders.named_arrays(jax.tree.map(jnp.copy, state.learner))))
        return state

    monkeypatch.setattr(checkpoints, "resume", watched)
    alone = dataclasses.replace(run, mesh=MeshConfig(), checkpoints=CheckpointsConfig(keep_every=1))
    loop.train(alone, workdir)
    state, arrays = restored[0]
    assert_restored(state, arrays, killed, undisturbed, last)
    ours, theirs = (gradient(path, last) for path in (workdir, undisturbed))
    assert any(np.any(array) for array in ours.values())
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)
    ours, theirs = (builders.log_lines(path, run_files.METRICS) for path in (workdir, undisturbed))
    for name in ("step", "compute", "evaluation_rollouts"):
        assert [line[name] for line in ours] == [line[name] for line in theirs], name
    for line, other in zip(ours[: last + 1], theirs, strict=False):  # the next gradient included
        for name in INTEGERS:  # of a batch over fewer devices fewer rows are padding
            assert line.get(name) == other.get(name) or name == "num_rows", name
        for name in ("gradient_norm", "loss", "reward"):
            assert line[name] == pytest.approx(other[name], rel=1e-5, abs=1e-7), name
    ours, theirs = (problems_of(path) for path in (workdir, undisturbed))
    assert ours == theirs and all(len(step) == run.problems_per_batch for step in ours) and len(ours) == run.num_steps


def assert_restored(state, arrays, killed, undisturbed, step):
    """A state, with its `arrays`, is that of two processes' checkpoint, which the undisturbed run had too."""
    for workdir in (killed, undisturbed):
        saved, loop_state = builders.read_checkpoint(workdir, step)
        assert saved.keys() == arrays.keys() and any("/mu/" in name for name in arrays)
        for name, array in saved.items():
            assert array.dtype == arrays[name].dtype and array.tobytes() == arrays[name].tobytes(), name
        assert builders.timeless(json.loads(json.dumps(state.to_json()))) == loop_state
    assert state.step == step


def gradient(workdir, step) -> dict[str, np.ndarray]:
    """Of the update after `step`, as the optimizer got it: from Adam's first moments before and after it."""
    before, after = (builders.read_checkpoint(workdir, at)[0] for at in (step, step + 1))
    beta = OptimizerConfig().b1
    return {name: (after[name] - beta * before[name]) / (1 - beta) for name in before if "/mu/" in name}


def problems_of(workdir) -> list[list[str]]:
    """The problems of each step, in the order in which they were drawn."""
    lines = run_files.read_lines(workdir / run_files.ROLLOUTS)
    return [[group["problem_id"] for group in line["groups"]] for line in lines]


def test_what_differs_between_them_is_said_by_all_and_nothing_is_left(two, config, run, tmp_path):
    theirs = builders.write_config(tmp_path / "other.json", dataclasses.replace(run, seed=7))
    with two.running(config, tmp_path / "run", own={1: [f"--resolved_config={theirs}"]}) as both:
        assert [process.wait() for process in both] == [2, 2]
    for index in (0, 1):
        said = log_of(tmp_path / "run", index).read_text()
        assert "is of another config: config.seed is 7 there, and 0 in process 0" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_mesh_of_other_devices_than_theirs_is_refused(processes, config, tmp_path):
    with Learners(processes, 2, 2).running(config, tmp_path / "run") as run:
        assert [process.wait() for process in run] == [2, 2]
    said = log_of(tmp_path / "run", 0).read_text()
    assert "config.mesh multiplies to 2 devices, and the 2 processes have 4" in said
