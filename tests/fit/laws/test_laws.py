"""From runs to parameters, tables, series and sentences: claims are computed, and nothing unidentified is quoted."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from isocompute_jax.fit.laws import LawOptions, LawResult, fit_law, sentences
from isocompute_jax.fit.plain_data import plain
from isocompute_jax.fit.read import ReadOptions, RunCurve, read_curves
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import RunFacts
from tests.goldens import tables

K_MAX, N0 = 0.12, 2e9
SIZES = (500_000_000, 1_500_000_000, 3_000_000_000, 7_000_000_000, 14_000_000_000)
UNKNOWN = RunFacts(**dict.fromkeys((field.name for field in dataclasses.fields(RunFacts)), 0))
LOSSES: dict[str, Any] = {"metric": "loss", "reward_range": (0.0, math.inf)}


def run_curve(name, facts, columns) -> RunCurve:
    size = len(next(iter(columns.values())))
    compute = columns.get("compute", np.arange(size, dtype=float))
    known = dataclasses.replace(UNKNOWN, **facts)
    return RunCurve(name, f"{name}/eval.jsonl", "0" * 64, known, {}, True, compute, columns)


def rl_runs(*, sizes=SIZES, noise=0.01, seeds=2, n0=N0, tokens=True) -> list[RunCurve]:
    """Runs of the model-size law: 25 evaluations after the base model's, levels such that all cross at 5e18."""
    rng = np.random.default_rng(0)
    compute = np.concatenate([[0.0], np.geomspace(2e3, 4e6, 25)])
    runs = []
    for size in sizes:
        for seed in range(seeds):
            used = 1000 * compute
            log_loss = np.full(26, -0.3)
            log_loss[1:] = -0.5 - K_MAX / (1 + n0 / size) * np.log(6 * size * used[1:] / 5e18)
            log_loss[1:] += noise * rng.normal(size=25)
            columns = {"compute": compute, "avg@4": 1 - np.exp(log_loss)} | ({"tokens": used} if tokens else {})
            runs.append(run_curve(f"{size}-s{seed}", {"model_params": size, "seed": seed}, columns))
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
            runs.append(
                run_curve(f"{size:.0f}-{end:.0f}", {"model_params": int(size)}, {"tokens": tokens, "loss": loss})
            )
    return runs


CHINCHILLA = LawOptions(analysis="chinchilla", resamples=40, budgets=(1e21,), **LOSSES)


@pytest.fixture(scope="module")
def model_size() -> LawResult:
    return fit_law(rl_runs(), LawOptions())


@pytest.fixture(scope="module")
def pretraining() -> LawResult:
    return fit_law(pretraining_runs(), CHINCHILLA)


def test_the_model_size_law_from_runs(model_size):
    k_max, n0 = model_size.parameters.values()
    assert k_max.low < K_MAX < k_max.high and n0.low < N0 < n0.high and n0.identified
    assert model_size.facts["unit"] == "FLOPs" and model_size.facts["points"] == 250
    models = model_size.rows("models")
    assert [row["model_params"] for row in models] == list(SIZES) and models[0]["first_x"] == 6 * SIZES[0] * 2e6
    crossings = model_size.rows("crossovers")
    wide = crossings[3]  # the smallest and the largest: their slopes differ most
    assert len(crossings) == 10 and wide["inside"] and wide["better_after"] == SIZES[-1]
    assert wide["x_low"] < 5e18 < wide["x_high"]
    *later, larger = model_size.rows("holdouts")
    assert len(later) == 5 and larger["model_params"] == SIZES[-1]
    assert larger["k_low"] < K_MAX / (1 + N0 / SIZES[-1]) < larger["k_high"]
    assert not model_size.notes  # the base model's evaluations, at X = 0, are not missed


def test_series_are_points_and_the_law(model_size, pretraining):
    for result in (model_size, pretraining):
        assert sum(len(row["x"]) for row in result.series) == result.facts["points"]
        for row in result.series:
            assert row["line_x"][[0, -1]] == pytest.approx([row["x"].min(), row["x"].max()])
            order = np.argsort(row["x"])
            line = np.interp(np.log(row["x"][order]), np.log(row["line_x"]), np.log(row["line_loss"]))
            assert np.abs(line - np.log(row["loss"][order])).mean() < 0.02


