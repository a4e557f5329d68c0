"""The check of NVIDIA's driver, on what drivers answer."""

import ctypes
import os
import sys

import pytest

from isocompute_jax import drivers
from isocompute_jax.records.errors import InputError

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@u22)  Thu Jan 23 2025\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC 12.2.0\n"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """One whose driver answers `cuda` (None: there is no library), with the kernel's words about its module."""

    class Library:
        def __init__(self, cuda: int, status: int):
            self.cuda, self.status = cuda, status

        def cuDriverGetVersion(self, number):
            number._obj.value = self.cuda
            return self.status

    def make(cuda: int | None, words: str = "", status: int = 0):
        def load(name: str) -> Library:
            assert name == "libcuda.so.1"
            if cuda is None:
                raise OSError("cannot open shared object file")
            return Library(cuda, status)

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(drivers, "_KERNEL_MODULE", tmp_path / "version")
        if words:
            (tmp_path / "version").write_text(words)

    return make


@pytest.mark.parametrize(("words", "version"), [(OPEN, "570.86.15"), (CLOSED, "550.54.15"), ("", None), ("?", None)])
def test_an_old_driver_is_refused_by_its_version(machine, words, version):
    machine(12080, words)
    assert drivers.driver_version() == version
    name = f" {version}" if version else ""
    said = rf"the NVIDIA driver{name} runs CUDA 12\.8 at most, and JAX here .* driver 580 or later"
    with pytest.raises(InputError, match=said):
        drivers.check_driver("JAX", otherwise="nothing")


@pytest.mark.parametrize(("cuda", "status"), [(13000, 0), (13010, 0), (None, 0), (0, 0), (12080, 34)])
def test_newer_ones_and_machines_without_are_taken(machine, cuda, status):
    """A stub of the library answers with an error (34)."""
    machine(cuda, status=status)
    drivers.check_driver("JAX", otherwise="nothing")


def test_jax_is_asked_about_where_it_would_use_gpus(machine, monkeypatch, tmp_path):
    machine(12080)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    drivers.check_driver_for_jax()  # no plugin for CUDA
    (tmp_path / "jax_cuda13_plugin").mkdir()
    for platforms, refused in [("", True), ("cuda,cpu", True), ("cpu", False), ("tpu,cpu", False)]:
        os.environ["JAX_PLATFORMS"] = platforms
        if not refused:
            drivers.check_driver_for_jax()
            continue
        with pytest.raises(InputError, match="JAX_PLATFORMS=cpu does without GPUs"):
            drivers.check_driver_for_jax()
