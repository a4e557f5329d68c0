"""The reward of training out of metrics.jsonl: which steps count for which evaluation, and how."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isocompute_jax.fit.read import TRAIN_REWARD, ReadOptions, read_curves
from isocompute_jax.fit.read.reader import training_reward
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import METRICS
from tests.fit.runs import BATCH, BUDGETS, write_run


def log(path, lines, end="\n"):
    path.write_text("\n".join(json.dumps(line) for line in lines) + end)
    return path


def line(step, compute, reward):
    return {"step": step, "compute": compute, "reward": reward, "phase_s": {"update": 0.1}, "alarms": []}


def test_every_rollout_counts_once(tmp_path):
    """Step 2 cost three times as many as step 1 (dynamic sampling): (10 x 0.1 + 30 x 0.5) / 40."""
    path = log(tmp_path / METRICS, [line(1, 10, 0.1), line(2, 40, 0.5), line(3, 50, 0.2), line(4, 60, 0.9)])
    found = training_reward(path, np.array([0.0, 2.0, 3.0]))
    np.testing.assert_allclose(found, [np.nan, 0.4, 0.2])


def test_the_last_line_of_a_step_counts_and_an_unfinished_one_does_not(tmp_path):
    lines = [line(1, 10, 0.1), line(2, 20, 0.9), line(2, 20, 0.3), line(3, 30, 0.5)]
    path = log(tmp_path / METRICS, lines, end='\n{"step": 4, "compute": 40, "rew')
    np.testing.assert_allclose(training_reward(path, np.array([2.0, 4.0])), [0.2, 0.5])


def test_a_log_without_lines(tmp_path):
    (tmp_path / METRICS).touch()
    assert np.isnan(training_reward(tmp_path / METRICS, np.array([0.0, 1.0]))).all()


def test_a_run_directory_has_it_as_a_column(tmp_path):
    run = write_run(tmp_path / "a", group_size=4, seed=0, params=(0.1, 0.8, 4e4, 1.2))
    steps = range(1, int(BUDGETS[-1]) // (4 * BATCH) + 1)
    log(run / METRICS, [line(step, step * 4 * BATCH, step % 2) for step in steps])
    (curve,), warnings = read_curves([str(tmp_path)], ReadOptions())
    found = curve.columns[TRAIN_REWARD]
    assert np.isnan(found[0]) and not warnings.texts
    np.testing.assert_allclose(found[1:], 0.5)  # every stretch has an even number of steps


def test_a_damaged_log_is_named_and_the_run_is_used(tmp_path):
    run = write_run(tmp_path / "a", group_size=4, seed=0, params=(0.1, 0.8, 4e4, 1.2))
    (run / METRICS).write_text('{"step": 1, "compute": 32, "reward": 0.5}\n{"step": \n')
    (curve,), notes = read_curves([str(tmp_path)], ReadOptions())
    assert TRAIN_REWARD not in curve.columns and str(run / METRICS) in notes.texts[0]
    with pytest.raises(InputError, match=METRICS):
        read_curves([str(tmp_path)], ReadOptions(strict=True))
