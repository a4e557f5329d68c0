"""Sources, checks and options of the inputs: what is used, what is reported with file and line, what is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os

import numpy as np
import pytest

from isocompute_jax.fit.configurations import group_runs
from isocompute_jax.fit.read import MAX_POINTS, ReadOptions, parse_columns
from isocompute_jax.fit.read import reader as reading
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.fit.read.tables import HEADER, read, write

FACTS = {
    "group_size": 8, "problems_per_batch": 4, "num_steps": 100, "problem_set_size": 50, "model_params": 1000,
    "seed": 3,
}  # fmt: skip
STEPS = (0, 1, 2, 4, 8)


def evaluation(step: int) -> dict:
    compute = step * 32
    line = {"step": step, "compute": compute, "tokens": 100 * compute, "wall_s": 1.0, "device_hours": compute / 64}
    return line | {"eval_set": "validation", "avg@4": 0.1 + step / 10, "solve_rate_histogram": [5, 1, 1, 1, 2]}


def write_directory(path, lines=None, *, facts=FACTS, done=True):
    path.mkdir(parents=True)
    (path / CONFIG).write_text(json.dumps(facts | {"config": {"seed": facts["seed"], "rate": 0.1, "betas": [0.9]}}))
    lines = [json.dumps(evaluation(step)) for step in STEPS] if lines is None else lines
    (path / EVAL).write_text("\n".join(lines) + "\n")
    if done:
        (path / DONE).touch()
    return path


def test_a_run_directory(tmp_path):
    write_directory(tmp_path / "sweep" / "a")
    (run,), warnings = read(tmp_path)
    assert warnings == []
    assert (run.run, run.facts.group_size, run.facts.problems_per_batch, run.facts.seed) == ("a", 8, 4, 3)
    assert run.finished
    np.testing.assert_array_equal(run.compute, [0, 32, 64, 128, 256])
    np.testing.assert_array_equal(run.columns["compute"], run.compute)
    np.testing.assert_allclose(run.columns["avg@4"], [0.1, 0.2, 0.3, 0.5, 0.9])
    assert not any("seed" in key for key in run.identity)
    assert run.identity["rate"] == 0.1 and run.identity["betas"] == "[0.9]"


def test_a_run_that_goes_further_is_a_seed_of_its_configuration(tmp_path):
    for name, seed, compute in (("a", 0, 64), ("b", 1, 256)):
        directory = write_directory(tmp_path / name)
        content = json.loads((directory / CONFIG).read_text())
        content["seed"], content["config"]["max_compute"] = seed, compute
        (directory / CONFIG).write_text(json.dumps(content))
    runs, _ = read(tmp_path)
    (group,), _ = group_runs(runs)
    assert group.configuration.name == "n = 8" and [run.run for run in group.runs] == ["a", "b"]


def test_where_a_run_was_sampled_tells_no_configurations_apart(tmp_path):
    directory = write_directory(tmp_path / "a")
    content = json.loads((directory / CONFIG).read_text())
    content["config"]["service"] = dataclasses.asdict(ServiceConfig(endpoints="a:1", token_file="t"))
    (directory / CONFIG).write_text(json.dumps(content))
    (run,), _ = read(tmp_path)
    assert [key for key in run.identity if "service" in key] == ["service.recompute_cache"]


@pytest.mark.parametrize(("unit", "factor"), [("rollouts", 1.0), ("tokens", 100.0), ("gpu_hours", 1 / 64)])
def test_the_unit_of_compute(tmp_path, unit, factor):
    write_directory(tmp_path / "a")
    (run,), _ = read(tmp_path, compute=unit)
    rollouts = np.array([0, 32, 64, 128, 256])
    np.testing.assert_allclose(run.compute, rollouts * factor)
    np.testing.assert_allclose(run.columns["compute"], rollouts)
    np.testing.assert_allclose(run.columns["gpu_hours"], rollouts / 64)


def test_unfinished_runs_are_used_with_a_warning(tmp_path):
    write_directory(
        tmp_path / "a", [json.dumps(evaluation(1)), json.dumps(evaluation(2)), '{"step": 9, "comp'], done=False
    )
    (run,), warnings = read(tmp_path)
    assert run.compute[-1] == 64 and not run.finished
    assert any("not finished, and used as far as it goes: a, which ends at 64" in text for text in warnings)


def test_bad_rows_are_reported_with_file_and_line_and_the_rest_goes_on(tmp_path):
    good = [evaluation(step) | {"avg@4": 0.1 + step / 100} for step in range(40)]
    lines = [json.dumps(line) for line in good]
    lines[1] = "not json"
    lines[2] = json.dumps(good[2] | {"avg@4": 1.7})
    lines[3] = json.dumps(good[3] | {"compute": None})
    lines[4] = lines[5]
    lines[6] = "[1]"
    lines[7] = '{"avg@4": NaN, "compute": 1e999}'
    lines[8] = json.dumps(good[8] | {"compute": -1})
    log = write_directory(tmp_path / "a", lines) / EVAL
    (run,), warnings = read(tmp_path)
    np.testing.assert_array_equal(run.compute, [0, 160, *(32 * step for step in range(9, 40))])
    expected = {
        2: "not JSON",
        3: "avg@4 is 1.7, not a number in [0, 1]",
        4: "",
        5: f"compute 160 of run a is given again at {log}:6",
        7: "not a JSON object but [1]",
        8: "avg@4 is nan",
        9: "compute is -1",
    }
    for line, reason in expected.items():
        assert any(f"{log}:{line}: {reason}" in text or f"derived: {log}:{line}." in text for text in warnings), line
    assert [text.partition(":")[0] for text in warnings] == [
        "2 of 40 rows were left out that cannot be read",
        "2 of 40 rows were left out because of avg@4",
        "1 of 40 rows was left out because of compute",
        "1 of 40 rows was left out without compute, given or derived",
        "1 of 40 rows was left out as evaluations that are given again later",
    ]


def test_a_broken_run_does_not_stop_the_others(tmp_path):
    write_directory(tmp_path / "good")
    write_directory(tmp_path / "broken", facts=FACTS | {"group_size": "many"})
    (write_directory(tmp_path / "torn") / CONFIG).write_text('{"group')
    runs, warnings = read(tmp_path)
    assert [run.run for run in runs] == ["good"]
    assert any("broken" in w and "group_size is 'many'" in w for w in warnings)
    assert any("torn" in w and "2 of 3 runs were left out as unusable" in w for w in warnings)


def test_nothing_usable_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"--runs: .*nowhere does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"--runs: nothing .* matches .*\*\.csv"):
        read(tmp_path / "*.csv")
    with pytest.raises(InputError, match="--runs is empty"):
        read()
    with pytest.raises(InputError, match="has neither a run directory"):
        read(tmp_path)
    write_directory(tmp_path / "a")
    with pytest.raises(InputError, match="no usable run with avg@4 on train"):
        read(tmp_path, eval_set="train")
    with pytest.raises(InputError, match=r"no usable run with avg@64[\s\S]*--metric=avg@4"):
        read(tmp_path, metric="avg@64")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="neither a directory nor a table"):
        read(tmp_path / "notes.txt")


def test_sources_of_every_kind_each_once(tmp_path):
    for name in ("sweep/a", "sweep/deep/b"):
        write_directory(tmp_path / name)
    (tmp_path / "exports").mkdir()
    for name in ("c", "d"):
        write(tmp_path / "exports" / f"{name}.csv", HEADER, f"{name},8,4,0,10,0.5", f"{name},8,4,0,20,0.6")
    (tmp_path / "exports" / "notes.txt").write_text("x")
    (tmp_path / "folder.csv").mkdir()

    def names(*sources):
        return [run.run for run in read(*(tmp_path / source for source in sources))[0]]

    assert names("sweep") == ["a", "b"] == names("sweep/**") == names("sweep/a", "sweep/deep/b", "sweep")
    assert names("sweep/*/") == ["a", "b"]
    assert names("sweep/a/eval.jsonl") == ["a"]
    assert names("exports/*.csv") == ["c", "d"] == names("exports") == names("exports/*")
    assert names("exports/d.csv", "exports", "sweep") == ["a", "b", "d", "c"]
    with pytest.raises(InputError, match="has neither a run directory"):
        names("folder.csv")


def test_an_unreadable_file_is_reported(tmp_path, monkeypatch):
    good = write(tmp_path / "a.csv", HEADER, "a,8,4,0,10,0.5", "a,8,4,0,20,0.5")
    closed = write(tmp_path / "b.csv", HEADER, "b,8,4,0,10,0.5")
    read_table = reading.read_table

    def refuse(path, notices):
        if path == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_table(path, notices)

    monkeypatch.setattr(reading, "read_table", refuse)
    runs, warnings = read(good, closed)
    assert [run.run for run in runs] == ["a"]
    assert warnings == [f"1 file was left out as unusable: {closed}: Permission denied."]


def test_order_and_repetition(tmp_path):
    path = write(
        tmp_path / "t.csv",
        HEADER,
        "a,8,4,0,30,0.3",
        "a,8,4,0,10,0.1",
        "a,8,4,0,20,0.2",
        "a,8,4,0,40,0.4",
        "a,8,4,0,20,0.9",
        "c,8,4,2,10,1.0000000001",
        "c,8,4,2,20,-1e-12",
    )
    runs, warnings = read(path)
    np.testing.assert_array_equal(runs[0].compute, [10, 20, 30, 40])
    np.testing.assert_array_equal(runs[0].columns["avg@4"], [0.1, 0.9, 0.3, 0.4])
    np.testing.assert_array_equal(runs[1].columns["avg@4"], [1.0, 0.0])
    assert warnings == [
        f"1 of 7 rows was left out as evaluations that are given again later: {path}:4: compute 20 of run a is given "
        f"again at {path}:6 with another value.",
        f"3 rows were put in order of compute: 3 of a, the first at {path}:3: compute 10 comes after 30.",
    ]
    same = write(tmp_path / "same.csv", HEADER, "a,8,4,0,10,0.1", "a,8,4,0,20,0.2", "a,8,4,0,20,0.2")
    assert read(same)[1][0].endswith(f"{same}:3: compute 20 of run a is given again at {same}:4.")
    with pytest.raises(InputError, match=r"--strict: 4 findings[\s\S]*t.csv:3"):
        read(path, strict=True)


def test_repeated_findings_are_counted(tmp_path):
    lines = [f"a,8,4,0,{i},x" for i in range(2, 102)]
    path = write(tmp_path / "t.csv", HEADER, "a,8,4,0,0,0.1", "a,8,4,0,1,0.2", *lines)
    _, warnings = read(path)
    (told,) = warnings
    assert told.startswith(f"100 of 102 rows were left out because of avg@4: {path}:4: avg@4 is 'x', not a number in")
    assert told.endswith("; and 97 more.")


def test_facts_come_from_the_table_then_the_name_then_the_constants(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "run,group_size,step,avg@4",
        *("n4-1.5B,,1,0.1", "n4-1.5B,,2,0.2", "n4-7B,16,1,0.1", "n4-7B,16,2,0.2", "other,2,1,0.1", "other,2,3,0.3"),
    )
    pattern = r"n(?P<group_size>\d+)-(?P<model_params>[\d.]+B)"
    runs, warnings = read(path, run_pattern=pattern, constants={"problems_per_batch": 10, "group_size": 99})
    found = [(r.facts.group_size, r.facts.problems_per_batch, r.facts.model_params, r.compute.tolist()) for r in runs]
    assert found == [(4, 10, 1.5e9, [40, 80]), (16, 10, 7e9, [160, 320]), (2, 10, 0, [20, 60])]
    assert len(warnings) == 1 and "which --run_pattern" in warnings[0] and "other of" in warnings[0]


def test_facts_that_are_wrong_or_change(tmp_path):
    path = write(
        tmp_path / "t.csv",
        HEADER,
        *("a,8,4,0,1,0.1", "a,8,4,0,2,0.1", "a,16,4,0,3,0.1", "a,many,4,0,4,0.1", "a,8,4.5,0,5,0.1", "a,8,,0,6,0.1"),
    )
    (run,), warnings = read(path)
    np.testing.assert_array_equal(run.compute, [1, 2, 6])
    assert warnings == [
        f"2 of 6 rows were left out because of group_size: {path}:5: group_size is 'many', not a whole number; "
        f"{path}:4: group_size is 16, but the run began with 8.",
        f"1 of 6 rows was left out because of problems_per_batch: {path}:6: problems_per_batch is '4.5', not a whole "
        "number.",
    ]


def test_what_is_missing_for_compute_is_said_with_the_flag(tmp_path):
    path = write(tmp_path / "t.csv", "run,step,group_size,avg@4", "a,1,8,0.1", "a,2,8,0.1")
    with pytest.raises(InputError, match=r"lacks problems_per_batch; .*--constants=problems_per_batch=N"):
        read(path)
    with pytest.raises(InputError, match=r"no column tokens \(--compute=tokens\)"):
        read(path, compute="tokens")
    write(path, "run,trainer_step,avg@4", "a,1,0.1", "a,2,0.1")
    with pytest.raises(InputError, match=r"neither|no column compute nor step.*--columns=trainer_step:step"):
        read(path)


def test_runs_that_lack_the_same_are_one_message(tmp_path):
    lines = [f"{run},{step},{size},0.1" for run, size in (("a", ""), ("b", ""), ("c", 8)) for step in (1, 2)]
    path = write(tmp_path / "t.csv", "run,step,group_size,avg@4", *lines)
    runs, warnings = read(path, constants={"problems_per_batch": 4})
    assert [run.run for run in runs] == ["c"] and len(warnings) == 1
    assert warnings[0].startswith("2 of 3 runs were left out because compute is not given, and step x ")
    assert "lacks group_size; " in warnings[0] and f"--compute=steps: a of {path}:2; b of {path}:4" in warnings[0]


def test_a_table_with_steps_only_is_read_over_steps(tmp_path):
    path = write(tmp_path / "t.csv", "Step,a - acc,b - acc", "0,0.1,0.2", "10,0.3,", "30,0.4,0.5")
    runs, warnings = read(path, metric="acc", compute="steps")
    assert warnings == [] and [run.run for run in runs] == ["a", "b"]
    np.testing.assert_array_equal(runs[0].compute, [0, 10, 30])
    np.testing.assert_array_equal(runs[1].columns["acc"], [0.2, 0.5])
    assert "compute" not in runs[0].columns
    known, _ = read(path, metric="acc", compute="steps", constants={"group_size": 8, "problems_per_batch": 4})
    np.testing.assert_array_equal(known[0].compute, [0, 10, 30])
    np.testing.assert_array_equal(known[0].columns["compute"], [0, 320, 960])


def test_model_and_problem_set_sizes_are_rounded(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "run,group_size,compute,model_params,problem_set_size,avg@4",
        *("a,8,1,1473612599.456,1999.6,0.1", "a,8,2,1473612599.456,1999.6,0.2", "a,8.5,3,1,1,0.3"),
        "a,8,4,1.5,1999.6,0.4",
    )
    (run,), warnings = read(path, constants={"problems_per_batch": 4})
    assert (run.facts.model_params, run.facts.problem_set_size) == (1473612599, 2000)
    np.testing.assert_array_equal(run.compute, [1, 2])
    assert warnings == [
        f"1 of 4 rows was left out because of group_size: {path}:4: group_size is '8.5', not a whole number.",
        f"1 of 4 rows was left out because of model_params: {path}:5: model_params is '1.5', not a whole number.",
    ]


def test_the_nearest_names_are_shown_when_the_metric_is_missing(tmp_path):
    path = write(tmp_path / "t.csv", "step,loss,val/acc,val/acc/mean@4,note", "1,2,0.5,0.6,x", "2,2,0.5,0.6,y")
    with pytest.raises(
        InputError, match=r"be the reward: val/acc, val/acc/mean@4, loss; say which.*--metric=val/acc\."
    ):
        read(path)
    with pytest.raises(InputError, match=r"no table has a column 'val/ac'; near it are val/acc"):
        read(path, columns={"val/ac": "avg@4"})


def test_runs_of_unknown_seed_are_numbered(tmp_path):
    lines = [f"{run},8,4,{c},0.5" for run in ("z", "y", "x") for c in (1, 2)]
    path = write(tmp_path / "t.csv", "run,group_size,problems_per_batch,compute,avg@4", *lines)
    other = write(tmp_path / "u.csv", HEADER, "w,8,4,1,1,0.5", "w,8,4,1,2,0.5")
    runs, warnings = read(path, other)
    assert {run.run: run.facts.seed for run in runs} == {"x": 0, "y": 2, "z": 3, "w": 1}
    assert len(warnings) == 1 and "x: 0; y: 2; z: 3" in warnings[0]
    read(path, other, strict=True)


def test_runs_of_which_nothing_is_known_stay_apart(tmp_path):
    for name in ("grpo", "cispo"):
        write(tmp_path / f"{name}.csv", "compute,avg@4", "1,0.1", "2,0.2")
    runs, warnings = read(tmp_path / "*.csv")
    assert [(run.run, run.facts.group_size, run.facts.seed) for run in runs] == [("cispo", 0, 0), ("grpo", 0, 0)]
    assert [group.configuration.name for group in group_runs(runs)[0]] == ["cispo", "grpo"]
    assert warnings == []


def test_long_runs_are_averaged_into_bins(tmp_path):
    count = 4 * (MAX_POINTS - 1)
    lines = [f"a,8,4,0,{i},{i / count}" for i in range(count + 1)]
    path = write(tmp_path / "t.csv", HEADER, *lines)
    (run,), warnings = read(path)
    assert len(run.compute) == MAX_POINTS and run.compute[0] == 0
    np.testing.assert_allclose(run.compute[1:], np.arange(1, count + 1).reshape(-1, 4).mean(axis=1))
    np.testing.assert_allclose(run.columns["avg@4"], run.compute / count)
    assert len(warnings) == 1 and f"a of {path}, which has {count + 1}" in warnings[0]


def test_columns_flag():
    assert parse_columns(["val:acc/x:avg@4", " a : step"]) == {"val:acc/x": "avg@4", "a": "step"}
    assert parse_columns([]) == {}
    for item in ("avg@4", ":avg@4", "acc:", ":"):
        with pytest.raises(InputError, match=r"--columns.*theirs:ours"):
            parse_columns([item])
    with pytest.raises(InputError, match="'a' is given twice"):
        parse_columns(["a:step", "a:tokens"])


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"metric": ""}, "--metric"), ({"compute": "dollars"}, "--compute = .dollars."),
        ({"reward_range": (1.0, 0.0)}, "--reward_range"), ({"reward_range": (float("nan"), 1.0)}, "--reward_range"),
        ({"run_pattern": "("}, "--run_pattern"), ({"run_pattern": r"n\d+"}, "--run_pattern: it has no named group"),
        ({"run_pattern": r"(?P<width>\d+)"}, "--run_pattern: group width is unknown"),
        ({"constants": {"width": 1}}, "--constants: width"),
        ({"constants": {"group_size": 1.5}}, "--constants: group_size"),
        ({"constants": {"group_size": float("nan")}}, "--constants.*group_size"),
    ],
)  # fmt: skip
def test_wrong_options_name_their_flag(options, flag):
    with pytest.raises(InputError, match=flag):
        ReadOptions(**options)
