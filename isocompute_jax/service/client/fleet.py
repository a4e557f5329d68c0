"""The sampler of a learner that draws from a fleet of servers; see `dispatch` for its rules and `member` for health.

Everything about servers happens on one event loop in a thread of its own; the learner's thread only hands over
requests and weights, and takes finished groups from queues.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from isocompute_jax.model import Params, all_finite, hf_packs
from isocompute_jax.records.errors import Interrupted, RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.sampling.protocol import TRAIN
from isocompute_jax.service.client import weight_broadcast
from isocompute_jax.service.client.dispatch import Dispatcher, FleetHealth
from isocompute_jax.service.client.weight_broadcast import KeptWeights, ServerLink, ServerLinks
from isocompute_jax.service.client.weight_sender import Sender

WAKE_S = 1.0
"""The learner's thread never waits longer at a time, so that signals are seen."""
CLOSE_S = 15.0
REPORT_S = 2.0

T = TypeVar("T")


class RemoteSampler:
    """Implements `sampling.protocol.Sampler` with sampler servers.

    Groups are yielded as they finish, in any order. Nothing is sampled before the first `update_weights`.

    Args:
      sender: brings weights to the servers; closed with the sampler. Of several learner hosts this is the first, and
        the others have a `ShareSender`.
      routing: whether the learner needs the experts that tokens went to; servers that do not say them end the run.
      support: the same of which tokens could be drawn.
      turn_tokens: longest prompt and completion together, of rollouts that are drawn in turns (`sampling.turns`);
        servers that know no turns, or hold less, end the run. 0 where none are.
      base: digest of the weights beside which servers apply adapters; empty where they do not.
      interrupted: whether the user wants the run to end: asked while every endpoint is gone.
      report: told every other second how the fleet is, in a thread of its own.
    """

    concurrent = True

    def __init__(
        self,
        sender: Sender,
        *,
        routing: bool = False,
        support: bool = False,
        turn_tokens: int = 0,
        base: str = "",
        interrupted: Callable[[], bool] = lambda: False,
        report: Callable[[FleetHealth], None] = lambda health: None,
    ):
        self._sender = sender
        self._interrupted = interrupted
        self._lock = threading.Lock()
        self._waiting: collections.Counter[str] = collections.Counter()
        self._queues: dict[str, queue.SimpleQueue[RolloutGroup | None]] = collections.defaultdict(queue.SimpleQueue)
        self._closed = False
        self._links: ServerLinks | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started: concurrent.futures.Future[Dispatcher] = concurrent.futures.Future()
        make = functools.partial(
            Dispatcher,
            sender,
            routing=routing,
            support=support,
            turn_tokens=turn_tokens,
            base=base,
            deliver=lambda lane, group: self._queues[lane].put(group),
            on_failure=self._wake,
        )
        main = _run_dispatcher(make, started, self._stop, report)
        self._thread = threading.Thread(target=_run_loop, args=(self._loop, main), name="fleet", daemon=True)
        self._thread.start()
        try:
            self._dispatcher = started.result()
        except BaseException:
            sender.close()
            raise
        atexit.register(self.close)

    @property
    def redrawn_rollouts(self) -> int:
        """Rollouts asked for again so far, because an endpoint was lost or weights changed under them."""
        return self._dispatcher.redrawn_rollouts

    @property
    def device_seconds(self) -> Mapping[str, float]:
        """Kind -> seconds x devices of the servers, each from its first answer until it has left the fleet."""
        return self._dispatcher.device_seconds

    def submit(self, requests: Sequence[SampleRequest], *, lane: str = TRAIN) -> None:
        """Queues groups and returns at once."""
        self._check()
        with self._lock:
            self._waiting[lane] += len(requests)
            self._queues[lane]  # made here, not by two threads at once
        self._loop.call_soon_threadsafe(self._dispatcher.submit, list(requests), lane)

    def completed(self, *, lane: str = TRAIN) -> Iterator[RolloutGroup]:
        """Yields ungraded groups of a lane as they finish, until every submitted one has been yielded.

        Raises:
          InputError: a server refuses a group, or the token.
          RunError: every endpoint has been gone for `wait_s`, or another learner has, or keeps taking, a server.
          Interrupted: the user ended the run while every endpoint was gone.
        """
        groups = self._queues[lane]
        while self._waiting[lane]:
            self._check()
            try:
                group = groups.get(timeout=WAKE_S)
            except queue.Empty:
                continue
            if group is not None:
                with self._lock:
                    self._waiting[lane] -= 1
                yield group

    def update_weights(self, params: Params, *, version: int) -> None:
        """Uses `params` for everything sampled from now on; returns when every endpoint that is up has them.

        `params` may be donated afterwards: what is sent later is sent from a copy.

        Raises:
          InputError: a server refuses the weights, or the token.
          RunError: as `completed`; or there is no room for the copy.
        """
        self._check()
        weights = self._sender.take(params, version=version)
        if isinstance(weights, KeptWeights):
            self._broadcast(weights)
        else:
            self._await(self._dispatcher.distribute(weights))

    def _broadcast(self, kept: KeptWeights) -> None:
        """From this thread: what the devices compute together they begin in one order, in all processes."""
        libraries, leaves = self._sender.libraries, kept.leaves
        assert libraries is not None
        buckets = hf_packs.buckets(self._sender.config)
        if self._links is None:
            self._links = ServerLinks(libraries, buckets, hf_packs.first_device(leaves))
        # What is not finite is left to the file's way, where the server refuses it by name before it takes anything.
        by_nccl = all_finite(leaves)
        distributing = self._dispatcher.distribute(kept, self._links if by_nccl else None)
        done = asyncio.run_coroutine_threadsafe(distributing, self._loop)
        receiving: list[ServerLink] = []

        def anybody() -> bool:
            receiving[:] = self._await(kept.round.following()) if by_nccl else []
            return bool(receiving)

        while self._sender.team.broadcast(anybody):
            weight_broadcast.send(hf_packs.packed(buckets, leaves), receiving)
            self._loop.call_soon_threadsafe(kept.round.finish, list(receiving))
        self._wait(done)

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine gives that runs on the fleet's loop."""
        return self._wait(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def _wait(self, done: concurrent.futures.Future[T]) -> T:
        while True:
            self._check()
            try:
                return done.result(timeout=WAKE_S)
            except concurrent.futures.TimeoutError:
                continue

    def close(self) -> None:
        """Cancels what is being sampled, closes the connections and removes the copies of the weights."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_S)
        if self._links is not None:
            self._links.close()
        self._sender.close()
        self._wake()

    def _check(self) -> None:
        """Raises what ended the run, if it has ended."""
        if self._closed:
            raise RunError("the sampler was closed")
        failure = self._dispatcher.failure
        if failure is not None:
            raise failure
        if self._dispatcher.gone and self._interrupted():
            raise Interrupted

    def _wake(self) -> None:
        """Lets everybody who waits for a group look at `failure`."""
        for groups in list(self._queues.values()):
            groups.put(None)


async def _run_dispatcher(
    make: Callable[[], Dispatcher],
    started: concurrent.futures.Future[Dispatcher],
    stop: asyncio.Event,
    report: Callable[[FleetHealth], None],
) -> None:
    """A dispatcher's life; who waits for `started` gets it, or what prevented it."""
    try:
        dispatcher = make()
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(dispatcher)
    while not stop.is_set():
        await asyncio.to_thread(report, dispatcher.health())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), REPORT_S)
    await dispatcher.close()


def _run_loop(loop: asyncio.AbstractEventLoop, main: Coroutine) -> None:
    """Runs `main` on `loop` to its end."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)  # what a thread still works on, say
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
