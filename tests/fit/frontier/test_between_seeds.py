"""Seeds that differ: by how much the draws of a forecast move, and that its intervals then hold the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks import families
from isocompute_jax.fit import analyze
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.posterior import Draws, position, steepness
from isocompute_jax.fit.curves.seed_noise import SeedDifferences
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.forecast import BetweenSeeds
from isocompute_jax.fit.read import memory_table, read_curves
from isocompute_jax.fit.stages import Stages

COMPUTE = np.geomspace(2e4, 1e6, 20)
OPTIONS = AnalysisOptions(form="hill", replicates=20, holdout=0.0)
CURVES = {8: (0.1, 0.6, 1e5, 1.1), 64: (0.1, 0.7, 3e5, 1.1)}


def draws(width: int, count: int = 40_000) -> Draws:
    return Draws(np.full(count, 0.1), np.full(count, 0.5), np.zeros((count, width)))


@pytest.mark.parametrize(("fitted", "sign"), [("hill", 1.0), ("logistic", 1.0), ("expsat", -1.0)])
@pytest.mark.parametrize(("name", "width"), [("hill", 2), ("logistic", 2), ("expsat", 1)])
def test_draws_move_by_the_mean_of_their_seeds(fitted, sign, name, width):
    """Of four seeds by half of what one seed differs by; a rate that is larger is a rise that comes earlier."""
    spread = np.array([0.02, 0.2])  # of A, and of the first shape parameter
    apart = BetweenSeeds(SeedDifferences(np.diag(spread), 10**6), fitted, [1, 4])
    for index, seeds in ((0, 1), (1, 4)):
        rng = np.random.default_rng(3)
        found = apart.moved(name, draws(width), index, 2.0, rng)
        place, rise = position(name, found.theta), steepness(name, found.theta)
        own = apart.differences.draw(40_000, seeds, np.random.default_rng(3)).mean(axis=1)
        assert place is not None
        np.testing.assert_allclose(place, sign * own[:, 1], atol=1e-12)
        np.testing.assert_allclose(found.high - 0.5, own[:, 0] / 2.0, atol=1e-12)
        np.testing.assert_allclose(own.std(axis=0), spread / np.sqrt(seeds), rtol=0.03)
        if rise is not None:
            np.testing.assert_allclose(rise, 0.0, atol=1e-12)


def test_a_power_law_s_seeds_differ_in_steepness():
    apart = BetweenSeeds(SeedDifferences(np.diag([0.0, 0.1]), 10**6), "power", [1])
    found = apart.moved("hill", draws(2), 0, 1.0, np.random.default_rng(0))
    assert not found.theta[:, 0].any() and found.theta[:, 1].std() == pytest.approx(0.1, rel=0.03)


def table(jitter: float, number: int) -> dict[str, np.ndarray]:
    """A simulated sweep of three seeds each that differ by `jitter` in ln C_mid."""
    rng = np.random.default_rng(number)
    rows = []
    for (size, (floor, top, middle, rise)), seed in itertools.product(CURVES.items(), range(3)):
        moved = hill(COMPUTE, floor, top, middle * np.exp(jitter * rng.normal()), rise)
        reward = moved + 0.004 * rng.normal(size=len(COMPUTE))
        rows.append((np.full(20, size), np.full(20, 32), np.full(20, seed), COMPUTE, reward.clip(0, 1)))
    names = "group_size", "problems_per_batch", "seed", "compute", OPTIONS.metric
    return dict(zip(names, (np.concatenate(part) for part in zip(*rows, strict=True)), strict=True))


def expected(jitter: float, number: int) -> np.ndarray:
    """[2] the ends of the 95% interval of n = 8 at 2e5."""
    curves, _ = read_curves(memory_table(table(jitter, number)), OPTIONS.read)
    stages = Stages(OPTIONS, group_runs(curves)[0])
    found = stages.forecast(stages.metric(OPTIONS.metric, intervals=True))
    assert found is not None
    return np.quantile(found.rewards(2e5)[:, 0], [0.025, 0.975])


@pytest.mark.slow
def test_intervals_of_the_forecast_hold_the_truth_where_seeds_differ():
    """20 sweeps whose seeds differ by 0.2 in ln C_mid: the interval of a mean of three holds the truth in most."""
    truth = float(hill(2e5, *CURVES[8]))
    apart, alike = ([expected(jitter, i) for i in range(20)] for jitter in (0.2, 0.0))
    held = sum(low <= truth <= high for low, high in apart)
    assert held >= 16  # 4 of 20 without the differences
    widths = [np.median([high - low for low, high in rows]) for rows in (apart, alike)]
    assert widths[0] > 3 * widths[1]


def test_the_answer_names_seeds_that_differ():
    apart, alike = (analyze(table(jitter, 0), OPTIONS, compare=False).asked[0] for jitter in (0.2, 0.0))
    assert "seeds_differ" in {each.kind for each in apart.objections}
    assert "seeds_differ" not in {each.kind for each in alike.objections}


@pytest.mark.slow
def test_curves_that_were_stopped_early_do_not_tell_how_seeds_differ():
    """Seeds whose curves end before the rise seem to differ in their asymptote; the others stay as sure as they are."""
    study = families.simulate("exponential", "test", 1)
    whole = study.table(OPTIONS.metric)
    kept = (whole["group_size"] < 256) | (whole["compute"] < 1.2e5)
    curves, _ = read_curves(memory_table({name: column[kept] for name, column in whole.items()}), OPTIONS.read)
    stages = Stages(AnalysisOptions(form="expsat"), group_runs(curves)[0])
    found = stages.forecast(stages.metric(OPTIONS.metric, intervals=True, profiles=False))
    assert found is not None
    rewards = found.rewards(families.LAST)[:, :3]
    assert rewards.std(axis=0).max() < 0.02  # 0.3 where they count
    np.testing.assert_allclose(rewards.mean(axis=0), study.truth(np.array([families.LAST]))[:3, 0], atol=0.02)
