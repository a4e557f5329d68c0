"""The laws of n* as the IsoCompute Playbook prints them (arXiv 2603.12151), and the points of its figures.

The points are read off the figures: compute and steps to about 2%, n exactly.
"""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.frontier.allocation import fit_allocation

EASY = {
    8: (5.84e4, 5.98e4, 1.18e5, 1.87e5, 2.42e5, 3.07e5, 3.93e5),
    32: (3.93e5, 4.37e5, 4.97e5, 5.59e5, 6.22e5, 6.92e5, 7.79e5),
    64: (7.79e5, 8.56e5, 9.63e5, 1.06e6, 1.25e6, 1.39e6),
    256: (1.06e6, 1.11e6, 1.23e6, 1.39e6, 1.56e6, 1.98e6, 2.56e6, 2.95e6, 3.09e6, 3.48e6),
    512: (2.95e6, 3.09e6, 3.48e6, 4.10e6, 8.04e6, 1.01e7),
}
"""n -> the computes at which it is on the frontier of the Easy set; the printed law: 6.09, 4.75, 5.84, 2.73."""

FIXED_BATCH = ((16, 11), (32, 6), (128, 3), (256, 2), (32, 3), (128, 2), (256, 8), (512, 15))
"""n* and for how many in a row, of 50 numbers of steps from 26.7 to 833, at B = 8,192.

The printed law: 7.10, 0.01, 91.7, 2.00.
"""


def test_the_law_of_the_easy_set():
    compute, group_size = np.array(sorted((c, n) for n, computes in EASY.items() for c in computes)).T
    fit = fit_allocation(compute, group_size, largest=2048)
    assert fit.status == "ok", fit.message
    assert (fit.span, fit.slope) == (pytest.approx(6.09, abs=0.1), pytest.approx(4.75, abs=0.3))
    assert (fit.midpoint, fit.floor) == (pytest.approx(5.84, abs=0.08), pytest.approx(2.73, abs=0.08))


@pytest.mark.parametrize("window", [1, 3, 5])
def test_the_points_of_the_fixed_batch_carry_no_law(window):
    """The least squares of these points are at a midpoint of less than 0 steps, far below every n."""
    sizes, times = zip(*FIXED_BATCH, strict=True)
    steps, group_size = np.geomspace(26.7, 833, 50), np.repeat(np.array(sizes, float), times)
    fit = fit_allocation(steps, group_size, window=window, axis="steps", largest=1024)
    assert fit.midpoint < 0 and fit.floor < 0
    assert fit.status == "extrapolated"
    assert "begin after the midpoint" in fit.message and "far outside of the n* seen (16 to 512)" in fit.message
    printed = 7.10 / (1 + np.exp(-0.01 * (steps - 91.7))) + 2.0
    errors = [np.sum((curve - np.log2(fit.smoothed)) ** 2) for curve in (fit.octaves(steps), printed)]
    assert errors[0] < errors[1]
