"""What this room's tests share: one set of inputs, and one undisturbed run on them."""

import os
import pathlib

import pytest

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.experiment.loop import train
from tests.experiment import builders
from tests.experiment.processes import Processes


@pytest.fixture(scope="session")
def base_run(tmp_path_factory) -> RunConfig:
    """See `builders.make_inputs`; nobody writes to its files. Checkpoints are most of what so small a step costs.

    So they are written at the end, and where the run is interrupted.
    """
    return override(builders.make_inputs(tmp_path_factory.mktemp("inputs")), "checkpoint_every_s", 1e9)


@pytest.fixture(scope="session")
def often(base_run) -> RunConfig:
    """`base_run` with a checkpoint after every step: for runs that are killed."""
    return override(base_run, "checkpoint_every_s", 0.0)


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
