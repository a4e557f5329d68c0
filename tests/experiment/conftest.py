"""What this room's tests share: one set of inputs, and one undisturbed run on them."""

import os
import pathlib

import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.loop import train
from tests.experiment import builders
from tests.experiment.processes import Processes


@pytest.fixture(scope="session")
def base_run(tmp_path_factory) -> RunConfig:
    """See `builders.make_inputs`; nobody writes to its files."""
    return builders.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def undisturbed(base_run, tmp_path_factory) -> pathlib.Path:
    """The run directory of `base_run`, run in this process without a break."""
    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(base_run, workdir)
    return workdir


@pytest.fixture(scope="session")
def processes(tmp_path_factory) -> Processes:
    """In a directory that all of pytest-xdist's workers use."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "processes"
    path.mkdir(exist_ok=True)
    return Processes(path)
