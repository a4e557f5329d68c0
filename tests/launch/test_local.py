"""The launcher, with real processes: simulated engines stand in for the real ones."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys

import pytest

from tests.launch import processes

# In place of the servers' Python: the same flags, another engine.
WRAPPER = """#!/bin/sh
shift 2  # -m isocompute_jax.serve
for flag in "$@"; do
  shift
  case "$flag" in --engine=*|--model=*) ;; *) set -- "$@" "$flag";; esac
done
exec {python} -m benchmarks.simulated "$@"
"""
CALLS = """
import json, pathlib, sys, grpc
from isocompute_jax.service.proto import sampler_pb2 as pb, sampler_pb2_grpc
out, endpoints, token_file = sys.argv[1:]
statuses = []
for endpoint in endpoints.split(","):
    with grpc.insecure_channel(endpoint) as channel:
        statuses.append(sampler_pb2_grpc.SamplerStub(channel).Status(pb.StatusRequest(), timeout=30).engine)
facts = {"endpoints": endpoints.split(","), "engines": statuses, "token": pathlib.Path(token_file).read_text()}
pathlib.Path(out).write_text(json.dumps(facts))
raise SystemExit(7)
"""


@pytest.fixture
def launch(tmp_path):
    """The launcher's command line, up to `--`; nothing of it is left afterwards."""
    wrapper = tmp_path / "python"
    wrapper.write_text(WRAPPER.format(python=sys.executable))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    mark = f"--weights_dir={tmp_path}"
    yield [
        *processes.LAUNCH,
        *("--servers=2", "--model=unused", f"--server_python={wrapper}", f"--logs={tmp_path / 'logs'}"),
        f"--server_args={mark}",
        "--",
    ]
    processes.wait_until(lambda: not processes.find(mark), "a server is left behind", seconds=20)


def run(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=processes.ROOT, **options
    )


def test_the_command_finds_its_servers_and_its_exit_code_comes_back(launch, tmp_path):
    out = tmp_path / "facts.json"
    done = run([*launch, sys.executable, "-c", CALLS, str(out), "{endpoints}", "{token_file}"])
    assert done.returncode == 7, done.stderr
    facts = json.loads(out.read_text())
    assert facts["engines"] == ["simulated", "simulated"]
    assert len(set(facts["endpoints"])) == 2
    assert len(facts["token"]) == 64


def test_what_a_killed_launcher_left_is_swept_away(launch, tmp_path):
    stale, alive, another = (tmp_path / f"isocompute-launch-{name}" for name in ("4194999-x", f"{os.getpid()}-x", "x"))
    for directory in (stale, alive, another):
        directory.mkdir()
        (directory / "token").touch()
    done = run([*launch, "true"], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.glob("isocompute-launch-*")) == sorted([alive, another])


@pytest.mark.slow
def test_a_dead_server_comes_back_at_its_address(launch, tmp_path):
    addresses = tmp_path / "addresses"
    program = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); time.sleep(600)"
    log = tmp_path / "log"
    command = [*launch, sys.executable, "-c", program, str(addresses), "{endpoints}"]
    with processes.start(command, log, cwd=processes.ROOT) as launcher:
        try:
            processes.wait_until(lambda: addresses.exists() and addresses.read_text(), "the command starts")
            port = addresses.read_text().split(",")[0].rpartition(":")[2]
            for _ in range(2):
                [server] = processes.find("benchmarks.simulated", f"--port={port}")
                processes.kill(server)
                processes.wait_until(
                    lambda old=server: set(processes.find("benchmarks.simulated", f"--port={port}")) - {old},
                    "the server is started again",
                )
                port_file = pathlib.Path(processes.find_flag(f"--port={port}", "--port_file"))
                processes.wait_until(port_file.exists, "the server listens again")
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(60) == 128 + signal.SIGTERM
        finally:
            launcher.kill()
    assert "SIGKILL" in log.read_text()


def test_an_interrupt_of_the_launcher_alone_comes_to_the_command(launch, tmp_path):
    mark = tmp_path / "mark-of-the-command"
    program = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    command = [*launch, sys.executable, "-c", program, str(mark)]
    with processes.start(command, tmp_path / "log", cwd=processes.ROOT, start_new_session=True) as launcher:
        try:
            processes.wait_until(mark.exists, "the command starts")
            launcher.send_signal(signal.SIGINT)
            assert launcher.wait(60) == 128 + signal.SIGINT
        finally:
            launcher.kill()


def test_a_killed_launcher_leaves_nothing_behind(launch, tmp_path):
    mark = str(tmp_path / "mark-of-the-command")
    program = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    command = [*launch, sys.executable, "-c", program, mark]
    with processes.start(command, tmp_path / "log", cwd=processes.ROOT) as launcher:
        processes.wait_until(pathlib.Path(mark).exists, "the command starts")
        launcher.kill()
    processes.wait_until(lambda: not processes.find(mark), "the command is left behind", seconds=20)


def test_a_server_that_cannot_start_is_said_so(launch, tmp_path):
    arguments = [flag for flag in launch if not flag.startswith("--server_args")]
    done = run([*arguments[:-1], "--server_args=--no_such_flag", "--", "true"])
    assert done.returncode == 2
    assert re.search("server [01] did not start", done.stderr) and "no_such_flag" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "true"], "--model is missing"),
        (["--model=m"], "no command"),
        (["--model=m", "--server_python=/none", "--", "true"], "--server_python: /none is no program"),
        (["--model=m", "--", "none-such"], "the command after `--`: none-such is no program"),
    ],
)
def test_what_is_missing_is_named(arguments, message):
    done = run([*processes.LAUNCH, *arguments])
    assert done.returncode == 2
    assert message in done.stderr
