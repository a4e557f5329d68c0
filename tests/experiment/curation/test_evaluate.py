"""Evaluations: what is recorded and resumed, intervals, and two models on the same problems."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.evaluate import (
    compare,
    estimate,
    evaluate,
    pass_rates,
    read_evaluation,
    scores,
)
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks import ProblemFile
from tests.experiment.curation.test_curate import no_sampler

CONFIG = CurationConfig(samples=6, sets=())


@pytest.fixture
def source(base_run):
    return RunConfig(model=base_run.model, sampling=base_run.sampling)


def test_it_is_recorded_and_goes_on(base_run, source, tmp_path):
    problems = ProblemFile(base_run.train_set)
    found = evaluate(problems, tmp_path, source=source, config=CONFIG)
    assert list(found) == [problem.id for problem in problems] and 0 < sum(found.values()) < 6 * len(found)
    assert evaluate(problems, tmp_path, source=source, config=CONFIG, make_sampler=no_sampler) == found
    assert read_evaluation(tmp_path)["solved"] == found
    more = dataclasses.replace(CONFIG, samples=16)
    grown = evaluate(problems, tmp_path, source=source, config=more)
    assert all(grown[name] >= count for name, count in found.items()) and grown != found


def test_intervals_are_those_of_means_of_problems():
    """Beside the normal one by SciPy, where there are enough problems for it."""
    values = np.random.default_rng(0).random(400)
    found = estimate(values)
    low, high = scipy.stats.norm.interval(0.95, values.mean(), values.std() / 20)
    assert found.value == values.mean()
    np.testing.assert_allclose([found.low, found.high], [low, high], atol=2e-3)


def test_pass_at_k_by_hand():
    """Of 4 samples 0, 1, 2 and 4 right; one of two is right with chance 0, 1/2, 5/6 and 1."""
    counts = np.array([0, 1, 2, 4])
    np.testing.assert_allclose(pass_rates(counts, 4, 2), [0, 1 / 2, 5 / 6, 1])
    found = scores({str(i): int(count) for i, count in enumerate(counts)}, 4, [1, 2, 4])
    assert found["avg@4"].value == found["pass@1"].value == 7 / 16 and found["pass@4"].value == 3 / 4


def test_a_paired_difference_is_surer_than_two_means():
    rng = np.random.default_rng(0)
    rates = rng.random(200)
    ours, theirs = (
        {"samples": 64, "solved": {f"p{i}": int(rng.binomial(64, rate)) for i, rate in enumerate(shifted)}}
        for shifted in (np.minimum(rates + 0.05, 1), rates)
    )
    theirs["solved"]["another"] = 3
    found = compare(ours, theirs)
    assert found.problems == 200 and found.difference.low > 0.02
    assert found.difference.high - found.difference.low < (found.ours.high - found.ours.low) / 3


@pytest.mark.parametrize("k", [0, 7])
def test_k_is_at_most_the_samples(k):
    with pytest.raises(InputError, match=f"--k={k}: pass@k of 6 samples needs a k of 1 to 6: raise --samples"):
        scores({"p": 1}, 6, [k])


def test_bad_input(base_run, source, tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"prompt": "1+2=", "task": "arithmetic"}) + "\n")
    with pytest.raises(InputError, match=r"problems.jsonl:1: answer: missing or empty; add it, or delete the row"):
        evaluate(ProblemFile(path), tmp_path / "out", source=source, config=CONFIG, make_sampler=no_sampler)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="no evaluation"):
        read_evaluation(tmp_path)
    with pytest.raises(InputError, match="no problem in common"):
        compare({"solved": {"a": 1}, "samples": 2}, {"solved": {"b": 1}, "samples": 2})
