"""Servers restarted one after the other, or replaced by others, under a running learner: the run does not notice."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.service.client.service_config import ServiceConfig
from tests import mains
from tests.experiment import builders
from tests.experiment.processes import Processes, said
from tests.launch.processes import ROOT, start, wait_until

pytestmark = pytest.mark.slow

STEPS = 100
SECRET = "zebra-quilt-90210-lantern"
"""Of the servers and of the learner: it may stand in its file, and nowhere else."""


@dataclasses.dataclass
class Site:
    """A machine room: where servers are started, and what they need."""

    root: pathlib.Path
    shared: pathlib.Path
    model: str

    def flags(self, port: int) -> list[str]:
        """Of a server."""
        return [
            *("--engine=jax", f"--model={self.model}", "--max_slots=64", "--max_model_len=32", "--wait_for_weights"),
            *(f"--port={port}", f"--port_file={self.root / f'ready-{port}'}", f"--weights_dir={self.shared}"),
            *(f"--token_file={self.root / 'token'}", "--grace_s=20"),
        ]

    def start(self, port: int, *more: str) -> mains.Main:
        """A server, with more flags, that is up when this returns."""
        ready = self.root / f"ready-{port}"
        ready.unlink(missing_ok=True)
        server = Processes(self.root).start(
            "isocompute_jax.serve",
            [*self.flags(port), *more],
            self.root / f"server-{port}.log",
        )
        wait_until(lambda: ready.exists() or server.exit_code is not None, "a server is up")
        assert server.exit_code is None, (self.root / f"server-{port}.log").read_text()
        return server


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("operations")
    config = builders.make_inputs(root)
    (root / "token").write_text(SECRET)
    (root / "token").chmod(0o600)
    shared = pathlib.Path(tempfile.mkdtemp(prefix="isocompute-operations-", dir="/dev/shm"))
    yield Site(root, shared, config.model)
    left = list(shared.iterdir())
    shutil.rmtree(shared)
    assert left == []


@pytest.fixture(scope="module")
def ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def config_of(site: Site, **service) -> RunConfig:
    base = builders.make_inputs(site.root)
    patience = {"stall_s": 120.0, "wait_s": 60.0}
    where = ServiceConfig(token_file=str(site.root / "token"), shared_dir=str(site.shared), **{**patience, **service})
    return dataclasses.replace(base, max_compute=64 * STEPS, service=where)


def list_servers(path: pathlib.Path, *ports: int) -> None:
    run_files.write_atomic(path, "".join(f"127.0.0.1:{port}\n" for port in ports))


def address(port: int) -> str:
    return f"127.0.0.1:{port}"


class Learner:
    """A run that goes on while servers come and go."""

    def __init__(self, site: Site, name: str, **service):
        self.workdir = site.root / name
        file = builders.write_config(site.root / f"{name}.json", config_of(site, **service))
        self.main = Processes(site.root).train(file, self.workdir)

    def steps(self) -> int:
        return len(run_files.read_lines(self.workdir / run_files.METRICS, partial_last_line=True))

    def members(self) -> dict[str, dict]:
        try:
            found = json.loads((self.workdir / run_files.FLEET).read_text())["members"]
        except FileNotFoundError:
            return {}
        return {member["endpoint"]: member for member in found}

    def uses(self, port: int) -> bool:
        """Whether a server has weights of an update."""
        found = self.members().get(address(port))
        return found is not None and found["up"] and not found["leaving"] and (found["version"] or 0) >= 2

    def runs_until(self, condition, what: str) -> None:
        """Waits, and fails where the run ends first: then the test would show nothing."""
        wait_until(lambda: condition() or self.main.exit_code is not None, what)
        assert self.main.exit_code is None, f"the run ended before {what}: {said(self.workdir)}"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Frozen within it: a run this short would end before a server has started."""
        self.main.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.main.send(signal.SIGCONT)

    def finish(self) -> None:
        assert self.main.wait() == 0, said(self.workdir)


def stop(server: mains.Main) -> None:
    """SIGTERM, which it obeys: it drains, and ends well."""
    server.send(signal.SIGTERM)
    assert server.wait() == 0


@pytest.fixture(scope="module")
def undisturbed(site, ports) -> pathlib.Path:
    with site.start(ports[0]) as one, site.start(ports[1]) as other:
        learner = Learner(site, "undisturbed", endpoints=f"{address(ports[0])},{address(ports[1])}")
        learner.finish()
        stop(one)
        stop(other)
    return learner.workdir


def test_servers_restarted_at_their_addresses(site, ports, undisturbed):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(site.start(port)) for port in ports[:2]]
        learner = Learner(site, "restarted", endpoints=",".join(map(address, ports[:2])))
        stack.enter_context(learner.main)
        learner.runs_until(lambda: learner.steps() >= 2, "two steps are done")
        stop(servers[0])
        with learner.held():
            servers[0] = stack.enter_context(site.start(ports[0]))
        learner.runs_until(lambda: learner.uses(ports[0]), "the restarted server has weights")
        stop(servers[1])  # all is drawn by the one that was restarted
        assert learner.main.exit_code is None
        with learner.held():
            servers[1] = stack.enter_context(site.start(ports[1]))
        learner.finish()
        for server in servers:
            stop(server)
    builders.assert_same_run(learner.workdir, undisturbed)


