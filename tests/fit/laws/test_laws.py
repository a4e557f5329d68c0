"""From runs to summary, figures, sections and tables: claims are computed, and nothing unidentified is quoted."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.wording import reach, scale, stated
from isocompute_jax.fit.results import Estimate
from isocompute_jax.laws.analysis import ChinchillaResult, LawOptions, LawResult, ModelSizeResult, analyse_law
from isocompute_jax.laws.report import (
    SECTIONS,
    draw_law_figures,
    findings,
    law_summary,
    law_table,
    law_tables,
    render_law_report,
)
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import RunFacts
from tests.fit.commands import undrawn

K_MAX, N0 = 0.12, 2e9
SIZES = (500_000_000, 1_500_000_000, 3_000_000_000, 7_000_000_000, 14_000_000_000)


def run_curve(name, facts, columns) -> RunCurve:
    size = len(next(iter(columns.values())))
    compute = columns.get("compute", np.arange(size, dtype=float))
    return RunCurve(name, f"{name}/eval.jsonl", "0" * 64, RunFacts(**facts), {}, True, compute, columns)


def rl_runs(*, sizes=SIZES, noise=0.01, seeds=2, n0=N0, problems=1000, tokens=True) -> list[RunCurve]:
    """Runs of the model-size law: 25 evaluations after the base model's, levels such that all cross at 5e18."""
    rng = np.random.default_rng(0)
    compute = np.concatenate([[0.0], np.geomspace(2e3, 4e6, 25)])
    runs = []
    for size in sizes:
        for seed in range(seeds):
            used = 1000 * compute
            flops = 6 * size * used
            k = K_MAX / (1 + n0 / size)
            log_loss = np.full(26, -0.3)
            log_loss[1:] = -0.5 - k * np.log(flops[1:] / 5e18) + noise * rng.normal(size=25)
            columns = {"compute": compute, "avg@4": 1 - np.exp(log_loss)} | ({"tokens": used} if tokens else {})
            facts = {"group_size": 8, "problems_per_batch": 32, "num_steps": 100, "problem_set_size": problems,
                     "model_params": size, "seed": seed}  # fmt: skip
            runs.append(run_curve(f"{scale(size)}-s{seed}", facts, columns))
    return runs


def pretraining_runs(noise=0.002) -> list[RunCurve]:
    rng = np.random.default_rng(1)
    runs = []
    for size in np.geomspace(5e7, 5e9, 6):
        for end in np.geomspace(2e9, 2e11, 6):
            tokens = np.array([0.0, end / 2, end])
            with np.errstate(divide="ignore"):
                loss = 1.69 + 406.4 / int(size) ** 0.34 + 410.7 / tokens**0.28
            loss = np.where(tokens > 0, loss * np.exp(noise * rng.normal(size=3)), np.nan)
            facts = {"group_size": 0, "problems_per_batch": 0, "num_steps": 0, "problem_set_size": 0,
                     "model_params": int(size), "seed": 0}  # fmt: skip
            runs.append(run_curve(f"{size:.0f}-{end:.0f}", facts, {"tokens": tokens, "loss": loss}))
    return runs


def pretraining_runs_without_sizes() -> list[RunCurve]:
    facts = RunFacts(0, 0, 0, 0, model_params=0, seed=0)
    return [dataclasses.replace(run, facts=facts) for run in pretraining_runs()]


MODEL_SIZE = LawOptions(predict_params=(7e10,))
CHINCHILLA = LawOptions(analysis="chinchilla", metric="loss", loss="metric", resamples=20, flops=(1e21,))


@pytest.fixture(scope="module")
def model_size() -> ModelSizeResult:
    return analyse(rl_runs(), ["a remark"], MODEL_SIZE)


@pytest.fixture(scope="module")
def chinchilla() -> ChinchillaResult:
    return analyse(pretraining_runs(), [], CHINCHILLA)


def analyse(runs, warnings, options) -> Any:
    return analyse_law(runs, warnings, options)


