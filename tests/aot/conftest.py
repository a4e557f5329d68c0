"""Programs compiled for accelerators that are not here, by the Pythons of `make aot-env`.

A test calls a function of a helper module (which imports no pytest: those environments have none) in such a Python:

    def test_it(gpu):
        assert gpu.call("tests.aot.my_programs:temporaries", "h200:1x8", 8192) < 2**30

Arguments and result travel as JSON.
"""

import dataclasses
import json
import pathlib
import subprocess
from typing import Any

import pytest

from isocompute_jax.plan import topology
from isocompute_jax.records.errors import InputError

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of accelerator that can be compiled for."""

    python: str
    environment: dict[str, str]

    def run(self, *arguments: str, timeout: float = 900) -> str:
        """What Python prints with these arguments; the test fails with its error output."""
        environment = {name: value for name, value in self.environment.items() if name != "XLA_FLAGS"}
        # Not those of tests/conftest.py: the program is compiled as a user's.
        environment |= {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
        command = [self.python, *arguments]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def call(self, function: str, *arguments: Any, timeout: float = 900) -> Any:
        """The result of `module:function` there."""
        return json.loads(self.run("-m", "tests.aot.call", function, json.dumps(arguments), timeout=timeout))


def _target(kind: topology.CompilerKind) -> Target:
    try:
        return Target(*topology.find_compiler(kind))
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gpu() -> Target:
    """For H200s."""
    return _target("gpu")


@pytest.fixture(scope="session")
def tpu() -> Target:
    """For slices of TPUs."""
    return _target("tpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked `aot`."""
    for item in items:
        if item.path.parent == HERE:  # of thousands of items, each asked: no walk up its path
            item.add_marker(pytest.mark.aot)
