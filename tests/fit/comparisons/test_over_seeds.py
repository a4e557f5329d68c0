"""Means over seeds against SciPy, seeds on one grid by hand, and short names."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from isocompute_jax.fit.comparisons.comparison import over_seeds
from isocompute_jax.fit.comparisons.sets import short_names
from isocompute_jax.fit.curves.seeds import Curve, aligned
from isocompute_jax.fit.results import Configuration

FOUR = Configuration("n = 4", 4, 8, 100)


def test_the_interval_is_students():
    values = np.array([0.31, 0.35, 0.30, 0.38])
    found = over_seeds(values)
    expected = scipy.stats.t.interval(0.95, 3, loc=values.mean(), scale=scipy.stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.sign, over_seeds(-values).sign, over_seeds(values - 0.33).sign) == (1, -1, 0)


def test_one_seed_has_no_interval():
    found = over_seeds(np.array([0.25]))
    assert (str(found), found.sign) == ("0.250", 0) and np.isnan(found.low)


def test_seeds_on_one_grid_stay_as_they_are():
    curve = Curve(FOUR, (0, 1), np.array([0.0, 10.0]), np.array([[0.1, 0.2], [0.1, 0.4]]))
    compute, reward = aligned(curve)
    np.testing.assert_array_equal(compute, [0, 10])
    np.testing.assert_array_equal(reward, curve.per_seed)


def test_pooled_seeds_are_read_off_where_all_of_them_are():
    """One seed at 0, 100 and 10,000, the other at 0, 10, 1000 and 10,000: linear in log C, from 100 on."""
    n = np.nan
    rewards = [[0.1, n, n, 0.2, n, 0.4, n], [n, 0.1, 0.1, n, 0.3, n, 0.5]]
    curve = Curve(FOUR, (0, 1), np.array([0.0, 0.0, 10, 100, 1000, 1e4, 1e4]), np.array(rewards))
    compute, reward = aligned(curve)
    np.testing.assert_array_equal(compute, [0, 100, 1000, 1e4])
    np.testing.assert_allclose(reward, [[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.5]])


def test_seeds_that_never_meet_have_no_grid():
    curve = Curve(FOUR, (0, 1), np.array([10.0, 100]), np.array([[0.1, np.nan], [np.nan, 0.2]]))
    compute, reward = aligned(curve)
    assert compute.shape == (0,) and reward.shape == (2, 0)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/hard/train.jsonl", "a/easy/train.jsonl"], ["hard", "easy"]),
        (["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-1.5B"], ["Qwen2.5-7B", "Qwen2.5-1.5B"]),
        (["sets/hard/train.jsonl"], ["train"]),
        (["runs/base", "runs/base/model"], ["runs/base", "model"]),
        (["", "a/b"], ["", "a/b"]),
        ([""], [""]),
    ],
)
def test_short_names(paths, names):
    assert list(short_names(paths).values()) == names
