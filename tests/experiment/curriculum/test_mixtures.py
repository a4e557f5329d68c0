"""Shares of sets: held over few steps, adaptive by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.curriculum import History, ProblemStream, TrainSets
from isocompute_jax.experiment.curriculum.stream import EXPLORED, RECENT, adaptive_weights, share_out, weights_of
from tests.experiment.curriculum.builders import make_problems

MEMBERS = {"a": np.arange(6), "b": np.arange(6, 8)}


@settings(max_examples=40)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_fixed_shares_hold_within_a_problem_at_all_times(weights, steps):
    named = {str(i): weight for i, weight in enumerate(weights)}
    credits, given_out = {}, dict.fromkeys(named, 0)
    for size in steps:
        numbers, credits = share_out(size, named, dict.fromkeys(named, 100), credits)
        assert sum(numbers.values()) == size
        given_out = {name: given_out[name] + numbers[name] for name in named}
        for name, weight in named.items():
            owed = weight / sum(weights) * sum(given_out.values())
            assert abs(given_out[name] - owed) < len(weights) - 0.99  # 1.01 for two sets


def test_a_set_that_is_used_up_leaves_its_share_to_the_others():
    assert share_out(6, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 9}, {})[0] == {"a": 1, "b": 5}
    assert share_out(6, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 2}, {})[0] == {"a": 1, "b": 2}


def test_weights_are_sizes_unless_given():
    sets = {"a": "a.jsonl", "b": "b.jsonl"}
    nothing = History.empty(8)
    assert weights_of(CurriculumConfig(train_sets=sets), MEMBERS, nothing) == {"a": 6, "b": 2}
    given = CurriculumConfig(train_sets=sets, weights={"b": 3.0, "a": 1.0})
    assert weights_of(given, MEMBERS, nothing) == {"a": 1, "b": 3}


def history(last_rate, last_step) -> History:
    zeros = np.zeros(len(last_rate), np.int32)
    return History(zeros, zeros, np.array(last_rate, np.float32), np.array(last_step, np.int32))


def test_adaptive_weights_by_hand():
    """a: rates 1/2, 1/4, 0 of three tried problems: (1/4 + 3/16 + 0) / 3 = 7/48. b: 1 and 1/2: 1/8. In all 13/48."""
    found = adaptive_weights(MEMBERS, history([0.5, 0.25, 0, 0.5, 0, 0, 1, 0.5], [3, 0, 2, -1, -1, -1, 1, 1]))
    assert found["a"] == pytest.approx(EXPLORED / 2 + (1 - EXPLORED) * 7 / 13)
    assert found["b"] == pytest.approx(EXPLORED / 2 + (1 - EXPLORED) * 6 / 13)
    # What nobody has tried may have the most; where no set has a signal all are equal.
    untried = adaptive_weights(MEMBERS, history([0] * 8, [0] * 6 + [-1] * 2))
    assert untried == {"a": pytest.approx(EXPLORED / 2), "b": pytest.approx(1 - EXPLORED / 2)}
    assert adaptive_weights(MEMBERS, history([0] * 8, [0] * 8)) == {"a": 0.5, "b": 0.5}


def test_adaptive_weights_forget():
    """Only the problems that were drawn last count: a set that has been mastered since has no signal."""
    size = 2 * RECENT
    rates = np.where(np.arange(size) < RECENT, 0.5, 1.0)
    members = {"a": np.arange(size), "b": np.array([size])}
    found = adaptive_weights(members, history([*rates, 0.5], [*range(size), 0]))
    assert found["a"] == pytest.approx(EXPLORED / 2)


def test_a_stream_gives_each_set_its_share():
    sets = TrainSets.mixture({"hard": make_problems(15), "easy": make_problems(40)})
    config = CurriculumConfig(train_sets={"easy": "e", "hard": "h"}, weights={"easy": 1.0, "hard": 3.0})
    stream = ProblemStream(sets, config, problems_per_batch=4, seed=0)
    for _ in range(5):
        names = [problem.id.split("/")[0] for problem in next(stream)]
        assert sorted(names) == ["easy", "hard", "hard", "hard"]
    assert len({problem.id for _ in range(10) for problem in next(stream) if problem.id.startswith("easy")}) == 10
