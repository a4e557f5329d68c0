"""Ablations of known curves: what was changed is found, and what was not is not."""

import json

import numpy as np
import pytest

from isocompute_jax.ablation import outputs
from isocompute_jax.ablation.analysis import ParameterEstimate, analyse
from isocompute_jax.fit import AnalysisOptions
from isocompute_jax.records.errors import InputError
from tests.fit.runs import write_run

pytestmark = pytest.mark.slow

BUDGETS = np.unique(np.geomspace(2**9, 2**18, 24).astype(int))
PARAMS = {
    "recipe": (0.05, 0.8, 9000.0, 1.2),
    "same": (0.05, 0.8, 9000.0, 1.2),
    "slower": (0.05, 0.8, 9000.0, 0.8),
    "lower": (0.05, 0.6, 9000.0, 1.2),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("ablation")
    return [
        write_run(
            root / f"{name},seed={seed}",
            group_size=8,
            seed=seed + 10 * place,
            params=params,
            noise=0.004,
            budgets=BUDGETS,
            config={"loss": {"clip_high": place}},
        )
        for place, (name, params) in enumerate(PARAMS.items())
        for seed in (0, 1, 2)
    ]


@pytest.fixture(scope="module")
def result(runs):
    return analyse(runs, AnalysisOptions())


def test_what_was_changed_is_found(result):
    found = {row.name: row for row in result.variants}
    assert list(found) == list(PARAMS)
    for name, (_, asymptote, *_) in PARAMS.items():
        assert found[name].seeds == 3
        assert found[name].asymptote.value == pytest.approx(asymptote, abs=0.02)
    assert found["recipe"].verdict == "the recipe"
    assert found["same"].verdict == "not told apart"
    assert "less steep" in found["slower"].verdict and "ceiling" not in found["slower"].verdict
    assert found["lower"].verdict == "lower ceiling, below it at the end"
    assert not found["lower"].steepness.identified and result.asymptote == pytest.approx(0.8, abs=0.005)
    for name in ("recipe", "same", "slower"):
        low, high = found[name].steepness.interval95
        assert low <= PARAMS[name][3] <= high


def test_differences_at_the_end_are_those_of_the_seeds(result, runs):
    last = {path.name: json.loads((path / "eval.jsonl").read_text().splitlines()[-1])["avg@4"] for path in runs}
    ours, recipe = ([last[f"{name},seed={seed}"] for seed in (0, 1, 2)] for name in ("lower", "recipe"))
    row = next(row for row in result.variants if row.name == "lower")
    assert row.compute == BUDGETS[-1]
    assert row.difference == pytest.approx(np.mean(ours) - np.mean(recipe))
    assert row.difference_stderr == pytest.approx(np.sqrt((np.var(ours, ddof=1) + np.var(recipe, ddof=1)) / 3))


def test_files(result, tmp_path):
    text = outputs.write(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"ablation.{kind}" for kind in ("json", "txt", "svg", "png")}
    assert all(name in text for name in PARAMS)
    summary = json.loads((tmp_path / "ablation.json").read_text())
    assert summary["common_asymptote"] == result.asymptote
    assert [row["name"] for row in summary["variants"]] == list(PARAMS)


def test_without_the_recipe_nothing_is_compared(runs):
    with pytest.raises(InputError, match="no run of 'recipe'"):
        analyse([path for path in runs if not path.name.startswith("recipe")], AnalysisOptions())


@pytest.mark.parametrize(
    ("low", "high", "known", "apart"), [(0.7, 0.8, True, True), (0.5, 0.61, True, False), (0.7, 0.8, False, False)]
)
def test_intervals_are_apart_where_both_are_known(low, high, known, apart):
    assert (
        ParameterEstimate(0.55, (0.5, 0.6), True).apart(ParameterEstimate((low + high) / 2, (low, high), known))
        is apart
    )
