"""Curves as they should not be, from a table to the answer: collapses, spikes, too few points, ties, a crashed seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, SweepResult, analyze
from isocompute_jax.fit.curves.forms import hill

COMPUTE = np.geomspace(2e3, 1e6, 30)
CURVES = {8: (0.05, 0.60, 3e4, 1.0), 32: (0.05, 0.70, 6e4, 1.0), 64: (0.05, 0.80, 3e4, 1.0)}

Curve = Callable[[np.ndarray], np.ndarray]


def analysed(
    curves: Mapping[int, Curve], *, compute: np.ndarray = COMPUTE, noise: float = 0.005, seeds: int = 1, **options
) -> SweepResult:
    """The analysis of runs with these rewards, by n, without noise."""
    rng = np.random.default_rng(0)
    table = {name: [] for name in ("run", "group_size", "problems_per_batch", "seed", "compute", "reward")}
    for n, curve in curves.items():
        for seed in range(seeds):
            rewards = np.clip(curve(compute) + noise * rng.normal(size=len(compute)), 0, 1)
            for c, r in zip(compute, rewards, strict=True):
                for name, value in zip(table, (f"n{n}-s{seed}", n, 16, seed, c, r), strict=True):
                    table[name].append(value)
    return analyze(table, AnalysisOptions(read=ReadOptions(metric="reward"), **options), questions=False)


def healthy(n: int) -> Curve:
    return lambda compute: hill(compute, *CURVES[n])


def test_the_highest_of_all_stops_before_it_collapses():
    """n = 64 is at .6 before it falls to .2, n = 8 never gets above .45: more compute is better not spent."""

    def collapse(compute: np.ndarray) -> np.ndarray:
        return hill(compute, *CURVES[64]) * np.minimum(1, (1.3e5 / compute) ** 0.7)

    found = analysed({8: lambda c: hill(c, 0.05, 0.45, 3e4, 1.0), 64: collapse}, budgets=(1e6,), seeds=2)
    advised = found.asked[0].advised
    assert advised.configuration.group_size == 64
    assert 0.8e5 < advised.stop < 2.5e5
    assert advised.interval95[0] - 0.01 < float(hill(1.3e5, *CURVES[64])) < advised.interval95[1] + 0.01


def test_nobody_is_advised_to_go_on_after_a_collapse():
    """n = 64 peaks at 1.3e5 and is measured at .105 at 1e6, where n = 32 is the best."""

    def collapse(compute: np.ndarray) -> np.ndarray:
        late = np.maximum(np.log(compute / 1.3e5) / np.log(1e6 / 1.3e5), 0)
        return np.maximum(hill(compute, *CURVES[64]) - 0.8 * late, 0.105)

    found = analysed({8: healthy(8), 32: healthy(32), 64: collapse}, budgets=(1e5, 1e6), seeds=2)
    near, end = (answer.advised for answer in found.asked)
    assert near.configuration.group_size == 64
    assert end.configuration.group_size == 32 or end.stop < 2.5e5
    assert [each.group_size for each in found.data.fallen] == [64]
    band = found.curves[-1]
    assert band.mean[band.compute <= 1e6][-1] < 0.25


@pytest.mark.parametrize(("place", "size"), [(20, 0.25), (29, -0.3)])
def test_a_spike_does_not_decide_the_answer(place, size):
    def spiked(compute: np.ndarray) -> np.ndarray:
        rewards = hill(compute, *CURVES[32])
        rewards[place] += size
        return rewards

    found = analysed({8: healthy(8), 32: spiked, 64: healthy(64)}, budgets=(1e6,))
    assert found.asked[0].advised.configuration.group_size == 64


def test_four_points_are_no_certainty():
    compute = np.geomspace(2e3, 1e6, 4)
    found = analysed({8: healthy(8), 32: healthy(32)}, compute=compute, budgets=(1e6,))
    (answer,) = found.asked
    assert answer.advised.interval95[0] < answer.advised.reward < answer.advised.interval95[1]
    assert found.paper is not None and not any(fit.identified["asymptote"] for fit in found.paper.fits)


@pytest.mark.parametrize(("noise", "seeds"), [(0.0, 1), (0.02, 3)])
def test_equal_curves_are_not_clear(noise, seeds):
    found = analysed({n: healthy(32) for n in (4, 8, 16, 32, 64)}, noise=noise, seeds=seeds, budgets=(1e6,))
    assert found.asked[0].verdict != "clear"


def test_a_constant_is_no_rise():
    found = analysed({n: lambda c: np.full(len(c), 0.3) for n in (8, 32)}, noise=0.02, seeds=2, budgets=(1e6,))
    assert found.data.trend == "no rise"
    assert found.paper is not None and found.paper.allocation is None
    assert all("flat" in fit.doubts and not any(fit.identified.values()) for fit in found.paper.fits)
