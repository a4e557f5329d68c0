"""What both sides agree on beside the messages: how a call is refused, and by which names they know each other.

`RUN#START` names a session, one start of a run; START, which is drawn at random, is known to it alone. So whoever names
a session in full is the learner whose session it is; servers tell others no more than `RUN#`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import grpc

PUSHBACK = "grpc-retry-pushback-ms"
"""Trailing metadata: when a full server asks to come again."""
NO_BASE = "this server has not kept version"
"""By which a learner knows that it must send its weights whole."""
NOT_FINITE = "holds numbers that are NaN or infinite"
"""By which a learner knows why its weights were refused."""
MAX_NAME = 8192
"""Characters of a group's or session's name; sessions are named after folders."""


class Refusal(Exception):
    """Ends a call with a gRPC status, of which sampler.proto says what each code means, and trailing metadata.

    The message says what is wrong and what to do.
    """

    def __init__(self, code: grpc.StatusCode, message: str, trailing: tuple[tuple[str, str], ...] = ()):
        super().__init__(message)
        self.code = code
        self.message = message
        self.trailing = trailing


def invalid(message: str) -> Refusal:
    """What was sent is wrong; sending it again is useless."""
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, message)


def check_name(field: str, name: str) -> None:
    """Raises the Refusal of a name that would fill logs and messages."""
    if len(name) > MAX_NAME:
        raise invalid(f"{field} has {len(name)} characters; names have at most {MAX_NAME}")


def lost(message: str) -> Refusal:
    """Weights came damaged or in part."""
    return Refusal(grpc.StatusCode.DATA_LOSS, message)


class Interruptible:
    """The part of a call, used as `with`, that another call may end: the block then raises the refusal it is given."""

    def __init__(self):
        self._task: asyncio.Task | None = None
        self._refusal: Refusal | None = None

    def __enter__(self) -> Interruptible:
        self._task = asyncio.current_task()
        return self

    def interrupt(self, refusal: Refusal) -> None:
        """Makes the block raise `refusal` where it waits; the first one counts. The block's own task must not call."""
        if self._task is not None and self._refusal is None:
            self._refusal = refusal
            self._task.cancel()

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        task, self._task = self._task, None
        if self._refusal is not None and task is not None:
            task.uncancel()
            if isinstance(error, asyncio.CancelledError):
                raise self._refusal from None


def shown(session: str) -> str:
    """What others are told of a session; one without a `#` is no secret."""
    run, mark, _ = session.rpartition("#")
    return run + mark if mark else session


def same_run(one: str, other: str) -> bool:
    """Whether two sessions are starts of one run, of which only one can be alive."""
    return "#" in one and "#" in other and shown(one) == shown(other)


def host_id() -> str:
    """The same for all processes of this kernel, which may so share /dev/shm; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