def text_of(analysis: LawResult) -> str:
    names = ("headline", *SECTIONS[analysis.options.analysis])
    sections = [findings(name, analysis) for name in names]
    assert all(section and all(sentence.endswith(".") for sentence in section) for section in sections)
    return " ".join([*(sentence for section in sections for sentence in section), law_table(analysis)])


def drawn(analysis: LawResult, folder) -> set[str]:
    """Names of its pictures, which are made and not rendered."""
    with undrawn():
        return set(draw_law_figures(analysis, folder))


def test_the_summary_is_plain_data(model_size, chinchilla):
    for analysis in (model_size, chinchilla):
        summary = law_summary(analysis)
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
        assert list(summary)[:7] == ["schema_version", "analysis", "inputs", "flags", "versions", "seed", "warnings"]
        assert summary["schema_version"] == 2 and summary["analysis"] == analysis.options.analysis
        assert len(summary["inputs"]) == len(analysis.runs)
    warnings = law_summary(model_size)["warnings"]
    assert warnings[0] == "a remark" and "10 points left out, at X = 0" in warnings[1]


def test_the_schema_of_the_summaries(model_size, chinchilla):
    """What readers of summary.json find, record by record; a field more or less is a change of schema."""
    summary = law_summary(model_size)
    estimate = ["value", "low", "high", "identified", "note"]
    holdout = [
        "model_params", "num_fitted", "num_scored", "log_loss_error", "reward_error", "unchanged_error", "predicted_k",
        "measured_k", "points",
    ]  # fmt: skip
    assert list(summary)[7:] == [
        "resource", "law", "models", "slopes", "crossovers", "intra_model", "inter_model", "predictions", "reuse",
        "equal_data",
    ]  # fmt: skip
    assert list(summary["law"]) == [
        "k_max", "n0", "num_points", "k_max_error", "log_n0_error", "autocorrelation", "misfit", "sse", "r2", "status",
        "message",
    ]  # fmt: skip
    assert list(summary["law"]["n0"]) == list(summary["predictions"][0]["k"]) == estimate
    assert list(summary["models"][0]) == [
        "model_params", "k", "intercept", "free_k", "free_k_error", "free_intercept", "first_x", "last_x", "num_points",
        "num_runs", "points",
    ]  # fmt: skip
    assert list(summary["crossovers"][0]) == [
        "smaller", "larger", "x", "low", "high", "inside", "better_after", "status", "message"
    ]  # fmt: skip
    assert list(summary["slopes"]) == ["model_params", "k", "low", "high"]
    assert list(summary["intra_model"][0]) == list(summary["inter_model"][0]) == holdout
    assert list(summary["inter_model"][0]["points"]) == ["x", "reward", "predicted"]
    summary = law_summary(chinchilla)
    assert list(summary)[7:] == ["points", "fits", "optimal", "convergence"]
    assert list(summary["fits"][0]) == [
        "method", "e", "a", "b", "alpha", "beta", "exponent", "num_points", "objective", "r2", "status", "message",
        "predicted",
    ]  # fmt: skip
    assert list(summary["optimal"][0]) == [
        "method", "flops", "identified", "model_params", "model_params_low", "model_params_high", "tokens",
        "tokens_low", "tokens_high", "loss", "note",
    ]  # fmt: skip
    assert list(summary["convergence"][0]) == [
        "variable", "e", "a", "alpha", "num_points", "r2", "chinchilla_alpha", "held_out_x", "held_out_loss",
        "forecast", "chinchilla_forecast", "status", "message", "x", "loss", "chinchilla_loss",
    ]  # fmt: skip
    assert list(summary["points"]) == ["model_params", "tokens", "loss", "run"]


