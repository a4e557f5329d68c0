"""Which evaluations are record-breaking, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.fitting import record_breaking

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
