"""Groups in a server: what they ask for, which have a place, and how their completions become few messages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Iterator

import grpc
import numpy as np

from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import PUSHBACK, Interruptible, Refusal, check_name, invalid
from isocompute_jax.service.server.engines.base import EngineFacts

GATHER_S = 0.1
"""A completion waits no longer for others of its group. The last one of a group waits for nothing."""

MIN_PUSHBACK_S, MAX_PUSHBACK_S = 0.01, 10.0
MOST_CANCELLED = 1 << 16

Ready = list[tuple[int, Completion]]


class AdmittedGroup:
    """A group that is in the server; `guest` is the address of a caller that is not the learner whose weights serve."""

    def __init__(self, guest: str):
        self.guest = guest
        self.call = Interruptible()
        self.running = False


class Groups:
    """The groups that are in the server, each under a name of its own.

    The learner whose weights serve may fill the server, and while it is there a quarter of it is for it alone.

    Args:
      limit: groups that may be in the server at once.
      guest_limit: of these one address may have so many, but for the learner whose weights serve.
    """

    def __init__(self, limit: int, guest_limit: int):
        self.limit = limit
        self._guest_limit = guest_limit
        self._groups: dict[str, AdmittedGroup] = {}
        self._left = asyncio.Event()
        self._pace = _Pace()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def running(self) -> int:
        """Groups that the engine works on; asked for by the thread of metrics, too."""
        return sum(group.running for group in [*self._groups.values()])

    @contextlib.contextmanager
    def admitted(self, name: str, peer: str, *, owner: bool, owner_here: bool) -> Iterator[AdmittedGroup]:
        """Keeps a place for a group while the block runs, in which `cancel` and others may end it.

        `peer` is the caller, as gRPC says it, and `owner` that it is the learner whose weights serve; `owner_here` that
        this learner is there.

        Raises:
          Refusal: there is no place, or the name is taken.
        """
        guest = "" if owner else host_of(peer)
        if name in self._groups:
            raise Refusal(grpc.StatusCode.ALREADY_EXISTS, f"a group named {name!r} is being sampled")
        if full := self._full(guest, owner_here):
            wait_ms = round(self._pace.wait_s() * 1000)
            trailing = ((PUSHBACK, str(wait_ms)),)
            raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{full}; retry in {wait_ms} ms", trailing)
        group = self._groups[name] = AdmittedGroup(guest)
        try:
            with group.call:
                yield group
            self._pace.finished()
        finally:
            del self._groups[name]
            self._left.set()

    def _full(self, guest: str, owner_here: bool) -> str:
        """Why there is no place for another group; empty if there is one."""
        if len(self._groups) >= self.limit:
            return f"{len(self._groups)} groups are in the server, as many as it takes"
        if not guest:
            return ""
        guests = [group.guest for group in self._groups.values() if group.guest]
        if guests.count(guest) >= self._guest_limit:
            return (
                f"{self._guest_limit} groups of {guest} are in the server, as many as one address may have "
                "(--max_client_groups), but for the learner whose weights serve"
            )
        if owner_here and len(guests) >= self.limit - self.limit // 4:
            return f"{len(guests)} groups are in the server; the rest is for the learner whose weights serve"
        return ""

    def cancel(self, names: Iterable[str]) -> int:
        """Ends groups; how many of them were there."""
        groups = [self._groups[name] for name in set(names) if name in self._groups]
        for group in groups:
            group.call.interrupt(Refusal(grpc.StatusCode.ABORTED, "the group was cancelled"))
        return len(groups)

    def interrupt(self, refusal: Refusal, *, running: bool = False) -> None:
        """Ends every group, or those that are `running` alone."""
        for group in self._groups.values():
            if group.running or not running:
                group.call.interrupt(refusal)

    async def emptied(self, *, running: bool = False) -> None:
        """Waits until no group is in the server, or none is `running`."""
        while self.running if running else self._groups:
            self._left.clear()
            await self._left.wait()


class _Pace:
    """How often groups finish, and so when there is room for another."""

    def __init__(self):
        self._last = time.monotonic()
        self._interval_s = 1.0
        self._refused = 0

    def finished(self) -> None:
        """A group has finished."""
        now = time.monotonic()
        self._interval_s += 0.1 * (now - self._last - self._interval_s)
        self._last, self._refused = now, 0

    def wait_s(self) -> float:
        """When the next refused group should come again: each is sent to a later place of its own."""
        self._refused += 1
        return min(max(self._refused * self._interval_s, MIN_PUSHBACK_S), MAX_PUSHBACK_S)


def host_of(peer: str) -> str:
    """The host of a gRPC peer, whatever its port: `ipv4:10.0.0.1:5000`, `ipv6:%5B::1%5D:5000`, `unix:PATH`."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer or "?"


