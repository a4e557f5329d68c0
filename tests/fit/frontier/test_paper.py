"""The frontier as in the paper: the envelope of known curves exactly, records, n*(C) and its law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.fit.configurations import Configuration, group_runs
from isocompute_jax.fit.curves.fitting import CurveFit, fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.scalerl import Grid
from isocompute_jax.fit.frontier import paper
from isocompute_jax.fit.frontier.paper import (
    FLOOR_MARGIN,
    SATURATION_MARGIN,
    epochs,
    fit_allocation,
    frontier,
    paper_frontier,
    running_average,
)
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.records.run_files import RunFacts

KNOWN = {8: (0.40, 1e5), 32: (0.45, 2e5), 128: (0.50, 4e5), 512: (0.52, 8e5), 2048: (0.45, 1.6e6)}
CONFIGURATIONS = [Configuration(f"n = {n}", n, 32, 6000) for n in KNOWN]
SWITCHES = [(8, 32, 3.0e5), (32, 128, 8.0e5), (128, 512, 5.6e6)]


def curve(floor: float, asymptote: float, midpoint: float, window: tuple[float, float]) -> CurveFit:
    params = {"floor": floor, "asymptote": asymptote, "midpoint": midpoint, "steepness": 1.0}
    return CurveFit("hill", params, window)


def found_switches(result) -> list[tuple[int, int, float]]:
    return [(s.before.group_size, s.after.group_size, s.compute) for s in result.switches]


def test_known_case_exactly():
    fits = [curve(0.2, a, mid, (1e4, 1e8)) for a, mid in KNOWN.values()]
    found = found_switches(frontier(fits, CONFIGURATIONS))
    assert [s[:2] for s in found] == [s[:2] for s in SWITCHES]
    np.testing.assert_allclose([s[2] for s in found], [s[2] for s in SWITCHES], rtol=1e-9)


def test_known_case_through_fits_of_noise_free_points():
    compute = np.geomspace(1e4, 1e8, 20)
    fits = fit_curves([compute] * 5, [hill(compute, 0.2, a, mid, 1.0) for a, mid in KNOWN.values()])
    result = frontier(fits, CONFIGURATIONS)
    found = found_switches(result)
    assert [s[:2] for s in found] == [s[:2] for s in SWITCHES]
    np.testing.assert_allclose([s[2] for s in found], [s[2] for s in SWITCHES], rtol=1e-6)
    assert {s.cause for s in result.switches} == {"crossing"}
    assert result.switches[0].epochs == pytest.approx(3.0e5 / (8 * 6000), rel=1e-6)


def test_curves_count_only_inside_their_window():
    fits = [curve(0.2, 0.4, 1e5, (1e4, 1e6)), curve(0.2, 0.9, 1e5, (5e4, 2e5)), curve(0.2, 0.5, 1e5, (5e6, 1e7))]
    result = frontier(fits, CONFIGURATIONS[:3])
    assert [(each.group_size, start, end) for each, start, end in result.segments] == [
        (8, 1e4, 5e4),
        (32, 5e4, 2e5),
        (8, 2e5, 1e6),
        (128, 5e6, 1e7),
    ]
    assert {s.cause for s in result.switches} == {"range"}
    assert result.leader_at(2e6) is None and result.leader_at(1e5) == CONFIGURATIONS[1] and not result.leader_at(1e9)


def test_equal_curves_take_the_smaller_group_size_and_do_not_switch():
    same = curve(0.2, 0.4, 1e5, (1e4, 1e6))
    result = frontier([same, same], list(reversed(CONFIGURATIONS[:2])))
    assert result.switches == ()
    assert [each.group_size for each, _, _ in result.segments] == [8]


def test_failed_fits_are_left_out():
    good = curve(0.2, 0.4, 1e5, (1e4, 1e6))
    bad = dataclasses.replace(good, params=dict.fromkeys(good.params, float("nan")), status="failed")
    assert [each.group_size for each, _, _ in frontier([bad, good], CONFIGURATIONS[:2]).segments] == [32]
    assert frontier([bad], CONFIGURATIONS[:1]).segments == ()


def test_epochs_golden():
    steps, batch, group = 190, 8192, 256
    assert epochs(steps * batch, group_size=group, problem_set_size=6000) == pytest.approx(1.0133, abs=5e-5)
    assert np.isnan(epochs(1.0, group_size=8, problem_set_size=0))


def test_curves_that_never_lead_change_nothing(monkeypatch):
    """Of 120 random curves, some in short windows, most are never crossed with the others; the envelope is the same."""
    rng = np.random.default_rng(0)
    fits = []
    for _ in range(120):
        start = 10 ** rng.uniform(3, 6)
        window = (start, start * 10 ** rng.choice([0.01, 1.0, 2.0]))
        fits.append(curve(0.1, rng.uniform(0.2, 0.9), 10 ** rng.uniform(3.5, 7), window))
    configurations = [Configuration(f"run {i}", i + 1, 32, 6000) for i in range(120)]
    crossed, all_crossings = [], paper._all_crossings

    def counted(some):
        crossed.append(len(some))
        return all_crossings(some)

    monkeypatch.setattr(paper, "_all_crossings", counted)
    quick = frontier(fits, configurations)
    monkeypatch.setattr(paper, "_contenders", lambda candidates, _: candidates)
    slow = frontier(fits, configurations)
    assert (slow.segments, slow.switches) == (quick.segments, quick.switches)
    assert crossed[0] < 60 < 100 < crossed[1] and len(quick.segments) > 10


def test_noise_free_law_is_recovered():
    compute = np.geomspace(1e4, 1e8, 30)
    group_size = 2 ** (6.09 / (1 + np.exp(-4.75 * (np.log10(compute) - 5.84))) + 2.73)
    fit = fit_allocation(compute, group_size, window=1)
    np.testing.assert_allclose((fit.span, fit.slope, fit.midpoint, fit.floor), (6.09, 4.75, 5.84, 2.73), rtol=1e-6)
    assert fit.saturation == pytest.approx(2 ** (6.09 + 2.73), rel=1e-6)
    assert (fit.status, fit.doubts) == ("ok", ())
    np.testing.assert_allclose(fit.optimal_group_size(compute), group_size, rtol=1e-6)


def test_constant_is_flagged():
    fit = fit_allocation(np.geomspace(1e4, 1e6, 8), np.full(8, 16.0), window=3)
    assert fit.status == "warning" and fit.doubts == ("one level",)
    assert fit.saturation == 16 and np.isnan(fit.slope)


def test_two_level_step_is_flagged():
    fit = fit_allocation(np.geomspace(1e4, 1e6, 10), np.array([4.0] * 6 + [8.0] * 4), window=3)
    assert fit.status == "warning" and "two levels" in fit.doubts
    assert fit.saturation == pytest.approx(8, rel=0.05)


def test_falling_group_size_is_flagged():
    fit = fit_allocation(np.geomspace(1e4, 1e6, 9), np.repeat([32.0, 16.0, 4.0], 3), window=1)
    assert fit.status == "warning" and "does not rise" in fit.doubts


def test_rise_that_goes_on_is_an_extrapolation():
    compute = np.geomspace(1e4, 1e6, 12)
    fit = fit_allocation(compute, 2 ** (6 / (1 + np.exp(-2 * (np.log10(compute) - 6.5))) + 2), window=1)
    assert fit.status == "extrapolated" and "midpoint outside" in fit.doubts


@pytest.mark.parametrize(
    ("midpoint", "floor", "why"),
    [(3.9, 2.0, "midpoint outside"), (4.2, -1.0, "floor outside"), (6.3, 2.0, "midpoint outside")],
)
def test_a_law_whose_lower_or_upper_half_was_not_seen_is_an_extrapolation(midpoint, floor, why):
    compute = np.geomspace(1e4, 1e6, 20)
    fit = fit_allocation(compute, 2 ** (6 / (1 + np.exp(-4 * (np.log10(compute) - midpoint))) + floor), window=1)
    assert (fit.midpoint, fit.floor) == (pytest.approx(midpoint, rel=1e-4), pytest.approx(floor, rel=1e-3, abs=1e-3))
    assert fit.status == "extrapolated" and why in fit.doubts


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
    assert (fit.status == "ok") == (fit.doubts == ())
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
    assert fit.status == "ok", fit.doubts
    np.testing.assert_allclose(fit.optimal_group_size(steps), group_size, rtol=1e-6)


COMPUTE = np.geomspace(1e4, 1e7, 25)
SWEEP = {4: (0.45, 3e4), 16: (0.6, 1.5e5), 64: (0.75, 8e5)}


def runs(noise: float, *, fall: bool = False) -> list[RunCurve]:
    """Two seeds of each n of `SWEEP`, with the base model's evaluation; the largest n falls in the end."""
    rng, found = np.random.default_rng(0), []
    compute = np.concatenate([[0.0], COMPUTE])
    for n, (asymptote, midpoint) in SWEEP.items():
        for seed in range(2):
            reward = np.concatenate([[0.1], hill(COMPUTE, 0.1, asymptote, midpoint, 1.5)])
            reward += noise * rng.standard_normal(len(reward)) - (0.3 * (compute > 3e6) if fall and n == 64 else 0.0)
            facts = RunFacts(n, 16, num_steps=0, problem_set_size=1000, model_params=0, seed=seed)
            columns = {"avg@4": reward, "compute": compute}
            found.append(RunCurve(f"n{n}-s{seed}", "table", "", facts, {"group_size": n}, None, compute, columns))
    return found


