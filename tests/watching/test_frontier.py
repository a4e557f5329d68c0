"""What the page takes from a fit's summary."""

import json

import pytest

from isocompute_jax.fit import analyze
from isocompute_jax.fit.outputs import summary_of
from isocompute_jax.watching.frontier import shown
from tests.fit.runs import BUDGETS, write_sweep


def configuration(n):
    return {"name": f"n = {n}", "group_size": n, "problems_per_batch": 8}


def answer(budget, n, verdict="clear", named=()):
    choices = [{**configuration(n), "reward": 0.1, "stop": budget}, {**configuration(2), "reward": 0.05}]
    return {"budget": budget, "choices": choices, "verdict": verdict, "named": [*map(configuration, named or (n,))]}


def summary(**more):
    switch = {"before": configuration(4), "after": configuration(8), "compute": 1024, "interval95": [900, 1200]}
    found = {"schema": 3, "metric": "avg@4", "compute_unit": "rollouts", "inputs": ["a", "b"], "warnings": ["w"]}
    found["data"] = {"span": [512.0, 2048.0], "varies": ["group_size", "learning_rate", "model"]}
    found["grid"] = [answer(512, 4), answer(2048.01, 8, "no matter", (16, 8)), answer(4096, 16, "open")]
    return found | {"switches": [switch | {"share": 0.9}]} | more


def test_answers_beyond_the_data_are_not_shown():
    found = shown(summary())
    kept = {"reward": 0.1, "problems_per_batch": 8}
    assert found["budgets"] == [
        {"compute": 512, "group_size": 4, "verdict": "clear", "named": [4], **kept},
        {"compute": 2048.01, "group_size": 8, "verdict": "no matter", "named": [8, 16], **kept},
    ]
    assert found["switches"] == [{"compute": 1024, "interval95": [900, 1200], "from_group_size": 4, "to_group_size": 8}]
    assert (found["metric"], found["unit"], found["runs"]) == ("avg@4", "rollouts", 2)


def test_what_differs_besides_sizes_is_named():
    assert shown(summary())["differ"] == ["learning_rate", "model"]


@pytest.mark.slow
def test_what_a_fit_writes_is_shown(tmp_path):
    result = analyze(write_sweep(tmp_path / "runs", seeds=2), questions=False)
    found = shown(json.loads(json.dumps(summary_of(result))))
    assert {2, 4, 8} <= {row["group_size"] for row in found["budgets"]}
    assert found["budgets"][-1]["compute"] == pytest.approx(BUDGETS[-1], rel=1e-3)
    assert [one["from_group_size"] for one in found["switches"]][:2] == [2, 4] and found["differ"] == []
