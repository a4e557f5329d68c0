"""Where configurations that have not collapsed yet are expected to."""

import numpy as np

from isocompute_jax.fit.frontier.collapse import collapses
from isocompute_jax.fit.results import Configuration

SIZES = (4, 8, 16, 32, 64)
NOT = float("nan")


def drawn(peaks, ends=None, sizes=SIZES):
    found = maybe(peaks, ends, sizes)
    assert found is not None
    return found


def maybe(peaks, ends=None, sizes=SIZES):
    configurations = [Configuration(f"n = {n}", n, 32, 1024) for n in sizes]
    ends = [1e6] * len(sizes) if ends is None else ends
    return collapses(configurations, peaks, ends, draws=4000, rng=np.random.default_rng(0))


def test_a_sweep_without_a_collapse_is_not_said_to_have_one():
    assert maybe([NOT] * 5) is None


def test_an_unknown_n_says_nothing_of_the_others():
    assert maybe([1e5, NOT], ends=[1e6, 1e6], sizes=(0, 8)) is None


def test_a_trend_in_n_goes_on():
    """Peaks at 1e4 x n / 4: the next ones are due at 1.6e5 x 2 and x 4, within the scatter, and not in the data."""
    found = drawn([1e4, 2e4, 4e4, NOT, NOT], ends=[1e5, 1e5, 1e5, 7e4, 7e4])
    peak = np.exp(found.peak)
    np.testing.assert_allclose(peak[:, :3], np.broadcast_to([1e4, 2e4, 4e4], (4000, 3)))
    assert np.all(peak[:, 3:] >= 7e4 * (1 - 1e-9))
    assert np.isfinite(peak).all(axis=1).mean() > 0.9  # of one cause
    assert np.median(peak[:, 3]) < np.median(peak[:, 4]) and 1e5 < np.median(peak[:, 4]) < 4e5


def test_one_collapse_amid_healthy_neighbours_is_rather_an_accident():
    amid, first = (drawn(peaks) for peaks in ([NOT, NOT, 1e4, NOT, NOT], [6e5, NOT, NOT, NOT, NOT]))
    assert np.isinf(amid.peak[:, 0]).mean() > 0.9 > 0.6 > np.isinf(first.peak[:, 1]).mean()


def test_the_nearest_neighbour_falls_soonest():
    found = drawn([6e5, NOT, NOT, NOT, NOT])
    soon = (found.peak < np.log(4e6)).mean(axis=0)
    assert np.all(np.diff(soon) < 0) and soon[0] == 1.0


def test_what_is_left_falls_from_all_of_it_at_the_peak_towards_the_drop():
    found = drawn([1e4, 2e4, 4e4, NOT, NOT])
    assert np.all(found.kept(1e4) == 1.0)
    assert np.allclose(found.kept(1e12)[:, 0], 1 - found.drop[:, 0])
    left = np.array([found.kept(c)[:, 0] for c in (1.5e4, 3e4, 1e5)])
    assert np.all(np.diff(left, axis=0) < 0) and np.all(left > 1 - found.drop[:, 0])
