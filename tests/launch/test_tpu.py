"""Cloud TPUs as launch/tpu sees them: a gcloud that keeps slices in files, and VMs that are folders of this machine.

Its `ssh` runs the command as each worker's VM would, in a home of its own and with a metadata server of its own; what
it starts are real processes.
"""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from isocompute_jax.distributed.environment import PORT
from tests.launch import processes

RUN = processes.ROOT / "launch" / "tpu" / "run.sh"

GCLOUD = """#!{python} -SE
import json, os, pathlib, shutil, subprocess, sys
root = pathlib.Path({root!r})
arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
flags = dict(a[2:].partition("=")[::2] for a in sys.argv[1:] if a.startswith("--"))
assert arguments[:2] == ["compute", "tpus"] and flags["zone"] == "z" and "quiet" in flags, sys.argv
with open(root / "calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
kind, verb, *names = arguments[2:]
refused = root / "refused"
if refused.exists() and verb in refused.read_text().split():
    sys.exit(f"ERROR: (gcloud.compute.tpus.{{kind}}.{{verb}}) PERMISSION_DENIED: Permission denied on resource.")
slices = root / "slices"
def home(name, worker):
    path = root / "vms" / name / str(worker)
    path.mkdir(parents=True, exist_ok=True)
    return path
def workers(name):
    count = int((slices / name).read_text().split()[2])
    return range(count) if flags["worker"] == "all" else [int(flags["worker"])]
name = names[-1].partition(":")[0]
if kind == "queued-resources":
    if verb == "create":
        assert flags["node-id"] == name and not (slices / name).exists()
        generation = len(list((root / "generations").glob(name + ".*")))
        (root / "generations" / f"{{name}}.{{generation}}").touch()
        hosts = 2 if flags["accelerator-type"] == "v5p-16" else 1
        (slices / name).write_text(f"WAITING_FOR_RESOURCES {{generation}} {{hosts}}")
    elif verb == "delete":
        assert "force" in flags
        (slices / name).unlink()
        shutil.rmtree(root / "vms" / name, ignore_errors=True)
    elif not (slices / name).exists():
        sys.exit("NOT_FOUND")
    else:
        state, *rest = (slices / name).read_text().split()
        print(state)
        if state == "WAITING_FOR_RESOURCES":
            (slices / name).write_text(" ".join(["ACTIVE", *rest]))
elif verb == "describe":
    print("10.0.0." + (slices / name).read_text().split()[1])
elif verb == "scp":
    for worker in workers(name):
        for source in names[:-1]:
            shutil.copy(source, home(name, worker) / names[-1].partition(":")[2])
else:
    codes = []
    for worker in workers(name):
        place = home(name, worker)
        environment = {{**os.environ, "HOME": str(place), "GCE_METADATA_HOST": f"127.0.0.1:{port}/{{name}}/{{worker}}"}}
        codes.append(subprocess.run(["bash", "-c", flags["command"]], cwd=place, env=environment).returncode)
    sys.exit(max(codes))
"""
# Stands for the Python of a VM: a learner whose first attempt fails, and a server that stays.
PROGRAM = """#!{python} -SE
import json, os, pathlib, sys, time
home = pathlib.Path.home()
with open(home / "started", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
attempts = len((home / "started").read_text().splitlines())
if "isocompute_jax.train" in sys.argv:
    if attempts == 1:
        sys.exit(1)
    finish = pathlib.Path({root!r}) / "finish"
    while not finish.exists():
        time.sleep(0.02)
    print("the learner's last words")
    sys.exit(int(finish.read_text() or 0))
time.sleep(600)
"""


class Metadata(http.server.BaseHTTPRequestHandler):
    """Of every worker of every slice, by its path: both forms in which the addresses come."""

    def do_GET(self) -> None:
        name, worker, _, _, _, attributes, attribute = self.path.strip("/").split("/")
        assert attributes == "attributes" and self.headers["Metadata-Flavor"] == "Google"
        endpoints = "unknown:unknown:10.1.0.5,unknown:unknown:10.1.0.6" if name == "hard" else "10.2.0.1"
        text = {"agent-worker-number": worker, "worker-network-endpoints": endpoints}[attribute].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


