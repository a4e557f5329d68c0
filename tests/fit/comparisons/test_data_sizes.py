"""n*(C) by number of problems, where what fewer problems do is known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.data_sizes import data_sizes, section
from isocompute_jax.fit.curves.forms import hill
from tests.fit.comparisons.sweeps import run
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
    few, many = found.sizes
    assert (few.problem_set_size, many.problem_set_size) == (100, 1000)
    assert few.largest == 8 and not few.at_edge and many.largest == 16 and many.at_edge
    assert [n for _, n in few.course.switches] == [4, 8] and [n for _, n in many.course.switches] == [4, 8, 16]
    assert found.shared == pytest.approx(COMPUTE[-2])


def test_the_highest_reward_is_that_of_the_best_curve_where_all_are_compared(found):
    for each in found.sizes:
        top = max(float(level(each.problem_set_size, n, found.shared)) for n in (4, 8, 16))
        assert each.reward.value == pytest.approx(top, abs=0.006)
        low, high = each.reward.interval95
        assert low < each.reward.value < high < low + 0.03
    assert [each.best_run.split(",")[0] for each in found.sizes] == ["n = 8", "n = 16"]


def test_differences_and_their_intervals(found):
    assert found.octaves_gained == (1.0, (1.0, 1.0))
    gained, (low, high) = found.reward_gained
    truth = level(1000, 16, found.shared) - level(100, 8, found.shared)
    assert low < gained < high and gained == pytest.approx(truth, abs=0.01)


def test_the_section(result, tmp_path):
    (shown,) = section(result, tmp_path)
    assert "the largest n* is 8 with 100 and at least 16 with 1,000 problems." in shown.findings[0]
    assert shown.findings[0].endswith("have a larger n* than the fewest: the ratio is 2 (95%: 2 to 2).")
    assert shown.table is not None and [row[0] for row in shown.table.rows] == [100, 1000]
    assert shown.figure is not None and shown.figure.stat().st_size > 5000


def test_without_a_bootstrap_there_are_no_intervals(result):
    options = dataclasses.replace(result.options, bootstrap="none")
    (found,) = data_sizes(dataclasses.replace(result, options=options))
    assert found.octaves_gained == (1.0, None) and found.reward_gained[1] is None


def test_one_size_or_several_batches_have_no_section(result, tmp_path):
    few = tuple(one for one in result.runs if one.facts.problem_set_size == 100)
    many = [one for one in result.runs if one.facts.problem_set_size == 1000]
    assert section(dataclasses.replace(result, runs=few), tmp_path) == []
    larger = tuple(
        run(one.facts.group_size, 32, one.compute, one.columns, seed=one.facts.seed, size=1000) for one in many
    )  # fmt: skip
    assert section(dataclasses.replace(result, runs=few + larger), tmp_path) == []
