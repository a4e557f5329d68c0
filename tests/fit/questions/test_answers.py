"""Reductions of draws by hand, and the macros that say them."""

import numpy as np

from isocompute_jax.fit.questions.answers import alike_else, common_budgets, stopped
from tests.fit.questions.sweeps import COMPUTE, grouped, made, rising


def test_each_configuration_is_stopped_where_its_mean_is_highest():
    """Means 0.1, 0.3, 0.2, 0.4 and 0.3, 0.2, 0.1, 0.1: draws are read at these stops, whatever they are themselves."""
    mean = np.array([[[0.0, 0.4, 0.4, 0.3], [0.2, 0.2, 0.0, 0.5]], [[0.3, 0.2, 0.1, 0.1], [0.3, 0.2, 0.1, 0.1]]])
    found = stopped(mean)
    np.testing.assert_array_equal(found[0], [[0.0, 0.4, 0.4, 0.3], [0.2, 0.2, 0.2, 0.5]])
    np.testing.assert_array_equal(found[1], np.full((2, 4), 0.3))


def test_parts_differ_in_what_is_free_alone():
    one = made(lambda n, b, c: rising(n, c, best=16), batches=(2, 8), seeds=1)
    other = made(lambda n, b, c: rising(n, c, best=16), batches=(2, 8), seeds=1, size=64)
    labels, parts = zip(*alike_else(grouped([*one, *other]), "group_size", "problems_per_batch"), strict=True)
    assert set(labels) == {"problem_set_size = 1000", "problem_set_size = 64"} and list(map(len, parts)) == [6, 6]
    assert alike_else(grouped(one), "group_size", "problems_per_batch") == [("", list(range(6)))]


def test_budgets_are_those_that_every_part_reaches():
    one = grouped(made(lambda n, b, c: rising(n, c, best=16), seeds=1))
    found = common_budgets([one, one])
    assert (found[0], found[-1], len(found)) == (COMPUTE[0], COMPUTE[-1], 16)
    assert not len(common_budgets([one, []]))


def test_intervals_and_headings(sentences):
    assert sentences.interval({"reward": 0.25, "reward_95": (0.2, 0.3)}, "reward") == "0.250 (0.200 to 0.300)"
    assert sentences.interval({"gain": 0.25}, "gain") == "0.250"
    assert (sentences.heading("B=8"), sentences.heading("group_size")) == ("B_problem = 8", "n")
    assert sentences.cell({}, "gain") == "" and sentences.cell({"model": "7B"}, "model") == "7B"
    assert sentences.cell({"group_size": 16, "group_size_95": (8.0, 32.0)}, "group_size") == "16 (8 to 32)"
