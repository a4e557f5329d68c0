"""What counts as a collapse, and from which B_problem on there is none."""

import numpy as np
import pytest

from isocompute_jax.fit.comparisons.batch_effect import (
    find_collapse,
    most_often,
    smallest_stable,
    stable_batches,
)
from tests.fit.comparisons.sweeps import run

COMPUTE = np.geomspace(1e3, 1e5, 8)
RISES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.62]


def collapse(*reward, base=0.05):
    return find_collapse(COMPUTE[: len(reward)], np.array(reward), base=base, reward_range=(0.0, 1.0))


def test_it_is_found_where_half_of_what_was_learned_is_lost_even_if_it_comes_back():
    found = collapse(0.1, 0.3, 0.35, 0.2, 0.15, 0.4, 0.6)  # 0.3 was held; half of 0.3 - 0.05 lost is 0.175
    assert found is None  # 0.2 is above it, and one evaluation below is not enough
    found = collapse(0.1, 0.3, 0.35, 0.17, 0.15, 0.4, 0.6)
    assert found == COMPUTE[3]


def test_rising_noisy_and_slowly_falling_runs_do_not_collapse():
    assert collapse(*RISES) is None
    assert collapse(0.3, 0.5, 0.05, 0.55, 0.6, 0.6) is None  # one outlier down
    assert collapse(0.3, 0.9, 0.3, 0.3, 0.3, 0.3) is None  # one outlier up is no level
    assert collapse(0.1, 0.3, 0.33, 0.3, 0.25, 0.21) is None  # a third is lost
    assert collapse(0.06, 0.08, 0.08, 0.05, 0.05) is None  # too little was learned to lose it
    rng = np.random.default_rng(0)
    assert not any(collapse(*(np.array(RISES) + 0.02 * rng.normal(size=8))) for _ in range(2000))


def test_below_the_base_model():
    assert collapse(0.02, 0.02, 0.3, base=0.05) is not None
    assert collapse(0.03, 0.03, 0.3, base=0.05) is None
    assert collapse(0.0, 0.0, 0.0, base=0.01) is None  # nothing to fall from


def test_against_a_loop():
    """The definition, pair by pair."""
    rng = np.random.default_rng(1)
    agreed = 0
    for _ in range(300):
        reward, base = rng.uniform(size=8), rng.uniform(0.02, 0.3)
        expected = None
        for j in range(7):
            best = max([base, *(min(reward[i], reward[i + 1]) for i in range(j - 1))])
            limit = max(best - max(0.5 * (best - base), 0.05), 0.5 * base)
            if max(reward[j], reward[j + 1]) <= limit:
                expected = COMPUTE[j]
                break
        assert collapse(*reward, base=base) == expected
        agreed += expected is not None
    assert 30 < agreed < 270


def sweep(*fallen, sizes=(4, 8), batches=(2, 4, 8), seeds=2):
    """Runs that rise, but for those of (n, B_problem, seed) in `fallen`."""
    down = [*RISES[:5], 0.1, 0.05, 0.05]
    return [
        run(n, b, [0.0, *COMPUTE], {"r": [0.05, *(down if (n, b, seed) in fallen else RISES)]}, seed=seed)
        for n in sizes for b in batches for seed in range(seeds)
    ]  # fmt: skip


def test_the_smallest_stable_batch_at_each_n():
    ((part, found),) = stable_batches(sweep((4, 2, 0), (4, 4, 1), (8, 2, 0), (8, 2, 1)), "r")
    assert part == "" and smallest_stable(found) == {4: 8, 8: 4}
    counts = {configuration.name: sum(compute is not None for compute in runs) for configuration, runs in found.items()}
    assert [(name, count) for name, count in counts.items() if count] == [
        ("n = 4, B = 2", 1), ("n = 4, B = 4", 1), ("n = 8, B = 2", 2),
    ]  # fmt: skip


def test_a_stable_batch_below_an_unstable_one_is_not_called_stable():
    ((_, found),) = stable_batches(sweep((4, 4, 0), (8, 8, 0)), "r")
    assert smallest_stable(found) == {4: 8, 8: None}


def test_what_no_collapse_in_a_few_seeds_leaves_open():
    assert most_often(5) == pytest.approx(0.4507, abs=1e-4)
    assert (1 - most_often(5)) ** 5 == pytest.approx(0.05)


def test_one_batch_per_n_has_no_question():
    assert stable_batches(sweep(batches=(8,)), "r") == []