class Cloud:
    """Where all of it lies."""

    def __init__(self, root: pathlib.Path, port: int):
        self.root = root
        for folder in ("bin", "slices", "generations"):
            (root / folder).mkdir()
        for name, text in (("gcloud", GCLOUD), ("python", PROGRAM)):
            path = root / "bin" / name
            path.write_text(text.format(python=sys.executable, root=str(root), port=port))
            path.chmod(0o755)
        (root / "token").write_text("secret")
        (root / "token").chmod(0o600)
        path = f"{root / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "TMPDIR": str(root)}

    def command(self, task: str, *flags: str) -> list[str]:
        return ["bash", str(RUN), task, "--name=hard", "--zone=z", "--servers=1", "--poll_s=0.1", *flags]

    def run_flags(self) -> list[str]:
        return [
            *("--accelerator_type=v5p-16", "--server_type=v5p-8", "--create_args=--spot", "--directory=code"),
            *("--setup=mkdir code; echo once >>setups", f"--python={self.root / 'bin' / 'python'}", "--model=/m/base"),
            *("--workdir=/runs/a b", f"--token_file={self.root / 'token'}", "--server_args=--max_slots=4"),
            *("--", "--config=c.py", "--config.group_size=8"),
        ]

    def call(self, task: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = self.command(task, *flags)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def started(self, name: str, worker: int) -> list[list[str]]:
        """The command lines that a VM has started."""
        file = self.root / "vms" / name / str(worker) / "started"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.root / "calls").read_text().splitlines()]


