"""Several learners under the launcher: real processes that find each other as learners do, and do nothing else."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.launch import processes

# Process 0 listens at --coordinator, the others connect; who loses another fails. Process 0 adds a line of progress
# when it starts (--progress) and is done when there is a file `finish`; then so are the others.
LEARNER = """
import os, pathlib, select, socket, sys, time
flags = dict(argument[2:].partition("=")[::2] for argument in sys.argv[1:])
workdir, index, count = pathlib.Path(flags["workdir"]), int(flags["process_index"]), int(flags["process_count"])
host, _, port = flags["coordinator"].rpartition(":")
if index == 0:
    with open(workdir / "attempts", "a") as file:
        file.write(flags["coordinator"] + "\\n")
    listener = socket.create_server((host, int(port)))
    if "progress" in flags:
        with open(workdir / "metrics.jsonl", "a") as file:
            file.write("{}\\n")
    peers = [listener.accept()[0] for _ in range(count - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection((host, int(port)))]
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
(workdir / f"cores-{index}").write_text(str(sorted(os.sched_getaffinity(0))))
(workdir / f"new-{index}").write_text(str(os.getpid()))
os.replace(workdir / f"new-{index}", workdir / f"learner-{index}")
if flags.get("refuses") == str(index):
    print("error: --config.something is wrong", file=sys.stderr)
    sys.exit(2)
if flags.get("fails") == str(index) and not (workdir / "finish").exists():
    sys.exit(1)
while index or not (workdir / "finish").exists():
    lost, _, _ = select.select(peers, [], [], 0.01)
    if lost and "deaf" not in flags:
        sys.exit(0 if lost[0].recv(1) == b"." else 1)
for peer in peers:
    peer.send(b".")
"""


class Run:
    """The launcher with two learners of no server."""

    def __init__(self, workdir: pathlib.Path, *flags: str, launcher: tuple[str, ...] = ()):
        self.workdir, self.log = workdir, workdir / "log"
        self.command = [*processes.LAUNCH, "--learners=2", "--servers=0", f"--logs={workdir}", *launcher, "--"]
        self.command += [sys.executable, "-c", LEARNER, f"--workdir={workdir}", *flags]

    def __enter__(self) -> "Run":
        self.launcher = processes.start(self.command, self.log, cwd=processes.ROOT)
        return self

    def __exit__(self, *_) -> None:
        self.launcher.kill()
        self.launcher.wait()
        mark = f"--workdir={self.workdir}"
        processes.wait_until(lambda: not processes.find(mark), "a learner is left behind", seconds=20)

    def pids(self, *, after: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Both learners, once none of them is one of `after`."""
        files = [self.workdir / f"learner-{index}" for index in range(2)]
        found: list[int] = []

        def there() -> bool:
            found[:] = [int(file.read_text()) for file in files if file.exists()]
            return len(found) == 2 and not set(found) & set(after)

        processes.wait_until(there, "both learners run", seconds=60)
        return tuple(found)

    def end(self) -> tuple[int, str]:
        """(exit code, what it said)."""
        return self.launcher.wait(60), self.log.read_text()

    def attempts(self) -> list[str]:
        return (self.workdir / "attempts").read_text().split()


def test_when_one_is_killed_all_come_back(tmp_path):
    with Run(tmp_path, "--progress=") as run:
        pids = run.pids()
        for index in (1, 0):
            processes.kill(pids[index])
            pids = run.pids(after=pids)
        (tmp_path / "finish").touch()
        code, said = run.end()
    assert code == 0
    assert "learner 1: killed by SIGKILL" in said and "learner 0: killed by SIGKILL" in said
    assert len(run.attempts()) == 3
    cores = [set((tmp_path / f"cores-{index}").read_text()[1:-1].split(", ")) for index in range(2)]
    assert cores[0] and (not cores[0] & cores[1] or (cores[0] == cores[1] and len(cores[0]) == 1))


def test_failures_without_progress_are_the_end(tmp_path):
    with Run(tmp_path, "--fails=1", launcher=("--restarts=1",)) as run:
        code, said = run.end()
    assert code == 1 and "error: the learners failed 2 times in a row without progress" in said
    assert "learner 1: exit code 1, failed" in said and len(run.attempts()) == 2


def test_failures_with_progress_are_not(tmp_path):
    with Run(tmp_path, "--fails=0", "--progress=", launcher=("--restarts=1",)) as run:
        processes.wait_until(lambda: (tmp_path / "attempts").exists() and len(run.attempts()) > 4, "five attempts")
        (tmp_path / "finish").touch()
        code, _ = run.end()
    assert code == 0


def test_bad_input_of_one_ends_all(tmp_path):
    with Run(tmp_path, "--refuses=1") as run:
        code, said = run.end()
    assert code == 2 and "error: --config.something is wrong" in said and len(run.attempts()) == 1


def test_a_learner_that_does_not_notice_is_killed(tmp_path):
    begin = time.monotonic()
    with Run(tmp_path, "--deaf=", launcher=("--grace_s=0.3", "--restarts=0")) as run:
        processes.kill(run.pids()[1])
        code, _ = run.end()
    assert code == 1 and time.monotonic() - begin < 30


def test_who_is_asked_to_end_asks_the_first(tmp_path):
    with Run(tmp_path) as run:
        run.pids()
        run.launcher.send_signal(signal.SIGTERM)
        code, said = run.end()
    assert code == 128 + signal.SIGTERM and "again" not in said


def test_servers_that_are_given_up():
    """Ten starts in a row that never listened; one that did begins a new row."""
    program = """
import pathlib, sys, tempfile, types
sys.path.insert(0, "launch")
sys.argv = ["local", "--model=m"]
import local
from absl import flags
flags.FLAGS(sys.argv)
now = [0.0]
local.time = types.SimpleNamespace(monotonic=lambda: now[0])
class Dead:
    started = 0
    def __init__(self, *_, **__): Dead.started += 1
    def poll(self): return 1
    def reason(self): return "exit code 1"
local.Worker = Dead
directory = pathlib.Path(tempfile.mkdtemp())
server = local.Server(0, directory, pathlib.Path("token"), local.Host(({},), ({},), (), 300.0))
while not server.given_up:
    now[0] += 31.0
    if Dead.started == 4:
        (directory / "server-0").touch()  # it listened
    server.keep_alive()
print(Dead.started)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=processes.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["14"]  # three, one that listened, then ten
    assert done.stderr.count("again in") == 13 and "it is given up" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"), [(["--servers=1", "--learners=2"], "--model is missing"), (["--learners=0"], "--learners")]
)
def test_what_is_refused(flags, message):
    done = subprocess.run([*processes.LAUNCH, *flags, "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and message in done.stderr
