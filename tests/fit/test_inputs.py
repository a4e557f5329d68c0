"""Run directories and tables in: what is used, what is reported with file and line, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isocompute_jax.fit.inputs import SOLVE_SHARES, load_runs
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, EVAL
from tests.fit.runs import BATCH, BUDGETS, PROBLEMS, write_run

PARAMS = (0.1, 0.8, 4e4, 1.0)


def load(*roots, eval_set="validation", metric="avg@4"):
    return load_runs([str(root) for root in roots], eval_set=eval_set, metric=metric)


def test_a_run_directory(tmp_path):
    write_run(tmp_path / "sweep" / "a", group_size=8, seed=3, params=PARAMS)
    (run,), warnings = load(tmp_path)
    assert warnings == []
    assert (run.run, run.facts.group_size, run.facts.problems_per_batch, run.facts.seed) == ("a", 8, BATCH, 3)
    assert run.facts.problem_set_size == PROBLEMS and run.finished
    np.testing.assert_array_equal(run.compute, [0, *BUDGETS])
    np.testing.assert_allclose(sum(run.columns[name] for name in SOLVE_SHARES), 1.0)
    assert not any("seed" in key for key in run.swept)


def test_unfinished_runs_are_used_with_a_warning(tmp_path):
    write_run(tmp_path / "a", group_size=8, seed=0, params=PARAMS, budgets=BUDGETS[:4], done=False)
    with open(tmp_path / "a" / EVAL, "a") as file:
        file.write('{"step": 9, "comp')
    (run,), warnings = load(tmp_path)
    assert run.compute[-1] == BUDGETS[3] and not run.finished
    assert any("not finished" in warning for warning in warnings)


def test_bad_rows_are_reported_with_file_and_line_and_the_rest_goes_on(tmp_path):
    log = write_run(tmp_path / "a", group_size=8, seed=0, params=PARAMS) / EVAL
    lines = log.read_text().splitlines()
    lines[1] = "not json"
    lines[2] = json.dumps(json.loads(lines[2]) | {"avg@4": 1.7})
    lines[3] = json.dumps(json.loads(lines[3]) | {"compute": None})
    lines[4] = lines[5]
    lines[6] = "[1]"
    log.write_text("\n".join(lines) + "\n")
    (run,), warnings = load(tmp_path)
    assert len(run.compute) == len(lines) - 5
    for line, reason in {
        2: "not JSON",
        3: "avg@4 is 1.7",
        4: "compute is None",
        6: "already given",
        7: "object",
    }.items():
        assert any(f"{log}:{line}: row left out" in w and reason in w for w in warnings), (line, warnings)


def test_a_broken_run_does_not_stop_the_others(tmp_path):
    write_run(tmp_path / "good", group_size=8, seed=0, params=PARAMS)
    write_run(tmp_path / "broken", group_size=8, seed=1, params=PARAMS)
    (tmp_path / "broken" / CONFIG).write_text('{"group_size": "many"}')
    runs, warnings = load(tmp_path)
    assert [run.run for run in runs] == ["good"]
    assert any("broken" in w and "group_size is 'many'" in w for w in warnings)


def test_nothing_usable_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no usable run"):
        load(tmp_path)
    write_run(tmp_path / "a", group_size=8, seed=0, params=PARAMS)
    with pytest.raises(InputError, match="no usable run with avg@4 on train"):
        load(tmp_path, eval_set="train")
    with pytest.raises(InputError, match=r"no usable run with avg@64"):
        load(tmp_path, metric="avg@64")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="neither a directory nor"):
        load(tmp_path / "notes.txt")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_tables_in_long_form(tmp_path, suffix):
    rows = [
        {"run": f"n{n}-{s}", "group_size": n, "problems_per_batch": 8, "seed": s, "compute": c, "avg@4": 0.1 + c / 1e6}
        for n in (4, 8)
        for s in (0, 1)
        for c in (1000, 2000, 4000)
    ]
    path = tmp_path / f"curves{suffix}"
    if suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), "n4-0,4,8", ",4,8,0,1,0.5"]
    else:
        lines = [*map(json.dumps, rows), '{"group_size": 4}', "{}"]
    path.write_text("\n".join(lines) + "\n")
    runs, warnings = load(path)
    assert [(run.run, run.facts.group_size, run.facts.seed) for run in runs] == [
        ("n4-0", 4, 0),
        ("n4-1", 4, 1),
        ("n8-0", 8, 0),
        ("n8-1", 8, 1),
    ]
    np.testing.assert_allclose(runs[0].columns["avg@4"], [0.101, 0.102, 0.104])
    first_bad = len(rows) + (2 if suffix == ".csv" else 1)
    assert [w.split(": ")[0] for w in warnings] == [f"{path}:{first_bad}", f"{path}:{first_bad + 1}"]
