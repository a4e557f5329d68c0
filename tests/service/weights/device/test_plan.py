"""The weight plan: worked by hand, and what holds of every one."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.weights.device.links import fewest_each, lower_bounds, traffic
from isocompute_jax.service.weights.device.plan import Device, Hop, Message, make_plan


def box(name, low, high, width):
    """Rows `low` .. `high` of a bfloat16 matrix."""
    return Box(name, "bfloat16", (high - low, width), (low, 0))


def test_two_learners_feed_one_server_of_two_devices():
    """Worked by hand: w [4, 2] cut by rows on both sides, v [4] whole everywhere, learner and server on other nodes."""
    tensors = [TensorSpec("w", "bfloat16", (4, 2)), TensorSpec("v", "bfloat16", (4,))]
    v = tensors[1].box
    senders = [Device("a", (box("w", 0, 3, 2), v)), Device("a", (box("w", 3, 4, 2), v))]
    receivers = [Device("b", (box("w", 0, 2, 2), v)), Device("b", (box("w", 2, 4, 2), v))]
    plan = make_plan(tensors, senders, receivers)
    # Rows 0, 1 go from 0 to 2, row 2 from 0 to 3, row 3 from 1 to 3: out 12 and 4 bytes, in 8 and 8. Then v, 8 bytes:
    # by 1, which has sent less, to 2 (both have been sent as much), which hands it to 3 in the next round.
    assert plan.messages == (
        Message((box("w", 0, 2, 2),), (Hop(0, 2, 0),), 0),
        Message((box("w", 2, 3, 2),), (Hop(0, 3, 0),), 0),
        Message((box("w", 3, 4, 2),), (Hop(1, 3, 0),), 0),
        Message((v,), (Hop(1, 2, 0), Hop(2, 3, 1)), 0),
    )
    assert [len(hops) for hops in plan.rounds] == [4, 1]
    found = traffic(plan)
    assert found.out == (12, 12, 0, 0) and found.into == (0, 0, 16, 8) and found.local == (0, 0, 8, 0)
    # w alone makes device 0 send 12 bytes; of 24 bytes into the node, 12 for each device with v split.
    assert lower_bounds(tensors, senders, receivers) == pytest.approx((12, 12))
    smaller = make_plan(tensors, senders, receivers, bucket_bytes=8, grain_bytes=4)
    assert max(message.bucket for message in smaller.messages) == 2
    assert traffic(smaller).busiest == 12


def test_nodes_that_the_learner_does_not_feed_are_fed_in_chains():
    tensors = [TensorSpec("w", "float32", (8, 2))]
    whole = (tensors[0].box,)
    plan = make_plan(tensors, [Device("a", whole)], [Device(f"b{i}", whole) for i in range(3)])
    [message] = plan.messages
    assert message.hops == (Hop(0, 1, 0), Hop(1, 2, 1), Hop(2, 3, 2)) and len(plan.rounds) == 3
    assert traffic(plan).busiest == 64  # and not three times as much


def test_devices_of_one_node_need_no_adapter():
    tensors = [TensorSpec("w", "float32", (8, 2))]
    whole = (tensors[0].box,)
    plan = make_plan(tensors, [Device("a", whole)] * 2, [Device("a", whole)] * 2, grain_bytes=8)
    assert traffic(plan).busiest == 0
    assert traffic(plan).local == (32, 32, 32, 32)


def test_what_nobody_holds_is_said():
    tensors = [TensorSpec("w", "float32", (8, 2))]
    half = Box("w", "float32", (4, 2), (0, 0))
    with pytest.raises(ValueError, match=r"'w'.*no sender holds it"):
        make_plan(tensors, [Device("a", (half,))], [Device("b", (tensors[0].box,))])


def test_the_least_that_the_busiest_must_do():
    assert fewest_each({}) == 0
    assert fewest_each({frozenset({1}): 6, frozenset({1, 2}): 2}) == pytest.approx(6)
    assert fewest_each({frozenset({1, 2}): 6, frozenset({2, 3}): 2, frozenset({3}): 4}) == pytest.approx(4)
    assert fewest_each({frozenset({1, 2}): 10, frozenset({2, 3}): 2, frozenset({3}): 4}) == pytest.approx(16 / 3)


def parts(size, count):
    """Even parts of a dimension, or the whole for everybody where they do not divide it."""
    return [(size // count * i, size // count) for i in range(count)] if size % count == 0 else [(0, size)] * count


@st.composite
def sides(draw):
    """Tensors; a learner of data x fsdp x tensor devices; servers of data-parallel x tensor-parallel devices."""
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
    tensors = [
        TensorSpec(f"t{i}", draw(st.sampled_from(["float32", "bfloat16"])), draw(st.tuples(sizes, sizes)))
        for i in range(draw(st.integers(1, 4)))
    ]
    senders = _devices(draw, tensors, "learner")
    return tensors, senders, _devices(draw, tensors, draw(st.sampled_from(["server", "learner"])))


def _devices(draw, tensors, name):
    counts = [draw(st.integers(1, 3)) for _ in range(3)]
    per_node = draw(st.integers(1, 4))
    # Each tensor is cut over the second axis of devices, the third, both or none.
    cuts = [(draw(st.booleans()), draw(st.booleans())) for _ in tensors]
    devices = []
    for rank, (_, row, column) in enumerate(itertools.product(*map(range, counts))):
        boxes = []
        for tensor, (by_row, by_column) in zip(tensors, cuts, strict=True):
            rows = parts(tensor.shape[0], counts[1])[row] if by_row else (0, tensor.shape[0])
            columns = parts(tensor.shape[1], counts[2])[column] if by_column else (0, tensor.shape[1])
            boxes.append(Box(tensor.name, tensor.dtype, (rows[1], columns[1]), (rows[0], columns[0])))
        devices.append(Device(f"{name}{rank // per_node}", tuple(boxes)))
    return devices


@given(sides(), st.sampled_from([8, 64, 1 << 20]), st.sampled_from([8, 1 << 20]))
@settings(max_examples=40, deadline=None)
def test_every_wanted_number_comes_once_from_one_who_has_it(case, bucket_bytes, grain_bytes):
    tensors, senders, receivers = case
    plan = make_plan(tensors, senders, receivers, bucket_bytes=bucket_bytes, grain_bytes=grain_bytes)
    assert plan == make_plan(tensors, senders, receivers, bucket_bytes=bucket_bytes, grain_bytes=grain_bytes)
    came = [{t.name: np.zeros(t.shape, int) for t in tensors} for _ in receivers]
    holds = [{t.name: np.zeros(t.shape, bool) for t in tensors} for _ in senders]
    for device, held in zip(senders, holds, strict=True):
        for part in device.boxes:
            held[part.name][part.slices] = True
    for number, message in enumerate(plan.messages):
        have, entered = set(range(len(senders))), {}
        for hop in message.hops:
            assert hop.source in have and hop.target not in have and hop.target >= len(senders)
            if hop.source < len(senders):
                assert hop.depth == 0 and all(holds[hop.source][b.name][b.slices].all() for b in message.boxes)
            else:
                assert hop.depth > entered[hop.source]
            have.add(hop.target)
            entered[hop.target] = hop.depth
            assert (number, hop) in plan.rounds[message.bucket + hop.depth]
            for part in message.boxes:
                came[hop.target - len(senders)][part.name][part.slices] += 1
        away = [plan.nodes[h.target] for h in message.hops if plan.nodes[h.source] != plan.nodes[h.target]]
        assert len(away) == len(set(away))  # into each node once
    for device, arrived in zip(receivers, came, strict=True):
        wanted = {t.name: np.zeros(t.shape, int) for t in tensors}
        for part in device.boxes:
            wanted[part.name][part.slices] = 1
        for name, counts in wanted.items():
            np.testing.assert_array_equal(arrived[name], counts)
    sent = sum(message.nbytes * len(message.hops) for message in plan.messages)
    assert sent == sum(part.nbytes for device in receivers for part in device.boxes)
    assert sum(sum(each) for each in (traffic(plan).out, traffic(plan).local)) == sent
    for bucket in {message.bucket for message in plan.messages}:
        loads = {}
        for message in plan.messages:
            if message.bucket == bucket:
                ends = {("out", h.source) for h in message.hops if not h.depth} | {
                    ("in", h.target) for h in message.hops
                }
                for end in ends:
                    loads[end] = loads.get(end, 0) + message.nbytes
        assert max(loads.values()) <= bucket_bytes


@given(sides())
@settings(max_examples=40, deadline=None)
def test_the_busiest_adapter_carries_little_more_than_it_must(case):
    tensors, senders, receivers = case
    grain = 8
    carried = traffic(make_plan(tensors, senders, receivers, grain_bytes=grain))
    out, into = lower_bounds(tensors, senders, receivers)
    bound = max(out, into)
    assert bound - 1e-6 <= carried.busiest <= 1.5 * bound + 2 * grain
