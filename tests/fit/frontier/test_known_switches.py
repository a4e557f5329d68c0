"""The benchmark of coverage asks what `analyze` answers."""

import numpy as np
import pytest

from benchmarks.known_switches import SWEEPS, Condition, answers, simulate
from isocompute_jax.fit import AnalysisOptions, ReadOptions, analyze


@pytest.mark.slow
@pytest.mark.parametrize("forecast", ["form", "average"])
def test_the_benchmark_measures_what_is_answered(forecast):
    sweep = SWEEPS["crossing"]
    condition = Condition("crossing", seeds=3, correlation=0.5)
    table = simulate(condition, np.random.default_rng(0), noise=0.015, jitter=0.0, points=30)
    found = answers(table, sweep, ["auto"], seed=4)["auto"]
    options = AnalysisOptions(
        read=ReadOptions(metric="reward"), budgets=sweep.budgets(), seed=4, holdout=0.0, forecast=forecast
    )
    result = analyze(table, options)
    assert result.bootstrap is not None and result.bootstrap.method == "noise"
    switches = result.frontier.switches
    np.testing.assert_allclose(found.switch, [switch.compute for switch in switches])
    np.testing.assert_allclose(found.switch_ends, [switch.interval95 or () for switch in switches])
    expected = [(row.group_size, row.reward, *row.interval95) for row in result.recommendations]
    np.testing.assert_allclose(found.fitted if forecast == "form" else found.expected, expected)
    for budget in result.frontier.budgets:  # at an evaluated compute
        if np.isclose(budget.compute, sweep.last):
            assert tuple(found.group_size_ends[-1]) == budget.interval95
