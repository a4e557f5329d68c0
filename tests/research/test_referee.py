"""docs/referee.md from the gallery: verdicts by hand on small numbers, statements by a plain loop, and the page."""

import itertools
import pathlib
import re

import numpy as np
import pyarrow as pa
import pytest

from research import referee
from research.findings.chapter import Gallery
from research.findings.statistics import Estimate
from research.record import Facts, Seeds, Sweep
from research.referee import claims

ROOT = pathlib.Path(__file__).parents[2]
GALLERY = Gallery(ROOT / "gallery")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def test_a_statement_holds_or_fails_with_its_whole_interval():
    above, below, across = Estimate(3, 2, 4, 5), Estimate(-3, -4, -2, 5), Estimate(1, -1, 3, 5)
    assert [claims.side(one, 1.0) for one in (above, below, across)] == ["holds", "fails", "not settled"]
    assert claims.side(above, 2.0) == "not settled" and claims.negative(above) == below
    assert claims.both("holds", "holds") == "holds" and claims.both("holds", "not settled") == "not settled"
    assert claims.both("not settled", "fails") == "fails"


def test_rewards_at_equal_steps_lie_between_evaluations_by_log_c():
    seeds = Seeds(np.array([64.0, 256.0, 1024.0]), np.array([[[0.1], [0.3], [0.5]]]))
    np.testing.assert_allclose(claims.at_steps(seeds, 2), [[0.2, 0.3, 0.4]])  # C = 128, 256, 512


def test_fluctuations_that_go_as_one_over_n_have_the_power_minus_one():
    """Forty seeds of a level curve with noise of variance 1e-2 / n; every problem is solved always or never."""
    random, rows = np.random.default_rng(0), []
    for n, seed, step in itertools.product((4, 8, 16, 32, 64), range(40), range(48, 601, 12)):
        rows.append({"group_size": n, "seed": seed, "compute": step * n, "problems_per_batch": 1, "samples": 8})
        rows[-1] |= {"eval_set": "validation", "solve_counts": [0, 8], "avg@4": 0.5 + random.normal() / 10 / n**0.5}
    found = claims.fluctuations(Sweep("s", pa.Table.from_pylist(rows), Facts({}, {}, {})), draws=50)
    assert found.value == pytest.approx(-1, abs=0.05) and found.low < found.value < found.high
    assert found.seeds == 40


def test_rates_are_those_of_the_sweeps():
    """8 problems a batch, 2.5e-4 at 64 rollouts a step: n = 32 has four times as many."""
    assert [claims.rates_of(GALLERY, name)[32] for name in claims.RATES] == [1.25e-4, 2.5e-4, 5e-4, 1e-3]


@pytest.mark.slow
def test_the_rate_of_an_n_is_chosen_on_the_other_seeds():
    rewards, rates = claims.tuned(claims.recorded(GALLERY))
    values = [GALLERY.curves(name)[32].values[:, :, 0] for name in claims.RATES]
    for seed in range(5):
        others = [[each[other] for other in range(5) if other != seed] for each in values]
        best = max(
            (np.mean([row[place] for row in rows]), -number, -place)
            for number, rows in enumerate(others)
            for place in range(15)
        )
        assert rewards[32][seed, -1] == values[-best[1]][seed, -best[2]]
    assert rates[4][-1] == (1.25e-4, True) and rates[32][0] == (5e-4, False)


@pytest.mark.slow
def test_the_page_is_what_the_gallery_says(tmp_path):
    """Words are the same; numbers too, but for the last digit that another processor may round otherwise."""
    found = claims.all_claims(GALLERY)
    assert [claim.verdict for claim in found] == ["not settled", "not settled", "fails", "fails", "not settled"]
    built, kept = referee.build(ROOT / "gallery", tmp_path).read_text(), (ROOT / "docs/referee.md").read_text()
    assert NUMBER.sub("#", built) == NUMBER.sub("#", kept)
    numbers = [[float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (built, kept)]
    np.testing.assert_allclose(*numbers, rtol=0.06, atol=0.11)
