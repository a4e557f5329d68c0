"""The fleet against servers that send what was not asked for, against users who stop it, and at the process's end."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.client.dispatch import BadReplyError, PendingGroup, _pushback_s
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import PUSHBACK
from tests.service.fleet_builders import fleet, live, params, requests, tensors, until

pytestmark = pytest.mark.usefixtures("short_polls")


class Crooked(SimulatedEngine):
    """Changes what it drew, `times` times."""

    def __init__(self, change, times: int):
        super().__init__(tensors(), tokens_per_s=4000.0)
        self.change = change
        self.left = times

    async def generate(self, request):
        ready = []
        async for some in super().generate(request):
            ready += some
        if self.left:
            self.left -= 1
            ready = self.change(sorted(ready))
        yield ready


def changed(index=None, **changes):
    """A change of the first rollout."""

    def change(ready):
        first = ready[0][1]
        new = {name: function(getattr(first, name)) for name, function in changes.items()}
        return [(ready[0][0] if index is None else index, dataclasses.replace(first, **new)), *ready[1:]]

    return change


CHANGES = {
    "twice": (changed(index=1), "rollout 1 came twice"),
    "unasked": (changed(index=4), "rollout 4: it was not asked for"),
    "token": (changed(tokens=lambda x: x + 32), r"rollout 0: it has at token 0 the id \d+, outside 0 .. 31"),
    "version": (changed(policy_versions=lambda x: x + 1), r"has the versions \[2\], not 1"),
    "mixture": (changed(policy_versions=lambda x: x + (np.arange(len(x)) > 2)), r"has the versions \[1, 2\], not 1"),
    "long": (
        changed(**{name: lambda x: np.tile(x, 9) for name in ("tokens", "logprobs", "policy_versions")}),
        "has more than 64 tokens",
    ),
    "early": (changed(finish_reason=lambda _: "length"), "it ended by 'length' after 8 of 64 tokens, with the id 1"),
    "no end": (changed(tokens=lambda x: x[::-1].copy()), "it ended by 'stop' after 8 of 64 tokens, with the id"),
    "beyond": (changed(tokens=lambda x: np.where(np.arange(8) > 5, x[-1], x)), "one ends with the first of "),
    "logprobs": (changed(logprobs=lambda x: x[1:]), "8 tokens, 7 log-probabilities"),
    **{
        str(odd): (
            changed(logprobs=lambda x, odd=odd: np.where(np.arange(len(x)) == 2, np.float32(odd), x)),
            rf"rollout 0: it has at token 2 the log-probability {odd}, outside -104.0 .. 0.0001",
        )
        for odd in (np.nan, -np.inf, 1.0, -9999.0)
    },
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_wrong_reply_is_drawn_again_and_not_kept(tmp_path, kind):
    change, said = CHANGES[kind]
    with live(engine=Crooked(change, times=1)) as [server], fleet(server, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(2))
        groups = list(sampler.completed())
        assert sorted(group.problem_id for group in groups) == ["p0", "p1"]
        assert all(int(c.tokens.max()) < 32 and len(c.tokens) == 8 for group in groups for c in group.completions)
        assert sampler.redrawn_rollouts == 4
    with live(engine=Crooked(change, times=10**9)) as [server], fleet(server, directory=tmp_path, version=1) as sampler:
        sampler.submit(requests(1))
        named = rf"group of problem 'p0', step 0, train could not be sampled in 5 calls; {server.address}: .*{said}"
        with pytest.raises(RunError, match=named):
            list(sampler.completed())


def test_a_group_is_drawn_elsewhere_however_long_another_has_no_room(tmp_path):
    """One always lies and is soon done; the other draws one group at a time, more slowly than servers are polled."""
    change, _ = CHANGES["nan"]
    slow = SimulatedEngine(tensors(), tokens_per_s=60.0)
    with (
        live(engine=Crooked(change, times=10**9)) as [liar],
        live(engine=slow, max_groups=1) as [honest],
        fleet(liar, honest, directory=tmp_path, version=1) as sampler,
    ):
        sampler.submit(requests(8))
        groups = list(sampler.completed())
    assert len(groups) == 8 and all(np.isfinite(c.logprobs).all() for group in groups for c in group.completions)


REQUEST = SampleRequest("p", np.array([3, 4], np.int32), 4, 7, 0, (1,), SamplingParams(1.0, 1.0, 8, top_k=3))
VOCAB, LAYERS, ACTIVE, EXPERTS, NEWEST = 32, 2, 2, 4, 3
CHECKED = functools.partial(
    convert.checked_completion, vocab_size=VOCAB, experts=(LAYERS, ACTIVE, EXPERTS), support=True
)
NEAR = st.integers(-2, 40)
U32 = st.integers(0, 40) | st.integers(0, 2**32 - 1)
FLOATS = st.floats(width=32) | st.sampled_from([1e-7, 2e-4, -104.0, -104.1, np.inf, -np.inf, np.nan])
ODD = {
    "tokens": U32,
    "logprobs": FLOATS,
    "version": NEAR | st.integers(-(2**63), 2**63 - 1),
    "length": U32,
    "finish_reason": NEAR | st.integers(-(2**31), 2**31 - 1),
    "experts": NEAR | st.integers(-(2**15), 2**15 - 1),
    "support": NEAR | st.integers(-(2**31), 2**31 - 1),
    **dict.fromkeys(("index", "expert_layers", "experts_per_token", "support_width"), U32),
}
"""Numbers of a rollout -> what may stand there instead."""
BYTES = {"experts": np.int16, "support": np.int32}


MODES = {"current": (NEWEST, False, [NEWEST]), "one": (None, True, [1]), "any": (None, False, [1, NEWEST])}
"""The version that is asked for, whether all tokens must have one, and what is right then."""


@st.composite
def rollouts(draw, change: str, versions: Sequence[int] = (1,)) -> pb.Completion:
    """A message of a rollout, right but for one `change`, if any."""
    length = draw(st.integers(1, 8))
    ordinary = st.integers(0, VOCAB - 1).filter(lambda token: token not in REQUEST.stop_tokens)
    tokens = np.array(draw(st.lists(ordinary, min_size=length, max_size=length)), np.int32)
    if (reason := "length" if length == 8 and draw(st.booleans()) else "stop") == "stop":
        tokens[-1] = REQUEST.stop_tokens[0]
    experts = np.resize(np.arange(-1, EXPERTS, dtype=np.int16), (length + 1, LAYERS, ACTIVE))
    support = np.stack([tokens, np.full(length, -1, np.int32)], axis=1)
    drawn = Completion.drawn(
        tokens,
        -np.linspace(0, 30, length, dtype=np.float32),
        np.sort(np.resize(np.array(versions, np.int32), length)),
        reason,
        experts,
        support,
    )
    message = convert.completion_to_message(draw(st.integers(0, 3)), drawn)
    many: Any = getattr(message, draw(st.sampled_from(["tokens", "logprobs", "spans"])))
    odd = draw(ODD[change]) if change in ODD else None
    if change == "more":
        many.extend(list(many))
    elif change == "fewer":
        many.pop()
    elif change == "none":
        setattr(message, draw(st.sampled_from([*BYTES])), b"")
    elif change in ("version", "length"):
        setattr(message.spans[draw(st.integers(0, len(message.spans) - 1))], change, odd)
    elif change in ("tokens", "logprobs"):
        getattr(message, change)[draw(st.integers(0, length - 1))] = odd
    elif change in BYTES:
        numbers = np.frombuffer(getattr(message, change), BYTES[change]).copy()
        numbers[draw(st.integers(0, len(numbers) - 1))] = odd
        setattr(message, change, numbers.tobytes())
    elif change:
        setattr(message, change, odd)
    return message


def kept(message, checked, version=None, one_version=False) -> Completion | None:
    """The rollout; None where the reply is bad. Nothing else is raised."""
    group = PendingGroup(REQUEST, "train", 1)
    try:
        group.keep(message, checked=checked, version=version, newest=NEWEST, one_version=one_version)
    except BadReplyError as error:
        assert str(error).startswith(f"rollout {message.index}") and not group.finished
        return None
    assert 0 <= message.index < REQUEST.group_size
    return group.finished[message.index]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", ["", *ODD, "more", "fewer", "none"])
@settings(max_examples=40)
@given(data=st.data())
def test_every_number_of_a_rollout_is_right_or_the_reply_is_bad(mode, change, data):
    version, one_version, right = MODES[mode]
    found = kept(data.draw(rollouts(change, right)), CHECKED, version, one_version)
    if found is None:
        assert change
        return
    length, versions = len(found.tokens), found.policy_versions.tolist()
    assert 1 <= length <= 8 and len(found.logprobs) == len(versions) == length
    ends = [token in REQUEST.stop_tokens for token in found.tokens]
    assert not any(ends[:-1]) and (ends[-1] if found.finish_reason == "stop" else length == 8)
    assert all(-104 <= x <= 1e-4 for x in found.logprobs.tolist())
    assert all(0 <= x < VOCAB for x in found.tokens.tolist())
    assert versions == sorted(versions) and versions[0] >= 0 and versions[-1] <= NEWEST
    assert version in (None, *versions) and (len(set(versions)) == 1 or mode == "any")
    assert found.experts is not None and found.experts.shape == (length + 1, LAYERS, ACTIVE)
    assert -1 <= found.experts.min() <= found.experts.max() < EXPERTS
    assert found.support is not None and found.support.shape == (length, 3)
    assert -1 <= found.support.min() <= found.support.max() < VOCAB
    assert all(token in row for token, row in zip(found.tokens, found.support, strict=True))


@given(st.sampled_from([*BYTES, "none", "expert_layers", "support_width"]).flatmap(rollouts))
def test_what_nobody_asked_a_server_to_say_is_not_read(message):
    found = kept(message, functools.partial(convert.checked_completion, vocab_size=VOCAB, experts=None, support=False))
    assert found is not None and found.experts is found.support is None


@given(st.integers().map(str) | st.floats().map(str) | st.text() | st.sampled_from(["1" * 400, "9" * 5000, "-1", "0"]))
def test_a_full_server_cannot_ask_to_be_left_alone_for_ever_or_not_at_all(text):
    trailing = grpc.aio.Metadata((PUSHBACK, text))
    waited = _pushback_s(grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), trailing))
    assert waited is None or 0 < waited <= 30


def test_a_group_that_every_server_fails_at_ends_the_run(tmp_path):
    def fail(_):
        raise RuntimeError("a bug of the engine")

    with live(2, engine=None) as servers, fleet(*servers, directory=tmp_path) as sampler:
        for server in servers:
            server.engine.generate = Crooked(fail, times=10**9).generate
        sampler.update_weights(params(), version=1)
        sampler.submit(requests(1))
        with pytest.raises(RunError, match="group of problem 'p0', step 0, train could not be sampled in 50 calls"):
            list(sampler.completed())


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also in a background job, which would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_control_c_is_seen_while_waiting(tmp_path, interruptible):
    with live() as [server], fleet(server, directory=tmp_path) as sampler:
        server.engine.frozen = True
        sampler.update_weights(params(), version=1)
        sampler.submit(requests(2))
        until(lambda: server.groups == 2)
        learner = threading.get_ident()
        threading.Timer(0.1, lambda: signal.pthread_kill(learner, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(sampler.completed())


def test_a_process_that_just_ends_leaves_nothing(tmp_path):
    program = """
        import sys
        from tests.service import fleet_builders as builders
        context = builders.fleet(sys.argv[1], directory=sys.argv[2])
        sampler = context.__enter__()
        sampler.update_weights(builders.params(), version=1)
        sampler.submit(builders.requests(3))
        print("sampling", flush=True)
        sys.stdin.read()
    """
    with live() as [server]:
        server.engine.frozen = True
        command = [sys.executable, "-c", textwrap.dedent(program), server.address, str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout and process.stdout.readline() == b"sampling\n"
        until(lambda: server.groups == 3)
        assert os.listdir(tmp_path) != []
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        assert errors == b""
        assert os.listdir(tmp_path) == []
        until(lambda: server.groups == 0)
