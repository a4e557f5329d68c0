"""The sigmoid of n*(C): exact recovery, and honesty when the data cannot carry it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.fit.frontier.allocation import (
    FLOOR_MARGIN,
    SATURATION_MARGIN,
    fit_allocation,
    running_average,
)


def test_noise_free_law_is_recovered():
    compute = np.geomspace(1e4, 1e8, 30)
    group_size = 2 ** (6.09 / (1 + np.exp(-4.75 * (np.log10(compute) - 5.84))) + 2.73)
    fit = fit_allocation(compute, group_size, window=1)
    np.testing.assert_allclose((fit.span, fit.slope, fit.midpoint, fit.floor), (6.09, 4.75, 5.84, 2.73), rtol=1e-6)
    assert fit.saturation == pytest.approx(2 ** (6.09 + 2.73), rel=1e-6)
    assert (fit.status, fit.message) == ("ok", "")
    np.testing.assert_allclose(fit.optimal_group_size(compute), group_size, rtol=1e-6)


def test_constant_is_flagged():
    fit = fit_allocation(np.geomspace(1e4, 1e6, 8), np.full(8, 16.0), window=3)
    assert fit.status == "warning" and "one level" in fit.message
    assert fit.saturation == 16 and np.isnan(fit.slope)


def test_two_level_step_is_flagged():
    fit = fit_allocation(np.geomspace(1e4, 1e6, 10), np.array([4.0] * 6 + [8.0] * 4), window=3)
    assert fit.status == "warning" and "two levels only (4 and 8, a single step)" in fit.message
    assert fit.saturation == pytest.approx(8, rel=0.05)


def test_falling_group_size_is_flagged():
    fit = fit_allocation(np.geomspace(1e4, 1e6, 9), np.repeat([32.0, 16.0, 4.0], 3), window=1)
    assert fit.status == "warning" and "does not rise" in fit.message


def test_rise_that_goes_on_is_an_extrapolation():
    compute = np.geomspace(1e4, 1e6, 12)
    fit = fit_allocation(compute, 2 ** (6 / (1 + np.exp(-2 * (np.log10(compute) - 6.5))) + 2), window=1)
    assert fit.status == "extrapolated" and "extrapolation" in fit.message


@pytest.mark.parametrize(
    ("midpoint", "floor", "why"),
    [(3.9, 2.0, "the data begin after the midpoint"), (4.2, -1.0, "the floor, n = 0.5"), (6.3, 2.0, "the data end")],
)
def test_a_law_whose_lower_or_upper_half_was_not_seen_is_an_extrapolation(midpoint, floor, why):
    compute = np.geomspace(1e4, 1e6, 20)
    fit = fit_allocation(compute, 2 ** (6 / (1 + np.exp(-4 * (np.log10(compute) - midpoint))) + floor), window=1)
    assert (fit.midpoint, fit.floor) == (pytest.approx(midpoint, rel=1e-4), pytest.approx(floor, rel=1e-3, abs=1e-3))
    assert fit.status == "extrapolated" and why in fit.message


@given(
    octaves=st.lists(st.integers(1, 11), min_size=6, max_size=24),
    rising=st.booleans(),
    axis=st.sampled_from(["compute", "steps"]),
    window=st.sampled_from([1, 3, 5]),
)
@settings(max_examples=60)
def test_no_law_is_ok_unless_the_data_show_all_of_it(octaves, rising, axis, window):
    octaves = np.array(sorted(octaves) if rising else octaves, float)
    compute = np.geomspace(30.0, 3e3, len(octaves))
    fit = fit_allocation(compute, 2.0**octaves, window=window, axis=axis)
    if fit.status == "ok":
        midpoint = fit.midpoint if axis == "steps" else 10**fit.midpoint
        assert compute[0] <= midpoint <= compute[-1]
        assert octaves.min() - FLOOR_MARGIN <= fit.floor < fit.floor + fit.span <= octaves.max() + SATURATION_MARGIN
    assert (fit.status == "ok") == (fit.message == "")
    if fit.status == "ok":
        moved = fit_allocation(100 * compute, 2.0 ** (octaves + 1), window=window, axis=axis)
        assert moved.status == "ok"
        wanted = 2 * fit.optimal_group_size(compute)
        np.testing.assert_allclose(moved.optimal_group_size(100 * compute), wanted, rtol=1e-3)


def test_nothing_to_fit_fails():
    assert fit_allocation(np.array([]), np.array([]), window=3).status == "failed"


def test_running_average_shrinks_alike_on_both_sides():
    np.testing.assert_allclose(running_average(np.array([0.0, 3, 6, 0, 0]), window=3), [0, 3, 3, 2, 0])
    np.testing.assert_allclose(running_average(np.arange(6.0), window=5), np.arange(6.0))
    with pytest.raises(ValueError, match="odd"):
        running_average(np.arange(4.0), window=2)


def test_the_law_in_linear_steps_is_recovered():
    steps = np.linspace(100, 8000, 40)
    group_size = 2 ** (4.0 / (1 + np.exp(-2e-3 * (steps - 3000))) + 3.0)
    fit = fit_allocation(steps, group_size, window=1, axis="steps")
    np.testing.assert_allclose((fit.span, fit.slope, fit.midpoint, fit.floor), (4.0, 2e-3, 3000, 3.0), rtol=1e-6)
    assert fit.status == "ok", fit.message
    np.testing.assert_allclose(fit.optimal_group_size(steps), group_size, rtol=1e-6)


def test_intervals_are_percentiles_of_the_laws_of_the_replicates():
    compute = np.geomspace(1e4, 1e8, 24)
    midpoints = np.linspace(5.6, 6.0, 41)
    laws = 2 ** (6.0 / (1 + np.exp(-4.0 * (np.log10(compute) - midpoints[:, None]))) + 2.0)
    fit = fit_allocation(compute, laws[20], window=1, replicates=laws)
    assert fit.interval95["midpoint"] == pytest.approx(tuple(np.percentile(midpoints, (2.5, 97.5))), rel=1e-6)
    assert fit.interval95["saturation"] == pytest.approx((256, 256), rel=1e-6)
    flat = np.full_like(laws, 8.0)
    assert fit_allocation(compute, laws[20], window=1, replicates=flat).interval95 == {}
    gaps = np.where(compute < 2e4, np.nan, laws)
    assert fit_allocation(compute, laws[20], window=1, replicates=gaps).interval95 == {}


def test_an_interval_holds_its_value_or_is_not_given():
    """The midpoint lies below those of all replicates; their n still rise where the data end; they are steps."""
    compute = np.geomspace(1e4, 1e8, 24)
    x = np.log10(compute)
    midpoints = np.linspace(5.6, 6.0, 41)
    laws = 2 ** (6.0 / (1 + np.exp(-4.0 * (x - midpoints[:, None]))) + 2.0)
    own = 2 ** (6.0 / (1 + np.exp(-4.0 * (x - 5.0))) + 2.0)
    found = fit_allocation(compute, own, window=1, replicates=laws).interval95
    assert "midpoint" not in found and found["saturation"] == pytest.approx((256, 256), rel=1e-6)
    rising = 2 ** (6.0 / (1 + np.exp(-1.0 * (x - midpoints[:, None] - 2.0))) + 2.0)
    found = fit_allocation(compute, rising[20], window=1, replicates=rising).interval95
    assert not {"span", "saturation"} & found.keys() and found["midpoint"][0] < 7.8 < found["midpoint"][1]
    steps = np.where(x > midpoints[:, None], 16.0, 4.0)
    assert "slope" not in fit_allocation(compute, steps[20], window=1, replicates=steps).interval95
