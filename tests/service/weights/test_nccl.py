"""NCCL's calls: what is refused, found and given up; `tests/service/client/nccl` has updates through them."""

import pathlib
import time

import numpy as np
import pytest

from isocompute_jax.service.weights import nccl
from isocompute_jax.service.weights.nccl import TransferError
from tests.service.fake_nccl import Fake
from tests.service.fleet_builders import until


@pytest.fixture
def library(tmp_path_factory):
    return Fake(tmp_path_factory.mktemp("n"))


def test_a_rank_that_never_comes_is_waited_for_until_it_is_given_up(library):
    libraries = library.libraries()
    communicator = nccl.Communicator(libraries, libraries.unique_id(), 2, 0)
    assert not communicator.done() and not communicator.done()
    communicator.abort()
    communicator.abort()
    with pytest.raises(TransferError, match="was given up"):
        communicator.done()
    with pytest.raises(TransferError, match="was given up"):
        communicator.broadcast(0, 1, None)
    until(lambda: library.idle)


def test_what_owns_the_bytes_is_held_until_it_is_given_up(library):
    libraries = library.libraries()
    communicator = nccl.Communicator(libraries, libraries.unique_id(), 1, 0)
    while not communicator.done():
        time.sleep(0.001)
    numbers = np.ones(4, np.uint8)
    communicator.broadcast(numbers.ctypes.data, 4, numbers)
    assert communicator._kept is numbers
    communicator.abort()
    until(lambda: library.idle)


def test_a_call_that_fails_is_named(library):
    library.ncclGetVersion = lambda version: 3
    with pytest.raises(TransferError, match="ncclGetVersion gave status 3"):
        _ = nccl.Nccl(library, library).version
    library.ncclCommInitRankConfig = lambda *_: 5
    with pytest.raises(TransferError, match="ncclCommInitRankConfig gave status 5"):
        nccl.Communicator(nccl.Nccl(library, library), bytes(128), 2, 0)
    assert library.idle


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(nccl, "find", lambda name: f"/nowhere/{name}")
    with pytest.raises(TransferError, match=r"NCCL cannot be loaded: .*libnccl\.so\.2"):
        nccl.load()


def test_libraries_are_found_loaded_or_beside_the_wheels(monkeypatch, tmp_path):
    """By names that no other test's imports load: torch for GPUs loads NCCL itself."""
    library = tmp_path / "nvidia" / "other" / "lib" / "libother.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert nccl.find("libother.so.2") == str(library)
    assert pathlib.Path(nccl.find("libc.so.6")).is_absolute()  # this process has loaded it
    assert nccl.find("libabsent.so.1[23]") == "libabsent.so.12"
