"""Solve rates of each problem: read from every place that has them, and what their spread says without noise."""

import json
import pathlib
import types
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isocompute_jax.fit import solve_trajectories
from isocompute_jax.fit.comparisons.problems import SolveTrajectories, alike, compare_problems, problem_spread
from isocompute_jax.fit.read import ReadOptions, memory_table, read_curves
from isocompute_jax.fit.report.figures.series import draw_comparison
from isocompute_jax.fit.report.figures.style import in_style, save_figure
from isocompute_jax.fit.results import Configuration
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import EVAL
from tests.fit.runs import CROSSING, write_run

GALLERY = pathlib.Path(__file__).parents[3] / "gallery"


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


def made(counts, samples=8, compute=None):
    """Trajectories of counts [S, E, P]."""
    counts = np.asarray(counts)
    seeds, evaluations, _ = counts.shape
    compute = np.arange(evaluations) * 1000.0 if compute is None else np.asarray(compute, float)
    configuration = Configuration("n = 4", 4, 8, 100)
    return SolveTrajectories(
        configuration, tuple(range(seeds)), compute, counts, np.full((seeds, evaluations), samples)
    )


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


def test_only_trajectories_of_one_set_are_laid_beside_each_other():
    two, three = made(np.zeros((1, 2, 2), int)), made(np.zeros((1, 2, 3), int))
    assert alike([three, two, three]) == (three, three) and alike([]) == ()


def test_spread_by_hand():
    # Two seeds of 8 samples; the last evaluation has rates 0, 1/2, 1 and 0, 1, 1/2.
    found = problem_spread(made([[[0, 0, 8], [0, 4, 8]], [[0, 0, 8], [0, 8, 4]]]))
    noise = 0.25 / 7 / 3  # one problem of three at 1/2
    assert found["first_rate"] == pytest.approx(1 / 3) and found["last_rate"] == pytest.approx(0.5)
    assert found["first_spread"] == pytest.approx(np.std([0, 0, 1], ddof=1))
    assert found["last_spread"] == pytest.approx(np.sqrt(0.25 - noise))
    assert found["in_common"] == pytest.approx(0.125 / (0.25 - noise))  # covariance of (0, .5, 1) and (0, 1, .5)
    assert np.isnan(found["in_common_error"])  # of two seeds none can be left out
    assert found["fallen"] == 0


def test_problems_that_fall_are_counted():
    first, last = np.full((1, 100), 6), np.full((1, 100), 6)
    last[:, :20] = 0
    assert problem_spread(made(np.stack([first, last], axis=1)))["fallen"] == pytest.approx(0.2)


def test_spread_and_what_seeds_share_are_unbiased():
    rng = np.random.default_rng(0)
    problem, chance = 0.15, 0.1  # standard deviations of what all seeds share, and of what each has alone
    found = []
    for _ in range(100):
        shared = 0.5 + problem * rng.choice([-1, 1], 200)
        rates = shared + chance * rng.choice([-1, 1], (4, 200))
        counts = rng.binomial(8, np.stack([np.full_like(rates, 0.5), rates], axis=1))
        found.append(problem_spread(made(counts)))
    spread = np.array([each["last_spread"] ** 2 for each in found])
    common = np.array([each["in_common"] for each in found])
    errors = np.array([each["in_common_error"] for each in found])
    assert spread.mean() == pytest.approx(problem**2 + chance**2, abs=4 * spread.std() / 10)
    expected = problem**2 / (problem**2 + chance**2)
    assert common.mean() == pytest.approx(expected, abs=4 * common.std() / 10)
    assert 0.5 * common.std() < errors.mean() < 2 * common.std()


def test_chance_alone_lets_one_percent_fall():
    counts = np.random.default_rng(1).binomial(16, 0.5, (5, 2, 20_000))
    assert 0.004 < problem_spread(made(counts, samples=16))["fallen"] < 0.016


def test_the_answer(tmp_path):
    counts = solve_trajectories(read(GALLERY / "problems_64.parquet"))
    (found,) = compare_problems(RESULT, counts)
    with in_style():
        figure = draw_comparison(RESULT, found)
        assert figure and "data:image/png" in save_figure(figure, tmp_path / "picture.svg").read_text()
    assert len(found.rows) == 6 and found.numbers["problems"] == 300 and "300" in found.about
    shares = [problem_spread(each)["in_common"] for each in counts]
    assert [row["in_common"].value for row in found.rows] == shares == sorted(shares)
    assert f"{shares[-1]:.0%}" in found.findings[0] and found.verdict == "some fall"
    assert list(compare_problems(RESULT, ())) == []


RESULT: Any = types.SimpleNamespace(options=types.SimpleNamespace(read=ReadOptions()), curves=(), known_sizes=False)
"""As much of a `SweepResult` as sentences and picture read."""
