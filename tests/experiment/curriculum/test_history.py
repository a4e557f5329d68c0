"""The history of problems: by hand, through a checkpoint's text, and as a table."""

import base64
import zlib

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.experiment.problem_history import COLUMNS, History
from isocompute_jax.records.errors import InputError
from tests.experiment.curriculum.builders import make_group, make_problems

PLACES = {"a": 0, "b": 1, "c": 2}


def arrays(history: History) -> dict[str, list]:
    return {name: getattr(history, name).tolist() for name in COLUMNS}


def test_three_groups_by_hand():
    first = History.empty(3)
    second = first.updated([make_group("c", 4, [1, 0, 0, 1]), make_group("a", 4, [0, 0, 0, 0])], PLACES)
    third = second.updated([make_group("c", 9, [1, 1, 0.5, 1])], PLACES)
    assert arrays(first) == arrays(History.empty(3))  # unchanged
    assert arrays(third) == {
        "attempts": [4, 0, 8],
        "solves": [0, 0, 5],
        "last_rate": [0.0, 0.0, 0.75],
        "last_step": [4, -1, 9],
        "recent_attempts": [4.0, 0.0, 6.0],  # half of the first four, and the last four
        "recent_solves": [0.0, 0.0, 4.0],
    }
    np.testing.assert_array_equal(third.rates, [0, 0, 5 / 8])


@pytest.mark.parametrize(
    ("rate", "attempts", "expected"),
    [
        (0.0, 1, [False, False, False, False]),  # off, whatever was solved
        (0.9, 1, [True, False, True, False]),  # 9 of 10 is 0.9; nothing of nothing is none
        (0.9, 16, [False, False, True, False]),
        (1.0, 1, [False, False, False, False]),
    ],
)
def test_retired_by_hand(rate, attempts, expected):
    rest = [np.zeros(4)] * 4
    history = History(np.array([10, 100, 16, 0], np.int32), np.array([9, 89, 15, 0], np.int32), *rest)
    assert history.retired(rate=rate, attempts=attempts).tolist() == expected


@settings(max_examples=40)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 100), st.data())
def test_retired_is_the_rate_in_whole_numbers(attempts, percent, data):
    solves = [data.draw(st.integers(0, number)) for number in attempts]
    history = History(np.array(attempts, np.int32), np.array(solves, np.int32), *[np.zeros(0)] * 4)
    expected = [100 * right >= percent * number for right, number in zip(solves, attempts, strict=True)]
    assert history.retired(rate=percent / 100, attempts=1).tolist() == expected


def test_text_and_back_and_what_older_checkpoints_have():
    history = History.empty(3).updated([make_group("b", 7, [1, 0, 1])], PLACES)
    back = History.from_text(history.to_text(), 3)
    for name, kind in COLUMNS.items():
        assert getattr(back, name).dtype == kind
        assert getattr(back, name).tobytes() == getattr(history, name).tobytes()
    assert arrays(back.updated([make_group("a", 8, [1, 1])], PLACES))["attempts"] == [2, 3, 0]  # may be written to
    assert arrays(History.from_text(None, 3)) == arrays(History.empty(3))
    with pytest.raises(InputError, match="remembers 3 training problems, and the problem set has 4"):
        History.from_text(history.to_text(), 4)


def test_what_a_release_wrote_that_did_not_let_groups_fade():
    raw = b"".join(np.array(values, kind).tobytes() for values, kind in (
        ([4, 0, 8], "<i4"), ([0, 0, 5], "<i4"), ([0, 0, 0.75], "<f4"), ([4, -1, 9], "<i4")
    ))  # fmt: skip
    text = base64.b64encode(zlib.compress(raw)).decode()
    found = arrays(History.from_text(text, 3))
    assert (found["attempts"], found["last_step"]) == ([4, 0, 8], [4, -1, 9])
    assert (found["recent_attempts"], found["recent_solves"]) == ([4.0, 0.0, 8.0], [0.0, 0.0, 5.0])
    with pytest.raises(InputError, match="remembers 3 training problems, and the problem set has 2"):
        History.from_text(text, 2)  # as many bytes as six columns of two would have


def test_table(tmp_path):
    problems = make_problems(3)
    places = {problem.id: place for place, problem in enumerate(problems)}
    history = History.empty(3).updated([make_group("p1", 7, [1, 0]), make_group("p2", 7, [1, 1])], places)
    history.write(tmp_path / "history.parquet", problems, history.retired(rate=0.9, attempts=1))
    assert pyarrow.parquet.read_table(tmp_path / "history.parquet").to_pylist() == [
        {"id": "p0", "attempts": 0, "solves": 0, "last_rate": 0, "last_step": -1}
        | {"recent_attempts": 0, "recent_solves": 0, "rate": None, "retired": False},
        {"id": "p1", "attempts": 2, "solves": 1, "last_rate": 0.5, "last_step": 7}
        | {"recent_attempts": 2, "recent_solves": 1, "rate": 0.5, "retired": False},
        {"id": "p2", "attempts": 2, "solves": 2, "last_rate": 1, "last_step": 7}
        | {"recent_attempts": 2, "recent_solves": 2, "rate": 1.0, "retired": True},
    ]