def test_the_model_size_law_from_runs(model_size):
    result = model_size
    law = result.law
    assert law.status == "ok" and law.num_points == 250
    assert law.k_max.low < K_MAX < law.k_max.high and law.n0.low < N0 < law.n0.high
    assert [model["model_params"] for model in result.models] == list(SIZES)
    assert result.models[0]["first_x"] == pytest.approx(6 * SIZES[0] * 2e6)
    assert result.resource == {"kind": "compute", "unit": "FLOPs (6 N tokens)"}
    assert len(result.crossovers) == 10
    wide = result.crossovers[3]  # the smallest and the largest: their slopes differ most
    assert wide.inside and wide.low < 5e18 < wide.high and wide.better_after == SIZES[-1]
    smallest = result.models[0]
    assert wide.loss == pytest.approx(wide.x ** -smallest["k"] * np.exp(smallest["intercept"]))
    (larger,) = result.inter_model
    assert larger.model_params == SIZES[-1]
    assert larger.predicted_k.low < K_MAX / (1 + N0 / SIZES[-1]) < larger.predicted_k.high
    (predicted,) = result.predictions
    assert predicted["k"].low < K_MAX / (1 + N0 / 7e10) < predicted["k"].high
    assert result.reuse.num_above > 0  # 4e6 rollouts over 8 x 1000 are 500 epochs
    errors = np.concatenate([h.points["predicted"] - h.points["reward"] for h in result.intra_model])
    assert result.later[0] == pytest.approx(np.abs(errors).mean())


def test_sentences_quote_the_results(model_size, chinchilla):
    text, result = text_of(model_size), model_size
    assert f"k_max is {result.law.k_max.value:.3g} (95% interval: " in text
    assert f"{scale(result.law.n0.value)} (95% interval: " in text
    assert f"cross at {result.crossings_inside[0].x:.3g} FLOPs" in text
    assert "Within one run reuse and X rise together" in text
    text = text_of(chinchilla)
    for fit in chinchilla.fits:
        assert f"alpha {fit.alpha.value:.3g} (95% interval: " in text
        assert f"to the power {fit.exponent.value:.3g} (95% interval: " in text


def test_the_pretraining_law_from_runs(chinchilla):
    assert len(chinchilla.points["loss"]) == 36
    everything = analyse(pretraining_runs(), [], dataclasses.replace(CHINCHILLA, points="all", resamples=0))
    assert len(everything.points["loss"]) == 72
    for fit in chinchilla.fits:
        assert fit.status == "ok"
        for found, truth in ((fit.e, 1.69), (fit.alpha, 0.34), (fit.beta, 0.28)):
            assert found.value == pytest.approx(truth, rel=0.1)
    for row in chinchilla.optimal:
        assert row["flops"] == 1e21 and 6 * row["model_params"] * row["tokens"] == pytest.approx(1e21)
        assert row["model_params_low"] < row["model_params"] < row["model_params_high"]


@pytest.mark.parametrize("which", ["model_size", "chinchilla"])
def test_figures_sections_and_tables(which, tmp_path, request):
    analysis = request.getfixturevalue(which)
    figures = draw_law_figures(analysis, tmp_path, png=True)
    pictures = {"model_size": {"lines", "slopes", "holdout"}, "chinchilla": {"prediction", "optimal", "convergence"}}
    assert set(figures) == pictures[which]
    for path in figures.values():
        assert path.read_text().startswith("<?xml") and path.with_suffix(".png").stat().st_size > 10_000
    assert text_of(analysis)
    page = render_law_report(analysis, figures)
    assert (page.count("<svg role=") == len(figures) and "a remark" in page) or which == "chinchilla"
    for table in re.findall(r"<table>(.*?)</table>", page, flags=re.DOTALL):
        rows = [len(re.findall("<t[hd]", row)) for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.DOTALL)]
        assert len(rows) > 1 and set(rows) == {rows[0]}
    for name, text in law_tables(analysis).items():
        rows = list(csv.DictReader(io.StringIO(text)))
        assert rows and name.endswith(".csv") and None not in rows[0]
    assert re.search(r"<h1>[^<]*\?</h1>", page)


def test_what_is_not_identified_is_never_quoted(tmp_path):
    analysis = analyse(rl_runs(n0=1e13, noise=0.0003), [], LawOptions())
    law = analysis.law
    assert not law.k_max.identified and not law.n0.identified
    text = text_of(analysis)
    assert "k_max is not identified (95% interval: above " in text
    for value in (f"{law.k_max.value:.3g}", scale(law.n0.value)):
        assert not re.search(rf"(?<![\d.]){re.escape(value)}(?![\d.])", text)
    (row,) = csv.DictReader(io.StringIO(law_tables(analysis)["model_size.csv"]))
    assert row["k_max"] == row["n0"] == "" and row["k_max_identified"] == "False"
    assert drawn(analysis, tmp_path) == {"lines", "slopes", "holdout"}


