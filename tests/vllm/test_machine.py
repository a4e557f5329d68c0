"""What vLLM's build for GPUs needs of a machine. Needs no vLLM, and runs by default."""

import importlib.metadata
import pathlib
import sys
import sysconfig

import pytest

from isocompute_jax import drivers
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.server.engines.vllm import environment


@pytest.fixture
def whole(monkeypatch, tmp_path) -> pathlib.Path:
    """A machine with vLLM for GPUs and all that it needs, in a folder: a program `gcc`, and Python's headers."""
    (tmp_path / "gcc").touch(mode=0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    monkeypatch.setattr(importlib.metadata, "version", {"vllm": "0.32.0"}.__getitem__)
    monkeypatch.setattr(drivers, "cuda_of_driver", lambda: (13, 0))
    return tmp_path


def test_a_machine_with_all_of_it_is_taken(whole, monkeypatch):
    environment.check_machine()
    monkeypatch.setenv("CC", "gcc -m64")
    environment.check_machine()


def test_what_is_missing_is_named(whole, monkeypatch):
    python = f"python3.{sys.version_info.minor}"
    (whole / "Python.h").unlink()
    with pytest.raises(InputError, match=rf"Python.h of {python} is not here.* install gcc, g\+\+ and {python}-dev"):
        environment.check_machine()
    monkeypatch.setenv("CC", "/opt/no-compiler")
    with pytest.raises(InputError, match="a C compiler is not here"):
        environment.check_machine()
    monkeypatch.setattr(drivers, "cuda_of_driver", lambda: (12, 8))
    with pytest.raises(InputError, match=r"driver .*580 or later.*; --engine=vllm on CPUs"):
        environment.check_machine()


def test_the_build_for_cpus_needs_none(whole, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    (whole / "gcc").unlink()
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(drivers, "cuda_of_driver", lambda: (12, 8))
    environment.check_machine()
