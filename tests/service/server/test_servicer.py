"""Sampling over a real channel: what is answered, refused, gated, cancelled and held back."""

import asyncio

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server import groups, servicer
from isocompute_jax.service.server.engines.base import EngineError, NotTakenError
from isocompute_jax.service.server.groups import checked_request
from isocompute_jax.service.server.refusals import SERVICE
from tests.service.builders import (
    Probe,
    arrays,
    begun,
    health_stub,
    pushback_ms,
    refused,
    request,
    run,
    serving,
    update,
)

Code = grpc.StatusCode


async def health_of(client, service=SERVICE) -> str:
    stub = health_stub(client)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


async def test_a_group_is_what_the_engine_draws(tmp_path):
    engine = Probe(tail=0.5)
    asked = request(group_size=5, seed=7, step=3, max_tokens=6)
    async with serving(engine, tmp_path) as (_, client):
        replies = [reply async for reply in client.stub.Sample(asked)]
    sent = {done.index: convert.message_to_completion(done) for reply in replies for done in reply.completions}
    assert sum(len(reply.completions) for reply in replies) == 5 and sorted(sent) == [0, 1, 2, 3, 4]
    drawn = engine.generate(checked_request(asked, engine.facts))
    async for ready in drawn:
        for index, completion in ready:
            np.testing.assert_array_equal(completion.tokens, sent[index].tokens)
            np.testing.assert_array_equal(completion.logprobs, sent[index].logprobs)
            assert completion.finish_reason == sent[index].finish_reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"group_id": ""}, "group_id"),
        ({"prompt_tokens": []}, "prompt_tokens is empty"),
        ({"prompt_tokens": [31, 32]}, "ids below 32"),
        ({"prompt_tokens": [1] * 4096}, "4096 tokens"),
        ({"group_size": 0}, "group_size = 0"),
        ({"group_size": 1025}, "group_size = 1025"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"max_tokens": 4095}, "max_tokens = 4095"),
        ({"stop_token_ids": [99]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 33}, "stop_token_ids has 33 ids"),
        ({"problem_id": "a" * 9000}, "problem_id has 9000 characters"),
        ({"group_id": "a" * 9000}, "group_id has 9000 characters"),
        ({"budgets": [1] * 5_000_000}, "budgets"),
    ],
)
async def test_wrong_fields_are_named(tmp_path, fields, words):
    async with serving(Probe(), tmp_path) as (_, client):
        await refused(client.sample(**fields), Code.INVALID_ARGUMENT, words)
        assert len(await client.sample()) == 2


