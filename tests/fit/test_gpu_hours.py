"""Curves over GPU-hours: where an hour draws more rollouts for one n than for another, the answer is another."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, analyze
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.outputs import analyse
from isocompute_jax.fit.read import read_curves
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import EVAL
from tests.fit import runs

CURVES = {4: (0.1, 0.5, 1e4, 1.2), 16: (0.1, 0.8, 6e4, 1.2)}
"""n -> curve over rollouts: 16 needs more of them, and comes further."""
PER_HOUR = {4: 1000.0, 16: 8000.0}
"""Rollouts: groups of 16 share their prompt, and fill the device. In hours 16 has its midpoint at 7.5, 4 at 10."""
START_UP = 0.01
BUDGET = 10.0
OPTIONS = AnalysisOptions(form="hill", forecast="form", bootstrap="none", holdout=0.0, records="off")


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    rows = []
    for n, params in CURVES.items():
        for seed in range(2):
            for step in [0, *np.geomspace(2e3 / 32, 5e5 / 32, 12).round().tolist()]:
                compute = step * 8 * n
                hours = START_UP + compute / PER_HOUR[n]
                reward = float(hill(max(compute, 1e-9), *params)) + 0.002 * rng.normal()
                facts = {"run": f"n{n}-s{seed}", "group_size": n, "problems_per_batch": 8, "seed": seed}
                rows.append({**facts, "step": step, "gpu_hours": hours, "avg@4": reward})
    return pa.Table.from_pylist(rows)


def options(unit: str, *budgets: float) -> AnalysisOptions:
    return dataclasses.replace(OPTIONS, budgets=budgets, read=ReadOptions(compute=unit))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def by_hours(tmp_path_factory) -> tuple[str, dict, str]:
    """What is printed, summary.json, and the report."""
    directory = tmp_path_factory.mktemp("hours")
    pa_csv.write_csv(table(), directory / "curves.csv")
    written = analyse([directory / "curves.csv"], directory / "out", options("gpu_hours", BUDGET))
    return written.text, written.summary, (directory / "out" / "report.html").read_text()


@pytest.mark.slow
def test_the_answer_over_hours_is_another_than_over_rollouts(by_hours):
    over_rollouts = analyze(table(), options("rollouts", BUDGET * PER_HOUR[4]), compare=False)
    [few] = over_rollouts.recommendations
    [many] = by_hours[1]["allocation"]["recommendations"]
    assert (few.group_size, many["group_size"]) == (4, 16)
    # What an hour draws decides how many steps ten of them are.
    assert many["num_steps"] == pytest.approx(BUDGET * PER_HOUR[16] / (8 * 16), rel=0.01)
    assert many["reward"] == pytest.approx(float(hill(BUDGET * PER_HOUR[16], *CURVES[16])), abs=0.01)
    [switch] = over_rollouts.frontier.switches
    assert (switch.before.group_size, switch.after.group_size) == (4, 16)
    # In hours 16 leads from the start, to where its data end.
    assert [found["from_group_size"] for found in by_hours[1]["frontier"]["switches"]] in ([], [16])
    for curve in by_hours[1]["curves"]:
        n = curve["group_size"]
        assert curve["points"]["compute"][0] == 0.0  # the base model: start-up trains nothing
        last = 8 * n * round(5e5 / 32) / PER_HOUR[n]
        assert curve["points"]["compute"][-1] == pytest.approx(START_UP + last)


def test_every_label_speaks_of_hours(by_hours):
    text, summary, page = by_hours
    assert "With up to 10 GPU-hours" in text and summary["compute_unit"] == "gpu_hours"
    words = page.split("<h2>Method</h2>")[0].split('type="application/json"')[0]
    for wrong in ("budget of C sampled", " rollouts: n =", "compute C (rollouts)", "10 rollouts"):
        assert wrong not in words + text, wrong
    assert "budget of C GPU-hours" in page and "budget (GPU-hours)" in page


def rows(*hours: float | str, start: int = 0) -> str:
    head = "run,group_size,problems_per_batch,step,gpu_hours,avg@4\n"
    return head + "".join(f"a,4,8,{step},{value},0.{step + 1}\n" for step, value in enumerate(hours, start))


def read(path, **fields):
    return read_curves([str(path)], ReadOptions(compute="gpu_hours", **fields))


def test_hours_that_fall_are_an_error(tmp_path):
    """A clock that began again with the process: the later evaluation would stand before the earlier one."""
    path = tmp_path / "a.csv"
    path.write_text(rows(0.0, 1.0, 2.0, 0.5, 1.5))
    with pytest.raises(InputError, match=r"a.csv:5: run a: gpu_hours falls from 2 to 0.5 while the run goes on"):
        read(path)
    path.write_text(
        rows(0.0, 1.0, 2.0, 3.0).replace("a,4,8,1,1.0,0.2\n", "") + "a,4,8,1,1.0,0.2\n"
    )  # out of order only
    [run], found = read(path)
    assert run.compute.tolist() == [0.0, 1.0, 2.0, 3.0] and any("out of order" in text for text in found)
    directory = runs.write_run(tmp_path / "runs" / "r", group_size=4, seed=0, params=CURVES[4])
    log = directory / EVAL
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[5]["device_hours"] = 0.0
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=rf"{EVAL}:6: run r: gpu_hours falls from"):
        read(tmp_path / "runs")


def test_hours_that_are_missing_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(rows(0.0, 1.0, "", 3.0))
    [run], found = read(path)
    assert run.compute.tolist() == [0.0, 1.0, 3.0]
    assert any("a.csv:4: row left out: its gpu_hours is neither given nor can be derived" in text for text in found)
    with pytest.raises(InputError, match=r"a.csv:4"):
        read(path, strict=True)
    path.write_text(rows(0.0, 1.0).replace("gpu_hours", "hours"))
    with pytest.raises(InputError, match=r"a.csv: no column gpu_hours .*--columns=hours:gpu_hours"):
        read(path)


def test_the_base_model_costs_no_hours(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(rows(0.7, 1.0, 2.0))
    [run], _ = read(path)
    assert run.compute.tolist() == [0.0, 1.0, 2.0]
    assert run.columns["gpu_hours"].tolist() == [0.7, 1.0, 2.0]  # what was spent stays known