def test_one_model_and_two_models(tmp_path):
    one = analyse(rl_runs(sizes=SIZES[:1]), [], LawOptions(predict_params=(1e9,)))
    result = one
    assert result.law.status == "warning" and result.crossovers == result.inter_model == result.predictions == ()
    assert "One model size has nothing to cross with." in text_of(one)
    assert drawn(one, tmp_path) == {"lines", "holdout"}
    two = analyse(rl_runs(sizes=SIZES[:2]), [], LawOptions())
    assert "2 model sizes" in text_of(two) and len(two.crossovers) == 1 and two.inter_model == ()


def test_a_design_that_cannot_identify_the_pretraining_law(tmp_path):
    runs = [r for r in pretraining_runs() if r.facts.model_params < 2e8]
    analysis = analyse(runs, [], CHINCHILLA)
    text = text_of(analysis)
    assert "Too few model sizes (2; 3 are needed)" in text and "allocation is not identified" in text
    assert not any(row["identified"] for row in analysis.optimal)
    assert drawn(analysis, tmp_path) == {"prediction", "convergence"}
    assert "C (FLOPs)" not in render_law_report(analysis, {})


@pytest.mark.parametrize(("low", "high"), [(0.0, 100.0), (-1.0, 1.0)])
def test_rewards_of_any_range_have_the_same_law(low, high):
    runs = rl_runs()
    moved = [
        dataclasses.replace(r, columns=r.columns | {"avg@4": low + (high - low) * r.columns["avg@4"]}) for r in runs
    ]
    one = analyse(runs, [], LawOptions())
    other = analyse(moved, [], LawOptions(reward_range=(low, high)))
    for name in ("k_max", "n0"):
        assert getattr(other.law, name).value == pytest.approx(getattr(one.law, name).value, rel=1e-6)
    assert [row.reward_error for row in other.intra_model] == pytest.approx(
        [row.reward_error for row in one.intra_model]
    )


def test_data_as_resource_and_missing_columns():
    result = analyse(rl_runs(tokens=False, sizes=SIZES[:3]), [], LawOptions(x="data"))
    assert result.resource["unit"] == "rollouts" and result.models[0]["last_x"] == pytest.approx(4e6)
    with pytest.raises(InputError, match=r"no tokens.*--columns=THEIRS:tokens, or use --x=data"):
        analyse(rl_runs(tokens=False), [], LawOptions())
    with pytest.raises(InputError, match=r"model_params are not known"):
        analyse(pretraining_runs_without_sizes(), [], CHINCHILLA)
    mixed = rl_runs(sizes=SIZES[:3]) + rl_runs(sizes=(SIZES[3],), tokens=False)
    analysis = analyse(mixed, [], LawOptions())
    assert len(analysis.models) == 3
    assert sum("left out: it has no tokens" in warning for warning in analysis.warnings) == 2


def test_a_loss_read_as_a_reward_says_which_flag_fixes_it():
    with pytest.raises(InputError, match="--law_loss=metric"):
        analyse(pretraining_runs(), [], LawOptions(analysis="chinchilla", metric="loss"))


def test_configurations_that_share_a_line_are_said():
    runs = rl_runs(sizes=SIZES[:3])
    other = rl_runs(sizes=SIZES[:1], seeds=1)[0]
    moved = dataclasses.replace(other, facts=dataclasses.replace(other.facts, group_size=16))
    analysis = analyse([*runs, moved], [], LawOptions())
    assert any("several configurations (model_params 5e+08)" in warning for warning in analysis.warnings)