def checked_request(message: pb.SampleRequest, facts: EngineFacts) -> SampleRequest:
    """The group that a message asks for, checked against the engine's limits.

    Raises:
      Refusal: names the field at fault and what it may be.
    """
    prompt = message.prompt_tokens
    check_name("group_id", message.group_id)
    check_name("problem_id", message.problem_id)
    if not message.group_id:
        raise invalid("group_id is empty: give every group a name of its own")
    if not prompt:
        raise invalid("prompt_tokens is empty: a prompt has at least one token")
    if not 1 <= message.group_size <= facts.max_group_size:
        raise invalid(
            f"group_size = {message.group_size} must lie in 1 .. {facts.max_group_size}, the server's --max_group_size"
        )
    # Lengths first: a message has room for millions of ids, and while they are looked at nobody else is answered.
    room = facts.max_model_len - len(prompt)
    if room < 1:
        raise invalid(
            f"prompt_tokens has {len(prompt)} tokens; prompt and completion together may have {facts.max_model_len}"
        )
    if len(message.stop_token_ids) > facts.vocab_size:
        raise invalid(f"stop_token_ids has {len(message.stop_token_ids)} ids; the model knows {facts.vocab_size}")
    for field, tokens in (("prompt_tokens", prompt), ("stop_token_ids", message.stop_token_ids)):
        if tokens and max(tokens) >= facts.vocab_size:
            raise invalid(f"{field} has the id {max(tokens)}; the model knows ids below {facts.vocab_size}")
    if message.HasField("max_tokens") and not 1 <= message.max_tokens <= room:
        raise invalid(
            f"max_tokens = {message.max_tokens} must lie in 1 .. {room}: the prompt has {len(prompt)} tokens and the "
            f"server holds {facts.max_model_len} in all (its --max_model_len): ask for fewer, or raise that"
        )
    longest = message.max_tokens if message.HasField("max_tokens") else room
    budgets = message.budgets
    if budgets and (len(budgets) != message.group_size or not 1 <= min(budgets) <= max(budgets) <= longest):
        raise invalid(
            f"budgets = {list(budgets[:8])}{'...' if len(budgets) > 8 else ''}: give group_size = {message.group_size} "
            f"numbers in 1 .. {longest} (max_tokens), or none"
        )
    if message.first_rollout + message.group_size > 2**32:
        raise invalid(f"first_rollout = {message.first_rollout}: rollouts are numbered below 2^32")
    try:
        return SampleRequest(
            problem_id=message.problem_id,
            seed=message.seed if message.HasField("seed") else secrets.randbits(32),
            step=message.step,
            prompt_tokens=np.array(prompt, np.int32),
            group_size=message.group_size,
            params=SamplingParams(
                temperature=message.temperature if message.HasField("temperature") else 1.0,
                top_p=message.top_p if message.HasField("top_p") else 1.0,
                max_tokens=longest,
                top_k=message.top_k,
            ),
            stop_tokens=tuple(message.stop_token_ids),
            budgets=tuple(budgets) or None,
            first_rollout=message.first_rollout,
            turn=message.turn,
        )
    except ValueError as error:  # a field says which values it may have
        raise invalid(str(error)) from error


async def gathered(replies: AsyncGenerator[Ready, None], size: int) -> AsyncGenerator[Ready, None]:
    """What `replies` yields, in larger pieces; it is closed at the end.

    With the last of so many (`size`) completions everything is yielded at once.
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
