"""A group's request, checked against what the engine can do, and its completions, gathered into few messages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator

import numpy as np

from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import check_name
from isocompute_jax.service.server.engines.base import EngineFacts

GATHER_S = 0.1
"""A completion waits no longer for others of its group. The last one of a group waits for nothing."""

Ready = list[tuple[int, Completion]]


def checked_request(message: pb.SampleRequest, facts: EngineFacts) -> SampleRequest:
    """The group that a message asks for, checked against the engine's limits.

    Raises:
      ValueError, Refusal: names the field at fault and what it may be.
    """
    prompt = message.prompt_tokens
    check_name("group_id", message.group_id)
    check_name("problem_id", message.problem_id)
    if not message.group_id:
        raise ValueError("group_id is empty: give every group a name of its own")
    if not prompt:
        raise ValueError("prompt_tokens is empty: a prompt has at least one token")
    if not 1 <= message.group_size <= facts.max_group_size:
        raise ValueError(
            f"group_size = {message.group_size} must lie in 1 .. {facts.max_group_size}, the server's --max_group_size"
        )
    # Lengths first: a message has room for millions of ids, and while they are looked at nobody else is answered.
    room = facts.max_model_len - len(prompt)
    if room < 1:
        raise ValueError(
            f"prompt_tokens has {len(prompt)} tokens; prompt and completion together may have {facts.max_model_len}"
        )
    if len(message.stop_token_ids) > facts.vocab_size:
        raise ValueError(f"stop_token_ids has {len(message.stop_token_ids)} ids; the model knows {facts.vocab_size}")
    for field, tokens in (("prompt_tokens", prompt), ("stop_token_ids", message.stop_token_ids)):
        if tokens and max(tokens) >= facts.vocab_size:
            raise ValueError(f"{field} has the id {max(tokens)}; the model knows ids below {facts.vocab_size}")
    if message.HasField("max_tokens") and not 1 <= message.max_tokens <= room:
        raise ValueError(
            f"max_tokens = {message.max_tokens} must lie in 1 .. {room}: the prompt has {len(prompt)} tokens and the "
            f"server holds {facts.max_model_len} in all (its --max_model_len): ask for fewer, or raise that"
        )
    longest = message.max_tokens if message.HasField("max_tokens") else room
    budgets = message.budgets
    if budgets and (len(budgets) != message.group_size or not 1 <= min(budgets) <= max(budgets) <= longest):
        raise ValueError(
            f"budgets = {list(budgets[:8])}{'...' if len(budgets) > 8 else ''}: give group_size = {message.group_size} "
            f"numbers in 1 .. {longest} (max_tokens), or none"
        )
    if message.first_rollout + message.group_size > 2**32:
        raise ValueError(f"first_rollout = {message.first_rollout}: rollouts are numbered below 2^32")
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
        ),
        stop_tokens=tuple(message.stop_token_ids),
        budgets=tuple(budgets) or None,
        first_rollout=message.first_rollout,
        turn=message.turn,
    )


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
