"""Questions to recorded sweeps: what is told, what was measured, and intervals over sweeps."""

import numpy as np
import pytest

from benchmarks import recorded
from isocompute_jax.fit.configurations import Configuration, Curve


def curve(per_seed, n=8):
    values = np.array(per_seed, float)
    compute = np.array([0.0, *2.0 ** np.arange(values.shape[1] - 1)])
    return Curve(Configuration(f"n = {n}", n, 8, 8 * n), tuple(range(len(values))), compute, values)


def question(whole, budget=4.0):
    return recorded.Question("by hand", 0.5, [], budget, whole)


def test_what_is_told_ends_at_the_cut_and_the_whole_does_not():
    half, quarter = recorded.questions("terms_hard", [0.5, 0.25])
    assert half.budget == 131072
    assert [each.compute.max() for each in half.whole] == [131072, 131072]
    for each, share in ((half, 0.5), (quarter, 0.25)):
        ends = [found.compute.max() / 131072 for found in each.curves]
        assert all(share / 1.35 < end <= share * 1.02 for end in ends)  # evaluations are 1.346 apart
        assert all(
            len(run.compute) == len(values)
            for group in each.told
            for run in group.runs
            for values in run.columns.values()
        )


def test_the_truth_is_the_best_so_far_of_the_mean():
    """By hand: means 0, .2, .4, .3; a seed's own .6 does not count, nor what comes later."""
    found = curve([[0, 0.1, 0.2, 0.3], [0, 0.3, 0.6, 0.3]])
    assert [recorded.best_so_far(found, at) for at in (1.0, 2.0, 4.0)] == pytest.approx([0.2, 0.4, 0.4])


def test_noise_alone():
    """Equal seeds have none. Of two n that are equal but for their seeds each would lose to the other half the time."""
    assert recorded.noise_alone(question([curve([[0, 0.1, 0.2, 0.3]] * 3), curve([[0, 0.1, 0.2, 0.4]] * 3)])) == 0
    two = [curve([[0.0, 0.0, 0.0, 0.3], [0.0, 0.0, 0.0, 0.5]], n) for n in (8, 16)]
    assert recorded.noise_alone(question(two)) == pytest.approx(0.0375, abs=0.003)  # of -.2, -.1 x 4, 0 x 6, .1 x 4, .2
    assert np.isnan(recorded.noise_alone(question([curve([[0, 0.1, 0.2, 0.3]])])))


def test_intervals_are_over_sweeps():
    """Equal sweeps leave nothing open, whatever their number of questions."""
    assert recorded.written(np.array([[0.01, 0.02]] * 4), 8) == "-0.0050 (-0.0050 to -0.0050); 0.50 (0.50 to 0.50)"
    apart = recorded.written(np.array([[0.0, 0.02], [0.02, 0.0]]), 2)
    assert apart.startswith("+0.0000 (-0.0200 to +0.0200); 1.00 (0.00")
