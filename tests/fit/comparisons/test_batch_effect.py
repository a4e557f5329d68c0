"""The effects of B_problem and n against hand-worked numbers, a loop, and grids whose truth is known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.batch_effect import batch_effect
from tests.fit.comparisons.sweeps import run

COMPUTE = np.geomspace(1e3, 1e5, 8)


def grid(level, *, sizes=(4, 8, 16), batches=(8, 32), seeds=2, noise=0.0, rng=None):
    """Runs whose reward is level(log2 n, log2 B) throughout, and noise that is a seed's own."""
    rng = rng or np.random.default_rng(0)
    return [
        run(n, b, COMPUTE, {"r": level(np.log2(n), np.log2(b)) + noise * rng.normal() + 0 * COMPUTE}, seed=seed)
        for n in sizes
        for b in batches
        for seed in range(seeds)
    ]


def test_hand_worked_without_noise():
    """Over n: 0.1, 0.2, 0.3 has sd 0.1; over B_problem: two rewards 0.03 apart have sd 0.03 / sqrt 2."""
    (found,) = batch_effect(grid(lambda n, b: 0.1 * (n - 1) + 0.015 * b), "r")
    assert found.group.sd == pytest.approx(0.1)
    assert found.batch.sd == pytest.approx(0.03 / np.sqrt(2))
    assert found.group.per_octave == pytest.approx(0.1)
    assert found.batch.per_octave == pytest.approx(0.015)
    assert found.larger == "n" and found.group.interval95 == pytest.approx((0.1, 0.1))
    assert found.compute[[0, -1]] == pytest.approx([1e3, 1e5])
    assert batch_effect(grid(lambda n, b: 0.01 * n + 0.1 * b), "r")[0].larger == "B_problem"


def test_means_and_raw_variances_are_those_of_a_loop():
    rng = np.random.default_rng(2)
    runs = grid(lambda n, b: 0.05 * n, noise=0.03, rng=rng)
    (found,) = batch_effect(runs, "r")
    cells = {}
    for each in runs:
        cells.setdefault((each.facts.group_size, each.facts.problems_per_batch), []).append(each.columns["r"][0])
    means = {cell: np.mean(values) for cell, values in cells.items()}
    over_b = np.mean([np.var([means[n, b] for b in (8, 32)], ddof=1) for n in (4, 8, 16)])
    noise = np.mean([np.var(values, ddof=1) / 2 for values in cells.values()])
    assert found.batch.variance == pytest.approx(over_b - noise, abs=4e-5)  # Monte-Carlo error of the bootstrap


def test_the_variance_has_no_bias():
    """Over many sweeps the variance that is left averages to the truth, 0 over B_problem and 0.01 over n."""
    rng = np.random.default_rng(3)
    sweeps = [batch_effect(grid(lambda n, b: 0.1 * n, seeds=3, noise=0.1, rng=rng), "r")[0] for _ in range(40)]
    left = [[found.batch.variance, found.group.variance] for found in sweeps]
    error = np.std(left, axis=0, ddof=1) / np.sqrt(len(left))
    assert np.all(np.abs(np.mean(left, axis=0) - [0.0, 0.01]) < 3 * error)
    assert np.all(error < 0.002)  # else the line above says nothing


def test_noise_alone_has_no_verdict_and_intervals_that_reach_zero():
    rng = np.random.default_rng(5)
    sweeps = [batch_effect(grid(lambda n, b: 0.4, seeds=4, noise=0.05, rng=rng), "r")[0] for _ in range(12)]
    assert sum(found.larger == "" for found in sweeps) >= 10
    assert sum((found.batch.interval95 or (np.nan,))[0] == 0 for found in sweeps) >= 10


def test_one_seed_gives_no_interval():
    (found,) = batch_effect(grid(lambda n, b: 0.1 * n, seeds=1), "r")
    assert found.larger == "" and found.difference95 is None and np.isnan(found.batch.low).all()


def test_a_short_run_leaves_the_rest_of_the_grid():
    runs = grid(lambda n, b: 0.1 * n + 0.01 * b)
    end = 5
    runs = [
        dataclasses.replace(each, compute=each.compute[:end], columns={"r": each.columns["r"][:end]})
        if (each.facts.group_size, each.facts.problems_per_batch) == (4, 8) else each
        for each in runs
    ]  # fmt: skip
    (found,) = batch_effect(runs, "r")
    assert found.compute[-1] == pytest.approx(1e5)
    assert np.isnan(found.reward[0, -1]) and np.isfinite(found.reward[1:, -1]).all()


def test_runs_without_the_metric_are_left_out():
    runs = grid(lambda n, b: 0.1 * n + 0.01 * b)
    (found,) = batch_effect([*runs, run(32, 8, COMPUTE, {"other": COMPUTE})], "r")
    (alone,) = batch_effect(runs, "r")
    assert found.group.sd == alone.group.sd and found.difference95 == alone.difference95


def test_what_differs_in_more_is_not_compared():
    """B_problem = 8 on 64 problems and B_problem = 32 on 1,000: nothing says which of the two makes the difference."""
    apart = [run(n, b, COMPUTE, {"r": 0 * COMPUTE}, size=d) for n in (4, 8) for b, d in ((8, 64), (32, 1000))]
    assert batch_effect(apart, "r") == ()
    rates = [
        run(n, b, COMPUTE, {"r": 0.1 * n + 0 * COMPUTE}, rate=rate, max_compute=b)
        for n in (4, 8) for b in (8, 32) for rate in (0.1, 0.2)
    ]  # fmt: skip
    found = batch_effect(rates, "r")
    assert [effect.part for effect in found] == [" (rate = 0.1)", " (rate = 0.2)"]


def test_one_batch_or_one_size_has_nothing_to_compare():
    assert batch_effect(grid(lambda n, b: 0.1, batches=(8,)), "r") == ()
    assert batch_effect(grid(lambda n, b: 0.1, sizes=(8,)), "r") == ()
