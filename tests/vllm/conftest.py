"""Servers take their time to start: the tests of a session share two of them."""

import contextlib
import itertools

import pytest

from isocompute_jax import model
from tests.vllm import builders


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """(name, seed) -> directory, for `tied` and `untied`."""
    root = tmp_path_factory.mktemp("checkpoints")
    found = {}
    for name, config in (("tied", builders.TIED), ("untied", builders.UNTIED)):
        for seed in (0, 1):
            found[name, seed] = root / f"{name}-{seed}"
            params = builders.make_params(config, seed)
            model.save_checkpoint(found[name, seed], config, params, tokenizer_from=None)
    return found


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts servers, and ends what is left of them."""
    if not builders.PYTHON.exists():
        pytest.fail("these tests need the environment that `make vllm-env` makes")
    with contextlib.ExitStack() as stack:

        def start(checkpoint, *flags):
            server = builders.Server(tmp_path_factory.mktemp("server"), checkpoint, *flags)
            stack.callback(server.end)
            return server

        yield start


@pytest.fixture(scope="session")
def servers(start, checkpoints):
    """A server of the tied and one of the untied model: they start, and run, at the same time."""
    return {kind: start(checkpoints[kind, 0]) for kind in ("tied", "untied")}


@pytest.fixture(scope="session")
def clients(servers):
    return {name: server.client() for name, server in servers.items()}


VERSIONS = itertools.count(1000, 10)  # they only rise, and a test may send the next one itself


@pytest.fixture
def served(clients):
    """Puts the first parameters in, whatever the test before left: kind -> (client, config, first, second)."""

    def served(kind):
        config = builders.UNTIED if kind == "untied" else builders.TIED
        first, second = (builders.make_params(config, seed) for seed in (0, 1))
        clients[kind].update(builders.tensors_of(config, first), next(VERSIONS))
        return clients[kind], config, first, second

    return served
