"""The processes of a run start as one: they meet, then JAX learns of them (effects; nothing for one process)."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from isocompute_jax.distributed.environment import Place
from isocompute_jax.distributed.link import Codec
from isocompute_jax.distributed.meeting import about, meet, split
from isocompute_jax.distributed.team import Team, alone
from isocompute_jax.records.errors import BAD_INPUT, FAILED, INTERRUPTED, InputError, RunError

SHUTDOWN_S = 60
"""A process that still closes connections to a server which is gone is late; JAX aborts those that waited in vain."""
NOTICE_S = 2.0
"""What fails here alone may fail because another process has died: the team then says so, and ends this one."""


@contextlib.contextmanager
def joined(
    place: Place, facts: Mapping[str, Mapping[str, Any]], *, records: Sequence[type], stall_s: float, start_s: float
) -> Iterator[Team]:
    """The team of this run's processes, and JAX over all of their devices; before JAX has started any.

    `facts` must be the same in all of them, by kind and name; `records` are the dataclasses that travel between them;
    `stall_s` is as in `Team`, `start_s` the longest wait for the others.

    Raises:
      InputError: they are not of one run.
      RunError: some did not come.
    """
    if place.count == 1:
        yield alone()
        return
    if place.index:
        _speak_of_warnings_alone(place.index)
    _hold_aborts()
    team = meet(place, about(place, facts), Codec(records), start_s=start_s, stall_s=stall_s)
    try:
        _start_jax(place, stall_s=stall_s, start_s=start_s)
        yield team
        team.follow()  # while process 0 closes what it alone has
        team.everywhere(lambda: None)  # all have come this far: JAX waits for the last one, but not for long
    except BaseException as error:
        if not (team.shares(error) or isinstance(error, KeyboardInterrupt)):
            time.sleep(NOTICE_S)
        if isinstance(error, KeyboardInterrupt):
            code, why = INTERRUPTED, "was interrupted; the same command resumes the run"
        else:
            code = BAD_INPUT if isinstance(error, InputError) else FAILED
            why = f"failed: {str(error) or type(error).__name__}"
        team.leave(why, code)
        atexit.register(_end_at_once, code)
        raise
    jax.distributed.shutdown()
    team.leave()


def _start_jax(place: Place, *, stall_s: float, start_s: float) -> None:
    """Has JAX know of all devices; by its coordination service, at the port above that at which they met.

    Raises:
      RunError: the service does not start, though the port was free when they met.
    """
    host, port = split(place.coordinator)
    address = f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}"
    jax.config.update("jax_enable_preemption_service", False)  # it would keep every SIGTERM to itself
    try:
        jax.distributed.initialize(
            address,
            place.count,
            place.index,
            cluster_detection_method="deactivate",
            initialization_timeout=int(start_s),
            heartbeat_timeout_seconds=int(2 * stall_s) + 60,  # the team notices first, and says who it was
            shutdown_timeout_seconds=SHUTDOWN_S,
        )
    except jax.errors.JaxRuntimeError as error:
        raise RunError(f"JAX's coordination service at {address} does not start: {error}. Start all again") from error


def _hold_aborts() -> None:
    """Gives this process six seconds from an abort to its end, in which its other threads go on.

    JAX aborts a process that loses the coordination service, which goes with process 0, and says neither whose end it
    was nor what to do. The team knows, and ends the process meanwhile. The handler is the C library's `sleep`: it is
    called with the number of the signal, 6, and may be called in a handler.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _end_at_once(code: int) -> None:
    """Ends the process before JAX takes its leave of others that are gone, which waits, then aborts."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _speak_of_warnings_alone(index: int) -> None:
    """What every process would say, process 0 says."""
    logger = logging.getLogger(__name__.partition(".")[0])
    logger.setLevel(logging.WARNING)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter(f"%(asctime)s [process {index}] %(message)s", "%H:%M:%S"))
