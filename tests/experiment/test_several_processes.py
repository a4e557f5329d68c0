"""Several learner processes are one run: the same numbers, however many, and whichever of them is killed."""

import dataclasses
import json
import shutil
import socket

import numpy as np
import pytest

from isocompute_jax.experiment.config import MeshConfig
from isocompute_jax.records import run_files
from tests.experiment import builders
from tests.experiment.learners import Learners, lines, log_of
from tests.launch.processes import free_ports

pytestmark = pytest.mark.slow

INTEGERS = ("step", "compute", "tokens", "trained_tokens", "num_rows", "evaluation_rollouts", "evaluation_tokens")


@pytest.fixture(scope="module")
def one_step(base_run, tmp_path_factory):
    """A run of one step on eight devices."""
    config = dataclasses.replace(base_run, mesh=MeshConfig(data=2, fsdp=4), max_compute=base_run.rollouts_per_step)
    return builders.write_config(tmp_path_factory.mktemp("eight") / "config.json", config)


def test_the_first_step_is_the_same_of_1_2_and_4_processes(processes, one_step, tmp_path):
    found = {}
    for count in (1, 2, 4):
        Learners(processes, count, 8 // count).finish(one_step, tmp_path / str(count))
        found[count] = tmp_path / str(count)
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
        assert len(json.loads((found[count] / run_files.CONFIG).read_text())["devices"]) == 8


@pytest.fixture(scope="module")
def two(processes):
    return Learners(processes, 2, 1)


@pytest.fixture(scope="module")
def config(base_run, tmp_path_factory):
    """A run of 24 steps on two devices."""
    changed = dataclasses.replace(base_run, mesh=MeshConfig(fsdp=2))
    return builders.write_config(tmp_path_factory.mktemp("two") / "config.json", changed)


@pytest.fixture(scope="module")
def undisturbed(two, config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    two.finish(config, workdir)
    return workdir


def assert_same(workdir, other):
    for name in (run_files.METRICS, run_files.EVAL, run_files.ROLLOUTS):
        assert builders.log_lines(workdir, name) == builders.log_lines(other, name), name
    (ours, loop), (theirs, other_loop) = builders.final_checkpoint(workdir), builders.final_checkpoint(other)
    assert loop == other_loop
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_whichever_is_killed_the_others_end_with_its_name_and_the_run_resumes(two, config, undisturbed, tmp_path):
    workdir = tmp_path / "run"
    for victim, after in ((1, 3), (0, 8)):
        codes, took = two.kill(config, workdir, victim=victim, after=after)
        assert codes == [1] and took < 20
        assert f"process {victim} (" in (said := log_of(workdir, 1 - victim).read_text()) and "has died" in said
        assert "Traceback" not in said
    two.finish(config, workdir)
    assert_same(workdir, undisturbed)


@pytest.fixture(scope="module")
def killed(two, config, tmp_path_factory):
    """A run that ended with one of its processes, after some steps."""
    workdir = tmp_path_factory.mktemp("killed") / "run"
    two.kill(config, workdir, victim=1, after=6)
    return workdir


@pytest.mark.parametrize(("devices", "mesh"), [(2, MeshConfig(fsdp=2)), (1, MeshConfig())])
def test_a_run_of_two_processes_continues_on_one(killed, processes, base_run, undisturbed, tmp_path, devices, mesh):
    """The state is that of the checkpoint (see tests/learner); what follows agrees up to rounding, counts exactly."""
    workdir = tmp_path / "run"
    shutil.copytree(killed, workdir)
    resumed = lines(workdir)
    alone = builders.write_config(tmp_path / "config.json", dataclasses.replace(base_run, mesh=mesh))
    Learners(processes, 1, devices).finish(alone, workdir)
    ours, theirs = (builders.log_lines(path, run_files.METRICS) for path in (workdir, undisturbed))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for line, other in zip(ours[: resumed + 1], theirs, strict=False):  # the next gradient included
        for name in INTEGERS:  # of a batch over fewer devices fewer rows are padding
            assert line.get(name) == other.get(name) or name == "num_rows", name
        for name in ("gradient_norm", "loss", "reward"):
            assert line[name] == pytest.approx(other[name], rel=1e-5, abs=1e-7), name


def test_what_differs_between_them_is_said_by_all_and_nothing_is_left(two, config, base_run, tmp_path):
    other = dataclasses.replace(base_run, mesh=MeshConfig(fsdp=2), seed=7)
    theirs = builders.write_config(tmp_path / "other.json", other)
    with two.running(config, tmp_path / "run", own={1: [f"--resolved_config={theirs}"]}) as run:
        assert [process.wait() for process in run] == [2, 2]
    for index in (0, 1):
        said = log_of(tmp_path / "run", index).read_text()
        assert "is of another config: config.seed is 7 there, and 0 in process 0" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("own", "codes", "said"),
    [
        (
            {0: ["--start_s=1"], 1: ["--start_s=1", "--coordinator=127.0.0.1:1"]},
            [1, 1],
            [
                "process 1 of 2 did not come to {place} within 1 s (--start_s): are they started, with this",
                "process 0 cannot be reached at --coordinator=127.0.0.1:1 for 1 s (--start_s): Connection refused.",
            ],
        ),
        (
            {1: ["--process_count=3"]},
            [2, 2],
            ["was told of 3 processes, process 0 (", "of 2: give all the same --process_count"],
        ),
    ],
)
def test_who_does_not_come_to_the_meeting_or_to_another(two, config, tmp_path, own, codes, said):
    place = f"127.0.0.1:{free_ports(2)}"
    own = {index: [f"--coordinator={place}", *own.get(index, [])] for index in (0, 1)}
    with two.running(config, tmp_path / "run", own=own) as run:
        assert [process.wait() for process in run] == codes
    for index, text in enumerate(said):
        [line] = log_of(tmp_path / "run", index).read_text().splitlines()
        assert line.startswith("error: ") and text.format(place=place) in line


def test_a_port_above_the_coordinators_that_another_program_has_is_named_by_all(two, config, tmp_path):
    port = free_ports(2)
    own = {index: [f"--coordinator=127.0.0.1:{port}"] for index in (0, 1)}
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        two.running(config, tmp_path / "run", own=own) as run,
    ):
        assert [process.wait() for process in run] == [2, 2]
    for index in (0, 1):
        [line] = log_of(tmp_path / "run", index).read_text().splitlines()
        assert f"cannot listen at the port above it, {port + 1}: Address already in use. Another program has it" in line


def test_a_mesh_of_other_devices_than_theirs_is_refused(processes, config, tmp_path):
    with Learners(processes, 2, 2).running(config, tmp_path / "run") as run:
        assert [process.wait() for process in run] == [2, 2]
    said = log_of(tmp_path / "run", 0).read_text()
    assert "config.mesh multiplies to 2 devices, and the 2 processes have 4" in said
