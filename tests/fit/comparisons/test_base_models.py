"""Base models beside each other: what each gains, and the n that each asks for."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from isocompute_jax.fit import AnalysisOptions, ReadOptions, analyze
from isocompute_jax.fit.comparisons.base_models import base_models, by_model, compare_base_models
from isocompute_jax.fit.curves.forms import hill
from isocompute_jax.fit.read import memory_table, read_curves
from isocompute_jax.records.errors import InputError
from tests.fit.comparisons.sweeps import drawn

QUICK = AnalysisOptions(form="hill", forecast="form", replicates=20, holdout=0.0)
COMPUTE = (0.0, *(1000.0 * 2.0 ** np.arange(9)))
CURVES = {  # (model, size, n) -> floor, asymptote, midpoint, steepness
    ("org/small", 1_000_000, 4): (0.1, 0.30, 4e3, 1.5),
    ("org/small", 1_000_000, 16): (0.1, 0.80, 4e4, 1.5),
    ("org/large", 8_000_000, 4): (0.3, 0.90, 4e3, 1.5),
    ("org/large", 8_000_000, 16): (0.3, 0.55, 4e4, 1.5),
}


def table():
    """Two seeds of each curve, 0.01 apart but for the base model's evaluation: n* ends at 16 for small, 4 for large."""
    rows = [
        (model, size, n, 8, seed, c, float(hill(max(c, 1e-9), *params)) + 0.01 * seed * (c > 0))
        for (model, size, n), params in CURVES.items()
        for seed in (0, 1)
        for c in COMPUTE
    ]
    names = ("model", "model_params", "group_size", "problems_per_batch", "seed", "compute", "avg@4")
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


@functools.cache
def together():
    return analyze(table(), QUICK, compare=False)


@functools.cache
def alone(model):
    columns, own = table(), [name == model for name in table()["model"]]
    columns = {k: [x for x, kept in zip(v, own, strict=True) if kept] for k, v in columns.items()}
    return analyze(columns, QUICK, compare=False)


def test_runs_by_model():
    found = by_model(read_curves(memory_table(table()), ReadOptions())[0])
    assert {name: len(runs) for name, runs in found.items()} == {
        "small (1M parameters)": 4, "large (8M parameters)": 4,
    }  # fmt: skip


def test_each_model_has_its_own_base_gain_and_n():
    small, large = base_models({"small": alone("org/small"), "large": alone("org/large")})
    assert (small.base, large.base) == (pytest.approx(0.1), pytest.approx(0.3))
    assert (small.budgets[-1].group_size, large.budgets[-1].group_size) == (16, 4)
    for each, n, model in ((small, 16, "org/small"), (large, 4, "org/large")):
        size = each.model_params
        end = float(hill(COMPUTE[-1], *CURVES[model, size, n]))
        assert each.final.value == pytest.approx(end + 0.005) and each.gain is not None
        assert each.gain.value == pytest.approx(end + 0.005 - each.base)
        assert each.gain.high - each.gain.value == pytest.approx(12.7062 * 0.01 / 2, rel=1e-4)
        np.testing.assert_allclose(each.reward[-1], end + 0.005, atol=0.005)
    assert small.near(1100).compute == min(small.compute, key=lambda c: abs(np.log(c / 1100)))


def test_sweeps_in_different_metrics_are_refused():
    other = alone("org/small")
    read = dataclasses.replace(other.options.read, eval_set="easy")
    changed = dataclasses.replace(other, options=dataclasses.replace(other.options, read=read))
    with pytest.raises(InputError, match="avg@4 on easy over rollouts; avg@4 on validation"):
        base_models({"a": other, "b": changed})


@pytest.mark.slow
def test_the_answer_appears_where_models_differ(tmp_path):
    (found,) = compare_base_models(together())
    assert found.findings[0].startswith("At 256,000 rollouts, n* is 16 (16 to 16) for small (1M parameters) and 4 (")
    assert found.findings[1] == "The 95% intervals of some exclude each other."
    ends = [hill(COMPUTE[-1], *CURVES[key]) - CURVES[key][0] + 0.005 for key in list(CURVES)[1:3]]
    assert all(f"{gain:.3f} ({gain - 0.0635:.3f} to" in found.findings[2] for gain in ends)
    assert [row["run"] for row in found.rows] == ["n = 16", "n = 4"] and found.verdict == "apart"
    assert len(drawn(together(), found, tmp_path)) > 5000
    assert list(compare_base_models(alone("org/small"))) == []
