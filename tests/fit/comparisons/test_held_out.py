"""The top quarter of compute, predicted from the rest: by hand, against closed forms, on simulated and real sweeps."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import types
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest

from benchmarks import families
from isocompute_jax.fit import AnalysisOptions, HeldOut, ReadOptions, analyze, held_out_quarter
from isocompute_jax.fit.comparisons import held_out
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.read import RunCurve, memory_table, read_curves
from isocompute_jax.fit.results import Configuration
from tests.fit.comparisons.sweeps import drawn

GALLERY = pathlib.Path(__file__).parents[3] / "gallery"
BUDGETS = np.geomspace(1e3, 64e3, 13)
TOPS = {4: (0.5, 3e3), 8: (0.6, 6e3), 16: (0.7, 12e3)}
OFF, STRICT = AnalysisOptions(), AnalysisOptions(records="strict")


def sweep(change=lambda size, compute, reward: reward, noise=1e-3, seeds=2, budgets=BUDGETS) -> list[RunCurve]:
    """Hill curves whose asymptotes and midpoints rise with n, and noise; `change` the rewards of a run."""
    rng = np.random.default_rng(5)
    rows = []
    for size, (top, middle) in TOPS.items():
        for seed in range(seeds):
            rewards = hill(budgets, 0.05, top, middle, 1.2) + noise * rng.standard_normal(len(budgets))
            rewards = change(size, budgets, rewards)
            rows += [(size, 32, seed, c, r) for c, r in zip(budgets, rewards, strict=True)]
    names = ("group_size", "problems_per_batch", "seed", "compute", "avg@4")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return read_curves(memory_table(columns), ReadOptions())[0]


def recorded(*seeds: int) -> list[RunCurve]:
    table = pyarrow.parquet.read_table(GALLERY / "problems_64.parquet", use_threads=False)
    chosen = table.filter(pyarrow.compute.field("seed").isin(list(seeds)))
    return read_curves(memory_table(chosen), ReadOptions())[0]


@pytest.fixture(scope="module")
def rising() -> HeldOut:
    found = held_out_quarter(sweep(), OFF)
    assert found is not None
    return found


def test_what_was_fitted_ends_at_three_quarters_of_log_compute(rising):
    assert rising.cut == pytest.approx(1e3 * 64**0.75)
    np.testing.assert_allclose(rising.fitted_compute, BUDGETS[:10])  # the tenth is at the cut, up to rounding
    np.testing.assert_allclose(rising.compute, BUDGETS[-3:])
    assert [each.group_size for each in rising.configurations] == [4, 8, 16]


def test_measured_is_the_mean_over_seeds(rising):
    runs = sweep()
    for k, size in enumerate(TOPS):
        both = [run.columns["avg@4"][-3:] for run in runs if run.facts.group_size == size]
        np.testing.assert_allclose(rising.measured[k], np.mean(both, axis=0))
        np.testing.assert_allclose(rising.mean[k], rising.measured[k])


def test_little_noise_predicts_reward_and_n(rising):
    assert rising.inside.sum() >= 8 and rising.known.sum() == 9
    np.testing.assert_allclose(rising.predicted, rising.measured, atol=0.02)
    assert rising.group_sizes[rising.predicted_best].tolist() == [16, 16, 16]
    assert rising.octaves.tolist() == [0, 0, 0] and rising.group_size95[-1].tolist() == [16, 16]


def test_what_comes_after_the_cut_is_not_looked_at(rising):
    other = held_out_quarter(
        sweep(lambda size, compute, reward: np.where(compute > rising.cut, 0.3 + size / 100, reward)), OFF
    )
    assert other is not None
    np.testing.assert_array_equal(other.predicted, rising.predicted)
    np.testing.assert_array_equal(other.interval95, rising.interval95)
    np.testing.assert_allclose(other.measured, [[0.34] * 3, [0.38] * 3, [0.46] * 3])
    assert not other.inside[2].any()  # n = 16 was expected above 0.6


def test_records_are_held_against_records():
    """After the cut n = 4 falls, so that its best mean so far stays what it was; the others rise on."""
    falls = sweep(lambda size, compute, reward: np.where((size == 4) & (compute > 24e3), reward - 0.2, reward))
    found = held_out_quarter(falls, STRICT)
    assert found is not None and found.best_so_far
    record = found.fitted[0].max()
    assert found.measured[0].tolist() == [record] * 3
    assert np.all(found.mean[0] < record - 0.1) and not found.mean_inside[0].any()
    assert found.rose.tolist() == [[False] * 3, [True] * 3, [True] * 3]
    assert np.all(found.interval95[0] >= np.nanmax(found.fitted, axis=1)[:, None])
    assert np.all(np.diff(found.interval95, axis=2) >= 0) and np.all(np.diff(found.predicted, axis=1) >= 0)


def test_the_best_so_far_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    early, draws = rng.random((2, 4)), rng.random((5, 2, 3))
    paths = held_out._Paths((), np.empty(0), early, np.empty(0), np.empty((2, 3)), draws)
    expected = np.empty_like(draws)
    for d in range(5):
        for k in range(2):
            best = max(early[k])
            for h in range(3):
                best = expected[d, k, h] = max(best, draws[d, k, h])
    np.testing.assert_array_equal(paths.best_so_far(draws), expected)


def test_noise_goes_on_from_the_last_evaluation():
    """AR(1): after j evaluations rho^j of the first error is left, with variance sd^2 (1 - rho^(2 j))."""
    rho, sd, compute = 0.6, 0.01, np.geomspace(1e3, 8e3, 4)
    known: Any = types.SimpleNamespace(
        rewards=lambda c: np.full((8000, 1), 0.5), correlation=rho, members=np.array([True])
    )  # fmt: skip
    curve = Curve(Configuration("n = 4", 4, 8, 64), (0,), compute, np.full((1, 4), 0.5))
    mean = np.array([[0.5, 0.54, 0.5, 0.5]])
    early, late = np.array([0, 1]), np.array([2, 3])
    drawn = held_out._draws(known, [curve], compute, mean, early, late, [sd], np.random.default_rng(1))[:, 0]
    for j in (1, 2):
        assert drawn[:, j - 1].mean() == pytest.approx(0.5 + rho**j * 0.04, abs=4 * sd / math.sqrt(len(drawn)))
        assert drawn[:, j - 1].std() == pytest.approx(sd * math.sqrt(1 - rho ** (2 * j)), rel=0.03)


@pytest.mark.parametrize(("off", "widening"), [(3.0, math.sqrt((1 + 9 + 9) / 3)), (0.5, 1.0)])
def test_intervals_widen_by_the_errors_inside_the_fitted_part(off, widening):
    """Two curves whose errors are `off` of the draws' standard deviations, and one that is as said."""
    draws = np.array([-0.01, 0.01])[:, None, None] * np.ones((2, 2, 2)) + 0.5
    inner = held_out._Paths((), np.empty(0), np.zeros((2, 3)), np.empty(0), np.full((2, 2), 0.5 + 0.01 * off), draws)
    assert held_out._widening(inner, OFF) == pytest.approx(widening)