def test_the_whole_analysis_of_noise_free_curves():
    found = paper_frontier(group_runs(runs(0.0))[0], "avg@4", AnalysisOptions())
    assert found is not None and [each.group_size for each in found.configurations] == [4, 16, 64]
    for fit, (compute, reward), (asymptote, midpoint) in zip(found.fits, found.records, SWEEP.values(), strict=True):
        assert fit.asymptote == pytest.approx(asymptote, rel=1e-6) and fit.midpoint == pytest.approx(midpoint, rel=1e-6)
        assert len(compute) == 26 and reward[0] == 0.1
    assert [s[:2] for s in found_switches(found)] == [(4, 16), (16, 64)]
    for switch in found.switches:
        one, other = (found.fits[found.configurations.index(each)] for each in (switch.before, switch.after))
        assert float(one.reward(switch.compute)) == pytest.approx(float(other.reward(switch.compute)), rel=1e-9)
    law = found.allocation
    assert law is not None and set(law.group_size) == {4, 16, 64} and np.all(np.diff(law.group_size) >= 0)
    assert 50 < law.saturation < 100 and "ends at the largest n" in law.doubts


def test_records_are_fitted_and_carried_on_over_a_fall():
    groups = group_runs(runs(0.01, fall=True))[0]
    found = paper_frontier(groups, "avg@4", AnalysisOptions())
    assert found is not None
    for _, reward in found.records:
        assert np.all(np.diff(reward) > 0)
    assert found.records[2][0][-1] <= 3e6 and found.fits[2].window[1] == 1e7
    assert found.leader_at(1e7) == found.configurations[2]
    binned = paper_frontier(groups, "avg@4", AnalysisOptions(bin_width=0.05))
    assert binned is not None
    assert all(len(few[0]) <= len(all_[0]) for few, all_ in zip(binned.records, found.records, strict=True))
    assert all(np.all(np.diff(np.floor(reward / 0.05 + 1e-8)) > 0) for _, reward in binned.records)


def test_a_single_record_does_not_make_a_curve():
    compute, reward = np.array([0.0, 1e3, 1e4, 1e5]), np.array([0.2, 0.5, 0.3, 0.4])
    assert paper._points_to_fit(compute, reward, bin_width=0.0).all()
    assert paper._points_to_fit(compute, np.array([0.2, 0.3, 0.25, 0.4]), bin_width=0.0).tolist() == [
        True,
        True,
        False,
        True,
    ]


def test_no_curve_is_no_frontier_and_a_grid_is_run_where_asked_for():
    groups = group_runs(runs(0.0))[0]
    assert paper_frontier(groups, "another", AnalysisOptions()) is None
    found = paper_frontier(groups, "avg@4", AnalysisOptions(grid=Grid(0.4, 0.8, 0.05)))
    assert found is not None and [fit.asymptote for fit in found.grid] == pytest.approx([0.45, 0.6, 0.75])
