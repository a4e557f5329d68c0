"""What theory is asked of a recorded sweep, and constants under which it errs less."""

import dataclasses
import pathlib

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.theory import Question, forecast
from isocompute_jax.theory.forecast import EMBEDDED
from research.calibrate import Measured, calibrated, error, measured, question_of
from research.record import Sweep, read_sweep

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"


@pytest.fixture(scope="module")
def sweep():
    return read_sweep(GALLERY / "problems_64.parquet")


def test_a_sweep_says_what_theory_is_asked(sweep):
    question = question_of(sweep, points=13, runs=16)
    assert question == Question(
        budget=2**17, group_sizes=(4, 8, 16, 32, 64, 128), problems_per_batch=8, problem_set_size=64, base_lr=2.5e-4
    )
    found = measured(sweep, points=7, runs=4)
    assert found.reward.shape == (6, 7) and np.isnan(found.reward[-1]).sum() == 0
    last = [
        row["avg@4"] for row in sweep.table.to_pylist() if row["group_size"] == 4 and row["compute"] == 2**17
    ]  # fmt: skip
    assert len(last) == 5 and found.reward[0, -1] == pytest.approx(np.mean(last))
    assert 0.04 < found.pass_rates.mean() < 0.08  # the base model solves 4.8%; smoothing adds to what it never solved


@pytest.mark.parametrize("field", ["loss.kl_coef", "loss.entropy_coef"])
def test_runs_that_theory_does_not_know_are_refused(sweep, field):
    facts = dataclasses.replace(sweep.facts, shared={**sweep.facts.shared, field: 0.01})
    with pytest.raises(InputError, match="no KL or entropy term"):
        question_of(Sweep(sweep.name, sweep.table, facts), points=5, runs=2)


@pytest.mark.slow
def test_calibration_finds_its_way_back():
    """From constants that made the curves, moved, it comes nearer to curves that they made."""
    question = Question(
        budget=2**13, first_budget=512, group_sizes=(4, 16), problem_set_size=12, points=5, runs=8, base_lr=1e-3
    )
    rates = np.full(20, 0.05)
    made = Measured("made", question, rates, forecast(rates, question, EMBEDDED, repeated=True).reward)
    start = dataclasses.replace(EMBEDDED, gain=2 * EMBEDDED.gain, wording=2 * EMBEDDED.wording)
    errors = []
    found = calibrated([made], start, rounds=3, progress=lambda _, off: errors.append(off))
    assert error([made], EMBEDDED) == 0.0
    assert error([made], found) < 0.5 * errors[0]
