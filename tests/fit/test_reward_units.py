"""Rewards in percent give what rewards in 0..1 give: every tolerance is a share of the range of rewards."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.diagnostics import Grid, half_width, profile_asymptotes
from isocompute_jax.fit.curves.falls import find_fall
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.screening import find_outliers, record_breaking
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.fit.results import CurveFit

PERCENT = (0.0, 100.0)
COMPUTE = np.geomspace(1e3, 1e6, 24)
LEVELS = ("floor", "asymptote", "scale")


def rewards() -> list[np.ndarray]:
    """Curves whose asymptote is pinned down, hardly, and not at all; a flat one, a noise-free one, one with a spike."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(4, len(COMPUTE)))
    spiked = hill(COMPUTE, 0.1, 0.6, 3e4, 1.2) + 0.003 * noise[3]
    spiked[9] += 0.3
    return [
        hill(COMPUTE, 0.1, 0.7, 2e4, 1.2) + 0.004 * noise[0],
        hill(COMPUTE, 0.05, 0.8, 3e5, 1.0) + 0.01 * noise[1],
        hill(COMPUTE, 0.0, 0.9, 5e6, 1.0) + 0.01 * np.abs(noise[2]),
        np.full(len(COMPUTE), 0.4),
        hill(COMPUTE, 0.1, 0.6, 3e4, 1.5),
        spiked,
    ]


def assert_alike(one: CurveFit, percent: CurveFit) -> None:
    """The fit to 100 times the rewards is the same but for the unit."""
    np.testing.assert_allclose(percent.reward(COMPUTE) / 100, one.reward(COMPUTE), rtol=1e-6, atol=1e-6)
    if "flat" in one.message:  # rounding settles which of the parameters that give the same level is found
        assert "flat" in percent.message and one.status == percent.status == "warning"
        return
    assert (one.status, one.identified, one.at_bound) == (percent.status, percent.identified, percent.at_bound)
    assert one.message.count(";") == percent.message.count(";")
    for name in one.params:
        if not one.identified[name]:
            continue
        unit = 100 if name in LEVELS else 1
        for values in ("params", "stderr", "interval95"):
            found, expected = (np.array(getattr(fit, values)[name]) for fit in (percent, one))
            rtol = 1e-6 if values == "params" else 1e-4  # roots of the profile are searched to 1e-3 of a Student's t
            np.testing.assert_allclose(found / unit, expected, rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(percent.noise / 100, one.noise, rtol=1e-6, atol=1e-9)
    if np.isfinite(one.aicc) and one.noise > 1e-6:
        np.testing.assert_allclose([percent.aicc, percent.bic, percent.r2], [one.aicc, one.bic, one.r2], rtol=1e-6)
        np.testing.assert_allclose(percent.correlation, one.correlation, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(half_width(percent, COMPUTE) / 100, half_width(one, COMPUTE), rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"form": "hill"},
        {"tolerance": 0.1},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"form": "power"}, {"loss": "huber"}, {"r0": "first"})),
    ],
    ids=str,
)
def test_fits_scale_with_the_rewards(options):
    found = rewards()
    ones = fit_curves([COMPUTE] * len(found), found, options=FitOptions(**options))
    percent = [100 * r for r in found]
    others = fit_curves([COMPUTE] * len(found), percent, options=FitOptions(reward_range=PERCENT, **options))
    for one, other in zip(ones, others, strict=True):
        assert_alike(one, other)


def test_held_levels_are_given_in_the_unit_of_the_rewards():
    (one,) = fit_curves([COMPUTE], rewards()[:1], options=FitOptions(fix={"A": 0.71}, bounds={"R0": (0.05, 0.2)}))
    options = FitOptions(fix={"A": 71.0}, bounds={"R0": (5.0, 20.0)}, reward_range=PERCENT)
    assert_alike(one, fit_curves([COMPUTE], [100 * rewards()[0]], options=options)[0])


def test_profiles_scale_with_the_rewards():
    one, percent = (
        profile_asymptotes(
            [COMPUTE], [unit * rewards()[0]],
            fit_curves([COMPUTE], [unit * rewards()[0]], options=options),
            use=[np.ones(len(COMPUTE), bool)], errors=None, options=options,
        )[0]
        for unit, options in ((1.0, FitOptions()), (100.0, FitOptions(reward_range=PERCENT)))
    )  # fmt: skip
    assert one is not None and percent is not None
    np.testing.assert_allclose(percent.asymptote / 100, one.asymptote, rtol=1e-5)
    np.testing.assert_allclose(percent.t, one.t, rtol=1e-3, atol=1e-4)


