"""The shapes of n*(M) against SciPy, and their choice where the truth is known."""

import math

import numpy as np
import pytest
import scipy.optimize

from research.findings.shapes import sigmoid_ahead, told

SIZES = [4, 8, 16, 32, 64, 128, 256]
STEPS = np.geomspace(10, 10_000, 30)
X, LO, HI = np.log2(STEPS), 2.0, 8.0


def sigmoid(x, m, k):
    return LO + (HI - LO) / (1 + np.exp(-k * (x - m)))


def aicc(residual):
    """-2 ln L of Gaussian residuals, with 3 parameters and their correction, at 30 points."""
    return 30 * (math.log(2 * math.pi * np.mean(residual**2)) + 1) + 6 + 24 / 26


def test_against_scipy():
    rng = np.random.default_rng(0)
    for _ in range(5):
        m, k = rng.uniform(6, 11), rng.uniform(0.3, 3)
        y = np.clip(sigmoid(X, m, k) + rng.normal(size=30), LO, HI)  # so much noise that the floor does not count
        curve, _ = scipy.optimize.curve_fit(sigmoid, X, y, p0=(m, k))
        expected = aicc(y - np.polyval(np.polyfit(X, y, 1), X)) - aicc(y - sigmoid(X, *curve))
        assert sigmoid_ahead(STEPS, 2.0 ** y[None], SIZES)[0] == pytest.approx(expected, abs=0.1)


def drawn(octaves, noise=0.15, count=60):
    """n* of many draws: the same course, with switches moved."""
    rng = np.random.default_rng(1)
    return 2.0 ** np.round(np.clip(octaves + noise * rng.normal(size=(count, 1)), LO, HI))


@pytest.mark.parametrize(
    ("truth", "verdict"), [(sigmoid(X, 9.0, 0.8), "better"), (2.0 + 0.6 * (X - X[0]), "worse")], ids=["sigmoid", "line"]
)
def test_a_sigmoid_is_told_from_a_line(truth, verdict):
    ahead = float(sigmoid_ahead(STEPS, 2.0 ** np.round(truth)[None], SIZES)[0])
    share = float(np.mean(sigmoid_ahead(STEPS, drawn(truth), SIZES) > 0))
    assert told(ahead, share) == verdict
    assert told(ahead, 0.5) == "open"


def test_few_points_are_refused():
    with pytest.raises(ValueError, match="4 budgets and 7 group sizes"):
        sigmoid_ahead(STEPS[:4], np.full((1, 4), 4.0), SIZES)
