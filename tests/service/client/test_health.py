"""What servers' devices cost: by hand, on a clock of its own."""

import pytest

from isocompute_jax.service.client import health
from isocompute_jax.service.client.health import Meter, together


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
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


def test_kinds_are_kept_apart():
    assert together([{"a": 1.0, "b": 2.0}, {}, {"b": 0.5}]) == {"a": 1.0, "b": 2.5}