def test_servers_replaced_by_a_file(site, ports, undisturbed):
    """Others at new addresses join, and the old ones leave before they are stopped: nothing is drawn twice."""
    path = site.root / "servers"
    list_servers(path, *ports[:2])
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(site.start(port)) for port in ports]
        learner = Learner(site, "replaced", endpoints_file=str(path))
        stack.enter_context(learner.main)
        learner.runs_until(lambda: learner.steps() >= 2, "two steps are done")
        now = list(ports[:2])
        for number in (0, 1):
            old, now[number] = now[number], ports[2 + number]
            list_servers(path, *now)
            learner.runs_until(
                lambda gone=old, new=now[number]: learner.uses(new) and address(gone) not in learner.members(),
                "the new server has weights, and the old one has left",
            )
            stop(servers[number])
        learner.finish()
        for server in servers[2:]:
            stop(server)
    builders.assert_same_run(learner.workdir, undisturbed)
    lines = run_files.read_lines(learner.workdir / run_files.METRICS)
    assert lines[-1]["redrawn_rollouts"] == 0
    # Two devices at a time, three for moments, beside the learner's own.
    [sampler], [own] = (list(lines[-1][f"{who}_device_hours"].values()) for who in ("sampler", "learner"))
    assert own == pytest.approx(lines[-1]["wall_s"] / 3600, abs=1e-5)
    assert own < sampler <= 3 * own and lines[-1]["device_hours"] == pytest.approx(own + sampler, abs=1e-5)
    assert lines[-1]["lost_device_hours"] == 0


def test_the_secret_is_nowhere(site, ports):
    """Not in what servers and learner print, write or are started with, also where it is refused."""
    environment = {**os.environ, **builders.compile_cache(site.root / "compile-cache")}
    learner_environment = {**environment, "ISOCOMPUTE_TOKEN": SECRET}
    workdir, where = site.root / "quiet", config_of(site, endpoints=address(ports[0])).service
    (site.root / "wrong").write_text(f"not-{SECRET}")
    (site.root / "wrong").chmod(0o600)
    configs = {
        "quiet": dataclasses.replace(where, token_file=""),  # that of the environment
        "refused": dataclasses.replace(where, token_file=str(site.root / "wrong")),
    }
    commands = {
        name: builders.train_command(
            builders.write_config(site.root / f"{name}.json", dataclasses.replace(config_of(site), service=service)),
            site.root / name,
        )
        for name, service in configs.items()
    }
    with contextlib.ExitStack() as stack:
        serve = [sys.executable, "-m", "isocompute_jax.serve", *site.flags(ports[0])]
        server = ended(stack, start(serve, site.root / "quiet-server.log", env=environment, cwd=ROOT))
        run = ended(stack, start(commands["quiet"], site.root / "quiet.log", env=learner_environment, cwd=ROOT))
        steps = workdir / run_files.METRICS
        wait_until(lambda: run.poll() is not None or (steps.exists() and steps.stat().st_size), "a step is done")
        assert run.poll() is None, said(workdir)
        shown = command_lines()
        assert {server.pid, run.pid} <= shown.keys()
        assert not [line for line in shown.values() if SECRET in line]
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 130
        refused = ended(stack, start(commands["refused"], site.root / "refused.log", env=environment, cwd=ROOT))
        assert refused.wait(120) == 2 and "refuses the token" in said(site.root / "refused")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    holders = [
        str(path.relative_to(site.root))
        for path in site.root.rglob("*")
        if path.is_file() and path.name not in ("token", "wrong") and SECRET.encode() in path.read_bytes()
    ]
    assert holders == []


def test_an_expired_certificate_ends_the_run_at_once(site, ports):
    """A day's patience with servers that are away does not help there."""
    for make in (
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=old -keyout old.key -out old.csr",
        "x509 -req -in old.csr -signkey old.key -days -1 -out old.pem",
    ):
        subprocess.run(["openssl", *make.split()], cwd=site.root, check=True, capture_output=True)
    old, workdir = site.root / "old.pem", site.root / "expired"
    with site.start(ports[0], f"--tls_cert={old}", f"--tls_key={old.with_suffix('.key')}") as server:
        learner = Learner(site, "expired", endpoints=address(ports[0]), ca_file=str(old), wait_s=86_400.0)
        with learner.main:
            assert learner.main.wait() == 2
        stop(server)
    [*_, last] = said(workdir).splitlines()
    assert f"error: no sampler can be used: {address(ports[0])} cannot be reached: its certificate has expired" in last
    assert not workdir.exists()


def ended(stack: contextlib.ExitStack, process: subprocess.Popen) -> subprocess.Popen:
    """The process, which does not outlive the stack."""
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def command_lines() -> dict[int, str]:
    """What `ps` shows, by process."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found
