"""Uniformity of improvement: by hand, unbiased on simulated counts, and what the gallery says."""

import pathlib
import types
from typing import Any

import numpy as np
import pytest
import scipy.stats

from isocompute_jax.fit import solve_trajectories, uniformity, uniformity_curve, uniformity_trend
from isocompute_jax.fit.comparisons.problems import (
    SolveTrajectories,
    UniformityCurve,
    UniformityTrend,
    compare_uniformity,
)
from isocompute_jax.fit.read import ReadOptions, read_curves
from isocompute_jax.fit.report.figures.series import draw_comparison
from isocompute_jax.fit.report.figures.style import in_style, save_figure
from isocompute_jax.fit.results import Configuration

GALLERY = pathlib.Path(__file__).parents[3] / "gallery"


@pytest.fixture(scope="module")
def gallery_runs():
    return read_curves([str(GALLERY / "problems_64.parquet")], ReadOptions())[0]


@pytest.mark.parametrize(
    ("right", "gain", "value"),
    [([8] * 10, 1.0, 1.0), ([8] + [0] * 9, 0.1, 0.1), ([8] * 3 + [0] * 7, 0.3, 0.3), ([0] * 10, 0.0, np.nan)],
)
def test_by_hand(right, gain, value):
    """Rates of 0 and 1 have no noise: k of P problems that gain alike have U = k / P."""
    found = uniformity(np.array(right), 8, np.zeros(10, int), 8)
    np.testing.assert_allclose(found, (gain, value))


def test_parity_with_a_loop_over_problems():
    rng = np.random.default_rng(0)
    before, after = rng.binomial(40, 0.1, 50), rng.binomial(16, rng.uniform(0, 1, 50))
    gains, squares, noises = [], [], []
    for x, y in zip(before, after, strict=True):
        p, q = x / 40, y / 16
        noise = 16 * q * (1 - q) / 15 / 16 + 40 * p * (1 - p) / 39 / 40  # sample variance (ddof 1) / m
        gains.append(q - p)
        squares.append((q - p) ** 2 - noise)
        noises.append(noise)
    expected = ((sum(gains) / 50) ** 2 - sum(noises) / 50**2) / (sum(squares) / 50)
    found = uniformity(after, 16, before, 40)
    assert found.value == pytest.approx(expected) and found.gain == pytest.approx(sum(gains) / 50)


TRUE_GAINS = {
    "all alike": np.full(300, 0.3),
    "a third of them": np.repeat([0.9, 0.0], [100, 200]),
    "few": np.repeat([0.8, 0.0], [15, 285]),
    "some fall": np.repeat([0.5, -0.05], [150, 150]),
    "spread": np.linspace(0, 0.6, 300),
}


@pytest.mark.parametrize("name", TRUE_GAINS)
@pytest.mark.parametrize("samples", [4, 8])
def test_sampling_noise_does_not_bias_it(name, samples):
    rng = np.random.default_rng(0)
    before = np.full(300, 0.05)
    after = before + TRUE_GAINS[name]
    truth = TRUE_GAINS[name].mean() ** 2 / np.mean(TRUE_GAINS[name] ** 2)
    draws = 2000
    counts, base = (rng.binomial(samples, rate, (draws, 300)) for rate in (after, before))
    found = uniformity(counts, samples, base, samples).value
    assert np.isfinite(found).mean() > 0.85
    error = np.nanstd(found) / np.sqrt(draws)
    assert np.nanmean(found) == pytest.approx(truth, abs=0.01 * truth + 4 * error)
    gains = counts / samples - base / samples
    naive = np.mean(gains.mean(axis=1) ** 2 / np.mean(gains**2, axis=1))
    assert abs(naive - truth) > 3 * abs(np.nanmean(found) - truth)  # what the correction is for


def test_nothing_is_told_of_gains_that_are_noise():
    rng = np.random.default_rng(1)
    counts, base = rng.binomial(8, 0.2, (2, 1000, 300))
    assert np.isnan(uniformity(counts, 8, base, 8).value).mean() > 0.999


def curve(n, value, gain=None, compute=(1000.0, 2000.0), batch=8):
    value = np.asarray(value, float)
    gain = np.broadcast_to([0.1, 0.3], value.shape) if gain is None else np.asarray(gain, float)
    configuration = Configuration(f"n = {n}, B = {batch}", n, batch, 64)
    return UniformityCurve(configuration, np.array(compute), gain, value)


