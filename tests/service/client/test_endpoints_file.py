"""The list of servers in a file: what it says, when it is read again, and how a fleet follows it."""

import contextlib
import itertools
import logging
import os
import pathlib
import threading
import time

import pytest

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import EndpointsFile, ServiceConfig
from tests.service.fleet_builders import Live, fleet, live, params, requests, tensors, until, until_used

pytestmark = pytest.mark.usefixtures("short_polls")


_TIMES = itertools.count(1_000_000_000)


def write(path: pathlib.Path, *lines: object) -> None:
    """As a careful writer does it, at a time of its own."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    now = next(_TIMES)
    os.utime(new, (now, now))
    new.rename(path)


def of_ids(groups) -> list[str]:
    return sorted(group.problem_id for group in groups)


@contextlib.contextmanager
def listed(path, *servers: Live, **service):
    """A sampler over the servers of a file."""
    write(path, *(server.address for server in servers))
    with fleet(directory=path.parent, endpoints="", endpoints_file=str(path), **service) as sampler:
        yield sampler


def slow() -> SimulatedEngine:
    return SimulatedEngine(tensors(), tokens_per_s=200.0, median_length=16.0)


def leaving(sampler, server: Live) -> bool:
    return any(found.unlisted for found in sampler._dispatcher._members if found.target == server.address)


# --- the file


def test_one_a_line_with_comments(tmp_path):
    path = tmp_path / "servers"
    path.write_text("# those of today\na:1\n\n  [::1]:2   # the fast one\nunix:/tmp/s\n")
    assert EndpointsFile(str(path)).read() == ("a:1", "[::1]:2", "unix:/tmp/s")
    path.write_text("# none yet\n")
    assert EndpointsFile(str(path)).read() == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a:1\nb\n", "servers:2: 'b' is neither host:port"),
        (b"a:1\n# x\nb:2\na:1\n", "servers:4: a:1 stands in line 1 already"),
        (b"a:1,b:2\n", "servers:1: 'a:1,b:2' is neither"),
        (b"\xff\xfe\n", "can't decode"),
    ],
)
def test_lines_that_are_no_endpoints(tmp_path, text, said):
    path = tmp_path / "servers"
    path.write_bytes(text)
    with pytest.raises(InputError, match=said) as error:
        EndpointsFile(str(path)).read()
    assert str(error.value).startswith("config.service.endpoints_file")
    with pytest.raises(InputError, match=said):
        ServiceConfig(endpoints_file=str(path)).validate()


def test_a_change_counts_once_the_file_has_settled(tmp_path, caplog):
    path = tmp_path / "servers"
    write(path, "a:1")
    file = EndpointsFile(str(path))
    assert file.read() == ("a:1",)
    assert [file.changed() for _ in range(3)] == [None] * 3
    write(path, "a:1", "b:")  # half written
    assert file.changed() is None
    write(path, "a:1", "b:2")
    assert [file.changed() for _ in range(3)] == [None, ("a:1", "b:2"), None]
    write(path, "a:1", "b")
    assert [file.changed() for _ in range(4)] == [None] * 4
    path.unlink()
    assert [file.changed() for _ in range(3)] == [None] * 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "servers:2: 'b' is neither" in said[0] and "No such file" in said[1]
    write(path, "c:3")
    assert [file.changed() for _ in range(3)] == [None, ("c:3",), None]


def test_settings_that_cannot_work(tmp_path):
    with pytest.raises(InputError, match=r"config.service.endpoints_file = '.*nothing': No such file"):
        ServiceConfig(endpoints_file=str(tmp_path / "nothing")).validate()
    write(tmp_path / "servers", "a:1")
    with pytest.raises(InputError, match="both list the servers"):
        ServiceConfig(endpoints="a:1", endpoints_file=str(tmp_path / "servers")).validate()


# --- the fleet


def test_a_server_joins_and_another_leaves_when_it_is_done(tmp_path):
    path = tmp_path / "servers"
    with live(2) as (one, other), listed(path, one, version=3) as sampler:
        write(path, one.address, other.address)
        until_used(sampler, other)
        one.engine.frozen = other.engine.frozen = True
        sampler.submit(requests(8))
        until(lambda: all(server.groups == 4 for server in (one, other)))
        write(path, other.address)
        until(lambda: leaving(sampler, one))
        other.engine.frozen = False
        sampler.submit(requests(8, first=8))  # all of them go to the other
        groups = sampler.completed()
        first = [next(groups) for _ in range(12)]
        assert one.groups == 4  # it keeps what it draws
        one.engine.frozen = False
        assert of_ids([*first, *groups]) == sorted(f"p{i}" for i in range(16))
        assert sampler.redrawn_rollouts == 0
        until(lambda: one.address not in [m.target for m in sampler._dispatcher._members])
        drawn = one.engine.tokens_generated
        sampler.update_weights(params(1), version=4)
        sampler.submit(requests(4))
        assert len(list(sampler.completed())) == 4
        assert one.engine.tokens_generated == drawn and one.engine.version == 3
        with fleet(one, directory=tmp_path, session="another run") as theirs:  # which need not wait for it
            theirs.update_weights(params(2), version=9)
            assert one.engine.version == 9


def test_a_server_that_dies_while_it_leaves_loses_nothing(tmp_path):
    path = tmp_path / "servers"
    with live(2) as (one, other), listed(path, one, other, version=1) as sampler:
        one.engine.frozen = True
        sampler.submit(requests(8))
        until(lambda: one.groups == 4)
        write(path, other.address)
        until(lambda: leaving(sampler, one))
        one.stop()
        assert of_ids(sampler.completed()) == sorted(f"p{i}" for i in range(8))
        assert sampler.redrawn_rollouts == 4 * 4


def test_an_empty_list_waits_for_the_first_server(tmp_path, caplog):
    path = tmp_path / "servers"
    with live() as [server], listed(path) as sampler:
        late = threading.Timer(0.3, write, (path, server.address))
        late.start()
        sampler.submit(requests(3))
        sampler.update_weights(params(), version=1)
        assert len(list(sampler.completed())) == 3
        late.join()
    assert f"no sampler is left: {path} lists none" in caplog.text
    assert "config.service.endpoints_file" in caplog.text


def test_a_broken_line_changes_nothing(tmp_path, caplog):
    path = tmp_path / "servers"
    with live(2) as (one, other), listed(path, one, version=1) as sampler:
        write(path, other.address, "half of a na")
        until(lambda: f"{path}:2: 'half of a na' is neither" in caplog.text)
        sampler.submit(requests(4))
        assert len(list(sampler.completed())) == 4 and other.engine.tokens_generated == 0
        write(path, other.address)
        until_used(sampler, other)


def test_a_server_that_is_listed_again_stays(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "servers"
    with live() as [server], listed(path, server, version=1) as sampler:
        server.engine.frozen = True
        sampler.submit(requests(2))
        until(lambda: server.groups == 2)
        write(path)
        until(lambda: f"sampler {server.address} leaves: it finishes 2 groups" in caplog.text)
        write(path, server.address)
        until(lambda: "is listed again" in caplog.text)
        server.engine.frozen = False
        sampler.submit(requests(2, first=2))
        assert len(list(sampler.completed())) == 4 and sampler.redrawn_rollouts == 0


@pytest.mark.parametrize("in_flight", ["wait", "continue"])
def test_what_a_leaving_server_draws_keeps_its_weights(tmp_path, in_flight):
    """New weights are not sent to it: its rollouts are of the version that they began with."""
    path = tmp_path / "servers"
    with live(2) as (one, other), listed(path, one, other, in_flight=in_flight, version=1) as sampler:
        one.engine.frozen = True
        sampler.submit(requests(8))
        until(lambda: one.groups == 4)
        write(path, other.address)
        until(lambda: leaving(sampler, one))
        sampler.update_weights(params(1), version=2)  # does not wait for the one that leaves
        assert (one.engine.version, other.engine.version) == (1, 2)
        one.engine.frozen = False
        groups = list(sampler.completed())
        assert len(groups) == 8 and sampler.redrawn_rollouts == 0


# --- a server that is told to end


def drain(server: Live) -> threading.Thread:
    """What SIGTERM does: it finishes what it draws."""
    server._grace = 30.0
    server.loop.call_soon_threadsafe(server._stop.set)
    return server._thread


def test_a_draining_server_finishes_and_is_sent_nothing(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with live(2) as (one, other), fleet(one, other, directory=tmp_path, version=1) as sampler:
        one.engine.frozen = True
        sampler.submit(requests(8))
        until(lambda: one.groups == 4)
        ending = drain(one)
        until(lambda: f"sampler {one.address} is shutting down: it finishes 4 groups" in caplog.text)
        sampler.submit(requests(8, first=8))
        groups = sampler.completed()
        first = [next(groups) for _ in range(12)]
        one.engine.frozen = False
        assert of_ids([*first, *groups]) == sorted(f"p{i}" for i in range(16))
        assert sampler.redrawn_rollouts == 0
        ending.join()
        back = Live(port=one.port)
        try:
            until_used(sampler, back)
        finally:
            back.stop()


# --- what they cost


def test_devices_are_lent_until_a_server_has_left(tmp_path):
    path = tmp_path / "servers"
    engines = [SimulatedEngine(tensors(), devices=count) for count in (1, 2)]
    one, other = (Live(engine=engine) for engine in engines)
    try:
        with listed(path, one, other) as sampler:
            sampler.update_weights(params(), version=1)

            def count(devices: int) -> None:
                """So many count now."""
                clock = [time.monotonic()]
                before = sampler.device_seconds["simulated"]
                clock.append(time.monotonic())
                time.sleep(0.05)
                clock.append(time.monotonic())
                passed = sampler.device_seconds["simulated"] - before
                clock.append(time.monotonic())
                assert devices * (clock[2] - clock[1]) <= passed + 1e-9
                assert passed <= devices * (clock[3] - clock[0]) + 1e-9

            until(lambda: len([m for m in sampler._dispatcher._members if m.meter.devices[1]]) == 2)
            count(3)
            other.stop()  # idle, or down: it is lent
            count(3)
            write(path, one.address)
            until(lambda: sum(meter.devices[1] for meter in sampler._dispatcher._meters) == 1)
            count(1)
    finally:
        one.stop()
        other.stop()
