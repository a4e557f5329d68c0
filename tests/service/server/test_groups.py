"""Completions that end one after the other share messages, and none of them is late for its group."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from isocompute_jax.service.server import groups


async def play(script, closed) -> AsyncGenerator[Any, None]:
    """Yields the indices of a script, waits for its events, raises its errors; says in the end that it was closed."""
    try:
        for item in script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception):
                raise item
            else:
                yield [(item, None)]
    finally:
        closed.set()


async def indices(piece) -> list[int]:
    return [index for index, _ in await piece]


@pytest.mark.parametrize(
    ("drawn", "size"), [([2, 0, 1], 3), ([0, 1], 3)], ids=["complete", "fewer than there should be"]
)
async def test_what_ends_in_time_is_one_piece(monkeypatch, drawn, size):
    monkeypatch.setattr(groups, "GATHER_S", 1e6)  # which is not waited for: nothing else will come
    closed = asyncio.Event()
    pieces = [[index for index, _ in ready] async for ready in groups.gathered(play(drawn, closed), size)]
    assert pieces == [drawn] and closed.is_set()


async def test_a_piece_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(groups, "GATHER_S", 0.01)
    later, closed = asyncio.Event(), asyncio.Event()
    pieces = groups.gathered(play([0, later, 1], closed), 2)
    assert await indices(anext(pieces)) == [0]  # while the other one cannot have ended
    later.set()
    assert await indices(anext(pieces)) == [1]
    await pieces.aclose()
    assert closed.is_set()


async def test_an_error_passes_and_everything_is_closed():
    closed = asyncio.Event()
    with pytest.raises(OSError, match="gone"):
        async for _ in groups.gathered(play([0, OSError("the engine is gone")], closed), 2):
            pass
    assert closed.is_set()


async def test_closing_it_closes_what_it_reads(monkeypatch):
    monkeypatch.setattr(groups, "GATHER_S", 0.0)
    closed = asyncio.Event()
    pieces = groups.gathered(play([0, asyncio.Event()], closed), 2)
    assert await indices(anext(pieces)) == [0]
    waiting = asyncio.create_task(anext(pieces))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await pieces.aclose()
    assert closed.is_set()