def test_too_few_evaluations_or_nothing_to_draw_from():
    assert held_out_quarter(sweep(budgets=np.geomspace(1e3, 64e3, 6)), OFF) is None
    assert held_out_quarter(sweep(budgets=np.concatenate([BUDGETS[:8], [64e3]])), OFF) is None  # one after the cut
    assert held_out_quarter(sweep(budgets=np.zeros(1)), OFF) is None


def by_hand(**changes: Any) -> HeldOut:
    """Two configurations at two budgets; the mean of n = 4 falls from 0.4 to 0.3, n = 8 rises and is missed once."""
    found = HeldOut(
        cut=30e3,
        best_so_far=True,
        widening=1.5,
        configurations=(Configuration("n = 4", 4, 8, 64), Configuration("n = 8", 8, 8, 64)),
        fitted_compute=np.array([1e4, 2e4]),
        fitted=np.array([[0.3, 0.4], [0.2, 0.3]]),
        compute=np.array([4e4, 8e4]),
        predicted=np.array([[0.40, 0.41], [0.39, 0.45]]),
        interval95=np.array([[[0.40, 0.40], [0.36, 0.40]], [[0.42, 0.43], [0.42, 0.50]]]),
        measured=np.array([[0.40, 0.40], [0.41, 0.51]]),
        mean=np.array([[0.35, 0.30], [0.41, 0.51]]),
        mean_interval95=np.array([[[0.36, 0.36], [0.36, 0.40]], [[0.42, 0.43], [0.42, 0.50]]]),
        leaders=np.array([[0] * 10 + [1] * 10, [1] * 20]),
    )
    return dataclasses.replace(found, **changes)


