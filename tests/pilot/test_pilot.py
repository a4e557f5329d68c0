"""The command, on a tiny random model; and its advice, trained on."""

import dataclasses
import types
from typing import Any

import numpy as np
import pytest

from isocompute_jax import tasks
from isocompute_jax.allocation.schedule import Breakpoints
from isocompute_jax.command_line import load_config
from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, RunConfig
from isocompute_jax.experiment.loop import train
from isocompute_jax.pilot.advice import Critical, advised, against_noise, config_source, critical, screen
from isocompute_jax.pilot.run import PilotConfig, run_pilot, usual_rates
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from tests import mains
from tests.experiment.builders import make_inputs


def bare(path):
    """A run on the tiny model without a loss of its own, or held-out problems."""
    config = make_inputs(path)
    return dataclasses.replace(config, loss=RunConfig().loss, evaluation=EvaluationConfig(samples=2, k=2, points=2))


@pytest.mark.slow
def test_pilot_then_train(tmp_path, caplog):
    caplog.set_level("INFO")
    config, out = dataclasses.replace(bare(tmp_path), problem_set_size=8), tmp_path / "pilot"
    found = run_pilot(config, PilotConfig(budget=4096, rollouts=800, problems_per_batch=2), out)
    assert found.problems == 8  # not the 13 of the file that were not held out
    assert found.tested is not None and found.rollouts <= 800
    lines = [run_files.read_lines(path) for path in out.glob("rates/*/metrics.jsonl")]
    start = found.tested.plan.start * found.tested.plan.batch
    booked = start + sum(line[-1]["compute"] - start for line in lines if line[-1]["compute"] > start)
    assert found.tested.rollouts == booked
    text = screen(found, str(out / "advised.py"))
    assert f"{found.rollouts:,} rollouts" in text and "Unsure" in text
    assert f"{found.held_out} held-out problems err by up to" in text and found.held_out == 3
    logged = [record.getMessage() for record in caplog.records]
    assert any("start: " in line for line in logged) and not any("the model is in" in line for line in logged)
    made = load_config(str(out / "advised.py"))
    assert made == found.config
    assert made.evaluation.sets == {"validation": str(out / "sets" / "validation.jsonl")}
    train(dataclasses.replace(made, max_compute=512), tmp_path / "run")
    done = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert done[-1]["learning_rate"] == pytest.approx(found.tested.choice.rate)
    with pytest.raises(InputError, match="is not empty"):
        run_pilot(config, PilotConfig(budget=4096), out)


@pytest.mark.slow
def test_problems_that_are_never_solved(tmp_path):
    config = bare(tmp_path)
    tasks.write_problems(tmp_path / "never.jsonl", [Problem(f"p{i}", f"{i}+{i}=", "999", "numeric") for i in range(20)])
    config = dataclasses.replace(config, train_set=str(tmp_path / "never.jsonl"))
    with pytest.raises(
        InputError, match=r"8 of 8 problems were never solved in 4 rollouts each.*isocompute_jax\.curate --model"
    ):
        run_pilot(config, PilotConfig(budget=4096, rollouts=32, samples=4), tmp_path / "pilot")
    assert not (tmp_path / "pilot").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model=DIR", "--problems=FILE"], "--budget is missing"),
        (["--budget=65536", "--model=DIR", "--problems=nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_flags_are_named(tmp_path, flags, says):
    (tmp_path / "problems.jsonl").write_text("{}\n")
    places = {"DIR": str(tmp_path), "FILE": str(tmp_path / "problems.jsonl")}
    given = [f"{flag.partition('=')[0]}={places.get(flag.partition('=')[2], flag.partition('=')[2])}" for flag in flags]
    done = mains.run("isocompute_jax.pilot", given)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fields", "workdir", "says"),
    [
        ({}, "pilot", "2% of it are 81 rollouts.*a budget from 6,400 on"),
        ({"rates": (1e-3, 1e-4)}, "pilot", "above 0 that rise"),
        ({"rates": (1e-3, 1e-3)}, "pilot", "above 0 that rise"),
        ({"rollouts": 5000}, "pilot", "--rollouts=5000 is more than the run that is planned, --budget=4096"),
        ({}, ".", "is not empty"),
    ],
)
def test_bad_input_is_named(tmp_path, fields, workdir, says):
    (tmp_path / "something").write_text("")
    with pytest.raises(InputError, match=says):
        run_pilot(RunConfig(), PilotConfig(budget=4096, **fields), tmp_path / workdir)


def test_what_theory_cannot_answer_shows_before_anything_is_drawn(tmp_path):
    config = bare(tmp_path)
    with pytest.raises(InputError, match="less than 16 steps of 4 problems with 8"):
        run_pilot(config, PilotConfig(budget=500, rollouts=128, problems_per_batch=4), tmp_path / "pilot")
    assert not (tmp_path / "pilot" / "measured").exists()


def test_problems_in_an_order_are_advised_a_fixed_n():
    expected: Any = types.SimpleNamespace(sizes=Breakpoints((0, 1000), (4, 16)))
    config = RunConfig()
    found = advised(config, expected, "held_out.jsonl")
    assert (found.group_size, found.schedule.kind) == (4, "auto")
    assert found.evaluation.sets == {"validation": "held_out.jsonl"}
    ordered = dataclasses.replace(config, curriculum=CurriculumConfig(order="easy_to_hard"))
    found = advised(ordered, expected, "held_out.jsonl")
    assert (found.group_size, found.schedule.kind) == (16, "fixed")


def test_a_config_file_says_the_config(tmp_path):
    config = dataclasses.replace(bare(tmp_path), group_size=4)
    path = tmp_path / "made.py"
    path.write_text(config_source(config, "Made."))
    assert load_config(str(path)) == config
    default = RunConfig()
    assert f"max_compute={default.max_compute}," in config_source(default, "Made.")
    assert "seed" not in path.read_text()  # a default


def test_usual_rates_are_those_of_two_models_that_are_known():
    assert usual_rates(100_000)[2] == pytest.approx(2.5e-4)
    assert usual_rates(7_000_000_000)[2] == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("batch", "says"), [(2, ", fewer than the critical"), (16, "neither too few nor too many"), (99, ", more than the")]
)
def test_the_screen_says_whether_a_batch_is_too_small(batch, says):
    noise = (Critical(10.0, 5.0, 20.0), Critical(15.0, 4.0, 64.0))
    found: Any = types.SimpleNamespace(noise=noise, config=dataclasses.replace(RunConfig(), problems_per_batch=batch))
    assert says in against_noise(found)
    found.noise = None
    assert against_noise(found) == ""


def test_critical_sizes_are_ratios_of_means():
    rng = np.random.default_rng(0)
    lines = [
        {"noise/gradient2": 2.0 + a, "noise/between": 4.0 + a, "noise/within": 40.0 + a, "reward": 0.1}
        for a in rng.normal(scale=0.1, size=12)
    ]
    found = critical(lines, 8)
    assert found is not None
    n, problems = found
    assert n.value == pytest.approx(10, rel=0.05) and n.low < n.value < n.high
    assert problems.value == pytest.approx((4 + 40 / 8) / 2, rel=0.05)
    assert critical(lines[:1], 8) is None
