"""Event loops in threads of their own, and the calls of asynchronous graders and environments on one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.protocol import Failure, Grade, Grader, InvalidRewardError

LOG = logging.getLogger(__name__)
T = TypeVar("T")

BLOCKED_S = 1.0
"""A loop that answers no sooner is blocked, and that is said."""
CLOSE_S = 5.0


class LoopThread:
    """An event loop that runs in a thread until it is closed."""

    def __init__(self, name: str):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks(self.loop) - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CLOSE_S)  # what does not heed is left behind
        await self.loop.shutdown_asyncgens()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stack(self) -> str:
        """Where the thread is now, innermost last."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-3:]) if frame else ""

    def close(self) -> None:
        """Cancels what runs and ends the thread, unless something blocks it: then it ends with the process."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2 * CLOSE_S)


class Called(Protocol):
    """What asynchronous calls are of: a grader, or an environment."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    async def aclose(self) -> None:
        """Gives back what it holds; called on the loop that it ran on."""
        ...


class AsyncCalls:
    """Asynchronous calls: on a loop of their own, each with a deadline, so many at a time of each grader.

    A function that blocks its loop (`time.sleep` in place of `asyncio.sleep`) holds up all others and cannot be
    killed: after a second the log names it, and once its deadline has passed the run ends.

    Its methods are called on another loop, that of the engine.

    Args:
      concurrency: calls of one grader at a time.
      deadline_s: longest time of a call.
      kind: what is called, in messages.
    """

    def __init__(self, concurrency: int, deadline_s: float, kind: str = "reward"):
        self._concurrency = concurrency
        self._deadline_s = deadline_s
        self._kind = kind
        self._thread = LoopThread(f"asynchronous {kind}s")
        self._known: dict[str, tuple[Called, asyncio.Semaphore]] = {}
        self._calls = 0
        self._blocked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watch: asyncio.Task[None] | None = None

    async def grade(self, grader: Grader, problems: Sequence[Problem], texts: Sequence[str]) -> list[Grade] | Failure:
        """The grades of texts, in one call. Raises as `run` does."""

        def begin() -> Coroutine[Any, Any, list[Grade]]:
            grading = grader.grade_batch(problems, texts)
            assert not isinstance(grading, list), f"{grader.name} runs on the event loop, and does not await"
            return grading

        return await self.run(grader, begin, f"problem {problems[0].id!r}")

    async def run(self, called: Called, begin: Callable[[], Coroutine[Any, Any, T]], on: str) -> T | Failure:
        """What one call gives.

        Args:
          called: whose call it is.
          begin: begins it, on the loop.
          on: what it is about, in messages.

        Raises:
          RunError: a function blocks the loop.
        """
        self._calls += 1
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_loop())
        try:
            call = asyncio.wrap_future(self._thread.submit(self._call(called, begin, on)))
            await asyncio.wait({call, self._blocked}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                call.cancel()
                self._blocked.result()
            return call.result()
        finally:
            self._calls -= 1

    async def _call(self, called: Called, begin: Callable[[], Coroutine[Any, Any, T]], on: str) -> T | Failure:
        """One call, on the loop of its own."""
        _, free = self._known.setdefault(called.name, (called, asyncio.Semaphore(self._concurrency)))
        async with free:
            task = asyncio.create_task(begin())
            task.set_name(f"{called.name} on {on}")
            try:
                # Not wait_for, which waits for as long as a function ignores that it is cancelled.
                await asyncio.wait({task}, timeout=self._deadline_s)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not task.done():
                task.cancel()
                task.add_done_callback(_forget)
                reason = getattr(called, "last_error", "")
                why = f" ({reason})" if reason else ""
                return Failure("timed out", f"no answer within {self._deadline_s:g} s{why}")
        error = None if task.cancelled() else task.exception()
        if isinstance(error, InvalidRewardError):
            return Failure("invalid", str(error))
        if error is not None:
            return Failure.raised(error)
        if task.cancelled():
            return Failure("raised", "it cancelled itself")
        return task.result()

    async def _watch_loop(self) -> None:
        """Asks the loop for a sign of life while there are calls."""
        warned = False
        while self._calls and not self._blocked.done():
            alive = asyncio.wrap_future(self._thread.submit(asyncio.sleep(0)))
            done, _ = await asyncio.wait({alive}, timeout=BLOCKED_S)
            if not done:
                task = asyncio.current_task(self._thread.loop)
                name, stack = task.get_name() if task else "an asynchronous one", self._thread.stack()
                why = (
                    f"{self._kind} {name} blocks the event loop that all asynchronous {self._kind}s share; await what "
                    "it waits for, or write it as a plain function (def), which runs in a process of its own"
                )
                if not warned:
                    LOG.warning("%s. It is at\n%s", why, stack.rstrip())
                    warned = True
                done, _ = await asyncio.wait({alive}, timeout=max(self._deadline_s - BLOCKED_S, 0.0))
                if not done and not self._blocked.done():
                    self._blocked.set_exception(RunError(f"{why}: it has done so for {self._deadline_s:g} s"))
                    return
            await asyncio.sleep(BLOCKED_S)

    async def close(self) -> None:
        """Closes what was called, and the loop."""
        if self._watch is not None:
            self._watch.cancel()
        blocked = self._blocked.done()
        if blocked:
            self._blocked.exception()
        else:
            for called, _ in self._known.values():
                await asyncio.wait({asyncio.wrap_future(self._thread.submit(called.aclose()))}, timeout=CLOSE_S)
            await asyncio.to_thread(self._thread.close)


def _forget(task: asyncio.Task[Any]) -> None:
    """Looks at what a late task raised, which asyncio else complains of."""
    if not task.cancelled():
        task.exception()
