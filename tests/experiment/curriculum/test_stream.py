"""The stream: grain's own order by default, each problem once an epoch and a step, orders, stages, mixtures."""

import collections
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.experiment.config import CurriculumConfig
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.problem_stream import (
    EXPLORED,
    RECENT,
    ProblemStream,
    TrainSets,
    adaptive_weights,
    share_out,
    stage_of,
    weights_of,
)
from isocompute_jax.records.errors import InputError
from tests.experiment.curriculum.builders import batches_of_grain, make_group, make_problems, make_stream, places


def solved(stream: ProblemStream, known: dict[int, tuple[int, int]]) -> History:
    """A history in which place -> (solves, attempts)."""
    history = History.empty(len(stream.places))
    ids = list(stream.places)
    groups = [make_group(ids[place], 0, [1] * right + [0] * (n - right)) for place, (right, n) in known.items()]
    return history.updated(groups, stream.places) if groups else history


# --- the default


@pytest.mark.parametrize(("number", "size", "seed"), [(7, 3, 0), (8, 2, 1)])
def test_the_default_draws_what_grain_draws_and_continues_its_checkpoints(number, size, seed):
    """Over epochs with and without a remainder."""
    theirs, ours, resumed = batches_of_grain(number, size, seed), make_stream(number, size=size, seed=seed), []
    for _ in range(2 * number // size + 2):
        resumed.append(make_stream(number, size=size, seed=seed))
        resumed[-1].set_state(json.loads(json.dumps(theirs.get_state())))  # as an earlier release's checkpoint has it
        expected = next(theirs)
        for stream in (ours, *resumed):
            assert places(stream, next(stream)) == expected


CONFIGS = [
    CurriculumConfig(),
    CurriculumConfig(retire_rate=0.5),
    CurriculumConfig(retire_rate=0.5, retire_for="epoch"),
    CurriculumConfig(order="hard_to_easy", retire_rate=0.5),
    CurriculumConfig(order="easy_to_hard", pools=(0.3,), stages=(0.4, 0.6)),
    CurriculumConfig(train_sets={"a": "a", "b": "b"}, weighting="adaptive"),
]


def make_any(config: CurriculumConfig) -> ProblemStream:
    rates = [0.0, 0.1, 0.5, 0.2, 1.0, 0.9, 0.0, 0.4]
    sets = TrainSets.of(make_problems(8, rates=rates))
    if config.train_sets:
        sets = TrainSets.mixture({"a": make_problems(5), "b": make_problems(3)})
    return ProblemStream(sets, config, problems_per_batch=2, seed=1)


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
@settings(max_examples=8)
@given(data=st.data())
def test_steps_repeat_nothing_and_a_state_continues_exactly(config, data):
    """Draws of any sizes, refills among them, under a history that grows."""
    stream, twin = make_any(config), None
    history = History.empty(8)
    for step in range(6):
        taken: list[int] = []
        for size in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
            wanted = min(size, stream.available(history, taken))
            drawn = stream.draw(size, history=history, taken=taken, spent=step / 6)
            if twin is not None:
                assert twin.draw(size, history=history, taken=taken, spent=step / 6) == drawn
            assert len(drawn) == wanted
            taken += places(stream, drawn)
        assert len(set(taken)) == len(taken)
        if config.retire_for == "run":
            assert not history.retired(rate=config.retire_rate, attempts=1)[taken].any()
        rewards = [data.draw(st.integers(0, 2)) for _ in taken]
        ids = [stream.sets.problems[place].id for place in taken]
        groups = [make_group(i, step, [1] * r + [0] * (2 - r)) for i, r in zip(ids, rewards, strict=True)]
        history = history.updated(groups, stream.places) if groups else history
        twin = make_any(config)
        twin.set_state(json.loads(json.dumps(stream.get_state())))


def test_an_epoch_that_is_drawn_in_refills_has_every_problem_once():
    """Refills straddle epochs; who had its turn in a step that has it already is drawn first in the next."""
    stream = make_stream(7, size=2)
    count = collections.Counter()
    for _ in range(14):
        taken: list[int] = []
        for size in (2, 2, 1):
            taken += places(stream, stream.draw(size, history=History.empty(7), taken=taken))
        assert len(set(taken)) == 5
        count.update(taken)
    # 70 draws of 7 problems in 10 epochs or 11; a first draw leaves at most one problem out of each.
    assert sum(count.values()) == 70
    assert all(8 <= number <= 12 for number in count.values())


def test_what_was_out_is_drawn_again_first_twice_where_two_batches_had_it():
    stream = make_stream(7, size=3)
    state = stream.get_state(["p4", "p2", "p4", "p1"])
    again = make_stream(7, size=3)
    again.set_state(state)
    assert [problem.id for problem in next(again)] == ["p4", "p2", "p1"]
    assert [problem.id for problem in next(again)] == [
        "p4",
        *[problem.id for problem in make_stream(7, size=2).draw(2, history=History.empty(7))],
    ]


# --- retirement


def test_retired_problems_are_passed_over_for_good():
    stream = make_stream(6, CurriculumConfig(retire_rate=0.9, retire_attempts=4), size=2)
    history = solved(stream, {0: (4, 4), 1: (3, 4), 2: (2, 2), 3: (10, 11)})  # 0 and 3 are retired
    assert stream.available(history) == 4
    count = collections.Counter(place for _ in range(12) for place in places(stream, stream.draw(2, history=history)))
    assert count == {1: 6, 2: 6, 4: 6, 5: 6}
    rest = solved(stream, {place: (4, 4) for place in range(5)})
    assert places(stream, stream.draw(2, history=rest)) == [5]  # what there is
    assert stream.draw(2, history=solved(stream, {place: (4, 4) for place in range(6)})) == []


def test_retired_for_an_epoch_is_every_other_one():
    stream = make_stream(4, CurriculumConfig(retire_rate=0.9, retire_for="epoch"), size=1)
    history = solved(stream, {2: (4, 4)})
    drawn = [places(stream, stream.draw(1, history=history))[0] for _ in range(14)]
    # Epochs of 3, 4, 3 and 4 problems.
    assert [sorted(part) for part in (drawn[:3], drawn[3:7], drawn[7:10], drawn[10:])] == [
        [0, 1, 3], [0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]
    ]  # fmt: skip
    assert stream.available(history) == 4
    everything = solved(stream, {place: (4, 4) for place in range(4)})
    assert len(stream.draw(4, history=everything)) == 4  # an epoch without any is passed over


# --- orders, pools, stages

RATES = [0.5, 0.0, 0.25, 0.0, 1.0, 0.5, 0.75]


@pytest.mark.parametrize(
    ("order", "pools", "expected"),
    [
        ("easy_to_hard", (), [1.0, 0.75, 0.5, 0.5, 0.25, 0.0, 0.0]),
        ("hard_to_easy", (), [0.0, 0.0, 0.25, 0.5, 0.5, 0.75, 1.0]),
        ("hard_to_easy", (0.25, 0.5), [{0.0, 0.25}] * 3 + [{0.5}] * 2 + [{0.75, 1.0}] * 2),
    ],
)
def test_orders_within_every_epoch(order, pools, expected):
    stream = make_stream(7, CurriculumConfig(order=order, pools=pools), size=1, rates=RATES)
    epochs = [[next(stream)[0] for _ in range(7)] for _ in range(6)]
    for epoch in epochs:
        assert len({problem.id for problem in epoch}) == 7
        rates = [problem.measured["avg@16"] for problem in epoch]
        assert all(
            rate in want if isinstance(want, set) else rate == want for rate, want in zip(rates, expected, strict=True)
        )
    assert len({tuple(problem.id for problem in epoch) for epoch in epochs}) > 1  # equals are shuffled anew


def test_stages_train_on_one_pool_after_the_other():
    config = CurriculumConfig(order="easy_to_hard", pools=(0.0, 0.5), stages=(0.25, 0.25, 0.5))
    stream = make_stream(7, config, size=2, rates=RATES)
    nothing = History.empty(7)
    rates = [
        {problem.measured["avg@16"] for problem in stream.draw(2, history=nothing, spent=spent)}
        for spent in (0.0, 0.24, 0.25, 0.49, 0.5, 0.99)
    ]
    assert rates[0] | rates[1] == {0.75, 1.0}
    assert rates[2] | rates[3] == {0.25, 0.5}
    assert rates[4] == rates[5] == {0.0}
    # A pool that is used up gives way to the next, and the last to those before it.
    config = CurriculumConfig(order="easy_to_hard", pools=(0.0, 0.5), stages=(0.25, 0.25, 0.5), retire_rate=1.0)
    stream = make_stream(7, config, size=2, rates=RATES)
    easy = solved(stream, {4: (1, 1), 6: (1, 1)})
    assert set(places(stream, stream.draw(2, history=easy, spent=0.0))) <= {0, 2, 5}
    hard = solved(stream, {1: (1, 1), 3: (1, 1)})
    assert set(places(stream, stream.draw(2, history=hard, spent=0.9))) <= {0, 2, 5}


def test_stage_of_shares():
    """A third of thirds: rounding must not keep a stage a step too long."""
    assert [stage_of(spent, (1 / 3, 1 / 3, 1 / 3)) for spent in (0, 0.33, 1 / 3, 2 / 3 - 1e-15, 2 / 3, 1)] == [
        0,
        0,
        1,
        2,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("config", "rates", "message"),
    [
        (CurriculumConfig(order="easy_to_hard"), None, r"rate_column = 'avg@16': problem 'p0' was not measured so"),
        (CurriculumConfig(order="easy_to_hard", rate_column="avg@4"), RATES, r"it has: avg@16\): curate the set"),
        (
            CurriculumConfig(order="easy_to_hard", pools=(0.3, 0.4)),
            RATES,
            r"pools = \(0.3, 0.4\): no training problem has a rate above 0.3 up to 0.4; the rates lie between 0 and 1",
        ),
    ],
)
def test_what_an_order_needs(config, rates, message):
    with pytest.raises(InputError, match=message):
        make_stream(7, config, rates=rates)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pools": (0.5, 0.2), "order": "easy_to_hard"}, "pools = .*: give ascending rates"),
        ({"pools": (0.5,)}, "pools need an order: set .*order to easy_to_hard or hard_to_easy"),
        ({"pools": (0.5,), "stages": (1.0,), "order": "easy_to_hard"}, "stages has 1 shares for 2 pools"),
        ({"pools": (0.5,), "stages": (0.5, 0.6), "order": "easy_to_hard"}, "must be above 0 and sum to 1"),
        ({"train_sets": {"a": "a"}}, "name two sets or more; one is config.train_set"),
        ({"train_sets": {"a": "a", "b": "b"}, "weights": {"a": 1.0}}, "name the same sets, or give no weights"),
        ({"train_sets": {"a": "a", "b": "b"}, "weights": {"a": 1.0, "b": 0.0}}, "weights = {.*} must be above 0"),
        (
            {"train_sets": {"a": "a", "b": "b"}, "weights": {"a": 1.0, "b": 1.0}, "weighting": "adaptive"},
            "are not used by .*weighting = 'adaptive'",
        ),
        ({"retire_rate": 1.5}, "retire_rate = 1.5 must be between 0 and 1"),
    ],
)
def test_contradictions(fields, message):
    with pytest.raises(InputError, match=message):
        CurriculumConfig(**fields)


def test_too_few_problems():
    with pytest.raises(InputError, match="problems_per_batch = 8, but the training set has only 7 problems"):
        make_stream(7, size=8)


def test_places_are_those_of_the_problems():
    stream = make_any(CONFIGS[-1])
    assert [stream.sets.problems[place].id for place in stream.places.values()] == list(stream.places)
    np.testing.assert_array_equal(stream.sets.members["b"], [5, 6, 7])
    assert list(stream.places)[5:] == ["b/p0", "b/p1", "b/p2"]


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
    return History(zeros, zeros, np.array(last_rate, np.float32), np.array(last_step, np.int32), zeros, zeros)


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


def test_a_position_in_other_pools_is_refused():
    """Of a fork with stages where the run that it begins from had none, and the other way round."""
    staged = make_any(CurriculumConfig(order="easy_to_hard", pools=(0.5,), stages=(0.5, 0.5)))
    plain = make_any(CurriculumConfig())
    for ours, theirs in ((staged, plain), (plain, staged)):
        with pytest.raises(InputError, match=r"config.curriculum.stages: the position in the data is of pools .* fork"):
            ours.set_state(theirs.get_state())
