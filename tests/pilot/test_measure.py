"""Which groups have a signal, from counts."""

import itertools

import numpy as np
import pytest

from isocompute_jax.pilot.measure import BaseRates, mixed, signal_shares


@pytest.mark.parametrize("samples", [4, 7])
def test_up_to_k_it_is_the_share_of_all_subsets(samples):
    solved, sizes = np.arange(samples + 1), list(range(2, samples + 1))
    counted = [
        [
            np.mean([0 < sum(chosen) < n for chosen in itertools.combinations([1] * c + [0] * (samples - c), n)])
            for n in sizes
        ]
        for c in solved
    ]
    np.testing.assert_allclose(mixed(solved, samples, sizes), counted, atol=1e-12)


def test_beyond_k_it_is_the_mean_over_a_posterior_that_many_problems_make_known():
    rng, rates = np.random.default_rng(0), np.full(4000, 0.1)
    solved = rng.binomial(16, rates)
    found = mixed(solved, 16, [32, 64]).mean(axis=0)
    np.testing.assert_allclose(found, [1 - 0.9**32, 1 - 0.9**64], atol=0.03)


def test_intervals_hold_the_truth_and_shares_rise_with_n():
    rng, inside = np.random.default_rng(1), 0
    for _ in range(40):
        solved = rng.binomial(16, rng.beta(0.4, 3.0, size=60))
        shares = signal_shares(BaseRates(solved, 16), (4, 8))
        inside += shares[1].low <= TRUTH <= shares[1].high
        assert shares[0].share < shares[1].share
    assert inside >= 34


_RATES = np.random.default_rng(2).beta(0.4, 3.0, size=200_000)
TRUTH = float(np.mean(1 - _RATES**8 - (1 - _RATES) ** 8))
