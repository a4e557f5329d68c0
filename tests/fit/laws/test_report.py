"""From runs to summary, figures, sections and tables: claims are computed, and nothing unidentified is quoted."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest

from isocompute_jax.fit.laws.analysis import analyse_law
from isocompute_jax.fit.laws.figures import draw_law_figures
from isocompute_jax.fit.laws.findings import law_headline
from isocompute_jax.fit.laws.options import LawOptions
from isocompute_jax.fit.laws.report import law_sections, law_table, law_tables, law_title
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.wording import reach, scale, stated
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import RunFacts

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
CHINCHILLA = LawOptions(analysis="chinchilla", metric="loss", loss="metric", resamples=40, flops=(1e21,))


@pytest.fixture(scope="module")
def model_size():
    return analyse_law(rl_runs(), ["a remark"], MODEL_SIZE)


@pytest.fixture(scope="module")
def chinchilla():
    return analyse_law(pretraining_runs(), [], CHINCHILLA)


def text_of(summary) -> str:
    sections = law_sections(summary, {})
    told = [*law_headline(summary), *(sentence for section in sections for sentence in section.findings)]
    return " ".join([*told, law_table(summary)])


def test_the_summary_is_plain_data(model_size, chinchilla):
    for summary, flags in ((model_size, MODEL_SIZE), (chinchilla, CHINCHILLA)):
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
        assert list(summary)[:7] == ["schema_version", "analysis", "inputs", "flags", "versions", "seed", "warnings"]
        assert summary["schema_version"] == 2 and summary["analysis"] == flags.analysis
    assert model_size["warnings"][0] == "a remark" and "10 points left out, at X = 0" in model_size["warnings"][1]
    assert (len(model_size["inputs"]), len(chinchilla["inputs"])) == (10, 36)


def test_the_model_size_law_from_runs(model_size):
    law = model_size["law"]
    assert law["status"] == "ok" and law["num_points"] == 250
    assert law["k_max"]["low"] < K_MAX < law["k_max"]["high"] and law["n0"]["low"] < N0 < law["n0"]["high"]
    assert [m["model_params"] for m in model_size["models"]] == list(SIZES)
    assert model_size["models"][0]["first_x"] == pytest.approx(6 * SIZES[0] * 2e6)
    assert model_size["resource"] == {"kind": "compute", "unit": "FLOPs (6 N tokens)"}
    assert len(model_size["crossovers"]) == 10
    wide = model_size["crossovers"][3]  # the smallest and the largest: their slopes differ most
    assert wide["inside"] and wide["low"] < 5e18 < wide["high"] and wide["better_after"] == SIZES[-1]
    (larger,) = model_size["inter_model"]
    assert larger["model_params"] == SIZES[-1]
    assert larger["predicted_k"]["low"] < K_MAX / (1 + N0 / SIZES[-1]) < larger["predicted_k"]["high"]
    (predicted,) = model_size["predictions"]
    assert predicted["k"]["low"] < K_MAX / (1 + N0 / 7e10) < predicted["k"]["high"]
    assert model_size["reuse"]["num_above"] > 0  # 4e6 rollouts over 8 x 1000 are 500 epochs


def test_sentences_quote_the_summary(model_size, chinchilla):
    text = text_of(model_size)
    assert f"k_max is {model_size['law']['k_max']['value']:.3g} (95% interval: " in text
    assert f"{scale(model_size['law']['n0']['value'])} (95% interval: " in text
    inside = [row for row in model_size["crossovers"] if row["inside"]]
    assert inside and f"cross at {inside[0]['x']:.3g} FLOPs" in text
    assert "Within one run reuse and X rise together" in text
    text = text_of(chinchilla)
    for fit in chinchilla["fits"]:
        assert f"alpha {fit['alpha']['value']:.3g} (95% interval: " in text
        assert f"to the power {fit['exponent']['value']:.3g} (95% interval: " in text


def test_the_pretraining_law_from_runs(chinchilla):
    assert len(chinchilla["points"]["loss"]) == 36
    everything = analyse_law(pretraining_runs(), [], dataclasses.replace(CHINCHILLA, points="all"))
    assert len(everything["points"]["loss"]) == 72
    for fit in chinchilla["fits"]:
        assert fit["status"] == "ok"
        for name, truth in (("e", 1.69), ("alpha", 0.34), ("beta", 0.28)):
            assert fit[name]["value"] == pytest.approx(truth, rel=0.1)
    for row in chinchilla["optimal"]:
        assert row["flops"] == 1e21 and 6 * row["model_params"] * row["tokens"] == pytest.approx(1e21)
        assert row["model_params_low"] < row["model_params"] < row["model_params_high"]


@pytest.mark.parametrize("which", ["model_size", "chinchilla"])
def test_figures_sections_and_tables(which, tmp_path, request):
    summary = request.getfixturevalue(which)
    figures = draw_law_figures(summary, tmp_path)
    assert (
        set(figures) == {"model_size": {"lines", "slopes", "holdout"}, "chinchilla": {"prediction", "optimal"}}[which]
    )
    for path in figures.values():
        assert path.read_text().startswith("<?xml") and path.with_suffix(".png").stat().st_size > 10_000
    sections = law_sections(summary, figures)
    assert {section.figure for section in sections} - {None} == set(figures.values())
    for section in sections:
        assert section.findings and all(sentence.endswith(".") for sentence in section.findings)
        assert section.table is None or all(len(row) == len(section.table.columns) for row in section.table.rows)
    for name, text in law_tables(summary).items():
        rows = list(csv.DictReader(io.StringIO(text)))
        assert rows and name.endswith(".csv") and None not in rows[0]
    assert law_title(summary).endswith("?")


def test_what_is_not_identified_is_never_quoted(tmp_path):
    summary = analyse_law(rl_runs(n0=1e13, noise=0.0003), [], LawOptions())
    law = summary["law"]
    assert not law["k_max"]["identified"] and not law["n0"]["identified"]
    text = text_of(summary)
    assert "k_max is not identified (95% interval: above " in text
    for value in (f"{law['k_max']['value']:.3g}", scale(law["n0"]["value"])):
        assert not re.search(rf"(?<![\d.]){re.escape(value)}(?![\d.])", text)
    (row,) = csv.DictReader(io.StringIO(law_tables(summary)["model_size.csv"]))
    assert row["k_max"] == row["n0"] == "" and row["k_max_identified"] == "False"
    assert set(draw_law_figures(summary, tmp_path)) == {"lines", "slopes", "holdout"}


def test_one_model_and_two_models(tmp_path):
    one = analyse_law(rl_runs(sizes=SIZES[:1]), [], LawOptions(predict_params=(1e9,)))
    assert one["law"]["status"] == "warning" and one["crossovers"] == one["inter_model"] == one["predictions"] == []
    assert "One model size has nothing to cross with." in text_of(one)
    assert set(draw_law_figures(one, tmp_path)) == {"lines", "holdout"}
    two = analyse_law(rl_runs(sizes=SIZES[:2]), [], LawOptions())
    assert "2 model sizes" in text_of(two) and len(two["crossovers"]) == 1 and two["inter_model"] == []


def test_a_design_that_cannot_identify_the_pretraining_law(tmp_path):
    runs = [r for r in pretraining_runs() if r.facts.model_params < 2e8]
    summary = analyse_law(runs, [], CHINCHILLA)
    text = text_of(summary)
    assert "Too few model sizes (2; 3 are needed)" in text and "allocation is not identified" in text
    assert not any(row["identified"] for row in summary["optimal"])
    assert set(draw_law_figures(summary, tmp_path)) == {"prediction"}
    section = law_sections(summary, {})[1]
    assert section.table is None


def test_data_as_resource_and_missing_columns():
    summary = analyse_law(rl_runs(tokens=False, sizes=SIZES[:3]), [], LawOptions(x="data"))
    assert summary["resource"]["unit"] == "rollouts" and summary["models"][0]["last_x"] == pytest.approx(4e6)
    with pytest.raises(InputError, match=r"no tokens.*--columns=THEIRS:tokens, or use --x=data"):
        analyse_law(rl_runs(tokens=False), [], LawOptions())
    with pytest.raises(InputError, match=r"model_params are not known"):
        analyse_law(pretraining_runs_without_sizes(), [], CHINCHILLA)
    mixed = rl_runs(sizes=SIZES[:3]) + rl_runs(sizes=(SIZES[3],), tokens=False)
    summary = analyse_law(mixed, [], LawOptions())
    assert len(summary["models"]) == 3
    assert sum("left out: it has no tokens" in warning for warning in summary["warnings"]) == 2


def test_a_loss_read_as_a_reward_says_which_flag_mends_it():
    with pytest.raises(InputError, match="--loss=metric"):
        analyse_law(pretraining_runs(), [], LawOptions(analysis="chinchilla", metric="loss"))


def test_configurations_that_share_a_line_are_said():
    runs = rl_runs(sizes=SIZES[:3])
    other = rl_runs(sizes=SIZES[:1], seeds=1)[0]
    moved = dataclasses.replace(other, facts=dataclasses.replace(other.facts, group_size=16))
    summary = analyse_law([*runs, moved], [], LawOptions())
    assert any("several configurations (model_params 5e+08)" in warning for warning in summary["warnings"])


def test_equal_data_compares_problem_sets():
    runs = rl_runs(sizes=SIZES[:3], seeds=1) + rl_runs(sizes=SIZES[:1], seeds=1, problems=10_000_000)
    summary = analyse_law(runs, [], LawOptions())
    assert [row["problem_set_size"] for row in summary["equal_data"]] == [1000, 10_000_000]
    assert f"{scale(SIZES[0])} at equal X: loss" in text_of(summary)
    assert "Within one run" not in text_of(summary)


def test_models_count_alike_when_asked():
    """With one model evaluated ten times as often, weighting by models gives its slope no more say."""
    runs = rl_runs(noise=0.02) + rl_runs(sizes=SIZES[:1], seeds=20, noise=0.02)
    by_points, by_models = (analyse_law(runs, [], LawOptions(weights=w))["models"] for w in ("points", "models"))
    gap = [abs(m[0]["k"] - m[0]["free_k"]) for m in (by_points, by_models)]
    assert gap[0] < gap[1]


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"analysis": "x"}, "--analysis = .x.: known: .model_size., .chinchilla."),
        ({"x": "time"}, "--x = .time."),
        ({"holdout": 1.0}, "--holdout=1.0"),
        ({"anchors": 0}, "--anchors = 0"),
        ({"predict_params": (1e9, -1.0)}, r"--predict_params=1e\+09,-1"),
        ({"flops": (math.inf,)}, "--flops=inf"),
        ({"resamples": -1}, "--replicates = -1"),
    ],
)
def test_bad_options_name_the_flag(change, flag):
    with pytest.raises(InputError, match=flag):
        LawOptions(**change)


def test_numbers_in_words():
    assert [scale(v) for v in (None, 500, 5e8, 1.5e9, 2.1e19)] == ["-", "500", "500M", "1.5B", "2.1e+19"]
    closed = {"value": 2.0, "low": 1.0, "high": 3.0, "identified": True}
    assert stated(closed) == "2 (95% interval: 1 to 3)"
    assert stated(closed | {"identified": False, "high": None}) == "not identified (95% interval: above 1)"
    assert stated(closed | {"identified": False, "low": 0}) == "not identified (95% interval: below 3)"
    assert reach({"low": 0, "high": None}) == "no bounds"
    assert stated(closed | {"low": None, "high": None}) == "2 (no interval)"


@pytest.mark.parametrize("seed", range(12))
def test_odd_runs_end_in_an_answer_or_an_input_error(seed, tmp_path):
    """Base models only, solved models, gaps, unknown facts, ties in X: never another error, never a NaN in the JSON."""
    rng = np.random.default_rng(seed)
    runs = []
    for number in range(rng.integers(1, 7)):
        size = rng.integers(1, 7)
        compute = np.sort(rng.choice([0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6], size))
        columns = {
            "compute": compute,
            "tokens": compute * rng.choice([1, 100, np.nan, 0], size),
            "avg@4": rng.choice([0, 0.1, 0.3, 0.5, 0.5, 0.9, 1.0, np.nan], size),
        }
        facts = {"group_size": int(rng.choice([0, 8])), "problems_per_batch": 8, "num_steps": 0,
                 "problem_set_size": int(rng.choice([0, 10, 1000])), "seed": number,
                 "model_params": int(rng.choice([0, 10**8, 10**9, 10**10]))}  # fmt: skip
        runs.append(run_curve(f"r{number}", facts, columns))
    for options in (
        LawOptions(x="data", anchors=1),
        LawOptions(weights="models", predict_params=(1e11,)),
        LawOptions(analysis="chinchilla", points="all", resamples=3),
    ):
        try:
            summary = analyse_law(runs, [], options)
        except InputError:
            continue
        json.dumps(summary, allow_nan=False)
        assert text_of(summary) and law_tables(summary)
        if seed < 2:
            draw_law_figures(summary, tmp_path)
