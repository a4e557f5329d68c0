"""Solve rates of each problem as they were recorded; uniformity of gains by hand, and unbiased on simulated counts."""

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats

from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import EVAL
from research.problems import (
    SolveTrajectories,
    UniformityCurve,
    UniformityTrend,
    solve_trajectories,
    uniformity,
    uniformity_curve,
    uniformity_trend,
)
from tests.fit.runs import CROSSING, write_run

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"


def read(*paths):
    return read_curves([str(path) for path in paths], ReadOptions())[0]


def with_counts(path, seed, counts, *, samples=4):
    """A run directory whose first evaluations have these counts [E, P]."""
    run = write_run(path, group_size=4, seed=seed, params=CROSSING[4])
    lines = [json.loads(line) for line in (run / EVAL).read_text().splitlines()]
    for line, row in zip(lines, counts, strict=False):
        line |= {"solve_counts": list(row), "samples": samples}
    (run / EVAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_run_directories_of_two_seeds(tmp_path):
    with_counts(tmp_path / "a", 0, [[0, 1, 2], [1, 1, 4], [4, 0, 4]])
    with_counts(tmp_path / "b", 1, [[0, 2, 2], [2, 0, 4]])
    (found,) = solve_trajectories(read(tmp_path))
    assert found.seeds == (0, 1) and found.configuration.group_size == 4
    np.testing.assert_array_equal(found.compute, [0, 2048])  # the third evaluation is one seed's alone
    np.testing.assert_array_equal(found.counts, [[[0, 1, 2], [1, 1, 4]], [[0, 2, 2], [2, 0, 4]]])
    np.testing.assert_array_equal(found.mean_rates, [[0, 3 / 8, 1 / 2], [3 / 8, 1 / 8, 1]])


def test_a_gallery_file_has_what_its_rows_say():
    found = solve_trajectories(read(GALLERY / "problems_64.parquet"))
    assert [each.configuration.group_size for each in found] == [4, 8, 16, 32, 64, 128]
    rows = pq.read_table(GALLERY / "problems_64.parquet").to_pylist()
    for each in found:
        for s, seed in enumerate(each.seeds):
            own = {row["compute"]: row for row in rows if (row["group_size"], row["seed"]) ==
                   (each.configuration.group_size, seed)}  # fmt: skip
            assert each.compute.tolist() == sorted(own)
            np.testing.assert_array_equal(each.counts[s], [own[c]["solve_counts"] for c in each.compute])
            np.testing.assert_allclose(  # avg@4 is the mean solve rate
                each.rates[s].mean(axis=-1), [own[c]["avg@4"] for c in each.compute], rtol=1e-6
            )


def test_runs_without_counts_have_no_trajectories(tmp_path):
    write_run(tmp_path / "a", group_size=4, seed=0, params=CROSSING[4])
    assert solve_trajectories(read(tmp_path)) == ()
    table = memory_table({"run": ["a"] * 3, "group_size": [4] * 3, "compute": [1, 2, 3], "avg@4": [0.1, 0.2, 0.3]})
    assert solve_trajectories(read_curves(table, ReadOptions())[0]) == ()
    pq.write_table(pa.table({"run": ["a"] * 3, "compute": [1, 2, 3], "avg@4": [0.1, 0.2, 0.3]}), tmp_path / "t.parquet")
    assert solve_trajectories(read(tmp_path / "t.parquet")) == ()


@pytest.mark.parametrize(
    ("counts", "message"),
    [([[0, 5], [1, 1]], "0 to samples = 4"), ([[0, -1], [1, 1]], "0 to samples"), ([[0, 1], [1, 1, 1]], "2 problems")],
)
def test_damaged_counts_are_named(tmp_path, counts, message):
    with_counts(tmp_path / "a", 0, counts)
    with pytest.raises(InputError, match=message) as caught:
        solve_trajectories(read(tmp_path))
    assert "eval.jsonl" in str(caught.value)


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


def test_a_larger_n_gains_more_uniformly_at_equal_compute_in_the_gallery():
    """At equal mean gain most of that is gone."""
    found = [uniformity_curve(each) for each in solve_trajectories(read(GALLERY / "problems_64.parquet"))]
    curves = [each for each in found if each is not None]
    compute, gain = trend(curves, "compute"), trend(curves, "gain")
    assert len(curves) == 6 and compute.verdict == gain.verdict == "more"
    assert compute.slope > 0.05 > gain.slope
