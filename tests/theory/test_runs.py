"""The stochastic model of a run, against a loop over NumPy arrays that is given the same random numbers."""

import dataclasses

import jax
import numpy as np
import pytest

from isocompute_jax.learner.credit import group_advantages
from isocompute_jax.theory.exchange import Rule
from isocompute_jax.theory.runs import Constants, make_world, simulate

CONSTANTS = Constants(skills=6, own_features=10, wrong_answers=3, wording=2.0, slip=0.1, gain=900.0)
RATES = np.array([0.05, 0.2, 0.5])
RULES = [Rule("group_std", rate=2.5e-4), Rule(baseline="leave_one_out", rate_rule="sqrt", rate=1e-3)]


@pytest.fixture(scope="module")
def world():
    return make_world(RATES, problems=7, held_out=20, constants=CONSTANTS, seed=3)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def run_by_hand(world, key, rule, *, n, batch, steps, drop, optimizer):
    """Mean solve rate of the held-out problems after `steps`, and updates: one rollout after the other."""
    features, logits = (np.asarray(part, np.float64) for part in world.train)
    order_key, key = jax.random.split(key)
    order = np.asarray(jax.random.permutation(order_key, len(logits)))
    size = features.shape[-1]
    weights, first, second, updates = np.zeros(size), np.zeros(size), 0.0, 0
    for step in range(steps):
        answer_key, word_key = jax.random.split(jax.random.fold_in(key, step))
        uniforms = np.asarray(jax.random.uniform(answer_key, (batch, n, 1)))[..., 0]
        noise = np.asarray(jax.random.normal(word_key, (size,)))
        gradient, words, groups = np.zeros(size), 0.0, 0
        for row, problem in enumerate(order[(step * batch + np.arange(batch)) % len(logits)]):
            edges = 0.9 * np.cumsum(softmax(logits[problem] + features[problem] @ weights))  # beyond the last: slipped
            answers = np.searchsorted(edges, uniforms[row], side="right")
            rewards = (answers == 0).astype(float)
            if rewards.min() == rewards.max():
                continue
            groups += 1
            [advantages] = group_advantages(
                rewards[None], np.ones(1, bool), scale=rule.advantage_scale, baseline=rule.baseline
            )
            known = np.vstack([features[problem], np.zeros(size)])  # a slip is no skill's
            gradient += sum(a * known[answer] for a, answer in zip(advantages, answers, strict=True)) / n
            words += np.sum(np.asarray(advantages, np.float64) ** 2) / n**2
        if not groups:
            continue
        gradient = (gradient + CONSTANTS.wording * np.sqrt(words / size) * noise) / (groups if drop else batch)
        gradient *= min(1.0, 1.0 / np.linalg.norm(gradient))
        updates += 1
        if optimizer == "sgd":
            weights += rule.rate_at(n) * min((step + 1) / 10, 1.0) * gradient
            continue
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * np.mean(gradient**2)
        rate = rule.rate_at(n) * CONSTANTS.gain * min((step + 1) / 10, 1.0)
        weights += rate * first / (1 - 0.9**updates) / np.sqrt(second / (1 - 0.999**updates))
    held_features, held_logits = (np.asarray(part, np.float64) for part in world.held_out)
    return 0.9 * softmax(held_logits + held_features @ weights)[:, 0].mean(), updates


SGD = Rule("group_std", rate_rule="linear", rate=2.0)
CASES = [(RULES[0], "adam", True), (RULES[1], "adam", False), (SGD, "sgd", True)]
CASES += [pytest.param(RULES[i], "adam", bool(i), marks=pytest.mark.slow) for i in range(2)]


@pytest.mark.parametrize(("rule", "optimizer", "drop"), CASES)
def test_a_run_is_that_of_a_loop_over_rollouts(world, rule, optimizer, drop):
    found = simulate(
        world, [2 * 5 * 4, 2 * 5 * 12], group_size=5, problems_per_batch=2, rule=rule, constants=CONSTANTS, runs=2,
        drop=drop, seed=4, optimizer=optimizer,
    )  # fmt: skip
    assert found.compute.tolist() == [40, 120]
    for run, key in enumerate(jax.random.split(jax.random.key(4), 2)):
        for row, steps in enumerate([4, 12]):
            solved, updates = run_by_hand(world, key, rule, n=5, batch=2, steps=steps, drop=drop, optimizer=optimizer)
            assert found.updates[row, run] == updates
            assert found.held_out[row, run] == pytest.approx(solved, rel=2e-4)


def test_the_length_of_gradients_is_a_rate_to_sgd_and_nothing_to_adam(world):
    """Gradients that are all clipped, to one length and to twice that."""

    def ends(rule, optimizer, clip_norm):
        return simulate(
            world, [40, 120], group_size=5, problems_per_batch=2, rule=rule, constants=CONSTANTS, runs=2, seed=4,
            optimizer=optimizer, clip_norm=clip_norm,
        ).held_out  # fmt: skip

    np.testing.assert_allclose(ends(RULES[0], "adam", 0.02), ends(RULES[0], "adam", 0.01), rtol=1e-3)
    once, twice = (dataclasses.replace(SGD, rate=rate) for rate in (20.0, 40.0))
    doubled = ends(once, "sgd", 0.02)
    np.testing.assert_allclose(doubled, ends(twice, "sgd", 0.01), rtol=1e-5)
    assert np.abs(doubled / ends(once, "sgd", 0.01) - 1).max() > 1e-2


@pytest.mark.slow
def test_room_for_larger_groups_changes_the_draw_and_not_the_law(world):
    """The mean over many runs is the same with the random numbers of a larger group."""
    means = [
        simulate(
            world, [640], group_size=4, problems_per_batch=2, rule=RULES[0], constants=CONSTANTS, runs=400, most=most
        ).held_out
        for most in (4, 32)
    ]
    assert means[0].mean() == pytest.approx(means[1].mean(), abs=4 * float(np.hypot(*(m.std() for m in means))) / 20)


def test_a_world_starts_at_its_pass_rates(world):
    for problems in world:
        rates = 0.9 * softmax(np.asarray(problems.logits))[:, 0]
        np.testing.assert_allclose(np.sort(np.unique(rates.round(4))), RATES, atol=1e-4)


def test_best_and_worst_lie_around_the_mean(world):
    found = simulate(
        world, [200, 800], group_size=4, problems_per_batch=2, rule=RULES[0], constants=CONSTANTS, runs=3, k=1
    )
    np.testing.assert_allclose(found.best, found.held_out, rtol=1e-5)
    np.testing.assert_allclose(found.worst, found.held_out, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(problems_per_batch=8), "1 to the 7 training problems"),
        (dict(group_size=1), "a group of 1"),
        (dict(compute=[5, 3]), "must rise"),
    ],
)
def test_what_makes_no_sense_is_refused(world, changes, said):
    usual = dict(compute=[100], group_size=4, problems_per_batch=2, rule=Rule(), constants=CONSTANTS, runs=1)
    with pytest.raises(ValueError, match=said):
        simulate(world, **{**usual, **changes})
