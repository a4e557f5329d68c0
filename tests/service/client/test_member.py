"""How often an endpoint is asked how it is, what it lacks of what a run needs, and what its devices cost."""

import asyncio
import dataclasses
import functools
import json
import math
import types
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.service.client import member
from isocompute_jax.service.client.member import SPARED_POLLS, Member, Meter, lack
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.service.client.weight_sender import Sender
from isocompute_jax.service.proto import sampler_pb2 as pb

NOTHING = {"routing": False, "support": False, "turn_tokens": 0, "token_versions": False}
STATUS = dict(engine="vllm", engine_version="0.26.0", limits=pb.Limits(max_model_len=64))


@pytest.mark.parametrize(
    ("comes", "suspect", "between"), [(False, False, 1), (True, False, 1 + SPARED_POLLS), (True, True, 1)]
)
def test_who_sends_rollouts_is_asked_less_often(monkeypatch, comes, suspect, between):
    asked, slept = [], 0

    async def watch():
        found = Member(
            "127.0.0.1:1",
            cast(Sender, types.SimpleNamespace(session="run#1", service=ServiceConfig(endpoints="127.0.0.1:1"))),
            lack=lambda status: "",
            changed=lambda: None,
            fail=lambda error: pytest.fail(str(error)),
        )
        found.up, found.suspect = True, suspect

        async def poll():
            asked.append(slept)

        async def sleep(seconds):
            nonlocal slept
            assert seconds == member.POLL_S
            slept += 1
            if comes:
                found.heard()
            if slept == 12:
                raise asyncio.CancelledError

        monkeypatch.setattr(found, "_poll", poll)
        monkeypatch.setattr(member.asyncio, "sleep", sleep)
        try:
            await found.watch()
        finally:
            monkeypatch.undo()
            await found.endpoint.close()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch())
    assert asked == list(range(0, 12, between))


@pytest.mark.parametrize(
    ("needs", "status", "said"),
    [
        ({}, {"no_token_versions": True}, ""),
        ({"token_versions": True}, {}, ""),
        ({"token_versions": True}, {"no_token_versions": True}, "runs vllm 0.26.0, which does not say which weights"),
        ({"turn_tokens": 64}, {"turns": True}, ""),
        ({"turn_tokens": 65}, {"turns": True}, "--max_model_len=65"),
        ({"routing": True}, {}, "start it with --routing"),
        ({"support": True}, {}, "does not say which tokens could be drawn, and config.sampling.top_k asks"),
        ({"support": True}, {"support": True}, ""),
        ({"base": "a"}, {"base": "b", "model": "m"}, "has other weights in --model=m than config.model"),
        ({"base": "a"}, {"base": "a"}, ""),
        ({"base": "a"}, {}, ""),  # a server of an older release
        ({}, {"base": "b"}, ""),
    ],
)
def test_what_is_lacking_is_said(needs, status, said):
    found = lack(pb.StatusReply(**STATUS | status), **NOTHING | needs)
    assert said in found and bool(found) == bool(said)


U32 = st.integers(0, 3) | st.integers(0, 2**32 - 1)
NUMBERS = {"version": st.integers(-(2**63), 2**63 - 1), "tokens_generated": st.integers(0, 2**64 - 1)}
NUMBERS |= dict.fromkeys(("running_groups", "waiting_groups", "vocab_size"), U32)


@given(
    numbers=st.fixed_dictionaries(NUMBERS),
    uptime_s=st.floats(),
    limits=st.builds(pb.Limits, max_model_len=U32, max_group_size=U32, max_groups=U32, max_message_bytes=U32),
    devices=st.builds(pb.Devices, count=U32),
)
def test_every_number_of_a_status_is_taken_or_takes_the_server_out(numbers, uptime_s, limits, devices):
    status = pb.StatusReply(**numbers, uptime_s=uptime_s, limits=limits, devices=devices)
    failures = []

    async def polled() -> Member:
        found = Member(
            "127.0.0.1:1",
            cast(Sender, types.SimpleNamespace(session="run#1", service=ServiceConfig(endpoints="127.0.0.1:1"))),
            lack=functools.partial(lack, **NOTHING),
            changed=lambda: None,
            fail=failures.append,
        )

        async def answer(**asked) -> pb.StatusReply:
            return status

        found.endpoint.status = answer
        await found._poll()
        await found.endpoint.close()
        return found

    found = asyncio.run(polled())
    assert found.up == (limits.max_groups > 0 and devices.count <= member.MOST_DEVICES) and not failures
    assert found.up or f"max_groups = {limits.max_groups}, devices.count = {devices.count}" in found.health().error
    assert all(math.isfinite(seconds) for seconds in found.meter.seconds().values())
    json.dumps(dataclasses.asdict(found.health()), allow_nan=False)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(member.time, "monotonic", lambda: now[0])
    return now


def test_a_server_counts_from_its_first_answer_until_it_leaves(clock):
    server = Meter()
    clock[0] += 7.0
    assert server.seconds() == {} and server.devices == ("", 0)
    server.hold("H200", 8)
    clock[0] += 10.0
    server.hold("H200", 8)  # it says the same every second
    clock[0] += 5.0  # and says nothing while it is down
    assert server.seconds() == {"H200": 120.0}
    server.hold("H200", 4)  # started again, with half of them
    clock[0] += 1.0
    server.hold("H100", 2)
    clock[0] += 2.0
    assert server.seconds() == {"H200": 124.0, "H100": 4.0}
    server.hold("", 0)
    clock[0] += 1000.0
    assert server.seconds() == {"H200": 124.0, "H100": 4.0}
