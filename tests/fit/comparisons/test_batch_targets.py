"""n*(C) of each target in each slice of a grid whose curves are known."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.alike import Course
from isocompute_jax.fit.comparisons.batch_targets import BatchTargets, batch_targets, section
from isocompute_jax.fit.curves.forms import hill
from tests.fit.sweeps import rich, truth

SIZES = (8, 32, 128)


@pytest.fixture(scope="module")
def found():
    (targets,) = batch_targets(rich())
    return targets


def test_the_leader_is_the_true_one_or_within_noise_of_it(found):
    """avg@4 is the curve, best@4 and worst@4 rise with it: all three have the same order, and so the same n*(C)."""
    assert set(found.courses) == {16, 64}
    for batch, by_target in found.courses.items():
        assert set(by_target) == {"avg@4", "best@4", "worst@4"}
        for each in by_target.values():
            for compute, size in zip(each.compute, each.value, strict=True):
                rewards = {n: float(hill(compute, *truth(n, batch))) for n in SIZES}
                assert rewards[int(size)] > max(rewards.values()) - 0.006


def test_every_slice_rises_over_its_own_sizes(found):
    for batch, by_target in found.courses.items():
        for each in by_target.values():
            assert each.value[0] == 8 and each.value[-1] > 8
            assert np.all(np.diff(each.value) >= 0)
        assert found.wants_larger(batch) == "same"
    assert found.sizes == {16: [8, 32, 128], 64: [8, 32, 128]}


def at(*values, low=None, high=None):
    ends = (None, None) if low is None else (np.array(low), np.array(high))
    return Course(np.geomspace(1e3, 1e5, len(values)), np.array(values), *ends)


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
def test_which_target_wants_the_larger_n(found, best, worst, verdict):
    assert BatchTargets(found.part, {8: {"best@4": best, "worst@4": worst}}, {}).wants_larger(8) == verdict


def test_without_both_targets_there_is_no_verdict(found):
    assert BatchTargets(found.part, {8: {"best@4": at(4, 8)}}, {}).wants_larger(8) == ""


def test_the_section(tmp_path):
    (shown,) = section(rich(), tmp_path)
    assert shown.findings[-1] == (
        "At the largest budget the n of best@k and worst@k cannot be told apart at B_problem = 16 and 64."
    )
    assert shown.table is not None and len(shown.table.rows) == 6
    assert shown.figure is not None and shown.figure.stat().st_size > 5000


def test_one_slice_or_one_target_has_no_section(tmp_path):
    result = rich()
    alone = dataclasses.replace(result, runs=tuple(r for r in result.runs if r.facts.problems_per_batch == 16))
    assert section(alone, tmp_path) == []
    assert section(dataclasses.replace(result, targets={"avg@4": result.targets["avg@4"]}), tmp_path) == []
