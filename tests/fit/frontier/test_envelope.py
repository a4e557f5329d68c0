"""The upper envelope: the known case exactly, clamping to the data, and epochs."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest

from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.frontier.envelope import epochs, frontier
from isocompute_jax.fit.results import Configuration, CurveFit

module = importlib.import_module("isocompute_jax.fit.frontier.envelope")  # the package has a function of that name

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
    assert [(s.group_size, s.start, s.end) for s in result.segments] == [
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
    assert [s.group_size for s in result.segments] == [8]


def test_failed_fits_are_left_out():
    good = curve(0.2, 0.4, 1e5, (1e4, 1e6))
    bad = dataclasses.replace(good, params=dict.fromkeys(good.params, float("nan")), status="failed")
    assert [s.group_size for s in frontier([bad, good], CONFIGURATIONS[:2]).segments] == [32]
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
    crossed, all_crossings = [], module._all_crossings

    def counted(some):
        crossed.append(len(some))
        return all_crossings(some)

    monkeypatch.setattr(module, "_all_crossings", counted)
    quick = frontier(fits, configurations)
    monkeypatch.setattr(module, "_contenders", lambda candidates, _: candidates)
    assert frontier(fits, configurations) == quick
    assert crossed[0] < 60 < 100 < crossed[1] and len(quick.segments) > 10
