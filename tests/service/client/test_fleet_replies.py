"""The fleet against servers that send what was not asked for, against users who stop it, and at the process's end."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.errors import RunError
from tests.service.fleet_builders import fleet, live, params, requests, tensors, until

pytestmark = pytest.mark.usefixtures("short_polls")


class Crooked(SimulatedEngine):
    """Changes what it drew, `times` times."""

    def __init__(self, change, times: int):
        super().__init__(tensors(), tokens_per_s=4000.0)
        self.change = change
        self.left = times

    async def generate(self, request):
        ready = []
        async for some in super().generate(request):
            ready += some
        if self.left:
            self.left -= 1
            ready = self.change(sorted(ready))
        yield ready


def changed(index=None, **changes):
    """A change of the first rollout."""

    def change(ready):
        first = ready[0][1]
        new = {name: function(getattr(first, name)) for name, function in changes.items()}
        return [(ready[0][0] if index is None else index, dataclasses.replace(first, **new)), *ready[1:]]

    return change


CHANGES = {
    "twice": (changed(index=1), "rollout 1 came twice"),
    "unasked": (changed(index=4), "rollout 4 came twice, or was not asked for"),
    "token": (changed(tokens=lambda x: x + 32), "has a token id outside 0 .. 31"),
    "version": (changed(policy_versions=lambda x: x + 1), r"has the versions \[2\], not 1"),
    "mixture": (changed(policy_versions=lambda x: x + (np.arange(len(x)) > 2)), r"has the versions \[1, 2\], not 1"),
    "long": (
        changed(**{name: lambda x: np.tile(x, 9) for name in ("tokens", "logprobs", "policy_versions")}),
        "has more than 64 tokens",
    ),
    "logprobs": (changed(logprobs=lambda x: x[1:]), "8 tokens, 7 log-probabilities"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_wrong_reply_is_drawn_again_and_not_kept(tmp_path, kind):
    change, said = CHANGES[kind]
    with live(engine=Crooked(change, times=1)) as [server], fleet(server, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(2))
        groups = list(sampler.completed())
        assert sorted(group.problem_id for group in groups) == ["p0", "p1"]
        assert all(int(c.tokens.max()) < 32 and len(c.tokens) == 8 for group in groups for c in group.completions)
        assert sampler.redrawn_rollouts == 4
    with live(engine=Crooked(change, times=10**9)) as [server], fleet(server, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(1))
        with pytest.raises(RunError, match=rf"group of problem 'p0', step 0, train could not be .*{said}"):
            list(sampler.completed())


def test_a_group_that_every_server_fails_at_ends_the_run(tmp_path):
    def fail(_):
        raise RuntimeError("a bug of the engine")

    with live(2, engine=None) as servers, fleet(*servers, directory=tmp_path) as sampler:
        for server in servers:
            server.engine.generate = Crooked(fail, times=10**9).generate
        sampler.update_weights(params(), version=1)
        sampler.submit(requests(1))
        with pytest.raises(RunError, match="group of problem 'p0', step 0, train could not be sampled in 50 calls"):
            list(sampler.completed())


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also in a background job, which would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_control_c_is_seen_while_waiting(tmp_path, interruptible):
    with live() as [server], fleet(server, directory=tmp_path) as sampler:
        server.engine.frozen = True
        sampler.update_weights(params(), version=1)
        sampler.submit(requests(2))
        until(lambda: server.groups == 2)
        learner = threading.get_ident()
        threading.Timer(0.1, lambda: signal.pthread_kill(learner, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(sampler.completed())


def test_a_process_that_just_ends_leaves_nothing(tmp_path):
    program = """
        import sys
        from tests.service import fleet_builders as builders
        context = builders.fleet(sys.argv[1], directory=sys.argv[2])
        sampler = context.__enter__()
        sampler.update_weights(builders.params(), version=1)
        sampler.submit(builders.requests(3))
        print("sampling", flush=True)
        sys.stdin.read()
    """
    with live() as [server]:
        server.engine.frozen = True
        command = [sys.executable, "-c", textwrap.dedent(program), server.address, str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout and process.stdout.readline() == b"sampling\n"
        until(lambda: server.groups == 3)
        assert os.listdir(tmp_path) != []
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        assert errors == b""
        assert os.listdir(tmp_path) == []
        until(lambda: server.groups == 0)