def test_the_pretraining_law_from_runs(pretraining):
    truth = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28, "exponent": 0.28 / 0.62}
    assert list(pretraining.parameters) == list(truth) and pretraining.facts["points"] == 36
    for name in ("E", "alpha", "beta", "exponent"):
        assert pretraining.parameters[name].value == pytest.approx(truth[name], rel=0.1)
    (row,) = pretraining.rows("budgets")
    assert row["flops"] == 1e21 and 6 * row["model_params"] * row["tokens"] == pytest.approx(1e21)
    assert row["model_params_low"] < row["model_params"] < row["model_params_high"]
    assert [row["variable"] for row in pretraining.tables["sections"]] == ["N", "D", "C"]


@pytest.mark.parametrize("which", ["model_size", "pretraining"])
def test_rows_and_summary_are_plain(which, request):
    result = request.getfixturevalue(which)
    for name in ("parameters", *result.tables):
        rows = result.rows(name)
        assert rows and all(isinstance(cell, bool | str | int | float | None) for row in rows for cell in row.values())
        assert len({tuple(row) for row in rows if row.get("kind") != "larger model"}) == 1
    summary = plain(result)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert list(summary) == ["parameters", "tables", "facts", "series", "notes"]


def test_sentences_quote_the_results(model_size, pretraining):
    said = " ".join(sentences(model_size))
    k_max, wide = model_size.parameters["k_max"], model_size.tables["crossovers"][-1]["x"].value
    assert f"k_max = {k_max.value:.3g} ({k_max.low:.3g} to" in said and f"cross at {wide:.3g} (" in said
    assert "Held out, the later half of each run" in said and "the largest model" in said
    said = " ".join(sentences(pretraining))
    assert f"alpha = {pretraining.parameters['alpha'].value:.3g} (" in said and "For 1e+21 FLOPs it is" in said
    assert "Of C alone the exponent is" in said
    for result in (model_size, pretraining):
        assert len(sentences(result)) <= 8 and all(text.endswith(".") for text in sentences(result))


def test_what_is_not_identified_is_never_quoted():
    result = fit_law(rl_runs(n0=1e13, noise=0.0003), LawOptions())
    k_max, n0 = result.parameters.values()
    assert not k_max.identified and not n0.identified
    said = " ".join(sentences(result))
    assert "is not known: the slope does not level off" in said
    for value in (f"{k_max.value:.3g}", f"{n0.value:.3g}", f"{n0.value / 1e12:.3g}T"):
        assert not re.search(rf"(?<![\d.]){re.escape(value)}(?![\d.])", said)
    assert [row["value"] for row in result.rows()] == [None, None]


def test_losses_that_rise_are_said():
    runs = rl_runs(sizes=SIZES[:3])
    falling = [dataclasses.replace(run, columns=run.columns | {"avg@4": 1 - run.columns["avg@4"]}) for run in runs]
    assert sentences(fit_law(falling, LawOptions()))[0] == "The loss does not fall with more FLOPs."


def test_a_design_that_cannot_identify_the_pretraining_law():
    runs = [run for run in pretraining_runs() if run.facts.model_params < 2e8]
    result = fit_law(runs, CHINCHILLA)
    assert result.tables["budgets"] == [] and "Not determined: too few model sizes (2" in " ".join(sentences(result))


@pytest.mark.parametrize(("low", "high"), [(0.0, 100.0), (-1.0, 1.0)])
def test_rewards_of_any_range_have_the_same_law(low, high):
    runs = rl_runs()
    moved = [
        dataclasses.replace(r, columns=r.columns | {"avg@4": low + (high - low) * r.columns["avg@4"]}) for r in runs
    ]
    one, other = fit_law(runs, LawOptions()), fit_law(moved, LawOptions(reward_range=(low, high)))
    for name in ("k_max", "N0"):
        assert other.parameters[name].value == pytest.approx(one.parameters[name].value, rel=1e-6)
    errors = [[row["loss_error"] for row in result.tables["holdouts"]] for result in (one, other)]
    assert errors[0] == pytest.approx(errors[1])