@pytest.fixture
def cloud(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Cloud(tmp_path, server.server_address[1])
    server.shutdown()
    server.server_close()
    thread.join()
    left = processes.find(str(tmp_path))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes are left behind"


@pytest.mark.slow
def test_from_nothing_to_the_end_with_a_slice_that_is_preempted(cloud):
    with processes.start(cloud.command("run", *cloud.run_flags()), cloud.root / "log", env=cloud.environment) as run:
        try:
            processes.wait_until(
                lambda: all(len(cloud.started("hard", worker)) == 2 for worker in range(2)),
                "second attempts",
                seconds=60,
            )
            [server] = cloud.started("hard-server-0", 0)
            home = cloud.root / "vms" / "hard" / "0"
            flags = ["--model=/m/base", "--host=0.0.0.0", "--port=50051", "--wait_for_weights", "--max_slots=4"]
            token = ".isocompute/hard/token"
            there = cloud.root / "vms" / "hard-server-0" / "0" / token
            assert server == [
                "-m",
                "isocompute_jax.serve",
                "--engine=jax",
                *flags,
                "--insecure",
                f"--token_file={there}",
            ]
            assert there.read_text() == "secret" and there.parent.stat().st_mode & 0o77 == 0
            for worker in range(2):
                place = [f"--coordinator=10.1.0.5:{PORT}", "--process_count=2", f"--process_index={worker}"]
                token_file = cloud.root / "vms" / "hard" / str(worker) / token
                service = ["--config.service.endpoints=10.0.0.0:50051", f"--config.service.token_file={token_file}"]
                learner = [
                    "-m",
                    "isocompute_jax.train",
                    "--workdir=/runs/a b",
                    "--config=c.py",
                    "--config.group_size=8",
                ]
                assert cloud.started("hard", worker) == 2 * [[*learner, *service, *place]]
            # The server's slice is taken away: another one comes, at another address, and the learners are told.
            slice_file = cloud.root / "slices" / "hard-server-0"
            for pid in processes.find(str(there)):
                os.kill(pid, signal.SIGKILL)
            slice_file.write_text("SUSPENDED 0 1")
            processes.wait_until(
                lambda: any("endpoints=10.0.0.1:" in word for word in cloud.started("hard", 1)[-1]),
                "a new server",
                seconds=60,
            )
            assert (home / "setups").read_text() == "once\n"
            (cloud.root / "finish").write_text("2")
            assert run.wait(60) == 2
        finally:
            run.kill()
    said = (cloud.root / "log").read_text()
    assert "hard-server-0: SUSPENDED; queued anew" in said and "the learner's last words" in said
    assert "the learners have ended with exit code 2" in said
    assert "secret" not in json.dumps(cloud.calls())
    creates = [call for call in cloud.calls() if "create" in call]
    assert [call[5] for call in creates] == ["hard", "hard-server-0", "hard-server-0"]
    assert all("--spot" in call and "--runtime-version=v2-alpha-tpuv5" in call for call in creates)
    assert cloud.call("down").returncode == 0
    assert list((cloud.root / "slices").iterdir()) == []


@pytest.mark.slow
def test_run_again_follows_what_runs_and_stop_ends_it(cloud):
    for _ in range(2):
        with processes.start(
            cloud.command("run", *cloud.run_flags()), cloud.root / "log", env=cloud.environment
        ) as run:
            processes.wait_until(lambda: len(cloud.started("hard", 1)) == 2, "the learners run", seconds=60)
            processes.wait_until(lambda: "started; log" in (cloud.root / "log").read_text(), "it follows", seconds=60)
            run.kill()
        (cloud.root / "log").write_text("")
    assert len(cloud.started("hard", 0)) == 2 and len(cloud.started("hard-server-0", 0)) == 1
    assert cloud.call("stop").returncode == 0
    processes.wait_until(lambda: not processes.find(str(cloud.root)), "everything ends", seconds=20)
    assert (cloud.root / "vms" / "hard" / "0" / ".isocompute" / "hard" / "run" / "code").read_text() == "143\n"


def test_a_gcloud_that_refuses_is_said_and_ends_it(cloud):
    """In particular `down` does not say that all is well while the slices stay, and cost."""
    (cloud.root / "refused").write_text("describe")
    said = "error: gcloud does not say whether there is a slice hard: ERROR: (gcloud.compute.tpus.queued-resources."
    for task, flags in (("run", cloud.run_flags()), ("stop", []), ("down", [])):
        done = cloud.call(task, *flags)
        assert done.returncode == 2 and said + "describe) PERMISSION_DENIED" in done.stderr
        assert task == "run" or f"error: {task} failed for hard hard-server-0, as said above\n" in done.stderr
        assert task != "run" or done.stderr.count("\n") == 1
    (cloud.root / "refused").write_text("create delete")
    done = cloud.call("run", *cloud.run_flags())
    assert done.returncode == 2 and done.stderr.startswith("error: hard cannot be queued: ERROR: "), done.stderr
    (cloud.root / "slices" / "hard").write_text("WAITING_FOR_RESOURCES 0 2")
    done = cloud.call("run", *cloud.run_flags())
    assert done.returncode == 2 and done.stderr.endswith("(launch/tpu/run.sh down gives the others back)\n")
    done = cloud.call("down")
    assert done.returncode == 2 and "delete) PERMISSION_DENIED" in done.stderr
    assert done.stderr.endswith("error: down failed for hard, as said above\n")


RUN_FLAGS = ["run", "--name=a", "--zone=z", "--workdir=w", "--accelerator_type=t"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to do"),
        (["run", "--name=a"], "--zone is missing"),
        (["run", "--name=a", "--zone=z", "--workdir=w"], "--accelerator_type is missing"),
        (["run", "--name=a", "--nodes=3"], "unknown flag --nodes=3"),
        (
            ["run", "--name=a", "--zone=z", "--workdir=w", "--accelerator_type=t", "--servers=1"],
            "--server_type is missing",
        ),
        (["stop", "--name=a", "--zone=z", "--servers=x"], "--servers=x: must be a whole number"),
    ],
)
def test_what_is_missing_is_named(arguments, message):
    done = subprocess.run(["bash", str(RUN), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize(
    ("mode", "message"), [(0o644, "chmod 600 it"), (0o640, "chmod 600 it"), (0o400, "gcloud is not installed")]
)
def test_a_token_that_others_can_read_is_not_copied(tmp_path, mode, message):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(mode)
    service = ["--servers=1", "--server_type=t", "--model=m", f"--token_file={token}"]
    (tmp_path / "ls").symlink_to("/bin/ls")  # the only program on PATH
    command = ["/bin/bash", str(RUN), *RUN_FLAGS, *service]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and message in done.stderr
