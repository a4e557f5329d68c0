"""B_problem*(C) of a grid whose curves are known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.best_batches import best_batches, section
from tests.fit.sweeps import BUDGETS, rich, truth


@pytest.fixture(scope="module")
def found():
    (best,) = best_batches(rich())
    return best


def crossing(size: int) -> float:
    """Where B_problem = 64 overtakes 16: g / (1 + (c / C)^k) = h / (1 + (d / C)^k)."""
    (r0, a, c, k), (_, b, d, _) = truth(size, 16), truth(size, 64)
    g, h = a - r0, b - r0
    return ((g * d**k - h * c**k) / (h - g)) ** (1 / k)


@pytest.mark.parametrize("size", [8, 32])
def test_the_change_is_where_the_curves_cross(found, size):
    (_, first), (compute, last) = found.at_size[size].switches
    assert (first, last) == (16, 64)
    assert compute / crossing(size) == pytest.approx(1.0, abs=0.55)  # the budgets are a factor of 1.52 apart


def test_nothing_crosses_inside_the_data_at_the_largest_n(found):
    assert crossing(128) > BUDGETS[-1]
    assert found.at_size[128].switches == [(pytest.approx(BUDGETS[0]), 16)]


def test_the_free_envelope_has_the_highest_of_all(found):
    at = dict(zip(found.overall.compute.tolist(), found.overall.value.tolist(), strict=True))
    for compute, batch in at.items():
        rewards = {
            (n, b): a0 + (a - a0) / (1 + (c / compute) ** k)
            for n in (8, 32, 128) for b in (16, 64) for a0, a, c, k in [truth(n, b)]
        }  # fmt: skip
        best = max(rewards, key=lambda cell: rewards[cell])
        near = {b for (_, b), reward in rewards.items() if reward > rewards[best] - 0.01}
        assert batch in near


def test_replicates_hold_the_leader(found):
    for each in found.at_size.values():
        assert each.low is not None and each.high is not None
        assert np.all((each.low <= each.high) & np.isin(each.low, (16, 64)))
        assert np.mean((each.low <= each.value) & (each.value <= each.high)) > 0.9


def test_the_section(tmp_path):
    (shown,) = section(rich(), tmp_path)
    assert shown.findings[0] == "Over compute the best B_problem rises at n = 8 and 32; stays at n = 128."
    assert shown.figure == tmp_path / "comparison_best_batches.svg"
    assert (tmp_path / "comparison_best_batches.svg").stat().st_size > 5000
    assert shown.table is not None and [row[0] for row in shown.table.rows] == ["8", "32", "128", "free"]


def test_one_batch_has_no_section(tmp_path):
    alone = dataclasses.replace(rich(), runs=tuple(r for r in rich().runs if r.facts.problems_per_batch == 16))
    assert section(alone, tmp_path) == []
