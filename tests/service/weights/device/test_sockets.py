"""Bytes between real processes over sockets."""

import multiprocessing
import threading

import numpy as np
import pytest

from isocompute_jax.service.weights.device.sockets import SocketTransport
from isocompute_jax.service.weights.device.transport import Move, TransferError


def move(rank, peer, numbers, *, outgoing):
    return Move(rank, peer, outgoing, numbers.ctypes.data, numbers.nbytes)


def child(folder, pipe):
    """Ranks 1 and 2: 1 hands on to 2 what it was sent before, and 2 tells what it got."""
    transport = SocketTransport(folder, [1, 2], 3, timeout_s=20)
    first, second, third = (np.zeros(size, np.uint8) for size in (1 << 20, 3, 1 << 20))
    transport.exchange([move(1, 0, first, outgoing=False), move(1, 0, second, outgoing=False)], timeout_s=20)
    transport.exchange([move(1, 2, first, outgoing=True), move(2, 1, third, outgoing=False)], timeout_s=20)
    pipe.send((first.tobytes(), second.tobytes(), third.tobytes()))
    with pytest.raises(TransferError, match="rank 0 is gone"):
        transport.exchange([move(1, 0, second, outgoing=False)], timeout_s=20)
    pipe.send("the end")


def test_bytes_come_as_they_were_sent(tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(str(tmp_path), theirs))
    process.start()
    transport = SocketTransport(str(tmp_path), [0], 3, timeout_s=20)
    large, small = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8), np.arange(3, dtype=np.uint8)
    transport.exchange([move(0, 1, large, outgoing=True), move(0, 1, small, outgoing=True)], timeout_s=20)
    assert ours.recv() == (large.tobytes(), small.tobytes(), large.tobytes())
    transport.close()
    assert ours.recv() == "the end"
    process.join()


def test_a_rank_that_does_not_come_is_said(tmp_path):
    with pytest.raises(TransferError, match="rank 1 did not come"):
        SocketTransport(str(tmp_path), [0], 2, timeout_s=0.1)
    with pytest.raises(TransferError, match="was not formed"):
        SocketTransport(str(tmp_path / "none"), [0], 1, timeout_s=0.1)


def test_an_exchange_ends_when_it_is_closed_or_takes_too_long(tmp_path):
    with_peer = SocketTransport(str(tmp_path), [0, 1], 2, timeout_s=5)
    numbers = np.zeros(4, np.uint8)
    threading.Timer(0.1, with_peer.close).start()
    with pytest.raises(TransferError):
        with_peer.exchange([move(0, 1, numbers, outgoing=False)], timeout_s=20)
    (tmp_path / "other").mkdir()
    slow = SocketTransport(str(tmp_path / "other"), [0, 1], 2, timeout_s=5)
    with pytest.raises(TransferError):
        slow.exchange([move(0, 1, numbers, outgoing=False)], timeout_s=0.1)
