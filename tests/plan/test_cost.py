"""What a run costs beside its steps, by hand."""

import dataclasses

import pytest

from isocompute_jax.experiment.config import EvaluationConfig, PlanConfig
from isocompute_jax.plan.cost import STREAM, WRITTEN, Spans, evaluations_of, push_path, push_time, run_cost, spans_of
from isocompute_jax.plan.roofline import Range, Sampling
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.plan.builders import run_config

NOTHING = Range(0.0, 0.0)
SPANS = Spans(Range(10.0, 20.0), Range(30.0, 60.0), Range(5.0, 40.0), NOTHING, NOTHING, NOTHING, NOTHING)
CONFIG = run_config("unread")  # 10 steps of 8 x 4


def names(cost):
    return {part.name: (part.seconds, part.devices) for part in cost.parts}


def test_in_turns_who_waits_is_paid_for():
    turns = run_cost(SPANS, num_steps=36, learner_devices=8, sampler_devices=0, overlapped=False)
    assert (turns.step, turns.device_hours, turns.learner) == (Range(40.0, 80.0), Range(3.2, 6.4), Range(0.25, 0.25))
    assert names(turns) == {"steps": (Range(1440.0, 2880.0), 8)}
    pushed = dataclasses.replace(SPANS, weights=Range(5.0, 10.0))
    apart = run_cost(pushed, num_steps=36, learner_devices=8, sampler_devices=8, overlapped=False)
    assert (apart.step, apart.device_hours) == (Range(45.0, 90.0), Range(7.2, 14.4))


def test_an_asynchronous_run_waits_for_its_first_batch_and_its_last_update():
    """The first batch is drawn in 30 to 60 s while nothing is learned; then the slower side sets the pace."""
    spans = dataclasses.replace(SPANS, weights=Range(1.0, 2.0))
    apart = run_cost(spans, num_steps=36, learner_devices=8, sampler_devices=8, overlapped=True)
    assert apart.step == Range(11.0, 40.0)  # learner, and sampler
    assert names(apart)["idle ends"] == (Range(30.0 + 11.0 - 11.0, 60.0 + 22.0 - 40.0), 16)
    wall = Range(30.0 + 36 * 11.0, 60.0 + 35 * 40.0 + 22.0)
    assert apart.wall_hours.low == pytest.approx(wall.low / 3600)
    assert apart.device_hours.high == pytest.approx(16 * wall.high / 3600)
    assert apart.learner == Range(0.5, 10 / 11)


def test_what_lies_between_steps_is_paid_for_by_both_and_curation_by_who_samples():
    spans = dataclasses.replace(
        SPANS, evaluation=Range(360.0, 720.0), closing=Range(36.0, 36.0), curation=Range(3600.0, 3600.0)
    )
    cost = run_cost(spans, num_steps=1, learner_devices=8, sampler_devices=4, overlapped=False)
    hours = {part.name: part.device_hours for part in cost.parts}
    assert (hours["evaluations"].low, hours["evaluations"].high) == (pytest.approx(1.2), pytest.approx(2.4))
    assert hours["last checkpoint and exports"].low == pytest.approx(0.12)
    assert hours["curation"] == Range(4.0, 4.0)
    assert cost.device_hours.low == pytest.approx(sum(part.low for part in hours.values()))


def test_how_weights_reach_the_servers():
    one, two = parse_topology("h200:1x4"), parse_topology("h200:2x8")
    same_host = dataclasses.replace(CONFIG, plan=PlanConfig(sampler_devices=4))
    other_host = dataclasses.replace(CONFIG, plan=PlanConfig(sampler_devices=16))
    assert (push_path(same_host, one), push_path(other_host, one)) == ("shared", "stream")
    said = dataclasses.replace(other_host, service=ServiceConfig(push="nccl"))
    assert push_path(said, one) == "nccl"
    assert push_time(same_host, one, 15.2e9, 4) == push_time(same_host, one, 15.2e9, 1)  # one file for all
    streamed = push_time(other_host, two, 15.2e9, 8)  # each of two hosts sends half of 8 copies
    assert streamed.high == pytest.approx(4 * 15.2e9 / STREAM[1])
    assert push_time(other_host, one, 15.2e9, 8).low == pytest.approx(2 * streamed.low)
    assert 45 < push_time(other_host, one, 15.2e9, 8).low < 68
    chips = dataclasses.replace(CONFIG, plan=PlanConfig(sampler_devices=64))  # 16 VMs send shares, to 16 servers
    assert push_time(chips, parse_topology("tpu:v5p:4x4x4"), 16e9, 64).low == pytest.approx(16e9 / STREAM[0])
    assert push_time(said, two, 15e9, 8).low == pytest.approx(8 * 15e9 / (50e9 * 0.9))


def test_evaluations_are_those_of_the_run():
    evaluation = EvaluationConfig(sets={"a": "a", "b": "b"}, samples=4, k=4, points=3, first_compute=32)
    config = dataclasses.replace(CONFIG, evaluation=evaluation, plan=PlanConfig(evaluation_problems=30))
    assert evaluations_of(config) == (4, 2 * 30 * 4)  # at 0, 32, 96 or so, and 320 rollouts
    assert evaluations_of(CONFIG) == (0, 0)
    left_open = dataclasses.replace(config, evaluation=EvaluationConfig(sets={"a": "a"}))
    times, rollouts = evaluations_of(left_open)
    assert 0 < times * rollouts <= 0.25 * 320


def test_the_parts_of_a_run():
    evaluation = EvaluationConfig(sets={"a": "a", "b": "b"}, samples=4, k=4, points=3, first_compute=32)
    config = dataclasses.replace(
        CONFIG,
        export_every=4,
        evaluation=evaluation,
        plan=PlanConfig(sampler_devices=8, evaluation_problems=30, curation_rollouts=1000),
    )
    sampling = Sampling(Range(30.0, 60.0), Range(5.0, 40.0), 8, 8, 8, 1.0, 1.0, Range(1.0, 1.0))
    found = spans_of(
        config, parse_topology("h200:2x8"), update=Range(10.0, 20.0), sampling=sampling,
        draw=lambda rollouts: Range(rollouts, 2.0 * rollouts), weight_bytes=16e9, state_bytes=96e9,
    )  # fmt: skip
    assert found.evaluation == Range(4 * 2 * 120.0, 2 * 4 * 2 * 120.0)
    assert found.curation == Range(1000.0, 2000.0)
    assert found.closing.low == pytest.approx((96e9 / 2 + 3 * 16e9) / WRITTEN[0])  # after 4 and 8 steps, and the model
    assert found.weights.high == pytest.approx(8 * 16e9 / 2 / STREAM[1])
    phases = dataclasses.replace(config, max_staleness=4, asynchrony="phases")
    again = spans_of(
        phases, parse_topology("h200:2x8"), update=Range(10.0, 20.0), sampling=sampling,
        draw=lambda rollouts: NOTHING, weight_bytes=16e9, state_bytes=96e9,
    )  # fmt: skip
    assert again.weights.high == pytest.approx(found.weights.high / 4)  # once for four updates
