"""The simulated cluster, held to what can be worked out by hand."""

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.goodput import assumptions
from benchmarks.goodput.model import DAY_S, NEVER_S, Cluster, simulate

PLAIN = Cluster(
    servers=4, slots=8, decode_s=0.02, decode_rollout_s=0.0, learner_s=3.0, groups=4, group_size=8,
    median=500.0, sigma=0.0, longest=1000, staleness=0,
)  # fmt: skip
"""Every server draws one group of a batch, in 500 x 0.02 = 10 s; the update takes 3 s."""


def step_s(cluster, *, steps=20, **options):
    return simulate(cluster, steps=steps, **options).step_s


def test_on_policy_the_two_take_turns():
    assert step_s(PLAIN) == pytest.approx(10.0 + 3.0)
    slowed = dataclasses.replace(PLAIN, decode_rollout_s=0.001)  # 8 rollouts, each slows every token of the others
    assert step_s(slowed) == pytest.approx(500 * 0.028 + 3.0)


@pytest.mark.parametrize("staleness", [1, 2, 5])
@pytest.mark.parametrize("learner_s", [3.0, 10.0, 25.0])
def test_full_servers_hide_the_faster_side(staleness, learner_s):
    """A batch fills every slot, so that a second one has to wait for it."""
    cluster = dataclasses.replace(PLAIN, staleness=staleness, learner_s=learner_s)
    assert step_s(cluster, warm_up=10) == pytest.approx(max(10.0, learner_s))
    assert cluster.ideal_s == pytest.approx(max(10.0, learner_s))
    assert simulate(cluster, steps=20, warm_up=10).goodput == pytest.approx(1.0)


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_where_slots_are_left_the_window_bounds_the_step(staleness):
    """k + 1 batches are out at once, and each is out for 10 s of drawing and one update."""
    cluster = dataclasses.replace(PLAIN, staleness=staleness, slots=1000)
    bound = max(3.0, (10.0 + 3.0) / (staleness + 1))
    assert step_s(cluster, steps=60, warm_up=2 * staleness) == pytest.approx(bound, rel=0.02)


def test_the_longest_rollout_decides_and_the_budget_cuts_it():
    """The expected maximum of 32 log-normal lengths, from numpy's own draws; beyond the budget it is the budget."""
    cluster = dataclasses.replace(PLAIN, sigma=0.5, longest=100_000)
    drawn = np.exp(0.5 * np.random.default_rng(1).standard_normal((20_000, 32))).max(1)
    assert step_s(cluster, steps=400) - 3.0 == pytest.approx(10.0 * drawn.mean(), rel=0.03)
    cut = dataclasses.replace(cluster, sigma=3.0, longest=600)
    assert step_s(cut, steps=50) == pytest.approx(600 * 0.02 + 3.0, rel=0.01)


def test_a_group_has_one_server():
    """Two groups of 16 on four servers of eight slots: two servers draw two rounds, two draw nothing."""
    assert step_s(dataclasses.replace(PLAIN, groups=2, group_size=16)) == pytest.approx(2 * 10.0 + 3.0)


def test_a_lost_learner_host_costs_what_renewal_theory_says():
    """Steps of T s from checkpoint to checkpoint, failures at rate r, D s to be back, during which it may fail again:
    a step takes exp(r D) (exp(r T) - 1) / r in the mean (renewal argument; T and D are begun again by every failure).
    """
    rate, step, down = 200.0 / DAY_S, 13.0, 60.0
    cluster = dataclasses.replace(PLAIN, learner_failures=200.0, learner_notice_s=20.0, learner_restart_s=40.0)
    result = simulate(cluster, steps=20_000 // 4, seed=3)
    expected = math.exp(rate * down) * math.expm1(rate * step) / rate
    lost = result.step_s - step
    failures = rate * expected * 5000
    assert lost == pytest.approx(expected - step, rel=3 / math.sqrt(failures))  # three standard errors
    assert result.learner_failures == pytest.approx(failures, rel=3 / math.sqrt(failures))


def test_steps_since_the_checkpoint_are_made_again():
    """Checkpoints every ten steps or so: a failure costs half of that more."""
    often = dataclasses.replace(PLAIN, learner_failures=50.0)
    seldom = dataclasses.replace(often, checkpoint_every_s=130.0)
    lost = [simulate(each, steps=6000, seed=1) for each in (often, seldom)]
    more = (lost[1].seconds - lost[0].seconds) / lost[1].learner_failures
    assert lost[1].learner_failures > 30 and more == pytest.approx(130 / 2, rel=0.3)


def test_what_a_lost_server_had_is_drawn_again_elsewhere():
    """Server 0 is lost as step 2 begins, known after 4 s; its group waits for slots until 10 s, then takes 10."""
    cluster = dataclasses.replace(PLAIN, server_notice_s=4.0, server_restart_s=NEVER_S)
    result = simulate(cluster, steps=2, lose={1: 0})
    assert result.seconds == pytest.approx(13.0 + (10.0 + 10.0 + 3.0))
    assert (result.redrawn, result.server_failures) == (1, 1)
    roomy = dataclasses.replace(cluster, slots=16)
    assert simulate(roomy, steps=2, lose={1: 0}).seconds == pytest.approx(13.0 + (4.0 + 10.0 + 3.0))
    back = dataclasses.replace(cluster, server_restart_s=1.0)  # at 5 s; the other servers have the group by then
    assert simulate(back, steps=3, lose={1: 0}).seconds == pytest.approx(13.0 + 23.0 + 13.0)


def test_failures_of_servers_cost_a_mean_share_of_the_slots():
    """Where servers never rest, a run is slower by the share of them that is gone."""
    cluster = dataclasses.replace(
        PLAIN,
        servers=8,
        groups=32,
        staleness=2,
        learner_s=1.0,
        server_failures=8 * DAY_S / 10_000,
        server_restart_s=1000.0,
    )
    result = simulate(cluster, steps=1500, warm_up=5, seed=2)
    undisturbed = 40.0
    down = result.server_failures * 1000.0 / (8 * result.seconds)
    assert result.server_failures > 20
    assert result.step_s == pytest.approx(undisturbed / (1 - down), rel=0.02)  # what was being drawn is lost, too


def test_the_same_seed_is_the_same_run():
    cluster = dataclasses.replace(PLAIN, sigma=1.0, learner_failures=20.0, server_failures=20.0, staleness=1)
    assert simulate(cluster, steps=300, seed=5) == simulate(cluster, steps=300, seed=5)
    assert simulate(cluster, steps=300, seed=5) != simulate(cluster, steps=300, seed=6)


def test_the_published_figures_add_up():
    """419 / (54 x 16,384) a GPU and day; the median of every tail keeps the mean."""
    of_host = assumptions.FAILURES_OF_GPU * 8
    assert of_host == pytest.approx(0.0038, rel=0.01)
    cluster = assumptions.cluster(staleness=0, failures=10.0)
    assert (cluster.rollouts, cluster.learner_failures, cluster.server_failures) == (8192, 5.0, 5.0)
    mean = assumptions.mean_of(assumptions.SIGMA)[0]
    for sigma in (0.0, 0.5, 1.5):
        assert assumptions.mean_of(sigma, assumptions.median_for(sigma))[0] == pytest.approx(mean, rel=1e-3)
    fits = 0.9 * 150e9 - 2 * assumptions.PARAMETERS
    keys = cluster.decode_rollout_s * assumptions.BANDWIDTH * 4.8e12
    assert assumptions.SLOTS * keys < fits
