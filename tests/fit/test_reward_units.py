"""Rewards in percent give what rewards in 0..1 give: every tolerance is a share of the range of rewards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, analyze
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.fitting import CurveFit, fit_curves
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.scalerl import Grid
from isocompute_jax.fit.results import BudgetAnswer, SweepResult

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
    assert (one.status, one.doubts) == (percent.status, percent.doubts)
    if "flat" in one.doubts:  # rounding settles which of the parameters that give the same level is found
        return
    assert (one.identified, one.at_bound) == (percent.identified, percent.at_bound)
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
        np.testing.assert_allclose([percent.aicc, percent.r2], [one.aicc, one.r2], rtol=1e-6)
        np.testing.assert_allclose(percent.correlation, one.correlation, rtol=1e-5, atol=1e-8)


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


def table(unit: float) -> dict[str, list]:
    """n in 4, 8, 16 with three seeds, whose curves cross; avg@4, best@4 and the base model's evaluation."""
    rng = np.random.default_rng(11)
    names = "run", "group_size", "problems_per_batch", "problem_set_size", "seed", "compute", "avg@4", "best@4"
    columns: dict[str, list] = {name: [] for name in names}
    for n, (asymptote, midpoint) in {4: (0.45, 1e4), 8: (0.6, 3e4), 16: (0.72, 9e4)}.items():
        for seed in range(3):
            for c in (0.0, *np.geomspace(2e3, 2e6, 14).tolist()):
                r = float(np.clip(hill(max(c, 1e-9), 0.05, asymptote, midpoint, 1.1) + 0.004 * rng.normal(), 0, 1))
                cells = (f"n{n}-s{seed}", n, 8, 1000, seed, c, unit * r, unit * (1 - (1 - r) ** 2))
                for name, cell in zip(names, cells, strict=True):
                    columns[name].append(cell)
    return columns


def assert_one_answer(one: BudgetAnswer, percent: BudgetAnswer) -> None:
    assert (one.budget, one.verdict, one.reason, one.named, one.cheapest) == (
        percent.budget, percent.verdict, percent.reason, percent.named, percent.cheapest,
    )  # fmt: skip
    for a, b in zip(one.choices, percent.choices, strict=True):
        assert (a.configuration, a.num_steps) == (b.configuration, b.num_steps)
        given = [a.reward, *a.interval95, *a.run95, a.cost, *a.cost95]
        found = np.array([b.reward, *b.interval95, *b.run95, b.cost, *b.cost95]) / 100
        np.testing.assert_allclose(found, given, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose([b.best_share, b.near_share, b.stop], [a.best_share, a.near_share, a.stop])


@pytest.fixture(scope="module")
def both() -> tuple[SweepResult, SweepResult]:
    """Two further runs are proposed; ScaleRL's grid comes with it."""
    options = AnalysisOptions(bin_width=0.02, budgets=(1e5, 8e6), grid=Grid(0.4, 0.8, 0.05), next=2)
    percent = dataclasses.replace(options, read=ReadOptions(reward_range=PERCENT), grid=Grid(40.0, 80.0, 5.0))
    return analyze(table(1.0), options), analyze(table(100.0), percent)


def test_answers_in_percent_are_the_same(both):
    one, percent = both
    assert set(one.targets) == set(percent.targets) == {"best@4"}
    for a, b in ((one, percent), (one.targets["best@4"], percent.targets["best@4"])):
        for first, second in zip((*a.asked, *a.grid), (*b.asked, *b.grid), strict=True):
            assert_one_answer(first, second)
        assert (a.data.trend, a.data.fallen) == (b.data.trend, b.data.fallen)
        np.testing.assert_allclose(np.array(b.data.gain) / 100, a.data.gain, rtol=1e-4)
        assert [(s.before, s.after, s.share) for s in a.switches] == [(s.before, s.after, s.share) for s in b.switches]
    assert [(run.configuration, run.seeds, run.cost) for run in one.next_runs] == [
        (run.configuration, run.seeds, run.cost) for run in percent.next_runs
    ]


def test_the_section_as_in_the_paper_is_the_same_in_percent(both):
    one, percent = (each.paper for each in both)
    for a, b in zip(one.fits, percent.fits, strict=True):
        assert_alike(a, b)
    for a, b in zip(one.grid, percent.grid, strict=True):
        np.testing.assert_allclose([b.asymptote / 100, b.params["midpoint"]], [a.asymptote, a.params["midpoint"]])
    assert len(one.switches) == len(percent.switches) == 2
    for a, b in zip(one.switches, percent.switches, strict=True):
        assert (a.before, a.after, a.cause) == (b.before, b.after, "crossing")
        np.testing.assert_allclose(b.compute, a.compute, rtol=1e-6)
    for (_, a), (_, b) in zip(one.records, percent.records, strict=True):
        np.testing.assert_allclose(b / 100, a)
