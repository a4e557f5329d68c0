"""Processes find each other over real sockets, and those that are not of one run are sent away with the reason."""

import concurrent.futures
import contextlib
import dataclasses
import socket
import time

import pytest

from isocompute_jax.distributed import meeting
from isocompute_jax.distributed.environment import Place
from isocompute_jax.distributed.link import Codec
from isocompute_jax.records.errors import InputError, RunError
from tests.launch.processes import free_ports, wait_until

SOON = 20.0
FACTS = {"version": {"jax": "1"}, "config": {"config.group_size": 8, "config.seed": 0}}


@pytest.fixture
def address():
    return f"127.0.0.1:{free_ports(2)}"


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield pool


def come(address, index, count=2, facts=FACTS, start_s=SOON):
    place = Place(index, count, address, "flags")
    return meeting.meet(place, meeting.about(place, facts), Codec(), start_s=start_s, stall_s=60.0)


def met(pool, address, *arguments):
    """What each process finds, or raises."""
    futures = [pool.submit(come, address, **each) for each in arguments]
    found = [future.exception(SOON) or future.result() for future in futures]
    for team in found:
        if not isinstance(team, BaseException):
            team.leave()
    return found


def reached(address) -> socket.socket:
    """A connection to process 0, once it listens."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            return socket.create_connection(meeting.split(address))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


def test_all_come_in_any_order_and_know_each_other(pool, address):
    late = [pool.submit(come, address, i, 3) for i in (2, 1)]
    time.sleep(0.3)  # they wait for process 0
    teams = [come(address, 0, 3), *(future.result(SOON) for future in late)]
    assert [team.index for team in teams] == [0, 2, 1] and {team.count for team in teams} == {3}
    assert len({team.names for team in teams}) == 1
    assert [name.split()[1] for name in teams[0].names] == ["0", "1", "2"]
    values = [pool.submit(team.broadcast, lambda: "found") for team in teams]
    assert [value.result(SOON) for value in values] == ["found"] * 3
    for team in teams:
        team.leave()


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("config", "config.group_size", "config.group_size is 16 there, and 8 in process 0; start all"),
        ("version", "jax", "jax is 16 there, and '1' in process 0; install the same on every host"),
    ],
)
def test_what_differs_is_named_in_all(pool, address, kind, name, said):
    other = {**FACTS, kind: {**FACTS[kind], name: 16}}
    found = met(pool, address, {"index": 0}, {"index": 1, "facts": other})
    assert all(isinstance(error, InputError) for error in found)
    assert str(found[0]) == str(found[1])
    assert "process 1 (" in str(found[0]) and f"is of another {kind}: {said}" in str(found[0])


def test_another_source_is_another_code(pool, address, monkeypatch):
    monkeypatch.setattr(meeting, "source_digest", lambda: str(time.monotonic_ns()))
    found = met(pool, address, {"index": 0}, {"index": 1})
    assert "is of another code: isocompute_jax's source is" in str(found[0]) and "install the same" in str(found[1])


def test_another_number_of_processes_is_refused(pool, address):
    found = met(pool, address, {"index": 0, "count": 2}, {"index": 1, "count": 3})
    assert all(isinstance(error, InputError) for error in found)
    assert "was told of 3 processes, process 0" in str(found[0]) and "--process_count" in str(found[1])


def test_a_number_that_is_given_twice_is_refused(pool, address):
    found = met(pool, address, *({"index": index, "count": 3} for index in (0, 1, 1)))
    assert all(isinstance(error, InputError) for error in found)
    assert "two processes say that they are number 1" in str(found[0])


def test_who_does_not_come_is_named(address):
    with pytest.raises(RunError, match=r"processes 1, 2 of 3 did not come to .* within 0 s \(--start_s\)"):
        come(address, 0, 3, start_s=0.4)


def test_a_process_0_that_is_not_there_is_said(address):
    with pytest.raises(RunError, match=rf"cannot be reached at --coordinator={address} .*Connection refused"):
        come(address, 1, start_s=0.5)


def test_who_waits_says_for_whom(pool, address, monkeypatch, caplog):
    monkeypatch.setattr(meeting, "PATIENCE_S", 0.0)
    caplog.set_level("INFO")
    late = pool.submit(come, address, 1, 3)
    wait_until(lambda: "process 0 is not reached" in caplog.text, "process 1 says it", seconds=SOON)
    first = pool.submit(come, address, 0, 3)
    wait_until(lambda: "for process" in caplog.text, "process 0 says it", seconds=SOON)
    third = come(address, 2, 3)
    for team in (first.result(SOON), late.result(SOON), third):
        team.leave()
    assert f"--coordinator={address} yet (" in caplog.text and "waiting at " + address in caplog.text


def test_an_address_that_another_run_has_is_refused(address):
    host, port = address.split(":")
    with socket.create_server((host, int(port))), pytest.raises(InputError, match="choose another port"):
        come(address, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_above_that_another_program_has_is_said_by_all(pool, address, host):
    """JAX's coordination service listens there: it would end process 0 with a traceback."""
    above = int(address.split(":")[1]) + 1
    with socket.create_server((host, above), reuse_port=True):  # gRPC, which sets it too, would share the port
        found = met(pool, address, {"index": 0}, {"index": 1})
    assert all(isinstance(error, InputError) for error in found) and str(found[0]) == str(found[1])
    assert f"cannot listen at the port above it, {above}: Address already in use. Another" in str(found[0])
    assert f"'sport = :{above}'" in str(found[0]) and "choose another port for --coordinator" in str(found[0])


