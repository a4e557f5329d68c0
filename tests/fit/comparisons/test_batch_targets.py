"""n*(C) of each target in each slice of a grid whose curves are known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.courses import Course, batch_targets, wants_larger
from isocompute_jax.fit.curves.forms import hill
from tests.fit.comparisons.sweeps import drawn
from tests.fit.sweeps import rich, truth

SIZES = (8, 32, 128)


@pytest.fixture(scope="module")
def found():
    (targets,) = batch_targets(rich())
    return targets


@pytest.mark.slow
def test_the_leader_is_the_true_one_or_within_noise_of_it(found):
    """avg@4 is the curve, best@4 and worst@4 rise with it: all three have the same order, and so the same n*(C)."""
    targets = ("avg@4", "best@4", "worst@4")
    assert [(s.panel, s.name) for s in found.series] == [(f"B_problem = {b}", t) for b in (16, 64) for t in targets]
    for each in found.series:
        batch = int(each.panel.removeprefix("B_problem = "))
        for compute, size in zip(each.x, each.y, strict=True):
            rewards = {n: float(hill(compute, *truth(n, batch))) for n in SIZES}
            assert rewards[int(size)] > max(rewards.values()) - 0.006


def test_every_slice_rises_over_its_own_sizes(found):
    for each, row in zip(found.series, found.rows, strict=True):
        assert each.y[0] == 8 == row["first"] and each.y[-1] > 8 and np.all(np.diff(each.y) >= 0)
        assert row["last"].value == each.y[-1] and row["wants_larger"] == "same"
    assert found.verdict == "same"


def at(*values, low=None, high=None):
    drawn = None if low is None else np.array([low, high])
    return Course(np.geomspace(1e3, 1e5, len(values)), np.array(values), drawn)


@pytest.mark.parametrize(
    ("best", "worst", "verdict"),
    [
        (at(4, 8), at(4, 32), "worst"),
        (at(4, 32), at(4, 8), "best"),
        (at(4, 8), at(8, 8), "same"),
        (at(4, 8, low=[4, 8], high=[8, 16]), at(4, 32, low=[4, 16], high=[32, 32]), "same"),
        (at(4, 8, low=[4, 8], high=[8, 8]), at(4, 32, low=[4, 16], high=[32, 32]), "worst"),
    ],
)
def test_which_target_wants_the_larger_n(best, worst, verdict):
    assert wants_larger({"best@4": best, "worst@4": worst}) == verdict


def test_without_both_targets_there_is_no_verdict():
    assert wants_larger({"best@4": at(4, 8)}) == ""


def test_the_answer(found, tmp_path):
    assert found.findings[-1] == (
        "At the largest budget the n of best@k and worst@k cannot be told apart at B_problem = 16 and 64."
    )
    assert len(drawn(rich(), found, tmp_path)) > 5000


def test_one_slice_or_one_target_has_no_answer():
    result = rich()
    alone = dataclasses.replace(result, runs=tuple(r for r in result.runs if r.facts.problems_per_batch == 16))
    assert list(batch_targets(alone)) == []
    assert list(batch_targets(dataclasses.replace(result, targets={"avg@4": result.targets["avg@4"]}))) == []
