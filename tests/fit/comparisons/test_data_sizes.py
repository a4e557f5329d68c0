"""n*(C) by number of problems, where what fewer problems do is known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.courses import data_sizes
from isocompute_jax.fit.curves.forms import hill
from tests.fit.comparisons.sweeps import drawn, run
from tests.fit.sweeps import rich

COMPUTE = np.geomspace(1e3, 1e6, 12)
TOPS = {100: {4: 0.50, 8: 0.60, 16: 0.52}, 1000: {4: 0.50, 8: 0.60, 16: 0.70}}
"""D -> n -> asymptote: with 100 problems n = 16 is never worth it."""


def level(size, n, compute):
    return hill(compute, 0.05, TOPS[size][n], 2e3 * n, 1.2)


@pytest.fixture(scope="module")
def result():
    """Runs of this sweep in the results of another: the comparison takes its runs, metric and options alone."""
    rng = np.random.default_rng(0)
    runs = []
    for size, tops in TOPS.items():
        compute = COMPUTE if size == 1000 else COMPUTE[:-1]
        for n in tops:
            for seed in (0, 1):
                reward = level(size, n, compute) + 0.004 * rng.normal(size=len(compute))
                runs.append(run(n, 8, compute, {"avg@4": reward}, seed=seed, size=size))
    return dataclasses.replace(rich(), runs=tuple(runs))


@pytest.fixture(scope="module")
def found(result):
    (sizes,) = data_sizes(result)
    return sizes


def test_each_size_has_its_own_course(found):
    few, many = found.rows
    assert (few["problem_set_size"], many["problem_set_size"]) == (100, 1000)
    assert (few["largest"], few["largest_is"]) == (8, "runs go to 16")
    assert (many["largest"], many["largest_is"]) == (16, "the largest that was run")
    assert [list(dict.fromkeys(each.y.tolist())) for each in found.series] == [[4, 8], [4, 8, 16]]
    assert found.numbers["shared_compute"] == pytest.approx(COMPUTE[-2])


def test_the_highest_reward_is_that_of_the_best_curve_where_all_are_compared(found):
    for row in found.rows:
        top = max(float(level(row["problem_set_size"], n, found.numbers["shared_compute"])) for n in (4, 8, 16))
        reward = row["reward"]
        assert reward.value == pytest.approx(top, abs=0.006)
        assert reward.low < reward.value < reward.high < reward.low + 0.03
    assert [row["run"].split(",")[0] for row in found.rows] == ["n = 8", "n = 16"]


def test_differences_and_their_intervals(found):
    ratio, gained = found.numbers["ratio_of_largest_n"], found.numbers["difference_of_highest_reward"]
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0) and found.verdict == "larger"
    shared = found.numbers["shared_compute"]
    truth = level(1000, 16, shared) - level(100, 8, shared)
    assert gained.low < gained.value < gained.high and gained.value == pytest.approx(truth, abs=0.01)


def test_the_answer(result, found, tmp_path):
    assert "the largest n* is 8 with 100 and at least 16 with 1,000 problems." in found.findings[0]
    assert found.findings[0].endswith("have a larger n* than the fewest: the ratio is 2 (95%: 2 to 2).")
    assert len(drawn(result, found, tmp_path)) > 5000


def test_without_a_bootstrap_there_are_no_intervals(result):
    options = dataclasses.replace(result.options, bootstrap="none")
    (found,) = data_sizes(dataclasses.replace(result, options=options))
    ratio, gained = found.numbers["ratio_of_largest_n"], found.numbers["difference_of_highest_reward"]
    assert ratio.value == 2.0 and np.isnan([ratio.low, gained.low]).all() and found.verdict is None


def test_one_size_or_several_batches_have_no_answer(result):
    few = tuple(one for one in result.runs if one.facts.problem_set_size == 100)
    many = [one for one in result.runs if one.facts.problem_set_size == 1000]
    assert list(data_sizes(dataclasses.replace(result, runs=few))) == []
    larger = tuple(
        run(one.facts.group_size, 32, one.compute, one.columns, seed=one.facts.seed, size=1000) for one in many
    )  # fmt: skip
    assert list(data_sizes(dataclasses.replace(result, runs=few + larger))) == []
