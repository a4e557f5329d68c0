"""Learners of these tests have the stand-in of NCCL, and short deadlines."""

import pathlib
import shutil
import tempfile

import pytest

from isocompute_jax.service.client import weight_broadcast
from tests.service.fake_nccl import Fake
from tests.service.fleet_builders import Live, tensors
from tests.service.receiving_engine import Process, ReceivingSimulated


@pytest.fixture
def folder():
    """A local socket's address is short."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def library(monkeypatch, folder):
    """NCCL of this process, a learner's."""
    fake = Fake(folder)
    monkeypatch.setattr(
        weight_broadcast, "libraries", lambda service: fake.libraries() if service.push == "nccl" else None
    )
    monkeypatch.setattr(weight_broadcast, "JOIN_S", 2.0)
    monkeypatch.setattr(weight_broadcast, "LATE_S", 2.0)
    monkeypatch.setattr(weight_broadcast, "SETTLE_S", 0.05)
    return fake


@pytest.fixture
def servers():
    """Starts servers in threads of this process, `start()`, or as processes, `start("dies")`."""
    started = []

    def start(do=None, **settings):
        if do is None:
            server = Live(engine=ReceivingSimulated(tensors(), tokens_per_s=4000.0, **settings))
        else:
            server = Process(do, **settings)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop() if isinstance(server, Live) else server.kill()
