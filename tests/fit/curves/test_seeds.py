"""Seeds: who belongs together, means at common compute, and ties within their noise."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute_jax.fit.curves.seeds import average_seeds, group_runs, merge_close, uncovered
from isocompute_jax.fit.frontier.standings import compare, lead
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.records.run_files import RunFacts


def run(n=8, seed=0, compute=(0, 100, 200, 400), reward=(0.1, 0.2, 0.3, 0.4), batch=4, **swept) -> RunCurve:
    facts = RunFacts(n, batch, 0, 100, 10, seed)
    columns = {"avg@4": np.array(reward, dtype=float)}
    return RunCurve(f"n{n}-{seed}", "table", "", facts, swept, True, np.array(compute, dtype=float), columns)


def curves(*runs):
    groups, _ = group_runs(runs)
    found = [average_seeds(group, "avg@4") for group in groups]
    return [curve for curve in found if curve is not None]


def test_seeds_are_averaged_at_common_compute():
    (curve,) = curves(run(seed=0), run(seed=1, reward=(0.1, 0.4, 0.5, 0.8)))
    assert curve.seeds == (0, 1)
    np.testing.assert_allclose(curve.compute, [0, 100, 200, 400])
    np.testing.assert_allclose(curve.reward, [0.1, 0.3, 0.4, 0.6])


def test_the_mean_ends_where_the_first_seed_ends_and_rounding_of_compute_is_interpolated():
    (curve,) = curves(
        run(seed=0, compute=(100, 200, 400, 420), reward=(0.1, 0.2, 0.3, 0.4)),
        run(seed=1, compute=(99, 201, 404), reward=(0.3, 0.4, 0.5)),
    )
    assert not curve.pooled
    np.testing.assert_allclose(curve.compute, [100, 200, 400])
    np.testing.assert_allclose(curve.per_seed, [[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]], atol=0.002)


@pytest.mark.parametrize("second", [(100, 400), (150, 300, 600), (1000, 2000), (100, 200, 300, 400, 800)])
def test_evaluations_of_seeds_on_different_grids_are_pooled(second):
    first, reward = (100, 200, 400, 800), tuple(0.05 * i for i in range(len(second)))
    groups, _ = group_runs([
        run(seed=0, compute=(0, *first), reward=(0.02, 0.1, 0.2, 0.3, 0.4)),
        run(seed=3, compute=second, reward=reward),
    ])  # fmt: skip
    curve = average_seeds(groups[0], "avg@4")
    assert curve is not None and curve.pooled and curve.seeds == (0, 3)
    assert curve.compute.tolist() == sorted((0, *first, *second)) and curve.count.tolist() == [1] * len(curve.compute)
    for number, expected in enumerate((((0, *first), (0.02, 0.1, 0.2, 0.3, 0.4)), (second, reward))):
        np.testing.assert_array_equal(np.stack(curve.of_seed(number)), expected)
    assert sorted(curve.reward) == sorted((0.02, 0.1, 0.2, 0.3, 0.4, *reward))
    together = curve.only(curve.seed_by_seed)
    assert together.compute.tolist() == [0, *first, *second] and together.pooled
    assert uncovered(groups[0], curve) is None
    alone = average_seeds(groups[0], "avg@4", seed=3)
    assert alone is not None and alone.compute.tolist() == list(second) and not alone.pooled


def test_seeds_on_different_grids_are_compared_where_they_were_evaluated():
    """At 300 seed 0 of n = 2 reads 0.3 between its evaluations, seed 1 was not trained so far and does not count."""
    pair = curves(
        run(n=2, seed=0, compute=(100, 900), reward=(0.2, 0.4)),
        run(n=2, seed=1, compute=(50, 200), reward=(0.1, 0.2)),
        run(n=4, seed=0, compute=(100, 300), reward=(0.1, 0.5)),
        run(n=4, seed=1, compute=(100, 300), reward=(0.1, 0.7)),
    )
    at = next(budget for budget in compare(pair) if budget.compute == 300)
    np.testing.assert_allclose(at.mean, [0.3, 0.6])
    assert at.seed_sd == pytest.approx(np.sqrt(0.02)) and at.best_group_size == 4
    three = curves(
        run(n=2, seed=0, compute=(100, 300, 900), reward=(0.2, 0.2, 0.2)),
        run(n=2, seed=1, compute=(90, 280, 600), reward=(0.3, 0.3, 0.3)),
        run(n=4, seed=0, compute=(100, 300, 900), reward=(0.4, 0.4, 0.4)),
        run(n=4, seed=1, compute=(100, 300, 900), reward=(0.5, 0.5, 0.5)),
    )
    few, many = (curve.configuration for curve in three)
    assert lead(three, many, few, compute=np.array([100.0, 300.0, 900.0])) == pytest.approx((0.2, np.sqrt(0.005)))
    assert lead(pair, many, few, compute=np.array([300.0])) == pytest.approx((0.3, np.sqrt(0.02 * (1 / 2 + 1))))


@pytest.mark.parametrize("short", [(100, 200), (300, 400, 500)])
def test_a_seed_that_broke_off_or_began_late_takes_nothing_from_the_others(short):
    """Nor do they from it: a run that is carried further than the others, say because --next said so, counts whole."""
    full = {"compute": (100, 200, 300, 400, 500), "reward": (0.1, 0.2, 0.3, 0.4, 0.5)}
    rewards = tuple(0.3 + 0.1 * i for i in range(len(short)))
    groups, _ = group_runs([run(seed=0, **full), run(seed=1, **full), run(seed=2, compute=short, reward=rewards)])
    curve = average_seeds(groups[0], "avg@4")
    assert curve is not None and curve.pooled and curve.seeds == (0, 1, 2) and len(curve.compute) == 10 + len(short)
    np.testing.assert_array_equal(np.stack(curve.of_seed(2)), (short, rewards))
    assert uncovered(groups[0], curve) is None


def test_what_the_mean_of_nearly_equal_runs_leaves_out_is_named():
    groups, _ = group_runs([
        run(seed=0, compute=(100, 200, 300, 320), reward=(0.1, 0.2, 0.3, 0.4)),
        run(seed=1, compute=(100, 200, 300), reward=(0.1, 0.2, 0.3)),
    ])  # fmt: skip
    curve = average_seeds(groups[0], "avg@4")
    assert curve is not None and not curve.pooled and curve.compute[-1] == 300
    assert "ends at compute 300, although a seed reaches 320" in (uncovered(groups[0], curve) or "")


def test_other_swept_fields_keep_configurations_apart_and_name_them():
    groups, _ = group_runs([run(seed=s, lr=lr, steps_note="same") for lr in (0.1, 0.2) for s in (0, 1)])
    assert [(g.configuration.name, len(g.runs)) for g in groups] == [("n = 8, lr = 0.1", 2), ("n = 8, lr = 0.2", 2)]
    groups, _ = group_runs([run(n=4), run(n=8, batch=4), run(n=8, batch=16)])
    assert [g.configuration.name for g in groups] == ["n = 4, B = 4", "n = 8, B = 4", "n = 8, B = 16"]


def test_a_repeated_seed_is_left_out_with_a_warning():
    groups, warnings = group_runs([run(), run(), run(n=4), run(n=4, seed=1)])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert "same configuration and seed" in warnings[0] and "different numbers of seeds" in warnings[1]


def test_ties_follow_the_pooled_standard_error():
    # At compute 100: means 0.30, 0.32 and 0.40, each with sample variance 0.02, so the error of a difference of two
    # means of two seeds is sqrt(0.02 (1/2 + 1/2)) = 0.1414.
    def pair(n, mean):
        return [run(n=n, seed=s, compute=(100,), reward=(mean + d,)) for s, d in ((0, 0.1), (1, -0.1))]

    (budget,) = compare(curves(*pair(2, 0.20), *pair(4, 0.27), *pair(8, 0.40)))
    assert budget.seed_sd == pytest.approx(np.sqrt(0.02))
    assert budget.best_group_size == 8 and budget.tied_group_sizes == (4, 8)
    # Student's t for 3 pairs at 95% and 3 degrees of freedom is 4.86: the error allows for a difference of 0.69.
    assert budget.behind == ()
    far = compare(curves(*pair(2, 0.20), *pair(4, 0.27), *pair(8, 0.90)))[0]
    assert [each.group_size for each in far.behind] == [2] and far.tied_group_sizes == (8,)


def test_a_lead_averages_each_seed_over_the_budgets_first():
    # Over both budgets the seeds of n = 2 average 0.2 and 0.3, those of n = 4 0.5 and 0.5: variances 0.005 and 0.
    pair = curves(
        run(n=2, seed=0, compute=(100, 200), reward=(0.1, 0.3)),
        run(n=2, seed=1, compute=(100, 200), reward=(0.2, 0.4)),
        run(n=4, seed=0, compute=(100, 200), reward=(0.4, 0.6)),
        run(n=4, seed=1, compute=(100, 200), reward=(0.6, 0.4)),
    )
    few, many = (curve.configuration for curve in pair)
    assert lead(pair, many, few, compute=np.array([100.0, 200.0])) == pytest.approx((0.25, np.sqrt(0.0025)))
    assert np.isnan(lead(pair, many, few, compute=np.array([100.0, 300.0]))).all()
    assert np.isnan(lead(pair, many, few, compute=np.array([]))).all()


def test_one_seed_gives_no_noise_and_no_ties():
    budgets = compare(curves(run(n=2), run(n=4, reward=(0.1, 0.1, 0.3, 0.5), compute=(0, 100, 200, 300))))
    assert [b.compute for b in budgets] == [100, 200, 300, 400]
    assert [b.best_group_size for b in budgets] == [2, 2, 4, 2]
    assert all(np.isnan(b.seed_sd) and b.tied == (b.best,) and b.behind == () for b in budgets)
    assert np.isnan(budgets[-1].mean[1])


def test_budgets_that_differ_by_rounding_are_one():
    np.testing.assert_allclose(merge_close(np.array([2048, 2060, 4096, 4100, 8000, 8192.0])), [2060, 4096, 8000, 8192])
