"""The answer as a decision, on simulated sweeps whose truth is known and on draws made by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions, analyse_curves
from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.engine import SweepDraws
from isocompute_jax.fit.frontier.answers import DrawnSweep, answer, answer_ranges
from tests.fit.simulated import COMPUTE, every_run, hill, rising, same, sweep

END = 1e6


def by_hand(values, *, ends=None, seeds=2, compute=(0.01, 100.0, 200.0), agree=True, step=8.0):
    """A sweep of K configurations whose draws [K, S] are the same at each compute but for the first, which is 0."""
    values = np.asarray(values, float)
    mean = np.repeat(values[..., None], len(compute), axis=2)
    mean[..., 0] = 0.0
    count = len(values)
    sizes = [2 ** (k + 1) for k in range(count)]
    return DrawnSweep(
        configurations=tuple(Configuration(f"n = {n}", n, 4, 64) for n in sizes),
        draws=SweepDraws(np.array(compute), mean, mean, np.zeros(values.shape[1])),
        ends=np.full(count, 200.0) if ends is None else np.array(ends, float),
        steps_at=np.array([step * (k + 1) for k in range(count)]),
        width=1.0,
        seeds=np.full(count, seeds),
        agree=agree,
    )


def asked(groups, budget=END, **given):
    result = analyse_curves(every_run(groups), AnalysisOptions(budgets=(budget,), **given), questions=False)
    return result.asked[0]


def test_costs_and_shares_are_those_of_the_draws():
    found = answer(by_hand([[0.5, 0.5, 0.5, 0.5], [0.48, 0.48, 0.48, 0.52]]), 200.0)
    assert found is not None
    first, second = found.choices
    assert first.configuration.group_size == 2 and first.cost == 0
    assert first.reward == pytest.approx(0.5) and second.cost == pytest.approx(0.01)
    assert (first.best_share, second.best_share) == (0.75, 0.25)
    assert found.expected_regret == pytest.approx(0.005)
    assert found.verdict == "open" and found.reason == "too noisy to tell"


@pytest.mark.parametrize(
    ("values", "verdict", "named"),
    [
        ([[0.52], [0.5]], "clear", [2]),
        ([[0.505], [0.5]], "no matter", [2, 4]),
        ([[0.505], [0.5], [0.3]], "no matter", [2, 4]),
        ([[0.5, 0.5], [0.495, 0.5], [0.3, 0.3]], "no matter", [2, 4]),
        ([[0.5, 0.5], [0.45, 0.53], [0.3, 0.3]], "open", [2]),
    ],
)
def test_verdicts(values, verdict, named):
    found = answer(by_hand(values), 200.0)
    assert found is not None
    assert (found.verdict, [each.group_size for each in found.named]) == (verdict, named)


def test_all_that_were_tried_may_be_named_and_else_three():
    near = [[0.500], [0.499], [0.498], [0.497]]
    every, three = answer(by_hand(near), 200.0), answer(by_hand([*near, [0.3]]), 200.0)
    assert every is not None and three is not None
    assert len(every.named) == 4 and len(three.named) == 3


def test_the_cheapest_has_the_fewest_steps():
    found = answer(by_hand([[0.505], [0.5]]), 200.0)
    assert found is not None and found.cheapest is not None
    assert found.cheapest.group_size == 4 and found.advised.configuration.group_size == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ends": [100.0, 100.0]}, "not run this far"),
        ({"seeds": 1}, "one seed"),
        ({"agree": False}, "the data disagree"),
    ],
)
def test_reasons(given, reason):
    sweep = by_hand([[0.5, 0.5], [0.45, 0.53]], **given)
    if "ends" in given:  # the stop is the end of the budget, beyond the data
        sweep.draws.mean[..., 1] -= 0.1
    found = answer(sweep, 200.0)
    assert found is not None and (found.verdict, found.reason) == ("open", reason)


def test_leaving_the_data_never_makes_surer():
    """The draws at the end of the data do not tell the two apart; those beyond do."""
    sweep = by_hand([[0.6, 0.6], [0.5, 0.5]], ends=[100.0, 100.0])
    sweep.draws.mean[:, :, 1] = [[0.5, 0.5], [0.45, 0.53]]
    found = answer(sweep, 200.0)
    assert found is not None and found.verdict == "open" and found.reason == "not run this far"


def test_one_configuration_has_no_rival():
    found = answer(by_hand([[0.5, 0.6]]), 200.0)
    assert found is not None and (found.verdict, found.reason) == ("open", "one configuration")


def test_a_budget_that_pays_no_step_of_a_configuration_leaves_it_out():
    found = answer(by_hand([[0.5], [0.6]], step=90.0), 100.0)
    assert found is not None and [each.configuration.group_size for each in found.choices] == [2]
    assert answer(by_hand([[0.5]], step=900.0), 100.0) is None


def test_ranges_join_neighbours_with_one_answer():
    answers = [answer(by_hand([[0.52], [0.5]]), budget) for budget in (100.0, 200.0)]
    (only,) = answer_ranges([each for each in answers if each])
    assert (only.start, only.end, only.verdict) == (100.0, 200.0, "clear")


def test_the_best_of_a_rising_sweep_is_advised_at_every_budget():
    for budget in (1e4, 1e5, 1e6):
        found = asked(sweep(rising), budget)
        truth = {n: rising(n, np.array([budget]))[0] for n in (4, 16, 64)}
        assert max(truth.values()) - truth[found.advised.configuration.group_size] < 0.01
        low, high = found.advised.interval95
        assert low - 0.01 < truth[found.advised.configuration.group_size] < high + 0.01


def test_what_falls_is_stopped_at_its_peak():
    def turning(n, compute):
        return hill(0.1, 0.5, 3e3)(compute) - 0.2 / (1 + (3e5 / np.maximum(compute, 1e-9)) ** 3)

    found = asked(sweep(turning))
    assert 2e4 < found.advised.stop < 2e5
    assert found.advised.reward == pytest.approx(turning(4, np.array([found.advised.stop]))[0], abs=0.015)


def test_a_worse_configuration_moves_nothing_clear():
    """An axiom: what is added below turns no clear answer into another n, and moves the reward by little."""

    def three(n, compute):
        return hill(0.1, {4: 0.45, 16: 0.55, 64: 0.65}[n], 2e4)(compute)

    def four(n, compute):
        return hill(0.1, 0.2, 2e4)(compute) if n == 256 else three(n, compute)

    fewer = asked(sweep(three))
    groups = sweep(three)
    more = asked([*groups, *sweep(four, sizes=(256,), draw=1)])
    assert fewer.verdict == more.verdict == "clear"
    assert fewer.advised.configuration.group_size == more.advised.configuration.group_size
    low, high = fewer.advised.interval95
    assert abs(fewer.advised.reward - more.advised.reward) < 0.1 * (high - low) + 0.001


def test_one_seed_is_rarely_clear_of_curves_that_are_the_same():
    """Row 1 of what was wrong: three identical curves of one seed each, which differ by 0.015 between seeds."""
    found = [asked(sweep(same, seeds=1, seed_sd=0.015, draw=draw)).verdict for draw in range(10)]
    assert found.count("clear") <= 1


def test_a_true_gap_is_seen_with_four_seeds():
    def gap(n, compute):
        return hill(0.1, 0.55 if n == 16 else 0.5, 2e4)(compute)

    found = [asked(sweep(gap, seeds=4, seed_sd=0.015, draw=draw)) for draw in range(6)]
    assert sum(each.verdict == "clear" for each in found) >= 4
    assert all(each.advised.configuration.group_size == 16 for each in found)


@pytest.mark.parametrize("samples", [0, 100])
def test_flat_curves_do_not_rise(samples):
    flat = sweep(lambda n, c: 0.1 + 0 * c, seeds=2, seed_sd=0.0, noise=0.01, samples=samples)
    data = analyse_curves(every_run(flat), AnalysisOptions(), questions=False).data
    assert data.trend == "no rise" and not data.fallen and data.gain[1] < 0.08


def test_final_scores_alone_give_the_best_row_without_a_forecast():
    """Row 4: of one evaluation each, the expected reward is not above what was measured by more than noise."""
    groups = sweep(same, seeds=3, compute=np.array([0.0, END]), seed_sd=0.01)
    result = analyse_curves(every_run(groups), AnalysisOptions(budgets=(8 * END,)), questions=False)
    best = result.asked[0].advised
    measured = max(np.mean([run.columns["avg@4"][-1] for run in group.runs]) for group in groups)
    assert not result.data.curves and best.reward == pytest.approx(measured, abs=0.004)


def test_next_runs_lower_the_expected_loss():
    groups = sweep(same, seeds=2, seed_sd=0.02)
    result = analyse_curves(every_run(groups), AnalysisOptions(next=3), questions=False)
    assert 1 <= sum(each.seeds for each in result.next_runs) <= 3
    assert all(each.regret_after < each.regret_before for each in result.next_runs)


def test_switches_and_sizes_follow_the_truth():
    result = analyse_curves(every_run(sweep(rising, seeds=4)), AnalysisOptions(), questions=False)
    assert result.optimal is not None
    assert result.optimal.group_size[0] == 4 and result.optimal.group_size[-1] == 64
    truth = np.geomspace(2e3, 1e6, 4000)
    curves = np.array([rising(n, truth) for n in (4, 16, 64)]).argmax(axis=0)
    for switch in result.switches:
        k = (4, 16, 64).index(switch.after.group_size)
        true = truth[np.flatnonzero(curves == k)[0]] if (curves == k).any() else np.nan
        low, high = switch.interval95
        assert not np.isfinite(true) or low / 1.5 < true < high * 1.5


def test_every_answer_is_of_the_same_draws():
    """Two numbers that appear in two places are one number."""
    result = analyse_curves(every_run(sweep(rising)), AnalysisOptions(budgets=(END,)), questions=False)
    last = next(each for each in result.grid if each.budget == pytest.approx(END))
    assert dataclasses.replace(last, budget=END) == dataclasses.replace(result.asked[0], budget=END)
    assert COMPUTE[-1] == pytest.approx(result.data.span[1])
