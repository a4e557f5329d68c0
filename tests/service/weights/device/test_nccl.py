"""All of the NCCL transport but libnccl itself, between real processes."""

import ctypes
import multiprocessing
import pathlib
import sys

import numpy as np
import pytest

from isocompute_jax.service.weights.device import nccl
from isocompute_jax.service.weights.device.transport import Move, TransferError
from tests.service.weights.device.fake_nccl import Fake


def move(rank, peer, numbers, *, outgoing):
    return Move(rank, peer, outgoing, numbers.ctypes.data, numbers.nbytes)


def join(fake, unique_id, devices, world):
    return nccl.NcclTransport(fake.libraries(), unique_id, devices, world, timeout_s=20)


def child(unique_id, pipe):
    """Rank 2, on device 5."""
    fake = Fake()
    transport = join(fake, unique_id, {2: 5}, 3)
    first, second = np.zeros(1 << 20, np.uint8), np.zeros(3, np.uint8)
    moves = [move(2, 0, first, outgoing=False), move(2, 1, second, outgoing=False)]
    moves.append(move(2, 0, np.ones(1, np.uint8), outgoing=True))
    transport.exchange(moves, timeout_s=20)
    pipe.send((first.tobytes(), second.tobytes()))
    pipe.recv()
    transport.close()
    pipe.send(fake.aborted)


def test_bytes_come_as_they_were_sent_and_a_lost_peer_shows(tmp_path):
    fake = Fake(tmp_path)
    libraries = fake.libraries()
    assert libraries.version == "2.29.7" and libraries.bus_id(3) == "0000:03:00.0"
    unique_id = libraries.unique_id()
    assert len(unique_id) == 128
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(unique_id, theirs))
    process.start()
    transport = nccl.NcclTransport(libraries, unique_id, {0: 0, 1: 1}, 3, timeout_s=20)
    large, small = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), np.arange(3, dtype=np.uint8)
    back = np.zeros(1, np.uint8)
    moves = [move(0, 2, large, outgoing=True), move(1, 2, small, outgoing=True), move(0, 2, back, outgoing=False)]
    transport.exchange(moves, timeout_s=20)
    assert back[0] == 1
    assert ours.recv() == (large.tobytes(), small.tobytes())
    ours.send("end")
    assert ours.recv() == [1002]
    process.join()
    with pytest.raises(TransferError, match=r"rank 0 met error 6; a peer is gone"):
        transport.exchange([move(0, 2, large, outgoing=False)], timeout_s=20)
    assert fake.aborted == [1000, 1001]
    with pytest.raises(TransferError, match="was ended"):
        transport.exchange([move(0, 2, large, outgoing=True)], timeout_s=20)
    transport.close()


def test_a_rank_that_does_not_come_is_said(tmp_path):
    fake = Fake(tmp_path)
    with pytest.raises(TransferError, match=r"2 ranks was not formed: not all of 2 ranks came within 0\.1 s"):
        nccl.NcclTransport(fake.libraries(), fake.libraries().unique_id(), {0: 0}, 2, timeout_s=0.1)


def test_a_call_that_fails_is_named(tmp_path):
    fake = Fake(tmp_path)
    fake.ncclGetVersion = lambda version: 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TransferError, match="NCCL: ncclGetVersion gave status 3"):
        _ = fake.libraries().version


def test_a_library_that_is_missing_is_said(monkeypatch):
    def missing(path):
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(TransferError, match=r"NCCL cannot be loaded: .*libnccl\.so\.2"):
        nccl.load()


def test_libraries_are_found_beside_nvidias_wheels(tmp_path, monkeypatch):
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert nccl.find("libnccl.so.2") == str(library)
    assert pathlib.Path(nccl.find("libc.so.6")).is_absolute()  # this process has loaded it
    assert nccl.find("libcudart.so.1[23]") == "libcudart.so.12"
