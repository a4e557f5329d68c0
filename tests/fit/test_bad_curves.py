"""Curves as they should not be, from the file to the answer: collapses, spikes, too few points, ties, dear steps."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.read import ReadOptions
from isocompute_jax.fit.report.answers import answer_text, range_cells
from isocompute_jax.fit.report.templating import told as findings
from isocompute_jax.fit.report.terminal import headline
from isocompute_jax.fit.report.wording import amount
from isocompute_jax.fit.sweep_results import SweepResult

COMPUTE = np.geomspace(2e3, 1e6, 30)
CURVES = {8: (0.05, 0.60, 3e4, 1.0), 32: (0.05, 0.70, 6e4, 1.0), 64: (0.05, 0.80, 3e4, 1.0)}


def analysed(
    path: pathlib.Path,
    curves: Mapping[int, Callable[[np.ndarray], np.ndarray]],
    *,
    compute: np.ndarray = COMPUTE,
    noise: float = 0.005,
    seeds: int = 1,
    batch: int = 16,
    **options,
) -> SweepResult:
    """n -> the rewards without noise."""
    rng = np.random.default_rng(0)
    lines = ["run,group_size,problems_per_batch,seed,compute,reward"]
    for n, curve in curves.items():
        for seed in range(seeds):
            rewards = np.clip(curve(compute) + noise * rng.normal(size=len(compute)), 0, 1)
            lines += [f"n{n}-s{seed},{n},{batch},{seed},{c},{r}" for c, r in zip(compute, rewards, strict=True)]
    path.write_text("\n".join(lines))
    given = {"form": "hill", "holdout": 0.0, "bootstrap": "none", "read": ReadOptions(metric="reward")}
    return analyse_runs([str(path)], AnalysisOptions(**(given | options)))


def healthy(n: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda compute: hill(compute, *CURVES[n])


def test_the_highest_of_all_stops_at_its_peak(tmp_path):
    """n = 64 is at .65 before it falls, n = 8 never gets above .45: more compute is better not spent."""

    def collapse(compute: np.ndarray) -> np.ndarray:
        return hill(compute, *CURVES[64]) * np.minimum(1, (1.3e5 / compute) ** 0.5)

    def low(compute: np.ndarray) -> np.ndarray:
        return hill(compute, 0.05, 0.45, 3e4, 1.0)

    found = analysed(tmp_path / "stop.csv", {8: low, 64: collapse}, budgets=(1e6, 4e6))
    peak = found.main.fits[1].window[1]
    for advice in found.recommendations:
        assert advice.group_size == 64 and advice.stop == peak and advice.place == "inside"
        assert advice.num_steps == peak // (64 * 16)
        assert abs(advice.reward - float(hill(peak, *CURVES[64]))) < 0.02
        assert advice.interval95[0] < advice.reward < advice.interval95[1]
        assert any(f"stopped at its peak at {peak:.3g}" in reason for reason in advice.reasons)
    for asked in found.asked:  # n = 8 is ahead at the budget, where n = 64 is not, and was not run to the second one
        assert answer_text(found, asked).pick == f"n = 64, stopped at {amount(peak)} rollouts"
    assert [asked.confidence for asked in found.asked] == ["sure", "likely"]
    (last,) = (row for row in found.ranges if row.stop)
    assert (
        last.start <= 1e6 < 4e6 <= last.end
        and range_cells(found, last)[1] == f"n = 64, stopped at {amount(peak)} rollouts"
    )


def test_a_curve_that_collapses_ends_at_its_peak(tmp_path):
    """n = 64 peaks at 1.3e5 and is measured at .105 at 1e6: nobody is advised to take it there."""

    def collapse(compute: np.ndarray) -> np.ndarray:
        late = np.maximum(np.log(compute / 1.3e5) / np.log(1e6 / 1.3e5), 0)
        return np.maximum(hill(compute, *CURVES[64]) - 0.8 * late, 0.105)

    found = analysed(tmp_path / "fall.csv", {8: healthy(8), 32: healthy(32), 64: collapse}, budgets=(1e5, 1e6, 4e6))
    *others, fit = found.main.fits
    assert fit.fall is not None and not any(other.fall for other in others)
    assert 0.8e5 < fit.fall.compute == fit.window[1] < 1.6e5
    assert abs(fit.fall.reward - float(hill(fit.fall.compute, *CURVES[64]))) < 0.02
    assert fit.fall.last_compute == 1e6 and abs(fit.fall.last_reward - 0.105) < 0.02
    assert fit.status == "warning" and "falls after its peak" in fit.message
    assert any("n = 64: falls after its peak" in text for text in found.warnings)
    near, end, far = found.recommendations
    assert near.group_size == 64 and near.status == "ok"
    for advice in (end, far):
        assert advice.group_size == 32
        assert any("n = 64 falls after its peak" in reason for reason in advice.reasons)
    assert {row.run for row in found.frontier.budgets if row.compute > 2e5} == {"n = 32"}
    assert not found.curves[-1].points.used[found.curves[-1].points.compute > fit.fall.compute].any()
    told = " ".join(findings("sections/switches", found))
    assert "n = 64 falls after its peak, and the lead passes to n = 8" in told and "begin or end" not in told
    kept = analysed(tmp_path / "kept.csv", {64: collapse}, falls="keep")
    assert kept.main.fits[0].num_points == 30 and kept.main.fits[0].fall is None


@pytest.mark.slow
def test_two_spikes_do_not_decide_the_answer(tmp_path):
    def spiked(compute: np.ndarray) -> np.ndarray:
        rewards = hill(compute, *CURVES[32])
        rewards[[9, 20]] = 0.93
        return rewards

    for rule in ("off", "strict"):
        found = analysed(
            tmp_path / "spikes.csv", {8: healthy(8), 32: spiked, 64: healthy(64)}, budgets=(1e6,), records=rule
        )
        fit = found.main.fits[1]
        np.testing.assert_allclose(fit.outliers, COMPUTE[[9, 20]])
        assert fit.status == "warning" and "left out" in fit.message and not found.main.fits[0].outliers
        assert abs(float(fit.reward(1e6)) - float(hill(1e6, *CURVES[32]))) < 0.01
        assert found.recommendations[0].group_size == 64
        if rule == "off":
            assert fit.num_points == 28
    assert any("n = 32: left out" in text for text in found.warnings)
    chosen = {answer.recommendation.run: answer for answer in found.answers}
    assert "outliers" not in {objection.kind for objection in chosen["n = 64"].objections}
    points = found.curves[1].points
    assert points.outlier is not None and points.outlier.sum() == 2


def test_a_spike_at_the_end_neither_wins_nor_ends_the_curve(tmp_path):
    for place, size in ((32, 0.25), (64, -0.3)):

        def spiked(compute: np.ndarray, place: int = place, size: float = size) -> np.ndarray:
            rewards = hill(compute, *CURVES[place])
            rewards[-1] += size
            return rewards

        curves = {n: healthy(n) for n in CURVES} | {place: spiked}
        found = analysed(tmp_path / "end.csv", curves, budgets=(1e6, 4e6))
        assert [fit.outliers for fit in found.main.fits] == [(1e6,) if n == place else () for n in CURVES]
        assert all(fit.window[1] == 1e6 for fit in found.main.fits)
        assert [advice.group_size for advice in found.recommendations] == [64, 64]
        assert found.frontier.budgets[-1].group_size == 64 and not found.main.frontier.switches


@pytest.mark.slow
def test_a_collapsed_run_that_was_stopped_leaves_the_lead_to_the_others(tmp_path):
    curves = {n: healthy(n) for n in CURVES} | {64: lambda c: np.where(c > 1.3e5, 0.1, hill(c, *CURVES[64]))}
    path = tmp_path / "stopped.csv"
    analysed(path, curves)
    lines = [
        row for row in path.read_text().splitlines() if not (row.startswith("n64") and float(row.split(",")[4]) > 3e5)
    ]
    path.write_text("\n".join(lines))
    options = AnalysisOptions(read=ReadOptions(metric="reward"), form="hill", bootstrap="none", holdout=0.0)
    last = analyse_runs([str(path)], options).frontier.budgets[-1]
    assert last.compute == 1e6 and last.group_size == 32


def test_a_curve_through_all_its_points_has_no_interval(tmp_path):
    """4 points, 4 parameters: no interval of zero width, of the reward or of a switch."""
    compute = np.geomspace(2e3, 1e6, 4)
    curves = {8: healthy(8), 32: lambda c: hill(c, 0.02, 0.75, 9e4, 1.0)}
    found = analysed(tmp_path / "few.csv", curves, compute=compute, budgets=(1e5, 1e6), bootstrap="auto", replicates=20)
    assert found.main.frontier.switches and found.bootstrap is not None
    for advice, answer in zip(found.recommendations, found.asked, strict=True):
        text = answer_text(found, answer)
        assert np.isnan(advice.interval95).all() and "no interval could be given" in text.expectation
        assert any("4 points for 4 parameters" in reason for reason in advice.reasons)
        assert not any("bootstrap replicates" in reason for reason in advice.reasons)
    assert all(switch.interval95 is None and switch.share is None for switch in found.frontier.switches)
    assert all(row.interval95 is None and row.leader_share is None for row in found.frontier.budgets)
    assert all(curve.bootstrap95 is None for curve in found.curves)
    assert "no interval" in headline(found)


def test_equal_curves_tie(tmp_path):
    same = {n: healthy(32) for n in (4, 8, 16, 32, 64)}
    for noise, seeds in ((0.0, 1), (0.02, 3)):
        found = analysed(
            tmp_path / "same.csv", same, seeds=seeds, noise=noise, budgets=(1e6,), bootstrap="auto", replicates=20
        )
        (advice,) = found.recommendations
        assert len(advice.tied) == 4 and advice.run not in advice.tied
        assert "any n from 4 to 64: no difference seen." in advice.reasons


def test_a_bad_fit_does_not_tie_where_the_evaluations_part(tmp_path):
    """A collapse that is kept bends the whole curve, whose error is then so large that it ties with everything."""

    def collapse(compute: np.ndarray) -> np.ndarray:
        return np.where(compute > 2e5, 0.2, hill(compute, *CURVES[64]))

    found = analysed(
        tmp_path / "bad.csv", {8: healthy(8), 32: healthy(32), 64: collapse}, seeds=3, falls="keep",
        budgets=(3e4, 1e6), bootstrap="blocks", replicates=50,
    )  # fmt: skip
    near, far = found.recommendations
    assert near.group_size == 64 and near.tied == ()
    at_end = found.asked[1]
    assert far.group_size == 32 and at_end.confidence != "sure"
    where = next(budget for budget in found.main.budgets if abs(budget.compute / 3e4 - 1) < 0.2)
    assert where.best_group_size == 64 and {each.group_size for each in where.behind} == {8, 32}
