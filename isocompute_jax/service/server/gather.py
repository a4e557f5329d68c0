"""Completions that end one after the other, gathered into fewer messages: a message costs more than they do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from isocompute_jax.records.rollout import Completion

GATHER_S = 0.1
"""A completion waits no longer for others of its group. The last one of a group waits for nothing."""

Ready = list[tuple[int, Completion]]


async def gathered(replies: AsyncGenerator[Ready, None], size: int) -> AsyncGenerator[Ready, None]:
    """What `replies` yields, in larger pieces; it is closed at the end.

    Args:
      replies: (rollout index, completion) as they finish.
      size: how many there will be; with the last of them everything is yielded at once.
    """
    clock = asyncio.get_running_loop().time
    waiting: Ready = []
    drawn, due = 0, 0.0
    following: asyncio.Task[Ready] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(replies))
            done, _ = await asyncio.wait([following], timeout=max(0.0, due - clock()) if waiting else None)
            if done:
                task, following = following, None
                try:
                    ready = task.result()
                except StopAsyncIteration:
                    break
                due = due if waiting else clock() + GATHER_S
                waiting += ready
                drawn += len(ready)
            if waiting and (not done or drawn >= size):
                yield waiting
                waiting = []
        if waiting:
            yield waiting
    finally:
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await following
        await replies.aclose()