def trend(curves, at) -> UniformityTrend:
    found = uniformity_trend(curves, at=at)
    assert found is not None
    return found


def test_the_slope_is_that_of_a_regression():
    rng = np.random.default_rng(2)
    curves = [curve(n, np.stack([rng.normal(size=3), rng.normal(size=3)], axis=1)) for n in (4, 8, 32)]
    found = trend(curves, "compute")
    x = np.repeat([2.0, 3.0, 5.0], 3)
    y = np.concatenate([each.value[:, 1] for each in curves])
    expected: Any = scipy.stats.linregress(x, y)
    reach = expected.stderr * scipy.stats.t.ppf(0.975, 7)
    assert found.level == 2000 and found.slope == pytest.approx(expected.slope)
    np.testing.assert_allclose(found.interval95, (expected.slope - reach, expected.slope + reach))


def test_batches_have_a_level_of_their_own():
    """U falls with B_problem and rises with n; n and B_problem move together."""
    curves = [curve(4, [[0, 0.40], [0, 0.42]], batch=8), curve(8, [[0, 0.50], [0, 0.52]], batch=8),
              curve(8, [[0, 0.10], [0, 0.12]], batch=64), curve(16, [[0, 0.20], [0, 0.22]], batch=64)]  # fmt: skip
    found = trend(curves, "compute")
    assert found.slope == pytest.approx(0.1) and found.verdict == "more"


def test_equal_gain_is_read_between_evaluations():
    curves = [
        curve(4, [[0.2, 0.4], [0.2, 0.6]], gain=[[0.1, 0.3], [0.1, 0.3]]),
        curve(8, [[0.5, 0.7], [0.3, 0.9]], gain=[[0.1, 0.2], [0.2, 0.3]]),
    ]
    found = trend(curves, "gain")
    assert found.level == pytest.approx(0.2)  # the smallest of the largest gains
    np.testing.assert_allclose(found.values[0], [0.3, 0.4])
    np.testing.assert_allclose(found.values[1], [0.7, 0.3])


def test_what_cannot_be_compared_is_not():
    assert uniformity_trend([], at="gain") is None
    assert uniformity_trend([curve(4, [[0.2, 0.4], [0.2, 0.5]])], at="compute") is None  # one n
    assert uniformity_trend([curve(4, [[0.2, 0.4]]), curve(8, [[0.2, 0.4]])], at="compute") is None  # no scatter
    assert uniformity_trend([curve(0, [[0.2, 0.4]] * 2), curve(0, [[0.2, 0.5]] * 2)], at="compute") is None  # no n


@pytest.mark.parametrize(("sign", "verdict"), [(1, "more"), (-1, "less"), (0, "open")])
def test_verdicts(sign, verdict):
    curves = [curve(n, [[0, 0.5 + sign * 0.1 * k], [0, 0.52 + sign * 0.1 * k]]) for k, n in enumerate((4, 8, 16))]
    assert trend(curves, "compute").verdict == verdict


def test_it_needs_the_base_model():
    counts = np.ones((2, 2, 5), int)
    found = SolveTrajectories(Configuration("n = 4", 4, 8, 0), (0, 1), np.array([1.0, 2.0]), counts, np.full((2, 2), 8))
    assert uniformity_curve(found) is None


def test_the_answer(gallery_runs, tmp_path):
    counts = solve_trajectories(gallery_runs)
    named = [
        types.SimpleNamespace(run=each.configuration.name, group_size=each.configuration.group_size) for each in counts
    ]
    options = types.SimpleNamespace(read=ReadOptions())
    result: Any = types.SimpleNamespace(options=options, curves=named, known_sizes=True)
    (found,) = compare_uniformity(result, counts)
    with in_style():
        figure = draw_comparison(result, found)
        assert figure and save_figure(figure, tmp_path / "picture.svg").stat().st_size > 10_000
    assert len(found.rows) == 6 and len(found.findings) == 2 and found.verdict == "more"
    assert all("improves more uniformly" in sentence for sentence in found.findings)
    slopes = {at: found.numbers[f"slope_at_equal_{at}"].value for at in ("compute", "gain")}
    assert slopes["compute"] > 0.05 > slopes["gain"]
    assert list(compare_uniformity(result, ())) == []