def test_a_metric_that_is_a_loss_is_itself_the_loss():
    runs = rl_runs(sizes=SIZES[:3])
    losses = [
        dataclasses.replace(r, columns=r.columns | {"Val/Loss": 1 - r.columns["avg@4"], "nll": 1 - r.columns["avg@4"]})
        for r in runs
    ]
    one = fit_law(runs, LawOptions()).parameters
    assert fit_law(losses, LawOptions(metric="Val/Loss")).parameters == one
    assert fit_law(losses, LawOptions(metric="nll", reward_range=(0.0, math.inf))).parameters == one


def test_data_as_resource():
    data = LawOptions(analysis="model_size_data")
    result = fit_law(rl_runs(tokens=False, sizes=SIZES[:3]), data)
    assert result.facts["unit"] == "rollouts" and result.tables["models"][0]["last_x"] == pytest.approx(4e6)
    tokens = [dataclasses.replace(r, columns=r.columns | {"compute": np.full(26, np.nan)}) for r in rl_runs()]
    assert fit_law(tokens, data).facts["unit"] == "tokens"
    mixed = fit_law(rl_runs(sizes=SIZES[:3]) + rl_runs(sizes=(SIZES[3],), tokens=False), LawOptions())
    assert len(mixed.series) == 3 and sum("left out: it has no tokens" in note for note in mixed.notes) == 2


def test_a_model_without_a_line_is_named():
    runs = rl_runs(sizes=SIZES[:4])
    short = {name: column[:2] for name, column in runs[-1].columns.items()}
    result = fit_law([*runs[:6], dataclasses.replace(runs[-1], compute=short["compute"], columns=short)], LawOptions())
    assert result.notes == ("model of 7e+09 parameters left out: all of its evaluations have one X",)
    assert len(result.series) == len(result.tables["models"]) == 3