async def test_live_groups_have_names_of_their_own(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (_, client):
        [first] = await begun(client, engine)
        await refused(client.sample(), Code.ALREADY_EXISTS, "'g'")
        engine.frozen = False
        assert len(await first) == 2
        assert len(await client.sample()) == len(await client.sample(group_id="a" * 8192)) == 2


async def test_a_full_server_says_when_to_come_again(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path, max_groups=2, max_client_groups=2) as (_, client):
        tasks = await begun(client, engine, "ab")
        waits = []
        for _ in range(3):
            error = await refused(client.sample(group_id="c"), Code.RESOURCE_EXHAUSTED, "2 groups")
            waits.append(pushback_ms(error))
        assert 0 < waits[0] < waits[1] < waits[2]  # who comes later waits longer
        engine.frozen = False
        await asyncio.gather(*tasks)
        assert len(await client.sample(group_id="c")) == 2
        # Groups finished at once since: with a faster engine the same refusal asks for less.
        for i in range(20):
            await client.sample(group_id=str(i))
        engine.frozen = True
        tasks = [client.start(group_id=name) for name in "ab"]
        for _ in range(23):
            await engine.started.acquire()
        error = await refused(client.sample(group_id="c"), Code.RESOURCE_EXHAUSTED)
        assert pushback_ms(error) < waits[0]


async def test_groups_may_ask_for_a_session_and_a_version(tmp_path):
    async with serving(Probe(), tmp_path) as (_, client):
        assert await client.sample(session="", policy_version=0)
        await refused(client.sample(policy_version=4), Code.FAILED_PRECONDITION, "version 4", "version 0")
        await refused(client.sample(session="s"), Code.FAILED_PRECONDITION, "'s'", "''")
        await client.update(update(arrays(0), version=4))
        [first, _] = await client.sample(session="s", policy_version=4)
        assert [(span.version, span.length) for span in first.spans] == [(4, len(first.tokens))]
        await refused(client.sample(session="s", policy_version=0), Code.FAILED_PRECONDITION, "version 4")
        await refused(client.sample(session="other", policy_version=4), Code.FAILED_PRECONDITION, "'other'")


async def test_a_call_cancels_so_many_groups_and_no_more(tmp_path):
    async with serving(Probe(), tmp_path) as (_, client):
        names = [str(i) for i in range(groups.MOST_CANCELLED + 1)]
        assert (await client.stub.Cancel(pb.CancelRequest(group_ids=names[1:]))).cancelled == 0
        await refused(client.stub.Cancel(pb.CancelRequest(group_ids=names)), Code.INVALID_ARGUMENT, "65537 names")


async def test_cancel_ends_groups_and_frees_the_engine(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (_, client):
        tasks = await begun(client, engine, "abc")
        reply = await client.stub.Cancel(pb.CancelRequest(group_ids=["a", "b", "a", "unknown"]))
        assert reply.cancelled == 2
        for task in tasks[:2]:
            await refused(task, Code.ABORTED, "cancelled")
        engine.frozen = False
        assert len(await tasks[2]) == 2
        await engine.freed()
        assert (await client.status()).running_groups == 0


@pytest.mark.parametrize("how", ["cancelled", "deadline", "connection"])
async def test_a_call_that_ends_early_frees_the_engine(tmp_path, how):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (server, client):
        call = client.stub.Sample(request(), timeout=0.2 if how == "deadline" else None)
        if how == "deadline":
            await refused(call.read(), Code.DEADLINE_EXCEEDED)
        else:
            reading = asyncio.create_task(call.read())
            await engine.started.acquire()
            if how == "cancelled":
                call.cancel()
            else:
                await client.channel.close()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await engine.freed()
        await server.servicer.groups.emptied()


async def test_a_caller_that_stops_reading_does_not_hold_up_an_update(tmp_path):
    engine = Probe(median_length=4000.0, tokens_per_s=1e9)
    small = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with serving(engine, tmp_path, options=small, peer_timeout_s=0.5) as (_, client):
        call = client.start(group_size=500)
        await engine.started.acquire()
        await client.update(update(arrays(0), in_flight=pb.IN_FLIGHT_WAIT))
        assert engine.version == 1 and engine.open == 0
        call.cancel()


@pytest.mark.parametrize("how", ["is cancelled", "cancels", "is given up"])
def test_a_caller_that_does_not_read_frees_the_engine_and_leaves_no_traceback(tmp_path, caplog, how):
    async def test():
        engine = Probe(median_length=4000.0, tokens_per_s=1e9)
        small = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
        timeout_s = 0.3 if how == "is given up" else 60.0
        async with serving(engine, tmp_path, options=small, peer_timeout_s=timeout_s) as (server, client):
            call = client.start(group_size=300)
            await engine.started.acquire()
            while engine.tokens_generated < 300 * 4000:  # far more than what fits on the way
                await asyncio.sleep(0.01)
            if how == "is cancelled":
                assert engine.open == 1
                assert (await client.stub.Cancel(pb.CancelRequest(group_ids=["g"]))).cancelled == 1
            if how == "cancels":
                call.cancel()
            await server.servicer.groups.emptied()
            await engine.freed()
            await asyncio.sleep(0.05)
            call.cancel()

    run(test())
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_group_larger_than_a_message_comes_in_several(tmp_path):
    engine = Probe(median_length=4000.0, tokens_per_s=1e9, max_model_len=8000)
    limit = (("grpc.max_receive_message_length", 1 << 20),)
    async with serving(engine, tmp_path, options=limit, max_message_mib=1) as (_, client):
        done = await client.sample(group_size=100)  # 100 x 4,000 x (1 + 4) bytes
        assert [len(completion.tokens) for completion in done] == [4000] * 100


async def test_a_dead_engine_is_unavailable_and_not_serving(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (server, client):
        assert await health_of(client) == await health_of(client, "") == "SERVING"
        tasks = await begun(client, engine, "ab")
        engine.dead, engine.frozen = True, False
        for task in tasks:
            await refused(task, Code.UNAVAILABLE, "told to die")
        assert await health_of(client) == await health_of(client, "") == "NOT_SERVING"
        await refused(client.sample(), Code.UNAVAILABLE, "told to die")
        await refused(client.update(update(arrays(0))), Code.UNAVAILABLE, "told to die")
        assert not (await client.status()).serving
        assert server.servicer.failed.is_set()


async def test_an_engine_that_dies_idle_is_noticed(tmp_path):
    engine = Probe()
    engine.dead = True
    async with serving(engine, tmp_path) as (server, client):
        await server.servicer.failed.wait()
        assert await health_of(client) == "NOT_SERVING"


async def test_an_engine_that_loses_a_completion_has_failed(tmp_path):
    class Forgetful(Probe):
        async def generate(self, request):
            async for ready in super().generate(request):
                yield [(index, done) for index, done in ready if index]

    async with serving(Forgetful(), tmp_path) as (_, client):
        await refused(client.sample(), Code.UNAVAILABLE, "1 of 2 completions")


async def test_status_answers_while_the_engine_is_busy(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (_, client):
        [task] = await begun(client, engine)
        before = await client.status(tensors=True)
        assert (before.running_groups, before.waiting_groups, before.serving) == (1, 0, True)
        assert list(before.tensors) == convert.tensors_to_messages(engine.facts.tensors)
        assert (before.model, before.engine, before.engine_version) == ("simulated", "simulated", "1")
        assert before.host_id and before.incarnation and before.limits.max_message_bytes == 64 << 20
        assert (before.limits.max_model_len, before.limits.max_groups, before.vocab_size) == (4096, 1024, 32)
        engine.may_update.clear()
        pushed = asyncio.create_task(client.update(update(arrays(0), version=9, in_flight=pb.IN_FLIGHT_CONTINUE)))
        await engine.updating.wait()
        waiting = asyncio.create_task(client.sample(group_id="waits", policy_version=9))
        while (during := await client.status()).waiting_groups != 1:
            pass
        assert (during.running_groups, during.version, during.serving) == (1, 0, True)
        engine.may_update.set()
        engine.frozen = False
        await pushed
        await asyncio.gather(task, waiting)
        after = await client.status()
        assert (after.version, after.session, after.running_groups + after.waiting_groups) == (9, "s", 0)
        assert after.tokens_generated == engine.tokens_generated > before.tokens_generated
        assert after.incarnation == before.incarnation and not after.tensors


async def test_a_server_without_weights_serves_after_the_first_update(tmp_path):
    async with serving(Probe(), tmp_path, wait_for_weights=True) as (_, client):
        assert await health_of(client) == await health_of(client, "") == "NOT_SERVING"
        await refused(client.sample(), Code.UNAVAILABLE, "no weights yet")
        await client.update(update(arrays(0)))
        assert await health_of(client) == await health_of(client, "") == "SERVING"
        assert await client.sample()


async def test_update_that_aborts_running_groups(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (_, client):
        [task] = await begun(client, engine)
        await client.update(update(arrays(0), in_flight=pb.IN_FLIGHT_ABORT))
        await refused(task, Code.ABORTED, "version 1")
        assert engine.open == 0 and engine.version == 1


async def test_update_that_waits_mixes_no_versions(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (server, client):
        old = await begun(client, engine, ["old"])
        pushed = asyncio.create_task(client.update(update(arrays(0), in_flight=pb.IN_FLIGHT_WAIT)))
        while not (await client.status()).waiting_groups:  # the update is not there yet: groups still start
            old.append(asyncio.create_task(client.sample(group_id=str(len(old)))))
            while len(server.servicer.groups) < len(old):
                await asyncio.sleep(0)
        new = old.pop()
        assert not engine.updating.is_set()
        engine.frozen = False
        await pushed
        for task in old:
            assert {span.version for done in await task for span in done.spans} == {0}
        assert {span.version for done in await new for span in done.spans} == {1}


async def test_a_waiting_update_ends_with_its_sender(tmp_path):
    engine = Probe(frozen=True)
    async with serving(engine, tmp_path) as (server, client):
        [old] = await begun(client, engine, ["old"])
        call = client.stub.UpdateWeights(iter(update(arrays(0), in_flight=pb.IN_FLIGHT_WAIT)))
        tasks = []
        while not (await client.status()).waiting_groups:
            tasks.append(asyncio.create_task(client.sample(group_id=str(len(tasks)))))
            while len(server.servicer.groups) <= len(tasks):
                await asyncio.sleep(0)
        call.cancel()
        while (await client.status()).waiting_groups:  # the group that was held back starts
            pass
        engine.frozen = False
        for task in (old, *tasks):
            assert {span.version for done in await task for span in done.spans} == {0}
        assert engine.version == 0 and not engine.updating.is_set()


@pytest.mark.parametrize("mode", [pb.IN_FLIGHT_CONTINUE, pb.IN_FLIGHT_RECOMPUTE])
async def test_update_in_flight(tmp_path, mode):
    engine = Probe(tokens_per_s=1000.0, median_length=500.0)
    async with serving(engine, tmp_path) as (_, client):
        task = asyncio.create_task(client.sample())
        while not engine.tokens_generated:
            await asyncio.sleep(0)
        await client.update(update(arrays(0), in_flight=mode))
        done = await task
        assert [[span.version for span in completion.spans] for completion in done] == [[0, 1]] * 2
        assert engine.recomputed == [mode == pb.IN_FLIGHT_RECOMPUTE]


async def test_under_another_learners_weights_nothing_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(servicer, "LEASE_S", 0.0)
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        await client.update(update(arrays(0), session="one", version=0))
        engine.frozen = True
        task = asyncio.create_task(client.sample(session="one", policy_version=0))
        await engine.started.acquire()
        await client.update(update(arrays(1), session="two", version=0, in_flight=pb.IN_FLIGHT_CONTINUE))
        await refused(task, Code.ABORTED, "version 0")


async def test_weights_that_are_not_taken_leave_the_old_ones_serving(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        engine.update_error = NotTakenError("there is no memory for them")
        await refused(client.update(update(arrays(0))), Code.DATA_LOSS, "no memory")
        assert await health_of(client) == "SERVING"
        assert {span.version for done in await client.sample() for span in done.spans} == {0}
        engine.update_error = None
        await client.update(update(arrays(0)))
        assert engine.version == 1


@pytest.mark.parametrize("version", [-1, 2**31, 2**40])
async def test_versions_are_int32(tmp_path, version):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        await refused(client.update(update(arrays(0), version=version)), Code.INVALID_ARGUMENT, "must lie in 0 ..")


@pytest.mark.parametrize("error", [EngineError("half of the devices are gone"), OSError("no such file")])
async def test_an_engine_that_fails_to_update_stops_serving(tmp_path, error):
    engine = Probe()
    engine.update_error = error
    async with serving(engine, tmp_path) as (_, client):
        await refused(client.update(update(arrays(0))), Code.UNAVAILABLE, str(error))
        assert await health_of(client) == "NOT_SERVING"
        await refused(client.sample(), Code.UNAVAILABLE, str(error))
