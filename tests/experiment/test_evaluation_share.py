"""Evaluation that costs a share of C where a config leaves it open, and what was given or recorded as it is."""

import dataclasses
import json
import re

import pytest

from isocompute_jax.experiment import loop, workdir
from isocompute_jax.experiment.build import facts_of
from isocompute_jax.experiment.config import EvaluationConfig
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import curve_identity_of, identity

OLD = {"samples": 8, "points": 15, "first_compute": 2048, "max_problems": 0}
"""What releases without `share` had where nothing was said."""


def numbers(config: EvaluationConfig) -> tuple[int, int, int, int]:
    return config.samples, config.points, config.first_compute, config.max_problems


def times(config: EvaluationConfig, max_compute: int) -> int:
    return len(config.compute_points(num_steps=max_compute // 64, rollouts_per_step=64))


def test_fifty_steps_on_a_hundred_problems_are_evaluated_for_a_quarter_of_their_rollouts():
    """3,200 rollouts allow 800: 4 evaluations of 50 problems with 4 samples, where it was 16 of 100 with 8."""
    found = EvaluationConfig().settled([100], 3200)
    assert numbers(found) == (4, 3, 200, 50)
    assert times(found, 3200) * 50 * found.samples == 800


@pytest.mark.parametrize(
    ("sizes", "max_compute", "expected"),
    [
        ([100], 2**17, tuple(OLD.values())),  # long enough for all of it
        ([], 3200, (8, 15, 200, 0)),
        ([100], 2**15, (8, 9, 2048, 0)),  # 8,192 allow ten evaluations of 800
        ([100], 2**14, (4, 9, 1024, 0)),  # 4,096 allow five of 800, or ten of 400
        ([300, 100], 2**13, (4, 3, 512, 64)),  # 2,048 allow four of 512: 64 problems of each set, 4 samples
        ([5], 16, (4, 3, 1, 1)),  # one problem is the least
    ],
)
def test_first_fewer_evaluations_then_samples_then_problems(sizes, max_compute, expected):
    assert numbers(EvaluationConfig().settled(sizes, max_compute)) == expected


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
@pytest.mark.parametrize("sizes", [[7], [100], [30, 1000], [64, 64, 64]])
def test_it_never_costs_more_than_its_share(share, sizes):
    for max_compute in (2**power for power in range(10, 22)):
        found = EvaluationConfig(share=share).settled(sizes, max_compute)
        each = found.samples * sum(min(size, found.max_problems or size) for size in sizes)
        assert times(found, max_compute) * each <= share * max_compute or found.max_problems == 1
        assert found.settled(sizes, max_compute) == found


def test_what_is_given_wins():
    given = EvaluationConfig(samples=32, points=15)
    assert numbers(given.settled([1000], 3200)) == (32, 15, 2048, 0)
    assert EvaluationConfig(samples=32, points=15, first_compute=7).settled([9], 3200).first_compute == 7
    assert numbers(EvaluationConfig(samples=16, max_problems=40).settled([1000], 3200)) == (16, 3, 200, 40)
    assert numbers(EvaluationConfig(points=6).settled([100], 3200)) == (4, 6, 2048, 28)
    assert numbers(EvaluationConfig(share=0).settled([1000], 3200)) == (8, 15, 200, 0)


def test_a_longer_run_is_one_more_seed_though_it_is_evaluated_more_often(base_run):
    def of(max_compute: int):
        evaluation = EvaluationConfig(base_run.evaluation.sets).settled([100], max_compute)
        return {"identity": identity(dataclasses.replace(base_run, max_compute=max_compute, evaluation=evaluation))}

    assert curve_identity_of(of(2**14)) == curve_identity_of(of(2**17))
    assert curve_identity_of(of(3200)) != curve_identity_of(of(2**17))  # other problems


def open_run(base_run):
    """Three steps of 64 rollouts, whose evaluation is left open, with 8 and 16 problems; two points are in one step."""
    return dataclasses.replace(base_run, max_compute=192, evaluation=EvaluationConfig(base_run.evaluation.sets, k=2))


def test_a_run_says_what_was_settled_and_is_the_same_when_it_is_started_again(base_run, tmp_path, caplog):
    config = open_run(base_run)
    with caplog.at_level("INFO"):
        loop.train(config, tmp_path / "run")
    assert "evaluation: 3 times 6 problems, 2 samples each: 36 rollouts, 19% beside those of training" in caplog.text
    found = json.loads((tmp_path / "run" / run_files.CONFIG).read_text())["config"]["evaluation"]
    assert [found[name] for name in OLD] == [2, 3, 12, 3] and found["share"] == 0.25
    lines = run_files.read_lines(tmp_path / "run" / run_files.EVAL)
    assert sum(line["samples"] * line["problems"] for line in lines) == lines[-1]["evaluation_rollouts"] == 36
    for line in lines:
        [average] = [name for name in line if re.fullmatch(r"avg@\d+", name)]
        assert f"C = {line['compute']}: {line['eval_set']} {average} {line[average]:.3f}" in caplog.text
    loop.train(config, tmp_path / "run")  # it is done
    other = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, samples=8))
    with pytest.raises(InputError, match=r"config\.evaluation\.samples: 2 there, 8 here"):
        loop.train(other, tmp_path / "run")


def test_a_run_of_an_earlier_release_goes_on_as_it_was_begun(base_run, tmp_path):
    """Its config.json knows no `share`, and has the defaults of its time."""
    config = open_run(base_run)
    then = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **OLD))
    tmp_path.joinpath("run").mkdir()
    workdir.write_config(tmp_path / "run", then, facts_of(then, read_inputs(then)))
    written = json.loads((tmp_path / "run" / run_files.CONFIG).read_text())
    del written["config"]["evaluation"]["share"]
    (tmp_path / "run" / run_files.CONFIG).write_text(json.dumps(written))
    loop.train(config, tmp_path / "run")
    lines = run_files.read_lines(tmp_path / "run" / run_files.EVAL)
    assert [(line["step"], line["samples"], line["problems"]) for line in lines] == [
        (0, 8, 8), (0, 8, 16), (3, 8, 8), (3, 8, 16)
    ]  # fmt: skip