def test_a_port_above_that_is_not_let_through_is_said_by_all(pool, address):
    """Behind a firewall that lets one port through JAX's processes would wait, then abort."""
    with socket.create_server(("127.0.0.1", free_ports(2))) as door:
        outside = f"127.0.0.1:{door.getsockname()[1]}"
        second = pool.submit(come, outside, 1)
        there, _ = door.accept()
        first = pool.submit(come, address, 0)
        here = reached(address)
        for source, target in ((there, here), (here, there)):
            pool.submit(forward, source, target)
        found = [first.exception(SOON), second.exception(SOON)]
    assert all(isinstance(error, InputError) for error in found) and str(found[0]) == str(found[1])
    above = int(address.split(":")[1]) + 1
    assert f"reaches process 0 at --coordinator={address}, and not at the port above it, {above}" in str(found[0])
    assert "Connection refused. Let both ports through firewalls" in str(found[0])


def forward(source, target):
    with source, target, contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)


def test_an_address_of_another_machine_is_listened_at_everywhere(pool, address):
    """Behind a service's name no interface has the address: TEST-NET-1 stands for it."""
    port = address.split(":")[1]
    first = pool.submit(come, f"192.0.2.1:{port}", 0)
    second = come(address, 1)
    for team in (first.result(SOON), second):
        team.leave()


def test_strangers_are_sent_away(pool, address, caplog):
    first = pool.submit(come, address, 0)
    with reached(address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    second = come(address, 1)
    for team in (first.result(SOON), second):
        team.leave()
    assert "is no process of a run" in caplog.text


def test_who_comes_again_takes_its_place(pool, address):
    """A process that was killed while it waited, and was started again."""
    first = pool.submit(come, address, 0, 3)
    place = Place(1, 3, address, "flags")
    killed = meeting.Link(reached(address), Codec([meeting.About]), "", 10.0)
    killed.send(meeting.HELLO, dataclasses.replace(meeting.about(place, FACTS), name="the first"))
    time.sleep(0.3)
    killed.close()
    rest = [pool.submit(come, address, i, 3) for i in (1, 2)]
    teams = [first.result(SOON), *(future.result(SOON) for future in rest)]
    assert "the first" not in teams[0].names
    for team in teams:
        team.leave()
