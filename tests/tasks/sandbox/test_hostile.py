"""Hostile programs earn nothing, leave nothing, and the next program runs as ever.

Each program runs once with all that this kernel grants, and once as where it grants no namespaces. The answers lie in a
file that everybody may read, and a socket of this machine sends them to whoever asks: what is not kept away is found.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import socket
import tempfile
import threading
from typing import NamedTuple

import psutil
import pytest

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.code import CodeGrader
from isocompute_jax.tasks.sandbox import Sandbox, SandboxLimits
from isocompute_jax.tasks.sandbox.inside.jail import MEASURES
from tests.tasks.sandbox.hostile_programs import CALLS, NEEDS, STDIN

ROOT = pathlib.Path(__file__).parents[3]
LIMITS = SandboxLimits(
    test_s=0.15, cpu_s=1, memory_mb=160, output_kb=64, file_mb=1, scratch_mb=4, files=64, processes=8
)
AT_A_TIME = 8
FALLBACK = ("user", "landlock", "system_calls")
"""What is left where namespaces are refused, the first of them for root alone."""
SECRETS = ["SECRET-814", "SECRET-277"]
ADD = "print(sum(map(int, input().split())))"
GOOD = Problem("good", "", '{"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}', "code")
ALL = {**STDIN, **CALLS}


class Record(NamedTuple):
    """What became of one program."""

    reward: float
    passed: float
    next_reward: float
    processes: list[str]


def marked(servers: dict[int, str]) -> list[str]:
    """Processes on this machine that are of a sandbox, by what a fork keeps: the user, or the command."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            others = process.uids().real in {(1 << 30) + server for server in servers}
            command = " ".join(process.cmdline())
            if process.pid not in servers and (others or any(mark in command for mark in servers.values())):
                found.append(str(process))
    return found


class Hosts:
    """Runs programs on a few sandboxes at a time."""

    def __init__(self, measures: tuple[str, ...], answers: pathlib.Path, port: int, test_s: float):
        self._limits = dataclasses.replace(LIMITS, test_s=test_s)
        self._servers: dict[int, str] = {}
        self._fill = {"ANSWERS": str(answers), "PORT": str(port), "ROOT": str(ROOT), "PID": str(os.getpid())}
        self._graders: queue.SimpleQueue[CodeGrader] = queue.SimpleQueue()
        for _ in range(AT_A_TIME):
            grader = CodeGrader(LIMITS)
            grader._sandbox, grader._process = Sandbox(LIMITS, measures=measures), os.getpid()
            self._graders.put(grader)

    def run(self, name: str) -> Record:
        source = ALL[name]
        for word, value in self._fill.items():
            source = source.replace(word, value)
        if name in STDIN:
            answer = {"inputs": ["1 2", "3 4"], "outputs": SECRETS}
        else:
            answer = {"fn_name": "f", "inputs": [[1], [2]], "outputs": SECRETS}
        grader = self._graders.get()
        try:
            sandbox = grader._sandbox
            assert sandbox is not None
            sandbox.limits = self._limits
            grade = grader.grade(Problem(name, "", json.dumps(answer), "code"), f"```python\n{source}\n```")
            server = sandbox._server
            assert server is not None
            left = [str(process) for process in psutil.Process(server.pid).children(recursive=True)]
            self._servers[server.pid] = sandbox._scratch
            sandbox.limits = dataclasses.replace(LIMITS, test_s=20)  # however busy this machine is
            good = grader.grade(GOOD, f"```python\n{ADD}\n```")
        finally:
            self._graders.put(grader)
        return Record(grade.reward, grade.metrics["tests_passed"], good.reward, left)

    def left(self) -> list[str]:
        """Processes that any of the programs left, wherever they went."""
        return marked(self._servers)

    def close(self) -> None:
        while not self._graders.empty():
            self._graders.get().close()


def runnable(granted: frozenset[str]) -> list[str]:
    """Programs that cannot harm whoever runs these tests."""
    counted = os.geteuid() != 0 or "user" in granted  # Linux does not limit root's processes
    names = [name for name in ALL if name not in NEEDS or NEEDS[name] & granted]
    return [name for name in names if counted or "fork" not in ALL[name]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """A file with the answers that the whole world may read."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = pathlib.Path(folder) / "answers"
        path.write_text("\n".join(SECRETS))
        path.chmod(0o644)
        yield path


@pytest.fixture(scope="module")
def port():
    """Sends the answers to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall("\n".join(SECRETS).encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture(
    scope="module", params=[MEASURES, pytest.param(FALLBACK, marks=pytest.mark.slow)], ids=["all", "fallback"]
)
def records(request, answers, port):
    """Every program's record, and the names that were in temporary and working directories before and after."""
    with Sandbox(LIMITS, measures=request.param) as probe:
        granted = probe.measures()
    before = places(answers)
    hosts = Hosts(request.param, answers, port, LIMITS.test_s)
    names = runnable(granted)
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        found = dict(zip(names, pool.map(hosts.run, names), strict=True))
    left = hosts.left()
    hosts.close()
    return found, left, before, places(answers)


def places(answers: pathlib.Path) -> dict[str, set[str]]:
    """What lies where programs might have written."""
    folders = [answers.parent, pathlib.Path.cwd(), pathlib.Path("/"), pathlib.Path(os.__file__).parent]
    found = {str(folder): {path.name for path in folder.iterdir()} - {"__pycache__"} for folder in folders}
    temporary = {path.name for path in pathlib.Path(tempfile.gettempdir()).iterdir()}
    return found | {"temporary": {name for name in temporary if name.startswith(("sandbox-", "was_here"))}}


@pytest.mark.parametrize("name", ALL)
def test_a_hostile_program_earns_nothing_and_leaves_nothing(records, name):
    found, *_ = records
    if name not in found:
        missing = ", ".join(sorted(NEEDS.get(name, {"user"})))
        pytest.skip(f"this kernel grants none of {missing} here, and the program would get its way")
    record = found[name]
    assert (record.reward, record.passed) == (0, 0)
    assert record.processes == []
    assert record.next_reward == 1


def test_no_process_and_no_file_is_left(records):
    _, left, before, after = records
    assert left == [] and after == before


def test_what_is_not_hidden_is_found(answers, port):
    """The programs above are real attacks: without the measures that they name, they earn the reward."""
    hosts = Hosts((), answers, port, test_s=20)
    try:
        for name in ("read the answers", "connect"):
            assert hosts.run(name).reward == 1
    finally:
        hosts.close()
