"""What an answer is worth: choices of seeds, the plain rule, intervals and scores by hand."""

import dataclasses

import numpy as np
import pytest

from benchmarks import answers, older
from benchmarks.harness import analysed
from benchmarks.recorded_sweeps import Recorded, cut, got, mean_of, recorded_sweep
from isocompute_jax.fit.configurations import group_runs
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves

COMPUTE = [0.0, 8.0, 16.0, 32.0, 64.0]
REWARDS = {(4, 0): [0.1, 0.2, 0.3, 0.2, 0.1], (4, 1): [0.1, 0.4, 0.3, 0.4, 0.1],
           (8, 0): [0.1, 0.1, 0.2, 0.3, 0.4], (8, 1): [0.1, 0.1, 0.2, 0.5, 0.6]}  # fmt: skip


@pytest.fixture
def sweep() -> Recorded:
    columns: dict[str, list[float]] = {}
    for (n, seed), rewards in REWARDS.items():
        for compute, reward in zip(COMPUTE, rewards, strict=True):
            row = {"group_size": n, "problems_per_batch": 1, "seed": seed, "compute": compute, "avg@4": reward}
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    runs, _ = read_curves(memory_table(columns), ReadOptions())
    return Recorded("by hand", "avg@4", tuple(group_runs(runs)[0]))


def test_choices_of_seeds():
    assert answers.choices((0, 1, 2, 3), every=False) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert len(answers.choices(range(5), every=True)) == 10 and len(answers.choices(range(5), every=False)) == 4
    assert answers.choices((0, 1, 2), every=False) == [(0, 1), (0, 2), (1, 2)]


def test_the_plain_rule_takes_the_highest_of_three_neighbours(sweep):
    """By hand: n = 4 has .1, .3, .3, .3, .1 and so .233, .3, .233 inside; n = 8 at 64 the mean of .4 and .5."""
    assert older.plain(sweep, (0, 1), 16.0) == (0, 16.0, pytest.approx(0.3))
    assert older.plain(sweep, (0, 1), 32 * 2**0.5, between=True) == (
        1,
        32 * 2**0.5,
        pytest.approx((0.3667 + 0.45) / 2, abs=1e-3),
    )
    assert older.plain(sweep, (0, 1), 64.0) == (1, 64.0, pytest.approx(0.45))


def test_what_was_got_lies_between_evaluations_in_log_compute(sweep):
    assert got(sweep, 1, (0, 1), 32 * 2**0.5) == pytest.approx([0.35, 0.55])
    assert got(sweep, 0, (0, 1), 4.0) == pytest.approx([0.15, 0.25])  # half-way to the first evaluation
    assert mean_of(sweep, 0, (1,), 16.0)[1] == pytest.approx([0.4, 0.3])
    assert sweep.affordable(7.0) == [] and sweep.index_of(8, 1) == 1 and sweep.seeds == (0, 1)
    assert cut(sweep.groups[0].runs[0], 16.0).compute.tolist() == [0.0, 8.0, 16.0]


def test_intervals_and_scores():
    low, high = older.rule_interval(np.array([0.4, 0.6]), 2, 0.95)  # t(1) = 12.706, sd = 0.1414
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((0.5, 12.706 * 0.1414), rel=1e-3)
    assert answers.score((0.2, 0.4), np.array([0.3])) == pytest.approx(0.2)
    assert answers.score((0.2, 0.4), np.array([0.1, 0.3])) == pytest.approx(0.2 + 40 * 0.05)
    assert answers.holds((0.2, 0.4), np.array([0.1, 0.3])).tolist() == [False, True]


def test_a_rival_is_chosen_on_one_seed_and_scored_on_the_other(sweep):
    """n = 8 is advised, to 64; seed 0 chooses n = 4 at 16 (seed 1: .3), seed 1 at 8 (seed 0: .2)."""
    told = answers.answer(analysed(sweep.told((0, 1)), "avg@4", [64.0]), 64.0)
    assert told is not None
    row = answers.Told(1, 64.0, 0.5, answer=dataclasses.replace(told, cheapest=None))
    assert answers.lead(answers.Question(sweep, (), 64.0), row) == pytest.approx(((0.6 - 0.3) + (0.4 - 0.2)) / 2)
    assert np.isnan(answers.lead(answers.Question(sweep, (0,), 64.0), row))  # one seed is left


@pytest.mark.slow
def test_the_tool_beats_the_plain_rule_on_a_recorded_sweep():
    sweep = recorded_sweep("problems_64")
    questions = [answers.Question(sweep, (0, 1, 2), sweep.end / 2**i) for i in range(6)]
    rows = answers.tool(questions)
    values = [answers.worth(question, told) for question, told in zip(questions, rows, strict=True)]
    by_rule = [answers.worth(q, answers.Told(*older.plain(sweep, q.seeds, q.budget))) for q in questions]
    assert np.mean(values) >= np.mean(by_rule) - 0.002
    assert abs(np.mean([told.reward for told in rows]) - np.mean(values)) < 0.02
