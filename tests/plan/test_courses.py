"""Plans of scheduled runs: which batches, and what they cost together, by hand."""

import dataclasses

import pytest

from isocompute_jax.allocation.schedule import BatchSize, ScheduleConfig
from isocompute_jax.plan.cost import Part, RunCost, passes_per_step
from isocompute_jax.plan.courses import cost_of, courses_of, sizes_of
from isocompute_jax.plan.roofline import Range
from tests.plan.builders import run_config

CONFIG = run_config("unread")  # 320 rollouts, 8 x 4


def scheduled(**fields):
    return dataclasses.replace(CONFIG, schedule=ScheduleConfig(**fields))


def priced(config):
    """A step takes a second for each of n at best, twice that at worst, the learner half of it; the rest 10 s."""
    n = float(config.group_size)
    step, rest = Range(n, 2 * n), Range(10.0, 10.0)
    parts = (Part("steps", step.times(config.num_steps), 2), Part("evaluations", rest, 2))
    share = Range(0.5, 0.5) if n < 8 else Range(0.25, 0.25)
    return RunCost(step, Range(0.0, 0.0), parts, rest, rest, share, share)


def test_known_sizes_are_summed():
    config = scheduled(group_size="4@0,8@128")  # 4 steps of 32, then 3 of 64
    small, large = BatchSize(8, 4), BatchSize(8, 8)
    assert courses_of(config) == [[(small, 4), (large, 3)]] and sizes_of(config) == [small, large]
    cost = cost_of(config, priced)
    seconds = 4 * 4 + 3 * 8
    assert cost.parts[0].seconds == Range(seconds, 2 * seconds) and cost.parts[1].seconds == Range(10.0, 10.0)
    assert cost.step.low == pytest.approx(seconds / 7)
    assert cost.device_hours.low == pytest.approx(2 * (seconds + 10) / 3600)
    assert cost.wall_hours.high == pytest.approx((2 * seconds + 10) / 3600)
    assert cost.learner.low == pytest.approx((0.5 * 16 + 0.25 * 24) / 40)  # by time


def test_a_run_that_chooses_n_lies_between_two():
    config = scheduled(group_size="auto", largest=20)
    assert courses_of(config) == [[(BatchSize(8, 4), 10)], [(BatchSize(8, 16), 2)]]
    cost = cost_of(config, priced)  # 10 x 4 and 2 x 16 s of steps
    assert cost.parts[0].seconds == Range(32.0, 80.0)
    assert cost.device_hours.low == pytest.approx(2 * 42 / 3600)
    assert cost.device_hours.high == pytest.approx(2 * 90 / 3600)
    assert len(courses_of(scheduled(group_size="auto", largest=4))) == 1


def test_measured_noise_is_another_pass_over_a_step():
    assert passes_per_step(scheduled(noise_every=8)) == passes_per_step(CONFIG) + 1 / 8
