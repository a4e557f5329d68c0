"""The rule by hand: when n doubles, when it stays, and that a run's log tells each decision again."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.allocation.auto import LEAST_STEPS, Controller, gain_of, replay
from isocompute_jax.records.errors import InputError

START = Controller(4, 16)


def step(compute, reward, *, n=4, signal=0.5, number=1):
    return {
        **{"step": number, "compute": compute, "group_size": n},
        **{"reward": reward, "zero_variance_share": 1 - signal},
    }


def evaluation(compute, solved, *, problems=200, samples=8, name="v", number=1):
    """Every deciding problem is solved by this share of samples; the judging ones by all."""
    counts = [round(solved * samples), samples] * (problems // 2)
    return {"step": number, "compute": compute, "eval_set": name, "solve_counts": counts, "samples": samples}


def trained(controller, rewards, compute=100, **line):
    for reward in rewards:
        controller = controller.after_step(step(compute, reward, n=controller.group_size, **line))
    return controller


def learned(first, last, held_out, *, since=0, at=1000, steps=LEAST_STEPS):
    """A controller whose n began at `since`, after training from `first` to `last`, evaluated at `held_out`."""
    controller = dataclasses.replace(START, begun=since).after_evaluation([evaluation(since, 0.125)])
    controller = trained(controller, [first] * steps + [last] * steps, at)
    return controller.after_evaluation([evaluation(at, held_out)])


@pytest.mark.parametrize(
    ("last", "held_out", "n", "says"),
    [
        (0.5, 0.375, 4, ""),  # 0.25 of 0.4 is shared
        (0.5, 0.25, 8, "training reward has gained 0.400, held-out reward 0.125"),
        (0.1, 0.125, 8, "held-out reward gained +0.000 since 0 rollouts (its error 0.000, at most 0.000 "),
        (0.09, 0.0, 8, "held-out reward gained -0.125 since 0 rollouts (its error 0.000, at most 0.000 "),
        (0.7, 0.25, 16, "training reward has gained 0.600, held-out reward 0.125"),  # less than a quarter
        (0.5, 0.0, 16, "training reward has gained 0.400, held-out reward -0.125"),
    ],
)
def test_what_makes_n_double(last, held_out, n, says):
    found = learned(0.1, last, held_out)
    assert found.group_size == n and says in found.decision
    assert not found.decision or found.decision.startswith(f"n 4 -> {n} at 1,000 rollouts: ")


@pytest.mark.parametrize(
    ("rewards", "n", "says"),
    [
        ((0.125, 0.25, 0.5, 0.75), 4, ""),  # as steep as before
        ((0.125, 0.25, 0.5, 0.625), 8, "gained +0.125 since 4,000 rollouts (its error 0.000, at most 0.250 in"),
        ((0.125, 0.625, 0.75, 0.875), 4, ""),  # what was gained from no rollouts on is no doubling
    ],
)
def test_past_its_steepest_n_doubles(rewards, n, says):
    """Evaluations at 0, 2,000, 4,000 and 8,000."""
    found = START
    for number, reward in enumerate(rewards):
        compute = 1000 * 2**number if number else 0
        found = trained(found, [0.1] * 32, max(compute - 1, 0)).after_evaluation([evaluation(compute, reward)])
    assert found.group_size == n and says in found.decision


def test_gains_within_their_error_are_level():
    """Half of a gain of 0.01 in training reward is less than that error: it is not what makes n double."""
    start = START.after_evaluation([evaluation(0, 0.125)])
    start = trained(start, [0.1] * LEAST_STEPS + [0.11] * LEAST_STEPS)
    sizes = set()
    for seed in range(8):
        noisy = evaluation(1000, 0.125)
        noisy["solve_counts"] = np.random.default_rng(seed).binomial(8, 0.127, size=200).tolist()
        gains = np.array(noisy["solve_counts"][::2]) / 8 - 0.125
        found = start.after_evaluation([noisy])
        gain, error = gain_of(start.past[-1][1], found.past[-1][1])
        assert gain == pytest.approx(gains.mean()) and error == pytest.approx(gains.std(ddof=1) / 10)
        assert found.group_size == (8 if gain <= error else 4)
        assert ("since 0 rollouts" in found.decision) == (gain <= error)
        sizes.add(found.group_size)
    assert sizes == {4, 8}


def test_what_was_learned_by_heart_stays_so():
    """Training reward is held to the whole run's gain: n doubles again once C has, though both now gain alike."""
    found = learned(0.1, 0.5, 0.25)
    assert found.group_size == 8 and found.first == (0.1,) * 8
    found = trained(found, [0.6] * LEAST_STEPS, 1999).after_evaluation([evaluation(1999, 0.375)])
    assert found.group_size == 8
    found = found.after_evaluation([evaluation(2000, 0.375)])
    assert found.group_size == 8  # 0.25 of 0.5 is half
    found = trained(found, [0.7] * LEAST_STEPS, 2100).after_evaluation([evaluation(2100, 0.375)])
    assert found.group_size == 16 and "has gained 0.600, held-out reward 0.250" in found.decision


