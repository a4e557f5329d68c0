"""The top quarter of simulated sweeps, predicted from the rest."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit.held_out import held_out_quarter
from isocompute_jax.fit.options import AnalysisOptions
from tests.fit.questions.sweeps import COMPUTE, made, rising


@pytest.fixture(scope="module")
def found():
    runs = made(lambda n, b, c: rising(n, c, best=64), sizes=(4, 8, 16, 32, 64))
    found = held_out_quarter(runs, AnalysisOptions())
    assert found is not None
    return found


def test_the_last_quarter_of_log_compute_is_predicted(found):
    assert found.cut == pytest.approx(1_000 * 64**0.75)
    assert (found.budgets > found.cut).all() and found.budgets[-1] == COMPUTE[-1]
    assert found.predicted.shape == found.measured.shape == found.known.shape == (5, 12)


def test_what_rises_on_is_predicted_with_its_interval(found):
    """Each configuration is stopped at its end, and its truth is above what it had at the cut."""
    assert found.known[:, -1].all() and (found.predicted[:, -1] > found.predicted[:, 0]).all()
    truth = np.array([rising(each.group_size, COMPUTE[-1:], best=64)[0] for each in found.configurations])
    assert np.abs(found.predicted[:, -1] - truth).max() < 0.04
    assert found.inside.sum() >= 0.8 * found.known.sum()
    assert (np.abs(found.octaves) <= 1).all()


def test_few_evaluations_on_a_side_predict_nothing():
    runs = made(lambda n, b, c: rising(n, c, best=16), seeds=1)
    assert held_out_quarter([], AnalysisOptions()) is None
    assert held_out_quarter([_every(each, 3) for each in runs], AnalysisOptions()) is None


def _every(one, step):
    """Fewer evaluations of a run."""
    columns = {name: values[::step] for name, values in one.columns.items()}
    return dataclasses.replace(one, compute=one.compute[::step], columns=columns)
