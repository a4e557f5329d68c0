"""What process 0 has the other learner hosts do for the fleet: it alone knows which server needs what, and when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from isocompute_jax.distributed import Team
from isocompute_jax.records.errors import RunError

ORDER, GIVE_UP, PROGRESS, DONE = "order", "give up order", "order goes on", "order done"
"""Topics of the team's messages."""
TELL_S = 1.0

Deed = Callable[..., Awaitable[Any]]
"""What a host can be ordered to do; takes the order's arguments, and `tell`, which is a sign of progress."""

REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""A server takes nothing from this host, now or later."""


class ShareLostError(Exception):
    """Another host did not do its share; says which one, and why.

    Attributes:
      refused: a server takes nothing from that host.
    """

    def __init__(self, message: str, *, refused: bool = False):
        super().__init__(message)
        self.refused = refused


class Orders:
    """Process 0's. Made and used on one running event loop."""

    def __init__(self, team: Team):
        self.team = team
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._out: dict[int, tuple[set[int], asyncio.Future[None], Callable[[], None]]] = {}
        team.on(DONE, lambda sender, value: _soon(self._loop, self._on_done, sender, *value))
        team.on(PROGRESS, lambda sender, number: _soon(self._loop, self._on_progress, number))

    @property
    def others(self) -> range:
        """The other hosts."""
        return range(1, self.team.count)

    async def give(self, arguments: tuple[Any, ...], *, sent: Callable[[], None]) -> None:
        """Has every other host do its `OrderTaker`'s deed; they are to give it up when this is cancelled.

        Args:
          arguments: of the deed.
          sent: called as a sign of progress.

        Raises:
          ShareLostError: one could not.
        """
        number = next(self._numbers)
        done: asyncio.Future[None] = self._loop.create_future()
        self._out[number] = set(self.others), done, sent
        for host in self.others:
            self.team.send(host, ORDER, (number, arguments))
        try:
            await done
        finally:
            del self._out[number]
            if done.cancelled() or done.exception() is not None:
                self.team.send_all(GIVE_UP, number)

    async def beside(self, own: Awaitable[Any], theirs: Awaitable[Any]) -> None:
        """Waits for this host's share and those of the others; what goes wrong with one ends all.

        Raises:
          Exception: of whichever failed first.
        """
        both = {asyncio.ensure_future(own), asyncio.ensure_future(theirs)}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _on_done(self, sender: int, number: int, error: str, refused: bool) -> None:
        if number not in self._out:
            return
        missing, done, _ = self._out[number]
        missing.discard(sender)
        if error and not done.done():
            done.set_exception(ShareLostError(f"{self.team.names[sender]}: {error}", refused=refused))
        elif not missing and not done.done():
            done.set_result(None)

    def _on_progress(self, number: int) -> None:
        if number in self._out:
            self._out[number][2]()


class OrderTaker:
    """Another host's: does its deed when process 0 orders it, in tasks of one event loop; `close` belongs there too."""

    def __init__(self, team: Team, loop: asyncio.AbstractEventLoop, deed: Deed):
        self._team = team
        self._loop = loop
        self._deed = deed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        team.on(ORDER, lambda sender, order: _soon(loop, self._on_order, *order))
        team.on(GIVE_UP, lambda sender, number: _soon(loop, self._on_give_up, number))

    async def close(self) -> None:
        """Gives everything up."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_order(self, number: int, arguments: tuple[Any, ...]) -> None:
        self._tasks[number] = self._loop.create_task(self._obey(number, arguments))

    def _on_give_up(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def _obey(self, number: int, arguments: tuple[Any, ...]) -> None:
        """Does it, and says how that ended."""
        error, refused, last = "", False, 0.0

        def tell() -> None:
            nonlocal last
            if time.monotonic() - last > TELL_S:
                last = time.monotonic()
                self._team.send(0, PROGRESS, number)

        try:
            await self._deed(*arguments, tell=tell)
        except grpc.aio.AioRpcError as failure:
            error, refused = failure.details() or str(failure.code()), failure.code() in REFUSED
        except Exception as failure:  # whatever it is, process 0 is to know
            error = str(failure) if isinstance(failure, RunError) else repr(failure)
        self._tasks.pop(number, None)
        self._team.send(0, DONE, (number, error, refused))


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    """Calls it on a loop, unless that is closed: what other hosts still say at the end of a run matters to nobody."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