def test_two_doublings_end_at_the_largest():
    start = dataclasses.replace(START, largest=8).after_evaluation([evaluation(0, 0.125)])
    found = trained(start, [0.1] * 32 + [0.9] * 32).after_evaluation([evaluation(1000, 0.125)])
    assert found.group_size == 8 and found.decision.startswith("n 4 -> 8 ")


def test_too_early_it_stays():
    assert learned(0.1, 0.9, 0.25, since=600, at=1000).group_size == 4  # C has not doubled
    assert learned(0.1, 0.5, 0.25, since=500, at=1000).group_size == 8
    assert learned(0.1, 0.9, 0.125, steps=LEAST_STEPS // 2 - 1).group_size == 4  # too few steps
    assert START.after_evaluation([evaluation(0, 0.1)]).group_size == 4  # before the first step


def test_few_groups_with_a_signal_double_n_at_once():
    silent = trained(START, [0.02] * (LEAST_STEPS - 1), signal=0.05)
    assert silent.group_size == 4
    found = silent.after_step(step(777, 0.02, signal=0.05))
    assert found.group_size == 8 and "n 4 -> 8 at 777 rollouts: 5% of groups have a signal" in found.decision
    assert trained(START, [0.9] * 64, signal=0.05).group_size == 4  # they are solved


def test_it_never_passes_the_largest_and_says_a_decision_once():
    found = learned(0.1, 0.9, 0.125)
    assert found.decision and not found.after_step(step(1100, 0.5, n=8)).decision
    for _ in range(3):
        found = trained(found, [0.1] * 64, 10**6, signal=0.01)
    assert found.group_size == 16


def test_steps_that_were_drawn_before_the_change_do_not_count():
    found = learned(0.1, 0.9, 0.125)
    late = found.after_step(step(1100, 0.5, n=4))
    assert (late.steps, late.decision) == (0, "")


def test_only_problems_at_even_places_decide():
    start = trained(START.after_evaluation([evaluation(0, 0.125)]), [0.1] * 32 + [0.5] * 32)
    line = evaluation(1000, 0.375)
    others = {
        **line,
        "solve_counts": [count if place % 2 == 0 else 0 for place, count in enumerate(line["solve_counts"])],
    }
    assert start.after_evaluation([line]) == start.after_evaluation([others])


@pytest.mark.parametrize("others", [{"name": "other"}, {"problems": 100}])
def test_evaluations_of_other_problems_are_not_compared(others):
    start = START.after_evaluation([evaluation(0, 0.125), evaluation(0, 0.125, name="w")])
    start = start.after_evaluation([evaluation(500, 0.25)])  # the log's last line of this step is still to be written
    assert start.after_evaluation([evaluation(1000, 0.375)]).past[-1][0] == 1000
    for lines in ([evaluation(1000, 0.375, **others)], [evaluation(1000, 0.375), evaluation(1000, 0.375, name="w")]):
        with pytest.raises(InputError, match=r"evaluation of '\w+' at 1,000 rollouts: the one before had no such set"):
            start.after_evaluation(lines)


def test_a_log_is_replayed():
    rng = np.random.default_rng(1)
    controller, metrics, evaluations, compute = START.after_evaluation([evaluation(0, 0.1, number=0)]), [], [], 0
    evaluations.append(evaluation(0, 0.1, number=0))
    sizes = []
    for number in range(1, 400):
        n = controller.group_size
        compute += 8 * n
        metrics.append(step(compute, float(rng.uniform(0.2, 0.4)), n=n, number=number))
        controller = controller.after_step(metrics[-1])
        if number % 20 == 0:
            evaluations.append(evaluation(compute, float(rng.uniform(0.1, 0.3)), number=number))
            controller = controller.after_evaluation([evaluations[-1]])
        sizes.append(n)
        assert replay(START, metrics, evaluations) == controller
    assert len(set(sizes)) == 3
