"""Studies whose truth is known, asked at four times their data; and what the command compiles for them.

Other rows of the same table: `test_bad_curves` (collapses, spikes, too few points, ties, budgets below a step),
`test_stages` (one noisy seed), `test_reward_units` (percent), `read/test_resumed_runs` (overlapping steps),
`frontier/test_bootstrap` (switches).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize

from benchmarks import fit_startup
from isocompute_jax.fit import AnalysisOptions, ReadOptions, analyze
from isocompute_jax.fit.curves.forms import expsat, hill

SIZES = (4, 8, 16, 32, 64)
COMPUTE = np.geomspace(1e4, 1e6, 24)
ASKED = 4e6
OPTIONS = AnalysisOptions(read=ReadOptions(metric="reward"), budgets=(ASKED,), bootstrap="none", holdout=0.0)

Curves = list[Callable[[np.ndarray], np.ndarray]]


def draw(family: str, rng: np.random.Generator) -> Curves:
    """A larger n learns more slowly and ends higher: at the end of the data it is often not the best yet."""
    floor, top, rise = rng.uniform(0.05, 0.25), rng.uniform(0.45, 0.6), rng.uniform(0.02, 0.08)
    middle = 10 ** rng.uniform(4.6, 5.2) * np.exp(rng.uniform(0.6, 0.9) * np.arange(len(SIZES)))
    high = top + rise * np.arange(len(SIZES))
    if family == "exponential":
        return [lambda c, a=a, m=m: expsat(c, floor, a, np.log(2) / m) for a, m in zip(high, middle, strict=True)]
    return [lambda c, a=a, m=m: hill(c, floor, a, m, 1.2) for a, m in zip(high, middle, strict=True)]


def scipy_reward(reward: np.ndarray) -> float:
    """What `curve_fit` of a Hill curve says of the reward at the budget."""

    def curve(c: np.ndarray, low: float, high: float, log_middle: float, steepness: float) -> np.ndarray:
        return hill(c, low, high, float(np.exp(log_middle)), steepness)

    start = [reward[0], min(reward.max() + 0.05, 0.99), np.log(2e5), 1.0]
    bounds = ([0, 0, 0, 0.1], [1, 1, np.log(1e9), 10])
    return float(
        curve(np.array([ASKED]), *scipy.optimize.curve_fit(curve, COMPUTE, reward, start, bounds=bounds)[0])[0]
    )


def costs(family: str, number: int) -> tuple[dict[str, float], bool]:
    """Regret of a study by method, and whether the tool's interval of the reward of its n holds the truth."""
    rng = np.random.default_rng([len(family), number])
    curves = draw(family, rng)
    rewards = [curve(COMPUTE) + 0.01 * rng.normal(size=(3, len(COMPUTE))) for curve in curves]
    shape = (len(SIZES), 3, len(COMPUTE))
    table = {
        "group_size": np.broadcast_to(np.array(SIZES)[:, None, None], shape).ravel(),
        "seed": np.broadcast_to(np.arange(3)[:, None], shape).ravel(),
        "compute": np.broadcast_to(COMPUTE, shape).ravel(),
        "reward": np.stack(rewards).ravel(),
        "problems_per_batch": np.full(np.prod(shape), 16),
    }
    (advice,) = analyze(table, OPTIONS, compare=False).recommendations
    means = [reward.mean(axis=0) for reward in rewards]
    truth = np.array([float(curve(np.array([ASKED]))[0]) for curve in curves])
    named = {
        "tool": SIZES.index(advice.group_size),
        "best so far": int(np.argmax([mean[-1] for mean in means])),
        "SciPy": int(np.argmax([scipy_reward(mean) for mean in means])),
    }
    low, high = advice.interval95
    return {name: truth.max() - truth[i] for name, i in named.items()}, low <= truth[named["tool"]] <= high


@pytest.mark.slow
@pytest.mark.parametrize(("family", "numbers"), [("exponential", range(12)), ("hill", range(12))])
def test_beyond_the_data_the_tool_costs_less_than_what_users_would_do(family, numbers):
    """Against the best so far, and against SciPy's Hill per curve; with intervals that know the forms' error."""
    found = [costs(family, number) for number in numbers]
    regret = {method: float(np.mean([cost[method] for cost, _ in found])) for method in found[0][0]}
    assert regret["tool"] < regret["best so far"]
    assert regret["tool"] <= regret["SciPy"] + 0.002
    assert sum(held for _, held in found) >= 0.85 * len(numbers)


@pytest.mark.slow
def test_the_command_compiles_a_handful_of_programs(tmp_path: pathlib.Path):
    """All forms, the hold-out and the bootstrap share them; a second run loads them and costs less."""
    fit_startup.write_study(tmp_path / "study.csv", "small")
    cold, warm = (fit_startup.measure(tmp_path / "study.csv", tmp_path) for _ in range(2))
    assert max(cold[2], warm[2]) <= 4
    assert warm[0] < cold[0]
