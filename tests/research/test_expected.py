"""Theory beside recorded sweeps: distances are in octaves, and what is said of its forecasts holds."""

import functools
import pathlib

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.theory.forecast import EMBEDDED, TRIED, WITHIN_AN_OCTAVE, asked, read_forecast
from research.findings.closing import SEEN, Agreement, agreement
from research.record import read_sweep

pytestmark = pytest.mark.usefixtures("few_replicates")

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"


def test_a_forecast_of_another_sweep_is_refused():
    sweep = read_sweep(GALLERY / "problems_64.parquet")
    filed = read_forecast(GALLERY / "predicted" / "problems_16.json")
    with pytest.raises(InputError, match="of another sweep: problem_set_size is 16"):
        agreement(sweep, filed)


def test_distances_are_in_octaves_and_beyond_the_interval():
    found = Agreement(*np.array([[1.0, 2, 3], [2, 5, 7], [3, 3, 3], [2, 2, 2], [4, 4, 4]]))
    assert found.apart.tolist() == [1, 2, 4] and found.beyond.tolist() == [0, 1, 3]


def test_forecasts_in_the_gallery_are_those_of_the_present_constants():
    for path in (GALLERY / "predicted").glob("*.json"):
        assert read_forecast(path).constants == EMBEDDED, path.name


RECORDED = {path.stem for path in GALLERY.glob("*.parquet")}
FORECAST = sorted(RECORDED & {path.stem for path in (GALLERY / "predicted").glob("*.json")})


@functools.cache
def agreement_of(name):
    return agreement(read_sweep(GALLERY / f"{name}.parquet"), read_forecast(GALLERY / "predicted" / f"{name}.json"))


@pytest.mark.parametrize("name", FORECAST)
def test_theory_is_within_an_octave_of_every_sweep(name):
    """On average over budgets, and at two of three by itself; all but three of them were forecast before they ran."""
    found = agreement_of(name)
    assert found.apart.mean() <= 1 and np.mean(found.apart <= 1) >= 2 / 3


def test_six_sweeps_or_more_were_forecast_unseen():
    assert len(set(FORECAST) - set(SEEN)) >= 6


def test_the_measured_error_that_the_command_tells_is_that_of_the_gallery():
    """To 5 points in 100, so that one more sweep need not change it; `WITHIN_AN_OCTAVE` is what to update."""
    apart = np.concatenate([agreement_of(name).apart for name in FORECAST if name not in SEEN])
    assert np.mean(apart <= 1) == pytest.approx(WITHIN_AN_OCTAVE, abs=0.05)


def test_what_was_tried_is_what_was_forecast():
    """Every recorded forecast is within `TRIED`, and the widest of them are its ends."""
    questions = [read_forecast(GALLERY / "predicted" / f"{name}.json").question for name in FORECAST]
    spans = [asked(question, question.problem_set_size) for question in questions]
    for name, (least, most) in TRIED.items():
        found = min(span[name][0] for span in spans), max(span[name][1] for span in spans)
        assert (0 if name == "budget" else found[0], found[1]) == pytest.approx((least, most)), name
