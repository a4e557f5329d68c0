"""What a server writes down: refusals with caller and reason, updates, and never so much that it fills a disk."""

import asyncio
import logging

import grpc
import pytest

from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server import refusals
from isocompute_jax.service.server.refusals import SERVICE, CallLog, quoted
from tests.service import builders
from tests.service.builders import Probe, arrays, end, header, manifest, refused, serving, update

Code = grpc.StatusCode


@pytest.fixture
def lines(caplog):
    """The lines of the log so far; asking for them empties it."""
    caplog.set_level(logging.INFO, "isocompute_jax")

    def found() -> list[str]:
        messages = [record.getMessage() for record in caplog.records if record.name == refusals.__name__]
        caplog.clear()
        return messages

    return found


@pytest.fixture
def secured(tmp_path):
    return builders.secured(tmp_path, "s3cret")


async def test_refusals_are_written_down_with_caller_and_reason(tmp_path, secured, lines):
    async with serving(Probe(), **secured) as (_, client):

        async def one(awaitable, code, words, method="UpdateWeights"):
            await refused(awaitable, code)
            [line] = lines()
            assert line.startswith(f"{method} refused with {code.name}, from ipv4:127.0.0.1:"), line
            assert words in line, line

        async def unary(method, data):
            return await client.channel.unary_unary(f"/{SERVICE}/{method}")(data)

        messages = update(arrays(1))
        await one(client.update(messages), Code.UNAUTHENTICATED, "only with the server's token")
        await one(client.stub.OpenTransfer(pb.OpenTransferRequest()), Code.UNAUTHENTICATED, "only", "OpenTransfer")
        outside = [header(), manifest(tmp_path / "file", arrays(1)), end(0)]
        await one(client.update(outside, token="s3cret"), Code.INVALID_ARGUMENT, "--weights_dir")
        await one(client.update(messages[:-1], token="s3cret"), Code.DATA_LOSS, "before its `end`")
        await one(client.sample(session="x"), Code.FAILED_PRECONDITION, "session 'x'", "Sample")
        await one(client.sample(group_size=0), Code.INVALID_ARGUMENT, "group_size = 0", "Sample")
        # Those that gRPC refuses before the service sees them.
        await one(unary("Status", bytes(2 << 20)), Code.RESOURCE_EXHAUSTED, "--max_message_mib=1", "Status")
        await one(unary("Cancel", b"\xff"), Code.INVALID_ARGUMENT, "not the message", "Cancel")
        await refused(unary("Shut\x1b[2Jdown", b""), Code.UNIMPLEMENTED)
        [line] = lines()
        assert line.startswith("A call refused with UNIMPLEMENTED") and r"Shut\x1b[2Jdown" in line
        wrong = await asyncio.gather(
            *(client.update(messages, token=f"s3cre{i}") for i in range(3)), return_exceptions=True
        )
        assert all("UNAUTHENTICATED" in str(error) for error in wrong)
        assert "s3cre" not in "".join(lines())


async def test_updates_sessions_and_takeovers_are_written_down(tmp_path, lines):
    async with serving(Probe(), tmp_path) as (_, client):
        for session, version in (("/runs/a#one", 4), ("/runs/a#one", 5), ("/runs/a#two", 0)):
            await client.update(update(arrays(1), session=session, version=version))
        await client.stub.Status(pb.StatusRequest(session="/runs/a#two", release=True))
        await client.update(update(arrays(1), session="/runs/b#one", version=9))
    begun, updated, again, over = [line.split(", from ipv4:127.0.0.1:") for line in lines()[:4]]
    assert begun[0] == "Session begun: version 4 of '/runs/a#'"
    assert updated[0] == "Weights updated: version 5 of '/runs/a#'"
    assert again[0] == "Session begun: version 0 of '/runs/a#'"  # the same run, started again
    assert over[0] == "Server taken over: version 9 of '/runs/b#'"
    assert over[1].endswith("; before: version 0 of '/runs/a#'")


async def test_a_flood_of_refusals_is_a_few_lines_and_a_number(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(refusals, "PERIOD_S", 0.5)
    async with serving(Probe(), tmp_path) as (_, client):
        began = asyncio.get_running_loop().time()
        bad = [client.sample(group_id="a" * 5000 + "\n\x1b]0;x\x07", group_size=0) for _ in range(300)]
        await asyncio.gather(*bad, return_exceptions=True)
        await refused(client.sample(session="x"), Code.FAILED_PRECONDITION)
        written = lines()
        periods = 2 + (asyncio.get_running_loop().time() - began) // refusals.PERIOD_S
        assert len([line for line in written if "INVALID_ARGUMENT" in line]) <= (refusals.LINES + 1) * periods
        assert len([line for line in written if "FAILED_PRECONDITION" in line]) == 1  # another kind, not held back
        await asyncio.sleep(0.7)
        said = [line for line in written + lines() if "more within" in line]
    counted = sum(int(line.split(": ")[1].split(" ")[0]) for line in said)
    assert counted + len([line for line in written if "group_size = 0" in line]) == 300


async def test_a_server_that_ends_says_what_it_left_out(lines):
    log = CallLog()
    for _ in range(12):
        log.refused("Sample", Code.ABORTED, "ipv4:1.2.3.4:5", "why")
    assert len(lines()) == refusals.LINES
    log.close()
    words = f"{12 - refusals.LINES} more within 60 s, which are not written down one by one"
    assert lines() == [f"Sample refused with ABORTED: {words}"]


async def test_nothing_that_a_caller_chose_acts_on_a_terminal_or_begins_a_line(tmp_path, lines):
    name = "x\n12:00:00 Session begun: all is well\r\x1b[2J\u202egnp.exe\x9b31m"
    async with serving(Probe(), tmp_path) as (_, client):
        await client.update(update(arrays(1), session=name, version=1))
        await refused(client.sample(session=name + "2"), Code.FAILED_PRECONDITION)
        bad = header(session="s")
        bad.header.tensors[0].name = name
        await refused(client.update([bad]), Code.INVALID_ARGUMENT)
    found = lines()
    assert len(found) == 3 and all(line.isprintable() for line in found), found


def test_text_is_cut_in_the_middle():
    assert quoted("short ä") == "short ä" and quoted("a\tb\u2028c\ud800") == r"a\tb\u2028c\ud800"
    assert len(quoted("a" * 10**6)) < refusals.MOST


async def test_a_caller_that_sends_nothing_is_let_go(tmp_path, lines):
    async with serving(Probe(), tmp_path, peer_timeout_s=0.2) as (_, client):

        async def nothing():
            await asyncio.sleep(5)
            yield b""

        call = client.channel.stream_unary(f"/{SERVICE}/Status")(nothing())
        await refused(call, Code.ABORTED, "no message came for 0.2 s")
        assert "no message came" in lines()[0]
        assert len(await client.sample()) == 2
