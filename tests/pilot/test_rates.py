"""The rule that takes a rate, on trials that are made up."""

import dataclasses
import json
import math
import types
from typing import Any

import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import LossConfig
from isocompute_jax.pilot import rates
from isocompute_jax.pilot.advice import _rates
from isocompute_jax.pilot.rates import MOST_STEPS, Trial, broken, choose, least_rollouts, plan_test, trial_of, usual_of
from isocompute_jax.records import run_files

RATES = (1e-4, 2e-4, 4e-4, 8e-4, 16e-4)
USUAL = 3e-4


def trials(rewards, **broken_at):
    """One trial for each reward; `kl=(index, value)` and the like change one of them."""
    made = [Trial(rate, reward, 0.01, 0.01, 1.0, 1.0, felt=5) for rate, reward in zip(RATES, rewards, strict=False)]
    for field, (index, value) in broken_at.items():
        made[index] = dataclasses.replace(made[index], **{field: value})
    return made


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("kl", 0.6, "nats a token"),
        ("gradient_norm", 11.0, "gradient norm"),
        ("entropy", 0.1, "entropy"),
        ("entropy", 4.0, "entropy"),
        ("diverged", True, "finite"),
        ("reward", 0.1, "reward is 0.100, and 0.400 at 0.0004"),
    ],
)
def test_half_of_the_rate_that_breaks_is_the_largest_candidate(field, value, says):
    found = choose(trials([0.38, 0.39, 0.4, 0.41, 0.5], **{field: (3, value)}), USUAL)
    assert (found.rate, found.edge, found.candidates) == (2e-4, 8e-4, RATES[:3])
    assert says in found.why


def test_candidates_are_those_that_may_be_the_best():
    found = choose(trials([0.10, 0.30, 0.29, 0.27]), USUAL)  # .27 is two errors of the difference below .30
    assert (found.rate, found.candidates) == (4e-4, RATES[1:4])
    assert choose(trials([0.30, 0.10, 0.1], kl=(2, 9.0)), USUAL).edge == 2e-4  # a loss breaks before the distance does
    assert choose(trials([0.1, 0.3, 0.3, 0.3], kl=(3, 9.0)), USUAL).rate == pytest.approx(math.sqrt(8) * 1e-4, rel=1e-3)


def test_without_an_edge_all_are_candidates():
    found = choose(trials([0.28, 0.29, 0.3]), USUAL)
    assert (found.rate, found.edge, found.why) == (2e-4, None, "")


def test_an_edge_misread_by_a_doubling_moves_the_rate_by_half_of_one():
    early, late = (choose(trials([0.3] * 5, kl=(place, 9.0)), USUAL).rate for place in (3, 4))
    assert late / early == pytest.approx(math.sqrt(2), rel=1e-2)


def test_where_the_first_breaks_it_is_taken_all_the_same():
    found = choose(trials([0.1, 0.2], kl=(0, 2.0)), USUAL)
    assert (found.rate, found.edge) == (1e-4, 1e-4)


def test_what_no_update_reached_is_not_taken():
    """Problems that are seldom solved: a trial whose groups are all without a signal never moved, and cannot break."""
    unfelt = [dataclasses.replace(trial, felt=2) for trial in trials([0.02, 0.01, 0.0, 0.0])]
    found = choose(unfelt, USUAL)
    assert (found.rate, found.edge, found.felt) == (USUAL, None, False)
    found = choose([*unfelt[:1], dataclasses.replace(unfelt[1], entropy=0.1)], USUAL)
    assert (found.rate, found.edge, found.felt) == (pytest.approx(1e-4), 2e-4, False)
    found = choose([dataclasses.replace(trial, felt=3) for trial in unfelt[:2]] + unfelt[2:], USUAL)
    assert (found.rate, found.candidates) == (1.41e-4, RATES[:2])
    assert usual_of(RATES) == 2e-4


