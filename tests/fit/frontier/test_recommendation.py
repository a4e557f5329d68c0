"""Recommendations: worked by hand inside, beyond and below the data."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from isocompute_jax.fit.curves.falls import Fall
from isocompute_jax.fit.frontier.allocation import fit_allocation
from isocompute_jax.fit.frontier.recommendation import Contest, LearningRate, allocate
from isocompute_jax.fit.results import Configuration, CurveFit

WINDOW = (1e3, 1e6)
SIZES = (8, 32, 128)
CONFIGURATIONS = [Configuration(f"n = {n}", n, 32, 6000) for n in SIZES]
LEVELS = ((0.60, 2e4), (0.80, 6e4), (0.90, 4e5))  # the last is not on the frontier before 1e6
FITS = [
    CurveFit("hill", {"floor": 0.1, "asymptote": a, "midpoint": mid, "steepness": 1.0}, WINDOW) for a, mid in LEVELS
]
BUDGETS = np.geomspace(1e4, 1e6, 40)


@functools.cache
def rising():
    return fit_allocation(BUDGETS, 2 ** (6.09 / (1 + np.exp(-4.75 * (np.log10(BUDGETS) - 5.0))) + 2.0), window=1)


@functools.cache
def no_law():
    return fit_allocation(BUDGETS, np.full(40, 32.0), window=1)


def ask(budget: float, *, fits=FITS, law=rising, configurations=CONFIGURATIONS, **more):
    known = {"allocation": law(), "learning_rate": LearningRate()} | more
    return allocate(budget, Contest(fits=fits, configurations=configurations, **known))


def test_inside_the_data_the_frontier_decides():
    found = ask(1.5e5)
    assert (found.run, found.group_size, found.problems_per_batch) == ("n = 32", 32, 32)
    assert found.num_steps == round(1.5e5 / 1024) == 146
    assert found.learning_rate == pytest.approx(1e-6)  # 1,024 rollouts per step
    assert found.reward == pytest.approx(0.1 + 0.7 / (1 + 6e4 / 1.5e5)) and found.beyond == pytest.approx(0.15)
    assert found.status == "ok" and "highest fitted curve" in found.reasons[0]


def test_the_learning_rate_scales_with_the_square_root():
    assert ask(2e4).run == "n = 8"
    assert ask(2e4).learning_rate == pytest.approx(5e-7)  # 256 rollouts per step: a quarter, so half the rate
    assert LearningRate(2e-6, 512.0, 1.0, "here")(1024.0) == pytest.approx(4e-6)
    assert any("square root" in reason and "the paper's" in reason for reason in ask(2e4).reasons)
    assert "does not depend" in LearningRate(2e-6, 512.0, 0.0, "here").reason()


def test_beyond_the_data_curves_are_held_where_they_are_carried_to():
    """At twice the data n = 32 is at 0.1 + 0.7 / (1 + 6e4 / 2e6), above n = 128 at 0.1 + 0.8 / (1 + 4e5 / 2e6)."""
    assert rising().status == "ok"
    found = ask(4e6)
    assert found.group_size == 32 and found.law_group_size == pytest.approx(float(rising().optimal_group_size(4e6)))
    assert found.reward == pytest.approx(0.1 + 0.7 / (1 + 6e4 / 2e6)) == ask(1e9).reward
    assert found.beyond == pytest.approx(4.0) and found.status == "warning"
    assert f"The law of n*(C) gives {found.law_group_size:.3g}" in found.reasons[0]
    assert "carried on from 1e+06" in found.reasons[0]
    assert any("4 times the largest compute" in reason for reason in found.reasons)
    assert any("asymptote is not identified" in reason for reason in found.reasons)
    assert any("far beyond" in reason for reason in ask(5e6).reasons)
    unlawful = ask(4e6, law=no_law)
    assert unlawful.run == found.run and np.isnan(unlawful.law_group_size) and "law" not in unlawful.reasons[0]


def test_who_was_run_for_less_stays_a_candidate():
    """n = 8 was stopped at a twentieth of the rest, where it is above all that n = 128 has come to since."""
    fits = [dataclasses.replace(FITS[0], window=(1e3, 5e4)), dataclasses.replace(FITS[2], window=(1e4, 1e6))]
    fits[1] = dataclasses.replace(fits[1], params={**fits[1].params, "asymptote": 0.55})
    some = [CONFIGURATIONS[0], CONFIGURATIONS[2]]
    asked = {"law": no_law, "configurations": some}
    found = [ask(budget, fits=fits, **asked) for budget in (4e4, 1e6, 1e7)]
    assert [each.run for each in found] == ["n = 8"] * 3
    assert found[1].reward == found[2].reward == pytest.approx(0.1 + 0.5 / (1 + 2e4 / 1e5)) and not found[1].seen
    assert [(u.run, u.first, u.last, u.open) for u in found[2].unseen] == [("n = 128", 1e4, 1e6, True)]
    assert ask(1e6, fits=fits[::-1], law=no_law, configurations=some[::-1]).run == "n = 8"
    higher = [fits[0], FITS[2]]
    found = ask(1e6, fits=higher, **asked)
    assert found.run == "n = 128" and [u.run for u in found.unseen] == ["n = 8"]


def test_below_the_data_the_first_leader_is_named_and_doubted():
    found = ask(300.0)
    assert found.group_size == 8 and found.status == "warning"
    assert found.num_steps == 1
    assert any("below the first evaluation" in reason for reason in found.reasons)


def test_what_the_data_do_not_say_is_left_open():
    unknown = [dataclasses.replace(c, problems_per_batch=0) for c in CONFIGURATIONS]
    found = ask(1.5e5, configurations=unknown)
    assert (found.problems_per_batch, found.num_steps, found.learning_rate) == (None, None, None)
    assert any("left open" in reason for reason in found.reasons)


def test_other_units_of_compute_are_turned_into_rollouts_for_steps():
    found = ask(1.5e5, rollouts=lambda index, compute: compute / 100)
    assert found.num_steps == 1 and ask(1.5e5, rollouts=lambda index, compute: 2 * compute).num_steps == 292


def test_an_empty_frontier_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        ask(1e4, fits=[], configurations=[], law=no_law)


def test_the_expected_reward_stays_in_its_range():
    falling = [CurveFit("power", {"scale": 9.0, "asymptote": 0.7, "exponent": 0.4}, WINDOW)]
    unknown = [dataclasses.replace(CONFIGURATIONS[0], problems_per_batch=0)]
    found = ask(10.0, fits=falling, configurations=unknown, law=no_law)
    assert float(falling[0].reward(10.0)) < -1 and found.reward == 0.0


def test_a_budget_is_never_overspent():
    for budget in (2e3, 1.5e5, 9.9e5, 1e6):
        found = ask(budget)
        assert found.num_steps is not None and found.problems_per_batch
        spent = found.num_steps * found.group_size * found.problems_per_batch
        assert budget - found.group_size * found.problems_per_batch < spent <= budget
    assert ask(1024.0 * 150).num_steps == 150  # a whole number of steps is not rounded down to one less


def test_a_step_that_costs_more_than_the_budget_is_not_advised():
    dear = [*CONFIGURATIONS[:1], dataclasses.replace(CONFIGURATIONS[1], problems_per_batch=32_768), CONFIGURATIONS[2]]
    found = ask(1.5e5, configurations=dear)
    assert found.run == "n = 8" and found.num_steps == 1.5e5 // 256
    assert any("n = 32 would be chosen, but one of its steps costs 1,048,576" in reason for reason in found.reasons)
    cheap = ask(2e3, configurations=dear)
    assert cheap.run == "n = 8" and "One step of n = 32, n = 128 costs more than this budget." in cheap.reasons


def test_where_no_step_is_paid_the_cheapest_is_named():
    dear = [dataclasses.replace(c, problems_per_batch=32_768 * 4) for c in CONFIGURATIONS]
    found = ask(1e5, configurations=dear)
    assert (found.run, found.group_size, found.num_steps, found.status) == ("none", 0, 0, "warning")
    assert "n = 8 with 131,072 problems per batch, costs 1,048,576 rollouts" in found.reasons[0]


def test_equal_curves_are_a_tie():
    found = ask(1e5, fits=[FITS[0]] * 3, law=no_law)
    assert found.run == "n = 8" and found.tied == ("n = 32", "n = 128")
    assert "any n from 8 to 128: no difference seen." in found.reasons
    assert ask(1.5e5).tied == ()


def fallen(fit: CurveFit, compute: float) -> CurveFit:
    return dataclasses.replace(
        fit, window=(WINDOW[0], compute), fall=Fall(compute, float(fit.reward(compute)), WINDOW[1], 0.1)
    )


@pytest.mark.parametrize("budget", [1.5e5, 9e5, 4e6])
def test_a_curve_that_collapses_is_not_advised_beyond_its_peak(budget):
    """It is stopped there while that is the best that the budget buys: 0.579 at 130,000, which n = 128 passes later."""
    fits = [FITS[0], fallen(FITS[1], 1.3e5), FITS[2]]
    found = ask(budget, fits=fits, law=no_law)
    assert (found.run, found.stop) == (("n = 32", 1.3e5) if budget == 1.5e5 else ("n = 128", None))
    assert found.status == "warning" and found.reward > 0.578
    assert len(found.others_fallen) == (budget != 1.5e5) and set(found.others_fallen) <= set(found.doubts)
    assert any("n = 32 falls after its peak, from 0.579 at 130,000 to 0.1 at 1,000,000" in r for r in found.reasons)


def test_where_all_collapse_the_steps_stop_at_the_highest_peak():
    fits = [fallen(fit, 1.3e5) for fit in FITS]
    found = ask(1e6, fits=fits, law=no_law)
    assert found.run == "n = 32" and found.num_steps == 1.3e5 // 1024 and found.status == "warning"
    assert found.reward == pytest.approx(float(FITS[1].reward(1.3e5)))
    assert "better not spent" in found.reasons[0]