def test_falls_and_outliers_are_the_same():
    rng = np.random.default_rng(3)
    late = np.where(COMPUTE > 2e5, 0.3, 0.0)
    collapsed = [hill(COMPUTE, 0.1, 0.7, 2e4, 1.2) - late + noise * rng.normal(size=24) for noise in (0.0, 1e-7, 0.01)]
    for reward in (*collapsed, *rewards()):
        one = find_fall(COMPUTE, reward, reward_range=(0.0, 1.0))
        percent = find_fall(COMPUTE, 100 * reward, reward_range=PERCENT)
        assert (one is None) == (percent is None)
        if one is not None and percent is not None:
            assert (one.compute, one.reward) == pytest.approx((percent.compute, percent.reward / 100), rel=1e-9)
    found = rewards()
    found[4][7] += 1e-2  # a spike in noise-free data, larger than the noise that is taken for none
    pairs = [
        find_outliers([COMPUTE] * len(found), [unit * r for r in found], standard_error=None, options=options)
        for unit, options in ((1.0, FitOptions()), (100.0, FitOptions(reward_range=PERCENT)))
    ]
    np.testing.assert_array_equal(pairs[0], pairs[1])
    assert [np.flatnonzero(mask).tolist() for mask in pairs[0]] == [[], [], [], [], [7], [9]]


def test_bins_of_records_have_the_same_edges():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 20, size=200) / 20  # on the edges of bins of 0.05
    one = record_breaking(values, records="bucketed", bin_width=0.05)
    np.testing.assert_array_equal(record_breaking(100 * values, records="bucketed", bin_width=5.0), one)


def table(path: pathlib.Path, unit: float) -> str:
    """n in 4, 8, 16 with three seeds, whose curves cross; avg@4, best@4 and the base model's evaluation."""
    rng = np.random.default_rng(11)
    lines = ["run,group_size,problems_per_batch,problem_set_size,seed,compute,avg@4,best@4"]
    for n, (asymptote, midpoint) in {4: (0.45, 1e4), 8: (0.6, 3e4), 16: (0.72, 9e4)}.items():
        for seed in range(3):
            for c in (0.0, *np.geomspace(2e3, 2e6, 14)):
                r = np.clip(hill(max(c, 1e-9), 0.05, asymptote, midpoint, 1.1) + 0.004 * rng.normal(), 0, 1)
                cells = (f"n{n}-s{seed}", n, 8, 1000, seed, c, unit * r, unit * (1 - (1 - r) ** 2))
                lines.append(",".join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.slow
def test_an_analysis_in_percent_finds_the_same(tmp_path):
    options = AnalysisOptions(
        records="bucketed", bin_width=0.02, budgets=(1e5, 8e6), replicates=20, grid=Grid(0.4, 0.8, 0.05)
    )
    percent = dataclasses.replace(
        options, read=ReadOptions(reward_range=PERCENT), fit=FitOptions(), grid=Grid(40.0, 80.0, 5.0)
    )
    one = analyse_runs([table(tmp_path / "one.csv", 1.0)], options)
    other = analyse_runs([table(tmp_path / "percent.csv", 100.0)], percent)
    for a, b in zip(one.curves, other.curves, strict=True):
        assert_alike(a.fit, b.fit)
        np.testing.assert_array_equal(a.points.used, b.points.used)
        assert a.holdout is not None and b.holdout is not None
        np.testing.assert_allclose(b.holdout.coverage, a.holdout.coverage)
        assert a.grid is not None and b.grid is not None
        np.testing.assert_allclose([b.grid.asymptote / 100, b.grid.midpoint], [a.grid.asymptote, a.grid.midpoint])
    assert len(one.frontier.switches) == 2
    for a, b in zip(one.frontier.switches, other.frontier.switches, strict=True):
        assert (a.from_run, a.to_run, a.cause) == (b.from_run, b.to_run, "crossing")
        assert (a.established, a.beyond_noise, a.share) == (b.established, b.beyond_noise, b.share)
        assert a.interval95 is not None and b.interval95 is not None
        np.testing.assert_allclose([b.compute, *b.interval95], [a.compute, *a.interval95], rtol=1e-6)
    for a, b in zip(one.recommendations, other.recommendations, strict=True):
        assert (a.run, a.num_steps, a.status, a.reasons) == (b.run, b.num_steps, b.status, b.reasons)
        np.testing.assert_allclose(np.array([b.reward, *b.interval95]) / 100, [a.reward, *a.interval95], rtol=1e-6)
    for name in ("avg@4", "best@4"):
        pairs = zip(one.targets[name].budgets, other.targets[name].budgets, strict=True)
        assert all(a.tied_runs == b.tied_runs for a, b in pairs)
        for row in one.targets[name].budgets:
            a, b = (each.targets[name].frontier.leader_at(row.compute) for each in (one, other))
            assert a == b
    assert {name: row.holdout_curves for name, row in one.forms.items()} == {
        name: row.holdout_curves for name, row in other.forms.items()
    }
    assert one.form_choice is not None and other.form_choice is not None
    assert (one.form_choice.best, one.form_choice.predicts_best) == (
        other.form_choice.best,
        other.form_choice.predicts_best,
    )
