"""`analyze`: from a table or from paths to the results that the command has."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, SweepResult, analyze
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.outputs import analyse
from isocompute_jax.records.errors import InputError
from tests.fit.commands import undrawn

CURVES = {4: (0.1, 0.5, 1e4, 1.2), 16: (0.1, 0.8, 6e4, 1.2)}
OPTIONS = AnalysisOptions(form="hill", forecast="form", bootstrap="none", holdout=0.0, budgets=(2e4, 4e5))


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


@pytest.mark.slow
def test_a_table_and_its_file_have_one_answer(result, tmp_path):
    path = tmp_path / "curves.csv"
    pa_csv.write_csv(table(), path)
    for paths in (path, [str(path)]):
        found = analyze(paths, OPTIONS)
        assert str(found) == str(result)
        assert found.recommendations == result.recommendations
    written = analyse([path], tmp_path / "out", OPTIONS)
    assert str(result) == f"{written.tables}\n\n{written.text}"


def test_the_results_are_frozen_and_short_to_show(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.curves = ()
    assert repr(result) == "SweepResult(avg@4: 2 configurations, 6 runs)"


def test_the_recommendations_are_those_of_the_truth(result):
    assert [r.budget for r in result.recommendations] == [2e4, 4e5]
    for found in result.recommendations:
        truth = {size: float(hill(found.budget, *params)) for size, params in CURVES.items()}
        assert found.group_size == max(truth, key=lambda size: truth[size])
        assert found.reward == pytest.approx(truth[found.group_size], abs=0.01)


def test_tables_have_the_rows_of_the_files(result, tmp_path):
    with undrawn():
        analyse([_written(tmp_path)], tmp_path / "out", OPTIONS)
    for name in ("frontier", "ranges", "fits", "switches", "ties", "allocation"):
        found = result.to_table(name)
        assert isinstance(found, pa.Table) and found.num_rows > 0
        file = pa_csv.read_csv(tmp_path / "out" / f"{name}.csv")
        assert found.column_names == file.column_names
        for column in file.column_names:
            assert [v or None for v in found[column].to_pylist()] == [v or None for v in file[column].to_pylist()]
    assert result.to_table().equals(result.to_table("frontier"))
    with pytest.raises(InputError, match="did you mean 'switches'"):
        result.to_table("switch")


def _written(folder):
    pa_csv.write_csv(table(), folder / "curves.csv")
    return folder / "curves.csv"


def test_the_plot_shows_every_evaluation_and_in_a_notebook_itself(result, tmp_path):
    figure = result.plot()
    (axes,) = figure.axes
    shown = np.concatenate([np.asarray(dots.get_offsets()) for dots in axes.collections])
    assert len(shown) == 2 * 12  # seeds are averaged
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(tmp_path / "curves.svg")


def test_options_are_those_of_the_command(result):
    renamed = table().rename_columns(["name", "n", "b", "s", "rollouts", "accuracy"])
    read = ReadOptions(
        metric="accuracy",
        columns={"name": "run", "n": "group_size", "b": "problems_per_batch", "s": "seed", "rollouts": "compute"},
    )
    found = analyze(renamed, dataclasses.replace(OPTIONS, read=read))
    assert found.metric == "accuracy"
    assert found.recommendations == result.recommendations


def test_data_frames_of_pandas_go_in_and_come_out(result):
    pytest.importorskip("pandas")
    found = analyze(table().to_pandas(), OPTIONS)
    assert found.recommendations == result.recommendations
    assert found.to_table().to_pandas()["group_size"].tolist() == result.to_table()["group_size"].to_pylist()


def test_a_mistake_is_told_in_one_sentence():
    with pytest.raises(InputError, match=r"no column avg@4\. Its columns with numbers are"):
        analyze({"run": ["a"], "step": [1], "accuracy": [0.5]})


def test_importing_it_imports_no_pictures_and_no_trainer():
    """Nor does its callback for another library's trainer."""
    heavy = {"matplotlib", "pandas", "jinja2", "trl", "transformers", "torch"}
    source = f"import sys, isocompute_jax.fit.trl_callback\nassert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_runs_of_several_base_models_are_said_to_be_fitted_as_one_sweep():
    rows = [
        {"run": f"{model}-{n}", "group_size": n, "problems_per_batch": 8, "compute": c, "avg@4": r, "model": model}
        for model, n in (("small", 4), ("small", 8), ("large", 16))
        for c, r in ((1000, 0.1), (2000, 0.14), (4000, 0.2), (8000, 0.28), (16000, 0.35))
    ]
    options = AnalysisOptions(bootstrap="none", form="hill", forecast="form", holdout=0.0)
    said = (
        "runs of several base models are fitted as one sweep: large (1), small (2); name those of one model with --runs"
    )
    assert said in analyze(pa.Table.from_pylist(rows), options).warnings
    assert not any("base models" in warning for warning in analyze(pa.Table.from_pylist(rows[:10]), options).warnings)
