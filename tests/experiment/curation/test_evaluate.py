"""Evaluations: what is recorded and resumed, intervals, and two models on the same problems."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import scipy.stats

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import MEASURED, curate
from isocompute_jax.experiment.curation.evaluate import (
    compare,
    difference,
    estimate,
    evaluate,
    pass_rates,
    read_evaluation,
    scores,
)
from isocompute_jax.pilot.run import PilotConfig, run_pilot
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
    found = estimate(values, 64)
    low, high = scipy.stats.norm.interval(0.95, values.mean(), values.std() / 20)
    assert found.value == values.mean()
    np.testing.assert_allclose([found.low, found.high], [low, high], atol=2e-3)


def test_of_one_sample_each_the_interval_is_wilsons():
    values = np.repeat([0.0, 1.0], [900, 300])
    found = estimate(values, 1)
    wanted = scipy.stats.binomtest(300, 1200).proportion_ci(method="wilson")
    np.testing.assert_allclose([found.low, found.high], [wanted.low, wanted.high], atol=2e-4)
    assert (estimate(np.zeros(60), 4).low, estimate(np.ones(60), 4).high) == (0.0, 1.0)
    assert 0.03 < estimate(np.zeros(60), 4).high < 0.07 and estimate(np.ones(60), 4).low > 0.93


@pytest.mark.parametrize(("mean", "unlike"), [(0.013, 1.0), (0.013, 0.05), (0.3, 1.0), (0.003, None)])
def test_intervals_hold_the_truth_at_low_rates_too(mean, unlike):
    """Solve rates of problems are drawn anew each time; percentiles of problems with replacement held 25 to 80%."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(400):
        rates = np.full(100, mean) if unlike is None else rng.beta(mean * unlike, (1 - mean) * unlike, 100)
        found = estimate(rng.binomial(8, rates) / 8, 8)
        held += found.low <= mean <= found.high
    assert held / 400 >= 0.93


def test_intervals_of_differences_hold_the_truth():
    rng, held, widths = np.random.default_rng(2), 0, []
    for _ in range(400):
        rates = rng.beta(0.3, 0.7, 150)
        ours, theirs = (rng.binomial(4, each) / 4 for each in (0.9 * rates + 0.05, 0.9 * rates))
        *_, found = difference(ours, theirs, (4, 4))
        held += found.low <= 0.05 <= found.high
        widths.append(found.high - found.low)
    assert 0.92 <= held / 400 <= 0.98 and np.mean(widths) < 0.1


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
        {
            "samples": 64,
            "solved": {f"p{i}": int(rng.binomial(64, rate)) for i, rate in enumerate(shifted)},
        }
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


def test_problems_are_compared_by_what_they_ask(base_run, source, tmp_path):
    """Ids are those of lines, alike in any two files of one name."""
    rows = [{"prompt": f"{i}+2=", "answer": str(i + 2), "task": "arithmetic"} for i in range(4)]
    others = [{"prompt": f"{i}+3=", "answer": str(i + 3), "task": "arithmetic"} for i in range(4)]
    one, other = tmp_path / "one/test.jsonl", tmp_path / "other/test.jsonl"
    for path, given in ((one, rows), (other, others)):
        path.parent.mkdir()
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
        evaluate(ProblemFile(path), path.parent / "out", source=source, config=CONFIG)
    ours, theirs = (read_evaluation(path.parent / "out") for path in (one, other))
    assert list(ours["solved"]) == list(theirs["solved"]) and compare(ours, ours).problems == 4
    with pytest.raises(
        InputError, match=r"4 of 4 problems with the same id differ in prompt, answer, task or another "
    ):
        compare(ours, theirs)
    with pytest.raises(InputError, match=r"--solved_at is 1.0 here and 0.5 there"):
        compare(ours, {**ours, "solved_at": 0.5})
    with pytest.raises(InputError, match="call its command again"):
        compare(ours, {name: value for name, value in ours.items() if name != "contents"})


def test_a_file_and_what_curation_writes_of_it_are_the_same_problems(source, tmp_path):
    """For a model of other tokens too: what is compared is what is asked, columns that were measured aside."""
    columns = [{"level": 1, "tests": {"b": None, "a": [2.50, "\u270b"]}}, {"avg@4": 0.5}, {"mean_reward": 0.5}, {}]
    rows = [{"prompt": f"{i}+2=", "answer": i + 2, "task": "arithmetic", **more} for i, more in enumerate(columns)]
    file, curated = tmp_path / "problems.jsonl", tmp_path / "curated"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    curate(ProblemFile(file), curated, source=source, config=CONFIG)
    other = pathlib.Path(shutil.copytree(source.model, tmp_path / "other"))
    written = json.loads((other / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    vocabulary["8"], vocabulary["9"] = vocabulary["9"], vocabulary["8"]
    (other / "tokenizer.json").write_text(json.dumps(written))
    evaluate(ProblemFile(file), tmp_path / "base", source=source, config=CONFIG)
    theirs = dataclasses.replace(source, model=str(other))
    evaluate(ProblemFile(curated / MEASURED), tmp_path / "theirs", source=theirs, config=CONFIG)
    found = [read_evaluation(tmp_path / name) for name in ("base", "theirs")]
    assert compare(*found).problems == compare(*found[::-1]).problems == 4
    (curated / MEASURED).write_text((curated / MEASURED).read_text().replace("2.5", "2.25"))
    evaluate(ProblemFile(curated / MEASURED), tmp_path / "changed", source=source, config=CONFIG)
    with pytest.raises(InputError, match=r"1 of 4 problems with the same id differ .* such as 'problems-1'"):
        compare(found[0], read_evaluation(tmp_path / "changed"))


def test_environments_are_not_played(base_run, source, tmp_path):
    """Single answers have other rewards than a run's own evaluations; nothing is drawn, and nothing written."""
    with_one = dataclasses.replace(source, environment=EnvironmentConfig(name="number_game"))
    problems = ProblemFile(base_run.train_set)
    with pytest.raises(InputError, match=r"config.environment.name = 'number_game': only single answers are measured"):
        evaluate(problems, tmp_path / "out", source=with_one, config=CONFIG, make_sampler=no_sampler)
    planned = dataclasses.replace(with_one, train_set=base_run.train_set)
    with pytest.raises(InputError, match=r"config.environment.name = 'number_game'"):
        run_pilot(planned, PilotConfig(budget=4096), tmp_path / "pilot")
    assert not list(tmp_path.iterdir())
