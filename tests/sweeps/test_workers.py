"""Worker processes: cores, exit codes, signals, and that none outlives its parent."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from isocompute_jax.sweeps import workers
from tests.launch.processes import alive, wait_until


def run_worker(tmp_path: pathlib.Path, program: str, **options) -> workers.Worker:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return workers.Worker(command, tmp_path / "log", **{"core": None, "environment": os.environ, **options})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
def test_a_worker_is_on_its_core_before_its_program_starts(tmp_path):
    core = max(os.sched_getaffinity(0))
    worker = run_worker(tmp_path, "import os; print('cores', os.sched_getaffinity(0))", core=core)
    wait_until(lambda: worker.poll() is not None)
    assert worker.poll() == 0
    assert f"cores {{{core}}}" in (tmp_path / "log").read_text()


def test_a_failed_worker_gives_code_last_lines_and_log(tmp_path):
    worker = run_worker(tmp_path, "for i in range(9): print('line', i)\nraise SystemExit(2)")
    wait_until(lambda: worker.poll() is not None)
    reason = worker.reason()
    assert "exit code 2, bad input" in reason and "line 8" in reason and "line 3" not in reason
    assert str(tmp_path / "log") in reason


def test_what_is_no_program_is_named(tmp_path):
    script = tmp_path / "script"
    script.write_text("no first line that names an interpreter\n")
    script.chmod(0o755)
    worker = workers.Worker([str(script)], tmp_path / "log", core=None, environment=os.environ)
    wait_until(lambda: worker.poll() is not None)
    assert f"error: {script} cannot be started: Exec format error" in worker.reason()


def test_a_killed_worker_names_the_signal(tmp_path):
    worker = run_worker(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    wait_until(lambda: worker.poll() is not None)
    assert "killed by SIGKILL" in worker.reason()


def test_a_worker_is_interrupted_once_and_killed_with_its_children(tmp_path):
    worker = run_worker(
        tmp_path,
        """
        import signal, subprocess, time
        signal.signal(signal.SIGINT, lambda *_: print("inter" + "rupted", flush=True))
        print("child", subprocess.Popen(["sleep", "300"]).pid, flush=True)
        while True:
            time.sleep(0.1)
        """,
    )
    log = tmp_path / "log"
    child = int(wait_until(lambda: re.search(r"child (\d+)\n", log.read_text()))[1])
    for _ in range(2):
        worker.interrupt()
    wait_until(lambda: "interrupted" in log.read_text())
    worker.kill()
    assert worker.poll() == -signal.SIGKILL
    wait_until(lambda: not alive(child))
    assert log.read_text().count("interrupted\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_workers_die_with_the_process_that_started_them(tmp_path):
    program = f"""
        import os, pathlib, time
        from isocompute_jax.sweeps.workers import Worker
        log = pathlib.Path({str(tmp_path / "log")!r})
        print(Worker(["sleep", "300"], log, core=None, environment=os.environ).pid, flush=True)
        time.sleep(300)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        wait_until(lambda: b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:1])
        parent.kill()
    wait_until(lambda: not alive(pid))


def test_pinning_is_for_cpus(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert workers.default_cores() is None
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert workers.default_cores() == sorted(os.sched_getaffinity(0))