RESULT: Any = types.SimpleNamespace(
    metric="avg@4",
    options=types.SimpleNamespace(read=types.SimpleNamespace(compute="rollouts", eval_set="validation")),
    several=True, several_sizes=True, several_batches=False,
    frontier=types.SimpleNamespace(budgets=[types.SimpleNamespace(compute=80.5e3, group_size=32)]),
)  # fmt: skip
"""Of an analysis what sentences and table read: the frontier has n = 32 at the second budget."""


def test_the_sentences_count_by_hand():
    found = by_hand()
    assert found.inside.tolist() == [[True, True], [True, False]]
    assert found.rose.tolist() == [[False, False], [True, True]]
    told = held_out.held_out_answer(RESULT, found)
    assert list(told.findings) == [
        "3 of 4 measured rewards (2 configurations at 2 budgets) lie inside their 95% interval: 1 of the 2 that rose "
        "after the cut, and 2 of the 2 where the record stood; above: n = 8.",
        "The mean itself, which may fall, lies inside its own interval at 1 of 4; below: n = 4; above: n = 8.",
        "n* is predicted within one octave of the measured one at 2 of 2 budgets, and of the frontier over all "
        "evaluations at 0 of 1.",
    ]
    assert "errors there were 1.50 times as large" in told.about
    assert "no larger than" in held_out.held_out_answer(RESULT, by_hand(widening=1.0)).about
    mean = held_out.held_out_answer(RESULT, by_hand(best_so_far=False))
    assert mean.findings[0].endswith("95% interval; above: n = 8.")


def test_the_table_has_the_one_that_was_expected_and_the_one_that_leads():
    answer = held_out.held_out_answer(RESULT, by_hand())
    assert [[row[key] and str(row[key]) for key in answer.columns] for row in answer.rows] == [
        ["40,000", "4 (4 to 8)", "8", None, "0.400 (0.400 to 0.420)", "0.400"],
        ["80,000", "8 (8)", "8", "32", "0.450 (0.400 to 0.500)", "0.510"],
    ]
    assert (answer.verdict, answer.numbers["inside"], answer.numbers["of"]) == ("partly inside", 3, 4)


@pytest.mark.slow
def test_the_report_has_it_with_its_picture(tmp_path):
    table = families.simulate("hill", "test", 0).table("avg@4")
    result = analyze(table, AnalysisOptions(records="strict", bootstrap="none"))
    (answer,) = [each for each in result.comparisons if each.question == "held_out"]
    found = held_out_quarter(result.runs, result.options)
    assert found is not None
    assert drawn(result, answer, tmp_path).count("<title>") == found.known.sum()  # a dot for each, to hover over
    assert answer.findings == held_out.held_out_answer(result, found).findings
    assert held_out_quarter(result.runs, AnalysisOptions(forecast="form")) is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 1, 2, 3, 4), (1, 2, 3, 4)])
def test_the_recorded_sweep_is_predicted(seeds):
    """90% of the measured rewards inside, n* within one octave, of those that rose after the cut too."""
    found = held_out_quarter(recorded(*seeds), STRICT)
    assert found is not None and found.known.sum() == 24
    assert found.inside.sum() >= 0.9 * 24 and (found.inside & found.rose).sum() >= 0.9 * found.rose.sum()
    assert found.rose.sum() >= 8
    assert np.all(np.abs(found.octaves) <= 1)
    assert found.mean_inside[:2].sum() == 0  # n = 4 and n = 8 fall, which no curve that rises follows


@pytest.mark.slow
@pytest.mark.parametrize("rule", [OFF, STRICT], ids=["mean", "best so far"])
def test_intervals_hold_what_they_say_on_simulated_sweeps(rule):
    """Forms that are fitted, one that is not, and asymptotes without order; 95% less two standard errors."""
    shares = []
    for family in ("hill", "exponential", "power", "crossing"):
        for number in range(2):
            runs, _ = read_curves(memory_table(families.simulate(family, "test", number).table("avg@4")), rule.read)
            if (found := held_out_quarter(runs, rule)) is not None:
                shares.append(found.inside[found.known].mean())
    assert len(shares) >= 7
    assert np.mean(shares) >= 0.95 - 2 * np.std(shares, ddof=1) / math.sqrt(len(shares))
