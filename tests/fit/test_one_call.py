"""`analyze`: from a table or from paths to the results that the command has."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, SweepResult, analyze
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.outputs import analyse, summary_of
from isocompute_jax.fit.read import memory_table
from isocompute_jax.records.errors import InputError
from tests.fit.commands import undrawn

CURVES = {4: (0.1, 0.5, 1e4, 1.2), 16: (0.1, 0.8, 6e4, 1.2)}
OPTIONS = AnalysisOptions(budgets=(2e4, 4e5))


def table() -> pa.Table:
    """Two configurations of three seeds each, of which the larger wins in the end."""
    rng = np.random.default_rng(0)
    rows = []
    for size, params in CURVES.items():
        for seed in range(3):
            for compute in np.geomspace(2e3, 5e5, 12).round().tolist():
                reward = float(hill(compute, *params)) + 0.004 * rng.normal()
                rows.append({"run": f"n{size}-s{seed}", "group_size": size, "problems_per_batch": 8, "seed": seed,
                             "compute": compute, "avg@4": reward})  # fmt: skip
    return pa.Table.from_pylist(rows)


@pytest.fixture(scope="module")
def result() -> SweepResult:
    return analyze(table(), OPTIONS)


def test_the_answers_are_those_of_the_truth(result):
    assert [answer.budget for answer in result.asked] == [2e4, 4e5]
    for answer in result.asked:
        truth = {size: float(hill(answer.budget, *params)) for size, params in CURVES.items()}
        size = max(truth, key=lambda size: truth[size])
        advised = answer.advised
        assert (advised.configuration.group_size, answer.verdict) == (size, "clear")
        assert (advised.stop, advised.num_steps) == (answer.budget, answer.budget // (8 * size))
        assert advised.reward == pytest.approx(truth[size], abs=0.01)
        assert advised.interval95[0] < truth[size] < advised.interval95[1]
        (other,) = answer.choices[1:]
        assert other.cost == pytest.approx(truth[size] - min(truth.values()), abs=0.02)


@pytest.mark.parametrize("kind", ["csv", "parquet", "list"])
def test_a_table_and_its_file_have_one_answer(result, tmp_path, kind):
    path = tmp_path / f"curves.{'parquet' if kind == 'parquet' else 'csv'}"
    (pa_parquet.write_table if kind == "parquet" else pa_csv.write_csv)(table(), path)
    found = analyze([str(path)] if kind == "list" else path, OPTIONS)
    assert (found.asked, found.grid, found.data) == (result.asked, result.grid, result.data)


def test_every_kind_of_table_has_one_answer(result):
    columns = table().to_pydict()
    for given in (columns, {name: np.array(values) for name, values in columns.items()}, memory_table(columns)):
        assert analyze(given, OPTIONS, questions=False).asked == result.asked


def test_data_frames_of_pandas_go_in(result):
    pytest.importorskip("pandas")
    assert analyze(table().to_pandas(), OPTIONS, questions=False).asked == result.asked


def test_what_is_written_is_what_was_found(result, tmp_path):
    pa_csv.write_csv(table(), tmp_path / "curves.csv")
    with undrawn():
        written = analyse([tmp_path / "curves.csv"], tmp_path / "out", OPTIONS)
    expected = summary_of(result)
    own = {"inputs", "versions"}  # the file's name and hash
    assert {k: v for k, v in written.summary.items() if k not in own} == {
        k: v for k, v in expected.items() if k not in own
    }
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == written.summary
    assert (tmp_path / "out" / "headline.txt").read_text() == f"{written.text}\n"
    assert (tmp_path / "out" / "tables.txt").read_text() == f"{written.tables}\n"


def test_the_results_are_frozen(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.curves = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.asked[0].advised.reward = 1.0


def test_curves_have_every_evaluation(result):
    assert [(band.configuration.group_size, band.seeds) for band in result.curves] == [
        (size, (0, 1, 2)) for size in CURVES
    ]
    for band in result.curves:
        assert band.data_end == pytest.approx(5e5)
        assert [len(compute) for compute, _ in band.points] == [12, 12, 12]
        assert (band.run_low <= band.low).all() and (band.low < band.mean).all() and (band.mean < band.high).all()
        truth = hill(band.compute, *CURVES[band.configuration.group_size])
        inside = (band.compute >= 2e3) & (band.compute <= 5e5)
        np.testing.assert_allclose(band.mean[inside], truth[inside], atol=0.015)


def test_options_are_those_of_the_command(result):
    renamed = table().rename_columns(["name", "n", "b", "s", "rollouts", "accuracy"])
    read = ReadOptions(
        metric="accuracy",
        columns={"name": "run", "n": "group_size", "b": "problems_per_batch", "s": "seed", "rollouts": "compute"},
    )
    found = analyze(renamed, dataclasses.replace(OPTIONS, read=read))
    assert found.metric == "accuracy" and found.asked == result.asked


def test_a_mistake_is_told_in_one_sentence():
    with pytest.raises(InputError, match=r"no column avg@4\. Its columns with numbers are"):
        analyze({"run": ["a"], "step": [1], "level": [0.5]})


def test_importing_it_imports_no_pictures_and_no_trainer():
    """Nor does its callback for another library's trainer."""
    heavy = {"matplotlib", "pandas", "jinja2", "trl", "transformers", "torch"}
    source = f"import sys, isocompute_jax.fit.trl_callback\nassert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_an_answer_is_for_the_base_model_that_was_run_at_most_n():
    """A larger one at a single n has higher rewards, which say nothing about n."""
    rows = [
        {"run": f"{name}-{n}", "group_size": n, "problems_per_batch": 8, "compute": c, "avg@4": r + more, "model": name}
        for name, n, more in (("small", 4, 0.0), ("small", 8, 0.0), ("large", 8, 0.4))
        for c, r in ((1000, 0.1), (2000, 0.14), (4000, 0.2), (8000, 0.28), (16000, 0.35))
    ]
    found = analyze(pa.Table.from_pylist(rows))
    assert found.data.varies == ("group_size",)
    assert found.data.notes == ("The answer is for small: an n holds for one base model; 1 run of others is left out.",)
    assert sorted(choice.configuration.name for choice in found.asked[0].choices) == ["n = 4", "n = 8"]
    assert found.asked[0].verdict != "clear"  # both are the same to the last digit
