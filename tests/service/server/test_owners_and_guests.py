"""Whose weights serve: who may replace them, with which version, and who may have how many groups."""

import asyncio

import grpc
import pytest

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import same_run, shown
from isocompute_jax.service.server import groups, servicer
from isocompute_jax.service.server.groups import host_of
from tests.service.builders import Probe, arrays, begun, header, refused, serves, serving, update

Code = grpc.StatusCode


def test_names_of_sessions():
    assert [shown(session) for session in ("/runs/a#1f", "a#b#c", "plain", "", "#")] == [
        "/runs/a#",
        "a#b#",
        "plain",
        "",
        "#",
    ]
    assert same_run("a#1", "a#2") and same_run("a#b#1", "a#b#2")
    assert not same_run("a", "b") and not same_run("a", "a#1") and not same_run("a#1", "b#1")


async def test_versions_only_rise_within_a_session(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        await client.update(update(arrays(5), session="run#1", version=5))
        await refused(
            client.update(update(arrays(3), session="run#1", version=3)),
            Code.FAILED_PRECONDITION, "version 3 is older than version 5", "begin another session",
        )  # fmt: skip
        await serves(engine, client, arrays(5), 5)
        # A reply that was lost is asked for again; and a resumed run begins where its checkpoint is.
        await client.update(update(arrays(6), session="run#1", version=5))
        await client.update(update(arrays(3), session="run#2", version=3))
        await serves(engine, client, arrays(3), 3)


async def test_an_older_version_does_not_end_the_newer_one_that_is_coming_in(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path) as (server, client):
        halves = [update(arrays(6), session="run#1", version=6, sender=k, senders=2) for k in range(2)]
        first = asyncio.create_task(client.update(halves[0]))
        while not server.servicer.updates.senders:
            await asyncio.sleep(0.001)
        await refused(client.update([header(session="run#1", version=5)]), Code.FAILED_PRECONDITION, "version 6")
        await refused(client.update([header(session="other#1", version=9)]), Code.FAILED_PRECONDITION, "'run#'")
        await client.update(halves[1])
        await first
        await serves(engine, client, arrays(6), 6)


async def test_a_server_is_taken_over_when_its_learner_has_ended_or_begins_anew(tmp_path, monkeypatch):
    engine = Probe()
    async with serving(engine, tmp_path) as (_, client):
        await client.update(update(arrays(1), session="one#1", version=1))
        assert (await client.status()).taken
        theirs = update(arrays(2), session="two#1", version=1)
        await refused(client.update(theirs), Code.FAILED_PRECONDITION, "another learner, 'one#'", "RUN#START")
        await serves(engine, client, arrays(1), 1, "a")
        # Killed and resumed: another start of the same run waits for nothing.
        await client.update(update(arrays(3), session="one#2", version=0))
        await serves(engine, client, arrays(3), 0, "b")
        # The start that it replaces was only frozen, and wakes.
        zombie = client.update(update(arrays(4), session="one#1", version=9))
        await refused(zombie, Code.FAILED_PRECONDITION, "replaced by a later one")
        await refused(client.update(theirs), Code.FAILED_PRECONDITION, "'one#'")
        await client.stub.Status(pb.StatusRequest(session="one#2", release=True))
        await client.update(theirs)
        await serves(engine, client, arrays(2), 1, "c")
        monkeypatch.setattr(servicer, "LEASE_S", 0.0)  # it was killed, and ten seconds have passed
        await client.update(update(arrays(4), session="three#1", version=7))
        await serves(engine, client, arrays(4), 7, "d")


async def test_a_stranger_learns_no_session_and_neither_keeps_nor_ends_its_hold(tmp_path, monkeypatch):
    async with serving(Probe(), tmp_path) as (_, client):
        await client.update(update(arrays(1), session="/runs/a#5ecret", version=1))
        assert (await client.stub.Status(pb.StatusRequest(session="/runs/a#5ecret"))).session == "/runs/a#5ecret"
        for asked in ("", "/runs/a#", "/runs/a#5ecre", "x"):
            reply = await client.stub.Status(pb.StatusRequest(session=asked, release=True))
            assert (reply.session, reply.taken) == ("/runs/a#", True)
        error = await refused(client.sample(session="x"), Code.FAILED_PRECONDITION, "'/runs/a#'")
        assert "5ecret" not in str(error.details())
        assert len(await client.sample(session="/runs/a#")) == 2  # who wants these weights and no others
        monkeypatch.setattr(servicer, "LEASE_S", 0.0)
        assert not (await client.stub.Status(pb.StatusRequest(session="/runs/a#"))).taken


async def fill(client, engine, count: int, **fields) -> list[asyncio.Task]:
    """Groups that are drawn until the engine goes on."""
    return await begun(client, engine, [f"{fields}{i}" for i in range(count)], **fields)


async def test_one_client_does_not_fill_a_server_and_the_learner_does(tmp_path):
    engine = Probe()
    async with serving(engine, tmp_path, max_groups=8) as (server, client):
        await client.update(update(arrays(1), session="run#1", version=1))
        engine.frozen = True
        tasks = await fill(client, engine, 2, problem_id="guest")
        for session in ({}, {"session": "run#"}):
            words = "2 groups of ipv4:127.0.0.1", "--max_client_groups"
            await refused(client.sample(group_id="more", **session), Code.RESOURCE_EXHAUSTED, *words)
        async with grpc.aio.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            other = type(client)(channel, client.blocking)  # another connection is no other client
            await refused(other.sample(group_id="more"), Code.RESOURCE_EXHAUSTED, "2 groups of")
        tasks += await fill(client, engine, 6, session="run#1")
        await refused(client.sample(group_id="x", session="run#1"), Code.RESOURCE_EXHAUSTED, "8 groups are in")
        engine.frozen = False
        await asyncio.gather(*tasks)


async def test_many_clients_leave_a_quarter_to_a_learner_that_is_there(tmp_path, monkeypatch):
    hosts = iter(range(100))
    monkeypatch.setattr(groups, "host_of", lambda peer: f"host {next(hosts)}")
    engine = Probe()
    async with serving(engine, tmp_path, max_groups=8) as (_, client):
        await client.update(update(arrays(1), session="run#1", version=1))
        engine.frozen = True
        tasks = await fill(client, engine, 6)
        await refused(client.sample(group_id="x"), Code.RESOURCE_EXHAUSTED, "the rest is for the learner")
        monkeypatch.setattr(servicer, "LEASE_S", 0.0)
        tasks += await fill(client, engine, 2, problem_id="late")
        await refused(client.sample(group_id="x"), Code.RESOURCE_EXHAUSTED, "8 groups are in")
        engine.frozen = False
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "ipv4:10.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "ipv6:%5B2001:db8::1%5D"),
        ("unix:", "unix:"),
        ("unix:/run/a:b", "unix:/run/a:b"),
        ("", "?"),
    ],
)
def test_hosts_of_peers(peer, host):
    assert host_of(peer) == host
