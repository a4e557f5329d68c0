"""Counting the runs that settle n*: what is told, what is paid, and when it ends."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import settling
from benchmarks.hidden_sweeps import BUDGETS, SOURCES, HiddenSweep, Run, hidden_sweep
from benchmarks.settling import Look, Rules, play
from isocompute_jax.fit.further_runs import Candidate

COMPUTE = np.array([0.0, 100.0, 200.0, 400.0, 800.0])
RULES = Rules(start=8.0, runs=2, immaterial=0.003, most=2.0)


class Found:
    """An analysis of which nothing is asked."""

    fits = ()


def sweep(seeds=3) -> HiddenSweep:
    """n = 4, 8, 16, of which 8 is the best at C = 800."""
    top = (0.5, 0.6, 0.55)
    runs = tuple(tuple(Run(COMPUTE, a * COMPUTE / 800) for _ in range(seeds)) for a in top)
    return HiddenSweep("hill", (4, 8, 16), 8, runs, 800.0, np.array(top))


def test_further_runs_are_new_seeds_and_then_the_shortest_ones():
    hidden = sweep(seeds=2)
    assert hidden.told_next({}, Candidate(1, 100.0, 1)) == {(1, 0): 100.0}
    assert hidden.told_next({(1, 0): 100.0}, Candidate(1, 400.0, 1)) == {(1, 0): 100.0, (1, 1): 400.0}
    told = {(1, 0): 400.0, (1, 1): 400.0}
    assert hidden.told_next({(1, 0): 100.0, (1, 1): 400.0}, Candidate(1, 400.0, 1)) == told
    assert hidden.told_next(told, Candidate(1, 400.0, 1)) is None
    assert hidden.told_next(told, Candidate(1, 800.0, 2)) == {(1, 0): 800.0, (1, 1): 800.0}
    assert hidden.told_next({(0, 0): 800.0}, Candidate(0, 800.0, 2)) is None


def test_only_what_was_told_is_in_the_table():
    table = sweep().table({(0, 0): 200.0, (2, 1): 800.0})
    assert table["group_size"].tolist() == [4] * 3 + [16] * 5
    assert table["seed"].tolist() == [0] * 3 + [1] * 5
    np.testing.assert_allclose(table["avg@4"][:3], 0.5 * COMPUTE[:3] / 800)


@pytest.mark.parametrize(
    ("way", "intervals", "cost", "runs"),
    [
        ("grid", [(4, 16), (8, 8)], 6.0, 6),  # two rounds of three runs up to C
        ("--next", [(2, 8), (4, 8)], 3 / 8 + 2.0, 5),  # the start, and both n of the interval, as nothing is proposed
        ("interval", [(2, 8), (4, 8)], 3 / 8 + 2.0, 5),
        ("--next", [(8, 16)], 3 / 8, 3),
    ],
)
def test_runs_are_added_until_the_interval_spans_an_octave(monkeypatch, way, intervals, cost, runs):
    looks = iter([Look(Found, None, [0, 1, 2], 1, each, 0.01) for each in intervals])  # pyright: ignore
    monkeypatch.setattr(settling, "look", lambda *_: next(looks))
    monkeypatch.setattr(settling, "data_end", lambda _: 800.0)
    monkeypatch.setattr(settling, "evaluations", lambda *_: None)
    monkeypatch.setattr(settling, "propose", lambda *_, count: (0.01, []))
    outcome = play(sweep(), way, RULES, 0)
    assert (outcome.ended, outcome.runs) == ("settled", runs)
    assert outcome.cost == pytest.approx(cost)
    assert outcome.held and outcome.near and outcome.regret == 0.0


@pytest.mark.parametrize(("regret", "ended", "rounds"), [(0.001, "immaterial", 1), (0.01, "spent", 2)])
def test_it_ends_where_nothing_is_lost_and_where_too_much_is_spent(monkeypatch, regret, ended, rounds):
    seen = Look(None, None, [0, 1, 2], 0, (4, 16), regret)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(settling, "look", lambda *_: seen)
    outcome = play(sweep(), "grid", RULES, 0)
    assert (outcome.ended, outcome.runs) == (ended, 3 * rounds)
    assert outcome.held and outcome.near and outcome.regret == pytest.approx(0.1)


@pytest.mark.parametrize("source", ["hill", "like the recorded", f"recorded, C = {BUDGETS[1]:,}"])
def test_hidden_sweeps_end_at_their_budget_with_the_truth_that_is_theirs(source):
    hidden = hidden_sweep(source, 0)
    assert source in SOURCES and hidden.truth.shape == (len(hidden.group_sizes),)
    for runs, truth in zip(hidden.runs, hidden.truth, strict=True):
        ends = [run.reward[-1] for run in runs]
        assert all(0.8 * hidden.budget <= run.compute[-1] <= 1.02 * hidden.budget for run in runs)
        assert np.mean(ends) == pytest.approx(truth, abs=0.03)


@pytest.mark.slow
def test_one_sweep_is_played_to_its_end():
    outcome = play(hidden_sweep("hill", 0), "--next", RULES, 0)
    assert outcome.ended in ("settled", "immaterial") and outcome.cost < 5.0
    assert outcome.near and outcome.regret < 0.02