def test_equal_data_compares_problem_sets():
    runs = rl_runs(sizes=SIZES[:3], seeds=1) + rl_runs(sizes=SIZES[:1], seeds=1, problems=10_000_000)
    analysis = analyse(runs, [], LawOptions())
    assert [row["problem_set_size"] for row in analysis.equal_data] == [1000, 10_000_000]
    text = text_of(analysis)
    assert f"{scale(SIZES[0])} at equal X: loss" in text and "Within one run" not in text


def test_models_count_alike_when_asked():
    """With one model evaluated ten times as often, weighting by models gives its slope no more say."""
    runs = rl_runs(noise=0.02) + rl_runs(sizes=SIZES[:1], seeds=20, noise=0.02)
    by_points, by_models = (analyse(runs, [], LawOptions(weights=w)).models for w in ("points", "models"))
    gap = [abs(lines[0]["k"] - lines[0]["free_k"]) for lines in (by_points, by_models)]
    assert gap[0] < gap[1]


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"analysis": "x"}, "--analysis = .x.: known: .model_size., .chinchilla."), ({"x": "time"}, "--x = .time."),
        ({"holdout": 1.0}, "--holdout=1.0"), ({"anchors": 0}, "--anchors = 0"),
        ({"predict_params": (1e9, -1.0)}, r"--predict_params=1e\+09,-1"), ({"flops": (math.inf,)}, "--flops=inf"),
        ({"resamples": -1}, "--replicates = -1"), ({"reward_range": (1.0, 0.0)}, "--reward_range=1,0"),
        ({"reward_range": (0.0, math.inf)}, "--reward_range=0,inf .*--law_loss=metric"),
    ],
)  # fmt: skip
def test_bad_options_name_the_flag(change, flag):
    with pytest.raises(InputError, match=flag):
        LawOptions(**change)


def test_numbers_in_words():
    assert [scale(v) for v in (None, 500, 5e8, 1.5e9, 2.1e19)] == ["-", "500", "500M", "1.5B", "2.1e+19"]
    assert [scale(v) for v in (math.nan, math.inf)] == ["-", "-"]
    closed = Estimate(2.0, 1.0, 3.0, True, "")
    assert stated(closed) == "2 (95% interval: 1 to 3)"
    unknown = dataclasses.replace(closed, identified=False)
    assert stated(dataclasses.replace(unknown, high=math.inf)) == "not identified (95% interval: above 1)"
    assert stated(dataclasses.replace(unknown, low=0.0)) == "not identified (95% interval: below 3)"
    assert reach(0.0, math.inf) == "no bounds"
    assert stated(dataclasses.replace(closed, low=math.nan, high=math.nan)) == "2 (no interval)"


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_odd_runs_end_in_an_answer_or_an_input_error(seed, tmp_path):
    """Base models only, solved models, gaps, unknown facts, ties in X: never another error, never a NaN in the JSON."""
    rng = np.random.default_rng(seed)
    runs = []
    for seed_of_run in range(rng.integers(1, 7)):
        size = rng.integers(1, 7)
        compute = np.sort(rng.choice([0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6], size))
        columns = {
            "compute": compute,
            "tokens": compute * rng.choice([1, 100, np.nan, 0], size),
            "avg@4": rng.choice([0, 0.1, 0.3, 0.5, 0.5, 0.9, 1.0, np.nan], size),
        }
        facts = {"group_size": int(rng.choice([0, 8])), "problems_per_batch": 8, "num_steps": 0,
                 "problem_set_size": int(rng.choice([0, 10, 1000])), "seed": seed_of_run,
                 "model_params": int(rng.choice([0, 10**8, 10**9, 10**10]))}  # fmt: skip
        runs.append(run_curve(f"r{seed_of_run}", facts, columns))
    for options in (
        LawOptions(x="data", anchors=1),
        LawOptions(weights="models", predict_params=(1e11,)),
        LawOptions(analysis="chinchilla", points="all", resamples=3),
    ):
        try:
            analysis = analyse(runs, [], options)
        except InputError:
            continue
        json.dumps(law_summary(analysis), allow_nan=False)
        assert text_of(analysis) and law_tables(analysis)
        if seed < 2:
            drawn(analysis, tmp_path)
