"""The stages on tables: slices, other units of compute, unknown group sizes, weights, the learning rate's source."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

import numpy as np
import pytest

from isocompute_jax.fit.advice import recommend
from isocompute_jax.fit.analysis import analyse_runs
from isocompute_jax.fit.analysis_options import AnalysisOptions
from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.forms import expsat, hill
from isocompute_jax.fit.curves.screening import record_breaking
from isocompute_jax.fit.curves.seeds import group_runs
from isocompute_jax.fit.frontier.envelope import frontier
from isocompute_jax.fit.read import ReadOptions, read_curves
from isocompute_jax.fit.report.tables import summary_of
from isocompute_jax.fit.stages import Stages
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG
from tests.fit.runs import CROSSING, write_sweep

COMPUTE = np.geomspace(2e3, 1e6, 12)
QUICK = {"bootstrap": "none", "holdout": 0.0, "records": "off", "form": "hill", "forecast": "form"}
READ = ReadOptions(metric="reward")


def truth(n: int, batch: int) -> tuple[float, float, float, float]:
    """Larger n climb later and higher; B_problem = 16 is a little better than 64."""
    return 0.05, 0.5 + 0.1 * np.log2(n / 4) - 0.0004 * batch, 1.5e4 * n / 4, 1.0


def table(path: pathlib.Path, *, noise: float = 0.0, **columns) -> pathlib.Path:
    """A grid of n in 4, 8, 16 and B_problem in 16, 64; `columns`: name -> function of (n, batch, compute)."""
    rng = np.random.default_rng(0)
    lines = [",".join(["run", "group_size", "problems_per_batch", "problem_set_size", "compute", "reward", *columns])]
    for n in (4, 8, 16):
        for batch in (16, 64):
            for c, r in zip(COMPUTE, hill(COMPUTE, *truth(n, batch)), strict=True):
                cells = [f"n{n}-B{batch}", n, batch, 1000, c, r + noise * rng.normal()]
                lines.append(",".join(map(str, [*cells, *(f(n, batch, c) for f in columns.values())])))
    path.write_text("\n".join(lines) + "\n")
    return path


@functools.cache
def sliced(directory: pathlib.Path):
    return analyse_runs([str(table(directory / "grid.csv"))], AnalysisOptions(read=READ, **QUICK))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return sliced(tmp_path_factory.mktemp("grid"))


def test_slices_hold_what_their_members_share(found):
    parts = {(part.kind, part.value): part for part in found.slices}
    by_name = {each.name: each for each in found.main.configurations}
    assert set(parts) == {
        ("problems_per_batch", 16), ("problems_per_batch", 64),
        ("rollouts_per_step", 256),  # 4 x 64 and 16 x 16; 8 x 16 and the others are alone
    }  # fmt: skip
    for (kind, value), part in parts.items():
        assert {getattr(by_name[run], kind) for run in part.runs} == {value}
        assert {row.run for row in part.budgets} <= set(part.runs)
    assert parts["rollouts_per_step", 256].allocation.axis == "steps"
    steps = parts["rollouts_per_step", 256].allocation.compute
    np.testing.assert_allclose(steps, [b.compute / 256 for b in found.main.budgets], rtol=1e-12)


def test_a_slice_has_the_crossings_of_its_members(found):
    part = next(p for p in found.slices if (p.kind, p.value) == ("problems_per_batch", 16))
    gains = {n: truth(n, 16)[1] - 0.05 for n in (4, 8, 16)}
    for switch in part.switches:
        n, m = switch.before.group_size, switch.after.group_size
        # g C / (C + c) = h C / (C + d)  =>  C = (h c - g d) / (g - h)
        expected = (gains[m] * 3750 * n - gains[n] * 3750 * m) / (gains[n] - gains[m])
        assert switch.compute == pytest.approx(expected, rel=1e-5)
    assert [(s.before.group_size, s.after.group_size) for s in part.switches] == [(4, 8), (8, 16)]


def test_the_free_frontier_gives_problems_per_batch_and_steps(found):
    rows = found.frontier.budgets
    assert {row.problems_per_batch for row in rows} == {16}
    for row in rows:
        assert row.num_steps == pytest.approx(row.compute / (16 * row.group_size))
    assert [row.group_size for row in rows] == sorted(row.group_size for row in rows)


def test_other_units_of_compute(tmp_path, found):
    """With 50 tokens per rollout everything happens at 50 times the compute, and epochs stay what they are."""
    path = table(tmp_path / "tokens.csv", tokens=lambda n, batch, c: 50 * c)
    options = AnalysisOptions(read=ReadOptions(metric="reward", compute="tokens"), budgets=(5e6,), **QUICK)
    other = analyse_runs([str(path)], options)
    pairs = list(zip(found.main.frontier.switches, other.main.frontier.switches, strict=True))
    assert len(pairs) == 2
    for one, two in pairs:
        assert two.compute == pytest.approx(50 * one.compute, rel=1e-6)
        assert two.epochs == pytest.approx(one.epochs, rel=1e-2)  # interpolated between evaluations
    (advice,) = other.recommendations
    assert advice.num_steps == 1e5 // (advice.group_size * 16)
    assert summary_of(other)["compute_unit"] == "tokens"
    assert all(switch.epoch_interval95 is None for switch in other.frontier.switches)


def test_unknown_group_sizes_leave_configurations_apart(tmp_path):
    lines = ["run,compute,reward"]
    for name, n in (("recipe a", 4), ("recipe b", 16)):
        lines += [f"{name},{c},{r}" for c, r in zip(COMPUTE, hill(COMPUTE, *truth(n, 16)), strict=True)]
    (tmp_path / "two.csv").write_text("\n".join(lines))
    other = analyse_runs([str(tmp_path / "two.csv")], AnalysisOptions(read=READ, budgets=(1e5,), **QUICK))
    assert [curve.configuration.name for curve in other.main.curves] == ["recipe a", "recipe b"]
    assert len(other.main.frontier.switches) == 1 and np.isnan(other.main.frontier.switches[0].epochs)
    assert other.allocation.status == "failed" and "unknown" in other.allocation.message
    (advice,) = other.recommendations
    assert (advice.run, advice.num_steps) == ("recipe b", None)
    json.dumps(summary_of(other), allow_nan=False)


@pytest.mark.slow
def test_weights_move_the_fit_towards_what_is_sure(tmp_path):
    """Late evaluations are wrong by 0.05 and say so: with their standard errors the truth comes back."""
    path = table(tmp_path / "weighted.csv", se=lambda n, batch, c: 10.0 if c > 5e5 else 0.001)
    text = path.read_text().splitlines()
    late = [i for i, line in enumerate(text[1:], 1) if float(line.split(",")[4]) > 5e5]
    for i in late:
        cells = text[i].split(",")
        cells[5] = str(float(cells[5]) + 0.05)
        text[i] = ",".join(cells)
    path.write_text("\n".join(text))
    plain, weighted = (
        analyse_runs([str(path)], AnalysisOptions(read=READ, stderr_column=column, **QUICK)).main.fits[0].asymptote
        for column in ("", "se")
    )
    assert weighted == pytest.approx(truth(4, 16)[1], abs=1e-4) and abs(plain - weighted) > 0.01


def test_binomial_weights_by_hand(tmp_path):
    options = AnalysisOptions(read=READ, evaluation_samples=96, **QUICK)
    other = analyse_runs([str(table(tmp_path / "grid.csv"))], options)
    assert other.main.errors is not None
    share = (other.main.curves[0].reward * 96 + 2) / 100
    np.testing.assert_allclose(other.main.errors[0], np.sqrt(share * (1 - share) / 96))


def test_a_missing_standard_error_names_the_flag(tmp_path):
    with pytest.raises(InputError, match="--stderr_column=nothing"):
        analyse_runs([str(table(tmp_path / "grid.csv"))], AnalysisOptions(read=READ, stderr_column="nothing", **QUICK))


def test_the_learning_rate_follows_the_rule_of_the_runs(tmp_path):
    runs = write_sweep(tmp_path / "runs", curves={n: CROSSING[n] for n in (2, 4)}, seeds=1)
    for config in runs.glob(f"*/{CONFIG}"):
        facts = json.loads(config.read_text())
        facts["config"]["optimizer"] = {"base_lr": 4e-4, "base_batch": 64, "lr_scaling_exponent": 0.5}
        config.write_text(json.dumps(facts))
    (advice,) = analyse_runs([str(runs)], AnalysisOptions(budgets=(1e5,), **QUICK)).recommendations
    assert advice.group_size == 4
    assert advice.learning_rate == pytest.approx(4e-4 * np.sqrt(32 / 64))
    assert any("that of the runs" in reason for reason in advice.reasons)


def test_a_budget_without_a_frontier_is_an_input_error(tmp_path):
    (tmp_path / "short.csv").write_text("run,group_size,problems_per_batch,compute,reward\na,4,8,1000,0.2\n")
    with pytest.raises(InputError, match="--budget"):
        analyse_runs([str(tmp_path / "short.csv")], AnalysisOptions(read=READ, budgets=(1e4,), **QUICK))


def test_further_targets(tmp_path):
    """The second column favours small n where the first favours large n; one outside of the range is left out."""
    path = table(
        tmp_path / "grid.csv",
        frugal=lambda n, batch, c: 0.9 - 0.02 * n + 1e-8 * c,
        length=lambda n, batch, c: 300.0 + n,
    )
    other = analyse_runs([str(path)], AnalysisOptions(read=READ, targets=("frugal", "length", "absent"), **QUICK))
    assert set(other.targets) == {"frugal"}
    assert {segment.group_size for segment in other.metrics["frugal"].frontier.segments} == {4}
    assert any("length has values outside of --reward_range" in text for text in other.warnings)
    assert any("no run has usable values of absent" in text for text in other.warnings)


def ragged(path: pathlib.Path, ends: dict[int, float]) -> pathlib.Path:
    """n = 4, 16, 64 of which the larger is better late; each is evaluated up to its own end."""
    lines = ["run,group_size,problems_per_batch,compute,reward"]
    for n, end in ends.items():
        compute = np.geomspace(2e3, end, 20)
        lines += [f"n{n},{n},32,{c},{r}" for c, r in zip(compute, hill(compute, *truth(n, 16)), strict=True)]
    path.write_text("\n".join(lines))
    return path


def test_who_stops_a_little_later_has_not_won(tmp_path):
    path = ragged(tmp_path / "ends.csv", {64: 1_196_032, 16: 1_198_080, 4: 1_200_000})
    options = AnalysisOptions(read=READ, budgets=(1.2e6, 4e6), records="off", holdout=0.0, replicates=20)
    other = analyse_runs([str(path)], options)
    assert [segment.group_size for segment in other.main.frontier.segments] == [4, 16, 64]
    assert other.main.frontier.segments[-1].end == 1_196_032
    assert other.allocation.group_size[-1] == 64
    assert [advice.group_size for advice in other.recommendations] == [64, 64]
    assert any("in 100% of" in reason for reason in other.recommendations[0].reasons)
    assert "the largest n that was run" in other.allocation.message and other.allocation.status == "extrapolated"


def test_budgets_that_only_the_worse_reached_say_nothing_about_n(tmp_path):
    """n = 64 stopped at 6e5, where it led: what n = 16 does alone after that is no lead."""
    path = ragged(tmp_path / "early.csv", {4: 1e6, 16: 1e6, 64: 6e5})
    other = analyse_runs([str(path)], AnalysisOptions(read=READ, budgets=(8e5, 4e6), **QUICK))
    assert other.main.frontier.segments[-1].end == 1e6
    assert other.allocation.compute[-1] <= 6e5 * 1.02 and other.allocation.group_size[-1] == 64
    assert max(row.compute for row in other.frontier.budgets) <= 6e5 * 1.02
    near, far = other.recommendations
    assert near.group_size == 64 and "carried on from 6e+05" in near.reasons[0] and near.beyond == pytest.approx(4 / 3)
    assert far.reward > near.reward


def test_evaluations_outside_the_window_are_not_used(tmp_path):
    options = AnalysisOptions(read=READ, fit=FitOptions(window=(5e3, 5e5)), **QUICK)
    other = analyse_runs([str(table(tmp_path / "grid.csv"))], options)
    for curve, used, fit in zip(other.main.curves, other.main.used, other.main.fits, strict=True):
        np.testing.assert_array_equal(used, (curve.compute >= 5e3) & (curve.compute <= 5e5))
        assert fit.num_points == used.sum()


def test_seeds_evaluated_at_different_computes_are_fitted_from_their_own_evaluations(tmp_path, found):
    """Every evaluation lies on the true curve: so does the fit, although no mean between evaluations does."""
    lines = ["run,group_size,problems_per_batch,seed,compute,reward,se"]
    for n, seed, points in ((4, 0, 7), (4, 1, 5), (8, 0, 8), (8, 1, 8)):
        compute = np.geomspace(2e3, 1e6, points)
        rewards = [0.05, *hill(compute, *truth(n, 16))]
        rows = zip([0, *compute], rewards, strict=True)
        lines += [f"n{n}-s{seed},{n},16,{seed},{c},{r},{0.01 * (1 + seed)}" for c, r in rows]
    (tmp_path / "seeds.csv").write_text("\n".join(lines))
    sources = [str(tmp_path / "seeds.csv")]
    other = analyse_runs(sources, AnalysisOptions(read=READ, **QUICK))
    np.testing.assert_allclose(tuple(other.main.fits[0].params.values()), truth(4, 16), rtol=1e-5)
    assert [curve.pooled for curve in other.main.curves] == [True, False]
    (told,) = (text for text in other.warnings if "different computes" in text)
    assert told.startswith("n = 4: ") and not any("different computes" in text for text in found.warnings)
    assert [len(c) for c in other.main.data["compute"]] == [14, 9]
    assert np.count_nonzero(np.diff(other.main.data["compute"][0]) < 0) == 1  # one seed, then the other
    assert np.all(np.diff(other.main.curves[0].compute) >= 0)
    assert other.base_model == {"reward": pytest.approx(0.05)}
    options = AnalysisOptions(read=READ, evaluation_samples=96, **QUICK)
    errors = analyse_runs(sources, options).main.errors
    assert errors is not None
    for curve, error, seeds in zip(other.main.curves, errors, (1, 2), strict=True):
        share = (curve.reward * 96 + 2) / 100
        np.testing.assert_allclose(error, np.sqrt(share * (1 - share) / 96 / seeds))
    errors = analyse_runs(sources, AnalysisOptions(read=READ, stderr_column="se", **QUICK)).main.errors
    assert errors is not None
    pooled = other.main.curves[0]
    np.testing.assert_allclose(errors[0], np.where(np.isfinite(pooled.per_seed[0]), 0.01, 0.02))
    np.testing.assert_allclose(errors[1], np.sqrt(0.01**2 + 0.02**2) / 2)


@pytest.mark.slow
def test_noise_of_pooled_seeds_has_its_memory_within_a_seed(tmp_path):
    """Evaluations of three seeds take turns: neighbours in compute are independent, those of a seed are alike."""
    rng = np.random.default_rng(2)
    lines = ["run,group_size,problems_per_batch,seed,compute,reward"]
    for seed in range(3):
        compute, noise = np.geomspace(2e3, 1e6, 30) * 1.07**seed, [rng.normal()]
        for _ in compute[1:]:
            noise.append(0.8 * noise[-1] + 0.6 * rng.normal())
        rewards = hill(compute, *truth(4, 16)) + 0.005 * np.array(noise)
        lines += [f"s{seed},4,16,{seed},{c},{r}" for c, r in zip(compute, rewards, strict=True)]
    (tmp_path / "seeds.csv").write_text("\n".join(lines))
    (fit,) = analyse_runs([str(tmp_path / "seeds.csv")], AnalysisOptions(read=READ, **QUICK)).main.fits
    assert fit.num_points == 90 and fit.correlation > 0.5
    options = dataclasses.replace(AnalysisOptions(read=READ, **QUICK), records="strict")
    strict = analyse_runs([str(tmp_path / "seeds.csv")], options)
    (curve,), (used,) = strict.main.curves, strict.main.used
    for number in range(3):  # a record is one of its own run
        reward, picked = curve.of_seed(number)[1], used[np.isfinite(curve.per_seed[number])]
        np.testing.assert_array_equal(picked, record_breaking(reward, records="strict", bin_width=0.0))


def seeded(path: pathlib.Path, curves: dict[int, tuple[float, float, float, float]], seeds: dict[int, int], **noise):
    """Curves with a number of seeds each; `sd`: n -> standard deviation of an evaluation."""
    rng = np.random.default_rng(4)
    lines = ["run,group_size,problems_per_batch,seed,compute,reward"]
    for n, params in curves.items():
        for seed in range(seeds[n]):
            values = hill(LONG, *params) + noise["sd"][n] * rng.normal(size=len(LONG))
            lines += [f"n{n}-s{seed},{n},16,{seed},{c},{r}" for c, r in zip(LONG, np.clip(values, 0, 1), strict=True)]
    path.write_text("\n".join(lines))
    return path


LONG = np.geomspace(2e3, 1e6, 30)


@pytest.mark.slow
def test_curves_have_the_form_that_fits_the_sweep_clearly_better(tmp_path):
    """Under --form=auto; one that is named, or whose parameters are held, is kept."""
    compute = np.geomspace(2e3, 1e6, 25)
    rng = np.random.default_rng(1)
    truths = {
        "expsat": {n: expsat(compute, 0.1, a, k) for n, a, k in ((8, 0.6, 2e-5), (32, 0.7, 3e-6))},
        "hill": {n: hill(compute, 0.1, a, m, 0.9) for n, a, m in ((8, 0.6, 3e4), (32, 0.7, 2e5))},
    }
    for name, curves in truths.items():
        lines = ["run,group_size,problems_per_batch,seed,compute,reward"]
        for n, truth in curves.items():
            rewards = truth + 0.004 * rng.normal(size=len(compute))
            lines += [f"n{n},{n},16,0,{c},{r}" for c, r in zip(compute, rewards, strict=True)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(lines))
        groups, _ = group_runs(read_curves([str(path)], READ)[0])
        cases = (
            (AnalysisOptions(read=READ), name),
            (AnalysisOptions(read=READ, form="hill"), "hill"),
            (AnalysisOptions(read=READ, fit=FitOptions(fix={"A": 0.7})), "hill"),
            (AnalysisOptions(read=READ, form="logistic"), "logistic"),
            (AnalysisOptions(read=READ, fit=FitOptions(form="logistic")), "logistic"),
        )
        for options, wanted in cases:
            stages = Stages(options, groups).in_best_form()
            assert {fit.form for fit in stages.metric("reward").fits} == {wanted}
            weights = stages.forecast(stages.metric("reward", intervals=True))
            assert weights is None or (len(weights.weights) == 1) == (options.form != "auto")


def test_where_the_choice_of_evaluations_decides_the_answer_says_so(tmp_path):
    """As if the records told the opposite of all evaluations."""
    curves = {8: (0.05, 0.70, 3e4, 1.0), 32: (0.05, 0.60, 3e4, 1.0)}
    path = seeded(tmp_path / "seeds.csv", curves, {8: 2, 32: 2}, sd={8: 0.01, 32: 0.01})
    runs, _ = read_curves([str(path)], READ)
    stages = Stages(AnalysisOptions(read=READ, bootstrap="none"), group_runs(runs)[0])
    main = stages.metric("reward", intervals=True)
    fits = main.fits[::-1]
    points = tuple(each._replace(fit=fit) for each, fit in zip(main.points, fits, strict=True))
    swapped = dataclasses.replace(main, points=points, frontier=frontier(fits, [c.configuration for c in main.curves]))
    law = stages.allocation(main, None)
    agreed, doubted = (recommend([1e6], stages, main, law, None, {"strict": it})[1e6] for it in (main, swapped))
    assert agreed.group_size == doubted.group_size == 8 and agreed.status == "ok" and not agreed.by_records
    assert doubted.status == "warning" and doubted.by_records == "n = 32"
    assert any("--records=strict) n = 32 would lead" in reason for reason in doubted.doubts)


def test_all_evaluations_are_fitted_by_default(tmp_path):
    """One noisy seed of a worse n beside five of a better: its records lie above its curve, all of it does not."""
    curves = {8: (0.05, 0.70, 3e4, 1.0), 32: (0.05, 0.67, 3e4, 1.0)}
    path = seeded(tmp_path / "seeds.csv", curves, {8: 5, 32: 1}, sd={8: 0.01, 32: 0.04})
    quick = {"bootstrap": "none", "holdout": 0.0}
    found = analyse_runs([str(path)], AnalysisOptions(read=READ, budgets=(1e6,), **quick))
    assert found.options.records == "off"
    assert [fit.num_points for fit in found.main.fits] == [30, 30]
    (advice,) = found.recommendations
    assert advice.group_size == 8
    assert any("who leads where the data end depends" in text for text in found.warnings)
    strict = analyse_runs([str(path)], AnalysisOptions(read=READ, budgets=(1e6,), records="strict", **quick))
    (advice,) = strict.recommendations
    assert advice.group_size == 32 and advice.tied == ("n = 8",)