def test_reward_is_held_to_the_best_of_smaller_rates():
    [low, high] = trials([0.3, 0.27])
    assert not broken(high, [low])  # 2.1 errors of the difference
    assert "reward" in broken(dataclasses.replace(high, reward=0.26), [low])


def test_a_plan_keeps_to_its_rollouts_and_gives_up_size_before_rates():
    for rollouts in (500, 1000, 2000, 5000, 20_000):
        plan = plan_test(rollouts, group_size=16, problems=8, rates=RATES)
        if plan is None:
            assert rollouts < least_rollouts(8, RATES)
            continue
        assert plan.rollouts <= rollouts and 4 <= plan.steps <= MOST_STEPS
    few = plan_test(least_rollouts(8, RATES), group_size=16, problems=8, rates=RATES)
    assert few is not None and few.group_size == 4 and few.rates == RATES[::2]
    most = plan_test(10**6, group_size=16, problems=8, rates=RATES)
    assert most is not None and (most.group_size, most.rates, most.steps) == (16, RATES, MOST_STEPS)


def test_a_trial_is_its_second_half_beside_the_run_that_was_forked():
    def line(reward, kl, norm, entropy, silent=0.5):
        measured = {"kl": kl, "gradient_norm": norm, "sampler_entropy": entropy}
        return {"reward": reward, "zero_variance_share": silent, **measured}

    start = [line(0.0, 0.0, 2.0, 0.5)] * 3 + [line(0.0, 0.0, 0.0, 0.5, silent=1.0)] * 4
    lines = [line(0.1, 0.0, 9.0, 0.5), line(0.1, 0.0, 9.0, 0.5), line(0.2, 0.2, 4.0, 0.5), line(0.4, 0.9, 4.0, 1.0)]
    found = trial_of(1e-3, lines, start, 50, diverged=False)
    assert (found.reward, found.kl, found.gradient_norm, found.entropy) == pytest.approx((0.3, 0.2, 2.0, 2.0))
    assert found.error == pytest.approx(math.sqrt(0.3 * 0.7 / 100))
    assert found.felt == 3
    silent = line(0.0, 0.0, 0.0, 0.5, silent=1.0)
    found = trial_of(1e-3, [lines[0], silent, silent, lines[2], lines[3], silent], start, 50, diverged=False)
    assert (found.kl, found.gradient_norm, found.felt) == pytest.approx((0.2 / 1 / 2 + 0.9 / 2 / 2, 2.0, 3))
    assert trial_of(1e-3, [silent] * 4, start, 50, diverged=False).felt == 0
    assert trial_of(1e-3, [], start, 50, diverged=True).diverged


def test_the_distance_to_a_teacher_is_not_that_to_the_base_model(tmp_path, monkeypatch):
    """It is large from the first step on, whatever the rate: no trial breaks by it, and the screen does not show it."""

    def train(config, path):
        path.mkdir(parents=True)
        line = {"reward": 0.3, "zero_variance_share": 0.5, "kl": 0.7, "gradient_norm": 1.0, "sampler_entropy": 0.5}
        made = [line | {"compute": 8 * i, "phase_s": {"sampling": 1.0}} for i in range(1, config.max_compute // 8 + 1)]
        (path / run_files.METRICS).write_text("".join(json.dumps(each) + "\n" for each in made))

    monkeypatch.setattr(rates, "train", train)
    plan, config = rates.TestPlan(4, 2, 4, 8, (1e-3, 2e-3)), RunConfig(loss=LossConfig(kl_coef=1.0))
    plain = rates.run_test(config, plan, tmp_path / "plain")
    assert "0.13 nats a token from the base model" in plain.choice.why and len(plain.trials) == 1
    tested = rates.run_test(dataclasses.replace(config, teacher="teacher"), plan, tmp_path / "taught")
    found: Any = types.SimpleNamespace(tested=tested, noise=None)
    assert tested.choice.why == "" and len(tested.trials) == 2
    assert list(_rates(found))[2].split() == ["0.001", "0.300", "0.081", "-", "x1", "x1.00", "7", "candidate"]
