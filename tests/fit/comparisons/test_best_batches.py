"""B_problem*(C) of a grid whose curves are known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.courses import best_batches
from tests.fit.comparisons.sweeps import drawn
from tests.fit.sweeps import BUDGETS, rich, truth


@pytest.fixture(scope="module")
def found():
    (best,) = best_batches(rich())
    return best


def line(found, name):
    """B_problem*, and the budgets."""
    (each,) = (series for series in found.series if series.name == name)
    return each.y, each.x


def crossing(size: int) -> float:
    """Where B_problem = 64 overtakes 16: g / (1 + (c / C)^k) = h / (1 + (d / C)^k)."""
    (r0, a, c, k), (_, b, d, _) = truth(size, 16), truth(size, 64)
    g, h = a - r0, b - r0
    return ((g * d**k - h * c**k) / (h - g)) ** (1 / k)


@pytest.mark.parametrize("size", [8, 32])
def test_the_change_is_where_the_curves_cross(found, size):
    batches, compute = line(found, f"n = {size}")
    assert sorted(set(batches)) == [16, 64] and np.all(np.diff(batches) >= 0)
    assert compute[np.argmax(batches == 64)] / crossing(size) == pytest.approx(
        1.0, abs=0.55
    )  # the budgets are a factor of 1.52 apart


def test_nothing_crosses_inside_the_data_at_the_largest_n(found):
    assert crossing(128) > BUDGETS[-1]
    batches, compute = line(found, "n = 128")
    assert set(batches) == {16} and compute[0] == pytest.approx(BUDGETS[0])


def test_the_free_envelope_has_the_highest_of_all(found):
    for batch, compute in zip(*line(found, "n free"), strict=True):
        rewards = {
            (n, b): a0 + (a - a0) / (1 + (c / compute) ** k)
            for n in (8, 32, 128) for b in (16, 64) for a0, a, c, k in [truth(n, b)]
        }  # fmt: skip
        best = max(rewards, key=lambda cell: rewards[cell])
        near = {b for (_, b), reward in rewards.items() if reward > rewards[best] - 0.01}
        assert batch in near


def test_replicates_hold_the_leader(found):
    for each in found.series:
        assert each.low is not None and each.high is not None
        assert np.all((each.low <= each.high) & np.isin(each.low, (16, 64)))
        if each.name != "n free":
            assert np.mean((each.low <= each.y) & (each.y <= each.high)) > 0.9


def test_the_answer(found, tmp_path):
    assert found.findings[0] == "Over compute the best B_problem rises at n = 8 and 32; stays at n = 128."
    assert [row["group_size"] for row in found.rows] == [8, 32, 128, "free"] and found.verdict == "mixed"
    assert len(drawn(rich(), found, tmp_path)) > 5000


def test_one_batch_has_no_answer():
    alone = dataclasses.replace(rich(), runs=tuple(r for r in rich().runs if r.facts.problems_per_batch == 16))
    assert list(best_batches(alone)) == []
