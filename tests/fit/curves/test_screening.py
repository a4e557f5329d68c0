"""Which evaluations count: records by hand, and windows that end at a peak, with the rates of both errors."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.screening import peak_window, record_breaking

REWARDS = np.array([0.10, 0.12, 0.11, 0.19, 0.18, 0.21, 0.30, 0.29])


@pytest.mark.parametrize(("bin_width", "expected"), [(0.0, [1, 2, 4, 6, 7]), (0.1, [1, 6, 7]), (0.05, [1, 4, 6, 7])])
def test_record_breaking_goldens(bin_width, expected):
    assert (np.flatnonzero(record_breaking(REWARDS, bin_width=bin_width)) + 1).tolist() == expected
    assert record_breaking(np.empty(0), bin_width=bin_width).tolist() == []


def test_reward_just_below_an_edge_belongs_above_it():
    assert record_breaking(np.array([0.25, 0.3]), bin_width=0.1).all()
    assert record_breaking(np.array([0.25, 0.3 - 1e-6]), bin_width=0.1).tolist() == [True, False]


def test_bins_of_records_have_the_same_edges_in_percent():
    values = np.random.default_rng(0).integers(0, 20, size=200) / 20  # on the edges of bins of 0.05
    found = record_breaking(values, bin_width=0.05)
    np.testing.assert_array_equal(record_breaking(100 * values, bin_width=5.0), found)


def share_found(rewards: np.ndarray) -> float:
    compute = np.geomspace(2e3, 1e6, rewards.shape[1])
    return float(np.mean([peak_window(compute, row) is not None for row in rewards]))


@pytest.mark.parametrize("points", [10, 20, 40, 120])
def test_flat_curves_fall_in_at_most_two_of_a_hundred(points):
    rng = np.random.default_rng(points)
    assert share_found(0.4 + 0.02 * rng.standard_normal((1000, points))) <= 0.02
    for rate in (0.01, 0.03, 0.1, 0.3, 0.5, 0.9):
        for samples in (1, 8, 128):
            assert share_found(rng.binomial(samples, rate, (500, points)) / samples) <= 0.02, (rate, samples)


def test_falls_are_found_where_they_begin():
    rng = np.random.default_rng(1)
    compute = np.geomspace(2e3, 1e6, 30)
    rising = hill(compute, 0.1, 0.7, 1e4, 1.2)
    ramp = rising - 0.5 * np.maximum(np.log(compute / 1.3e5) / np.log(1e6 / 1.3e5), 0)
    step = rising - 0.3 * (compute > 2e5)
    for truth in (ramp, step):
        found = [peak_window(compute, truth + 0.02 * rng.standard_normal(30)) for _ in range(100)]
        peaks = [window[1] for window in found if window is not None]
        assert len(peaks) >= 98 and 0.7e5 < np.median(peaks) < 2.2e5
    collapsed = np.clip(hill(compute, 0.1, 0.8, 1e4, 1.2) - 0.7 * (compute > 2e5), 0.02, 1)
    assert share_found(rng.binomial(8, collapsed, (200, 30)) / 8) > 0.75
    assert peak_window(compute, step) == (2e3, compute[compute <= 2e5][-1])  # without noise


def test_rising_constant_and_short_curves_do_not_fall():
    rng = np.random.default_rng(2)
    compute = np.geomspace(2e3, 1e6, 30)
    rising = hill(compute, 0.1, 0.7, 1e4, 1.2)
    assert share_found(rising + 0.02 * rng.standard_normal((300, 30))) == 0
    assert peak_window(compute, rising) is None and peak_window(compute, np.full(30, 0.4)) is None
    assert peak_window(compute[:9], np.array([0.1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1])) is None
