"""Averages of measured noise, by hand; and that they can be replayed and carried as JSON."""

import json
import math

import numpy as np
import pytest

from isocompute_jax.allocation import noise


def line(gradient2, between, within, metric=""):
    values = zip(noise.ESTIMATES, (gradient2, between, within), strict=True)
    return {f"noise/{metric}{name}": value for name, value in values}


def test_numerators_and_denominators_apart_by_hand():
    averages = noise.averaged({}, line(1.0, 2.0, 8.0), memory=2)
    assert noise.critical_group_size(averages) == 4.0
    assert noise.critical_problems(averages, 4) == (2 + 8 / 4) / 1
    assert math.isnan(noise.critical_group_size(averages, adam=True))
    averages = noise.averaged(averages, line(-0.25, 5.0, 6.0) | line(3.0, 1.0, 2.0, "adam_"), memory=2)
    # weights 1/2 and 1: means of 1/6, 4 and 20/3
    assert noise.mean_of(averages, "gradient2") == pytest.approx(1 / 6)
    assert noise.critical_group_size(averages) == pytest.approx(20 / 3 / 4)
    assert noise.critical_problems(averages, 2) == pytest.approx((4 + 10 / 3) * 6)
    assert noise.critical_group_size(averages, adam=True) == 2.0
    assert noise.averaged(averages, {"reward": 0.5}, memory=2) == averages
    assert json.loads(json.dumps(averages)) == averages


def test_what_noise_hides_is_said():
    hidden = noise.averaged({}, line(-1.0, -1.0, 8.0), memory=8)
    assert noise.critical_group_size(hidden) == math.inf and noise.critical_problems(hidden, 8) == math.inf
    assert noise.critical_problems(noise.averaged({}, line(2.0, -1.0, 8.0), memory=8), 8) == 0.5
    assert math.isnan(noise.critical_problems({}, 8))


def test_the_ratio_converges_where_single_ratios_do_not():
    """|G|^2 of 1 with a standard error of 3: one step in three sees none, and the average is within its error."""
    rng, averages = np.random.default_rng(0), {}
    for _ in range(2000):
        averages = noise.averaged(averages, line(1 + 3 * rng.normal(), 2.0, 8.0), memory=500)
    assert noise.critical_problems(averages, 4) == pytest.approx(4.0, rel=4 * 3 / math.sqrt(1000))
