"""Completions that end one after the other share messages, and none of them is late for its group."""

import asyncio

import pytest

from isocompute_jax.service.server import gather


async def collect(script, size, monkeypatch, gather_s):
    """Plays a script of indices and events that are waited for; returns what was yielded, and whether it was closed."""
    monkeypatch.setattr(gather, "GATHER_S", gather_s)
    closed = False

    async def replies():
        nonlocal closed
        try:
            for item in script:
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield [(item, None)]
        finally:
            closed = True

    pieces = [[index for index, _ in ready] async for ready in gather.gathered(replies(), size)]
    return pieces, closed


def test_what_ends_in_time_is_one_piece(monkeypatch):
    pieces, closed = asyncio.run(collect([2, 0, 1], 3, monkeypatch, 1e6))
    assert pieces == [[2, 0, 1]] and closed  # a million seconds are not waited for: the group is complete


def test_a_piece_does_not_wait_for_ever(monkeypatch):
    async def main():
        later = asyncio.Event()
        work = asyncio.create_task(collect([0, later, 1], 2, monkeypatch, 0.01))
        await asyncio.sleep(0.05)
        later.set()
        return await work

    assert asyncio.run(main()) == ([[0], [1]], True)


def test_fewer_than_there_should_be_are_yielded_too(monkeypatch):
    assert asyncio.run(collect([0, 1], 3, monkeypatch, 1e6)) == ([[0, 1]], True)


def test_an_error_passes_and_everything_is_closed(monkeypatch):
    async def main():
        closed = False

        async def replies():
            nonlocal closed
            try:
                yield [(0, None)]
                raise OSError("the engine is gone")
            finally:
                closed = True

        with pytest.raises(OSError, match="gone"):
            async for _ in gather.gathered(replies(), 2):
                pass
        return closed

    assert asyncio.run(main())


def test_closing_it_closes_what_it_reads(monkeypatch):
    async def main():
        closed = False

        async def replies():
            nonlocal closed
            try:
                yield [(0, None)]
                await asyncio.Event().wait()
            finally:
                closed = True

        monkeypatch.setattr(gather, "GATHER_S", 0.0)
        pieces = gather.gathered(replies(), 2)
        assert await anext(pieces) == [(0, None)]
        waiting = asyncio.create_task(anext(pieces))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await pieces.aclose()
        return closed

    assert asyncio.run(main())
