"""Rewards outside of the range: few are left out with a notice, many mean that the file has another range."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import EVAL
from tests.fit.read.tables import HEADER, read, write
from tests.fit.read.test_reader import FACTS, STEPS, evaluation, write_directory


def test_reward_range(tmp_path):
    good = [f"a,8,4,0,{i},{i}" for i in range(5, 25)]
    path = write(tmp_path / "t.csv", HEADER, "a,8,4,0,1,-1", "a,8,4,0,2,7.5", "a,8,4,0,3,-2", "a,8,4,0,4,inf", *good)
    (run,), warnings = read(path, reward_range=(-1.0, float("inf")))
    np.testing.assert_array_equal(run.columns["avg@4"], [-1, 7.5, *range(5, 25)])
    (told,) = warnings
    assert "avg@4 is '-2', not a number in [-1, inf);" in told and "avg@4 is 'inf', not a number in [-1, inf)." in told


@pytest.mark.parametrize(
    ("count", "reward", "guess"),
    [(1, 87.5, "0,100"), (1, -0.5, "-1,1"), (1, -55.0, "-100,100"), (5, 1234.0, "LEAST,MOST")],
)
def test_rewards_of_another_range_are_refused(tmp_path, count, reward, guess):
    """Above 5% of the rows that have a number: 1 of 19 is too many, 1 of 20 is a notice."""
    good = [f"a,8,4,0,{i},0.5" for i in range(18 * count)]
    odd = [f"a,8,4,0,{1000 + i},{reward}" for i in range(count)]
    path = write(tmp_path / "t.csv", HEADER, *good, *odd, "a,8,4,0,2000,text")
    with pytest.raises(InputError) as error:
        read(path)
    told = str(error.value)
    assert told.startswith(f"--reward_range=0,1: {path}: {count} of {19 * count} values of avg@4 lie outside (5.3%")
    assert f"--reward_range={guess}" in told and f"{reward:g}" in told
    write(path, HEADER, *good, *odd, *(f"a,8,4,0,{1500 + i},0.5" for i in range(count)))
    (run,), warnings = read(path)
    assert len(run.compute) == 19 * count and warnings[0].startswith(f"{count} of {20 * count} rows w")
    low, high = (-1e5, 1e5) if guess == "LEAST,MOST" else map(float, guess.split(","))
    assert read(path, reward_range=(low, high))[1] == []


def test_a_run_in_percent_among_others_is_refused(tmp_path):
    for i in range(30):
        write_directory(tmp_path / f"r{i}", facts=FACTS | {"seed": i})
    lines = [json.dumps(evaluation(step) | {"avg@4": 10 + 10 * step}) for step in STEPS]
    log = write_directory(tmp_path / "percent", lines, facts=FACTS | {"seed": 30}) / EVAL
    with pytest.raises(InputError, match=rf"--reward_range=0,1: {log}: 5 of 5 values"):
        read(tmp_path)


def test_rounding_scales_with_the_range(tmp_path):
    path = write(tmp_path / "t.csv", HEADER, "a,8,4,0,1,100.00000001", "a,8,4,0,2,-1e-8")
    (run,), warnings = read(path, reward_range=(0.0, 100.0))
    assert run.columns["avg@4"].tolist() == [100, 0] and warnings == []