def test_evaluations_without_a_logarithm_are_counted():
    runs = rl_runs(sizes=SIZES[:3])
    changed = runs[0].columns["avg@4"].copy()
    changed[3:6], changed[8] = 1.0, np.nan
    runs[0] = dataclasses.replace(runs[0], columns=runs[0].columns | {"avg@4": changed})
    result = fit_law(runs, LawOptions())
    assert result.facts["points"] == 146 and [note.split(" ")[0] for note in result.notes] == ["3", "1"]


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no tokens": (
        lambda: rl_runs(tokens=False),
        {},
        r"no tokens.*--columns=THEIRS:tokens, or use --analysis=model_siz",
    ),
    "no sizes": (
        lambda: [dataclasses.replace(r, facts=UNKNOWN) for r in rl_runs()],
        {},
        r"model_params are not known.*--columns=THEIRS:model_params",
    ),
    "one model": (lambda: rl_runs(sizes=SIZES[:1]), {}, r"two model sizes.*add runs of another model_params"),
    "no metric": (rl_runs, {"metric": "best@4"}, "--metric=best@4.*number in this column"),
    "a loss as a reward": (rl_runs, {"reward_range": (0.0, 0.2)}, r"--metric=avg@4.*zero or below.*--reward_range"),
    "a reward as a loss": (
        lambda: [dataclasses.replace(r, columns=r.columns | {"loss": -r.columns["avg@4"]}) for r in rl_runs()],
        LOSSES,
        r"--metric=loss.*zero or below.*name a column of losses",
    ),
    "few runs": (lambda: pretraining_runs()[:4], {"analysis": "chinchilla", **LOSSES}, "4 usable losses for the five"),
    "schedules": (lambda: [dataclasses.replace(r, schedule="auto") for r in rl_runs()], {}, "give runs of a fixed n"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_what_is_missing_and_what_to_do(case):
    runs, options, message = BAD[case]
    with pytest.raises(InputError, match=message):
        fit_law(runs(), LawOptions(**options))


@pytest.mark.parametrize("change", [{"analysis": "kaplan"}, {"resamples": -1}, {"budgets": (0.0,)}])
def test_bad_options_are_refused(change):
    with pytest.raises(InputError, match=next(iter(change))):
        LawOptions(**change)


def read(path, options: LawOptions, **more) -> list[RunCurve]:
    settings = ReadOptions(metric=options.metric, compute="tokens", reward_range=options.reward_range, **more)
    return read_curves([str(path)], settings)[0]


# What the project's own Newton search and Fieller's intervals said of the same tables.
OLD_MODEL_SIZE = {"k_max": (0.1899592055, 0.1849292185, 0.1950878035), "N0": (70196209.24, 59638034.84, 81801460.61)}
OLD_PRETRAINING = {
    "E": (1.696474253, 1.690300933, 1.704686433), "A": (403.6081705, 387.8574441, 419.5168167),
    "B": (394.5967489, 371.9004623, 417.2960807), "alpha": (0.3405107981, 0.3378509586, 0.3429890283),
    "beta": (0.278126964, 0.2751951686, 0.2809394297), "exponent": (0.4495796749, 0.4471842114, 0.4533723408),
}  # fmt: skip
OLD_SECTIONS = {"N": (1.887421745, 0.345190496), "D": (1.867983337, 0.2824356448), "C": (1.684514497, 0.151500205)}


def agree(result: LawResult, old: dict[str, tuple[float, float, float]]) -> None:
    for name, (value, low, high) in old.items():
        found = result.parameters[name]
        assert found.value == pytest.approx(value, rel=1e-6)
        assert (found.high - found.low) == pytest.approx(high - low, rel=0.35)  # by 200 draws


def test_the_published_model_size_law(tmp_path):
    tables.model_sizes(tmp_path)
    options = LawOptions()
    result = fit_law(read(tmp_path / "sizes.csv", options), options)
    agree(result, OLD_MODEL_SIZE)
    assert math.log(result.facts["misfit"] / 4.8260846e-25) == pytest.approx(0, abs=1e-3)
    assert result.facts["r2"] == pytest.approx(0.9942436781) and "too narrow" in sentences(result)[2]
    assert result.tables["models"][0]["level"] == pytest.approx(3.65768143, rel=1e-6)


@pytest.mark.parametrize("named", [True, False])
def test_the_published_pretraining_law(tmp_path, named):
    """A table of N, D and loss alone is fitted row by row."""
    tables.pretraining(tmp_path)
    path, more = tmp_path / "losses.csv", {}
    if not named:
        rows = [line.split(",", 1)[1] for line in path.read_text().splitlines()]
        path.write_text("\n".join(["N,D,loss", *rows[1:]]) + "\n")
        more = {"columns": {"N": "model_params", "D": "tokens"}}
    options = dataclasses.replace(CHINCHILLA, resamples=200)
    result = fit_law(read(path, options, **more), options)
    agree(result, OLD_PRETRAINING)
    assert (not result.notes) == named and all("every evaluation is fitted" in note for note in result.notes)
    for row in result.tables["sections"]:
        assert [row["E"].value, row["alpha"].value] == pytest.approx(OLD_SECTIONS[row["variable"]], rel=1e-6)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_odd_runs_end_in_an_answer_or_an_input_error(seed):
    """Base models only, solved models, gaps, unknown facts, ties in X: never another error, never a NaN in the JSON."""
    rng = np.random.default_rng(seed)
    runs = []
    for number in range(rng.integers(1, 9)):
        size = rng.integers(1, 7)
        compute = np.sort(rng.choice([0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6], size))
        columns = {
            "compute": compute,
            "tokens": compute * rng.choice([1, 100, np.nan, 0], size),
            "avg@4": rng.choice([0, 0.1, 0.3, 0.5, 0.5, 0.9, 1.0, np.nan], size),
        }
        runs.append(run_curve(f"r{number}", {"model_params": int(rng.choice([0, 10**8, 10**9, 10**10]))}, columns))
    for analysis in ("model_size", "model_size_data", "chinchilla"):
        try:
            result = fit_law(runs, LawOptions(analysis=analysis, resamples=5))
        except InputError:
            continue
        json.dumps(plain(result), allow_nan=False)
        assert sentences(result) and result.rows()
