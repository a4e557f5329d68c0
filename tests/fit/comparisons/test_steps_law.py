"""The shapes of n*(M) against SciPy and by hand, and their choice where the truth is known."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.optimize

from isocompute_jax.fit.comparisons.courses import compare_shapes, steps_laws
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.allocation import fit_steps_law
from isocompute_jax.fit.stages import Stages
from tests.fit.comparisons.sweeps import drawn, run
from tests.fit.sweeps import rich

SIZES = [4, 8, 16, 32, 64, 128, 256]
STEPS = np.geomspace(10, 10_000, 30)
X, LO, HI = np.log2(STEPS), 2.0, 8.0


def sigmoid(x, m, k):
    return LO + (HI - LO) / (1 + np.exp(-k * (x - m)))


def cut(x, m, k):
    return np.clip(LO + (HI - LO) * (0.5 + k * (x - m) / 4), LO, HI)


def on_grid(octaves):
    return 2.0 ** np.round(octaves)


def test_against_scipy():
    rng = np.random.default_rng(0)
    for _ in range(5):
        m, k = rng.uniform(6, 11), rng.uniform(0.3, 3)
        y = np.clip(sigmoid(X, m, k) + 0.3 * rng.normal(size=30), LO, HI)
        found = fit_steps_law(STEPS, 2.0**y, sizes=SIZES)
        (place, slope), _ = scipy.optimize.curve_fit(sigmoid, X, y, p0=(m, k))
        assert math.log2(found.midpoint) == pytest.approx(place, abs=0.01)
        assert found.bounded["sigmoid"][1] == pytest.approx(slope, rel=0.01)
        assert found.line == pytest.approx(np.polyfit(X, y, 1)[::-1])


def test_aicc_by_hand():
    """-2 ln L of Gaussian residuals, with 3 parameters and their correction, at 30 points."""
    y = X - 3.0 + np.tile([1.0, -1.0], 15)
    found = fit_steps_law(STEPS, 2.0**y, sizes=SIZES)
    variance = np.mean((y - np.polyval(np.polyfit(X, y, 1), X)) ** 2)
    assert variance > 0.9
    assert found.aicc["line"] == pytest.approx(30 * (math.log(2 * math.pi * variance) + 1) + 6 + 24 / 26)
    exact = fit_steps_law(STEPS, 2.0 ** (0.3 * X), sizes=SIZES)  # no residual: the variance is that of the grid
    assert exact.aicc["line"] == pytest.approx(30 * math.log(2 * math.pi / 12) + 6 + 24 / 26)


def repeated(octaves, noise=0.15, count=60):
    """Replicates as a bootstrap has them: the same course, with switches moved."""
    rng = np.random.default_rng(1)
    return 2.0 ** np.round(np.clip(octaves + noise * rng.normal(size=(count, 1)), LO, HI))


def test_a_sigmoid_is_told_from_a_line():
    truth = sigmoid(X, 9.0, 0.8)
    found = fit_steps_law(STEPS, on_grid(truth), sizes=SIZES, replicates=repeated(truth))
    assert found.against("line") == found.against("cut line") == "better" and found.ahead("line") > 10
    low, high = found.midpoint95 or (np.nan, np.nan)
    assert low < 2**9 < high < 2 * low
    assert found.midpoint == pytest.approx(2**9, rel=0.15)


def test_a_line_is_none():
    truth = 2.0 + 0.6 * (X - X[0])
    found = fit_steps_law(STEPS, on_grid(truth), sizes=SIZES, replicates=repeated(truth))
    assert found.against("line") == "worse" and found.at_ends < 10


def test_a_line_that_the_grid_cuts_off_is_told_from_a_sigmoid():
    """Against a straight line alone it would be called one."""
    truth = cut(X, 9.0, 1.2)
    found = fit_steps_law(STEPS, on_grid(truth), sizes=SIZES, replicates=repeated(truth))
    assert found.against("line") == "better" and found.at_ends >= 10
    assert found.against("cut line") == "worse"


def test_a_steep_sigmoid_on_a_grid_of_n_cannot_be_told_from_it():
    truth = sigmoid(X, 9.0, 1.2)
    found = fit_steps_law(STEPS, on_grid(truth), sizes=SIZES, replicates=repeated(truth))
    assert found.against("line") == "better" and found.against("cut line") == "open"


def test_nothing_is_told_without_replicates_or_by_few_points():
    truth = sigmoid(X, 9.0, 0.8)
    assert fit_steps_law(STEPS, on_grid(truth), sizes=SIZES).against("line") == "open"
    few = [0, 7, 14, 21, 29]
    found = fit_steps_law(STEPS[few], on_grid(truth[few]), sizes=SIZES, replicates=repeated(truth[few]))
    assert found.against("cut line") == "open"
    with pytest.raises(ValueError, match="4 budgets and 7 group sizes"):
        fit_steps_law(STEPS[:4], on_grid(truth[:4]), sizes=SIZES)


COMPUTE = np.geomspace(5e3, 5e6, 16)
BATCH = 256


def level(n, compute):
    return hill(compute, 0.05, 0.4 + 0.08 * math.log2(n / 4), 8e3 * (n / 4) ** 1.2, 1.1)


@pytest.fixture(scope="module")
def result():
    rng, runs = np.random.default_rng(0), []
    for n in (4, 8, 16, 32):
        for seed in (0, 1):
            reward = level(n, COMPUTE) + 0.003 * rng.normal(size=len(COMPUTE))
            runs.append(run(n, BATCH // n, COMPUTE, {"avg@4": reward}, seed=seed))
    groups, _ = group_runs(runs)
    main = (stages := Stages(rich().options, groups, "hill")).metric("avg@4")
    return dataclasses.replace(rich(), runs=tuple(runs), slices=tuple(stages.slices(main)))


@pytest.fixture(scope="module")
def found(result):
    (only,) = steps_laws(result).items()
    return only


def test_a_slice_has_the_n_that_truly_lead(found):
    name, law = found
    assert name == str(BATCH)
    best = [max((4, 8, 16, 32), key=lambda n, c=c: float(level(n, c))) for c in law.steps * BATCH]
    assert np.mean(law.group_size == best) > 0.85
    expected = fit_steps_law(law.steps, np.array(best), sizes=(4, 8, 16, 32))
    assert law.midpoint95[0] <= expected.midpoint <= law.midpoint95[1]


def test_the_answer(result, found, tmp_path):
    (shown,) = compare_shapes(result)
    assert len(shown.findings) == 1 and shown.findings[0].startswith("At B = 256 ")
    row = shown.rows[0]
    assert (row["rollouts_per_step"], row["sizes"]) == ("256", "4, 8, 16 and 32")
    assert row["midpoint"].value == found[1].midpoint and row["against_line"] == found[1].against("line")
    assert len(drawn(result, shown, tmp_path)) > 5000


def test_what_differs_in_more_or_has_two_n_shows_none(result):
    facts = [each.facts for each in result.runs]
    apart = tuple(
        run(f.group_size, f.problems_per_batch, each.compute, each.columns, seed=f.seed, size=f.group_size)
        for f, each in zip(facts, result.runs, strict=True)
    )
    assert list(compare_shapes(dataclasses.replace(result, runs=apart))) == []
    assert list(compare_shapes(rich())) == []  # two n at each B
