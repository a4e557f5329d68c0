"""The test for a collapse: its error rate, its power, and what it must not mistake for a fall."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.falls import exceeds, find_fall, without_spikes
from isocompute_jax.fit.curves.forms import hill

RISING = (0.1, 0.7, 1e4, 1.2)


def noise(count: int, points: int, rho: float) -> np.ndarray:
    """[count, points] AR(1) noise of variance 1."""
    drawn = np.random.default_rng([points, int(10 * rho)]).standard_normal((count, points))
    for i in range(1, points):
        drawn[:, i] = rho * drawn[:, i - 1] + np.sqrt(1 - rho**2) * drawn[:, i]
    return drawn


def found(rewards: np.ndarray, compute: np.ndarray) -> np.ndarray:
    return np.array([find_fall(compute, row, reward_range=(0, 1)) is not None for row in rewards])


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("points", [6, 12, 30, 64])
def test_flat_curves_fall_in_one_of_a_hundred_at_most(points, rho, seeds):
    """Flat curves are the worst case; 2,000 of them have 20 alarms at 1%, with a standard deviation of 4.5."""
    per_seed = noise(2000 * seeds, points, rho).reshape(2000, seeds, points)
    alarms = np.count_nonzero(exceeds(per_seed.mean(axis=1), per_seed, least_noise=0.0))
    assert alarms <= 20 + 3 * 4.5


def test_seeds_that_agree_show_a_fall_that_their_mean_alone_does_not():
    """A fall by 0.2 over the last five of 14 evaluations, seeds with a standard deviation of 0.02."""
    compute = np.geomspace(2e4, 2e6, 14)
    late = np.maximum(np.log(compute / 6e5) / np.log(2e6 / 6e5), 0)
    per_seed = (hill(compute, 0.08, 0.72, 1e5, 1.0) - 0.2 * late) + 0.02 * noise(300, 14, 0.0).reshape(100, 3, 14)
    known = [find_fall(compute, s.mean(axis=0), reward_range=(0, 1), per_seed=s) is not None for s in per_seed]
    assert np.sum(known) > 2 * found(per_seed.mean(axis=1), compute).sum()


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_healthy_curves_do_not_fall(rho):
    compute = np.geomspace(2e3, 1e6, 30)
    for spread in (0.003, 0.03):
        assert found(hill(compute, *RISING) + spread * noise(200, 30, rho), compute).sum() <= 6


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_a_collapse_is_found_where_it_begins(rho):
    compute = np.geomspace(2e3, 1e6, 30)
    late = np.maximum(np.log(compute / 1.3e5) / np.log(1e6 / 1.3e5), 0)
    rewards = hill(compute, *RISING) - 0.5 * late + 0.01 * noise(100, 30, rho)
    peaks = [fall.compute for row in rewards if (fall := find_fall(compute, row, reward_range=(0, 1)))]
    assert len(peaks) == 100
    assert 0.7e5 < np.median(peaks) < 2e5


def test_spikes_and_dips_are_no_falls():
    compute = np.geomspace(2e3, 1e6, 30)
    rewards = hill(compute, *RISING) + 0.005 * noise(1, 30, 0.0)[0]
    for place, size in ((12, 0.3), (20, 0.3), (20, -0.3), (29, -0.3)):
        spiked = rewards.copy()
        spiked[place] += size
        assert find_fall(compute, spiked, reward_range=(0, 1)) is None
        assert abs(without_spikes(spiked)[place] - rewards[place]) < 0.1
    dip = rewards.copy()
    dip[14:20] -= 0.2  # it recovers
    assert find_fall(compute, dip, reward_range=(0, 1)) is None


def test_constant_and_noise_free_curves_do_not_fall():
    compute = np.geomspace(2e3, 1e6, 30)
    assert find_fall(compute, np.full(30, 0.5), reward_range=(0, 1)) is None
    assert find_fall(compute, hill(compute, *RISING), reward_range=(0, 1)) is None
    assert find_fall(compute[:5], np.array([0.1, 0.9, 0.9, 0.1, 0.1]), reward_range=(0, 1)) is None  # too few
