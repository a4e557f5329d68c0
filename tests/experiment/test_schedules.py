"""Runs whose sizes and rate change as they go: exact C, exact resume at a switch, forks."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from isocompute_jax import learner, tasks
from isocompute_jax.allocation.auto import Controller, replay
from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig
from isocompute_jax.experiment.fork import Origin, identity_of_fork, origin_of, say_of_jumps
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.experiment.schedules import settled
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import identity
from tests.experiment import builders

SCHEDULE = ScheduleConfig("4@0,8@128", problems_per_batch="4@0,2@300", rate="cosine")


@pytest.fixture(scope="module")
def scheduled(base_run):
    """Without a reference, which would have programs of each size too."""
    kept = dataclasses.replace(base_run.checkpoints, keep_every=8)
    return dataclasses.replace(base_run, max_compute=700, schedule=SCHEDULE, checkpoints=kept, loss=LossConfig())


@pytest.fixture(scope="module")
def reference(scheduled, tmp_path_factory):
    path = tmp_path_factory.mktemp("scheduled") / "run"
    loop.train(scheduled, path)
    return path


def test_every_rollout_is_booked_and_every_rate_is_that_of_its_size(scheduled, reference):
    lines, compute = builders.log_lines(reference, run_files.METRICS), 0
    for line in lines:
        size = scheduled.sizes.at(compute)
        assert (line["group_size"], line["problems_per_batch"]) == (size.group_size, size.problems)
        peak = learner.make_schedule(scheduled.optimizer, rollouts_per_step=size.rollouts)(line["step"] - 1)
        assert line["learning_rate"] == float(np.asarray(peak)) * SCHEDULE.rate_factor(compute, 700)
        compute += size.rollouts
        assert line["compute"] == compute
    config = scheduled.resolved()
    assert len(lines) == config.num_steps and compute == config.planned_compute
    epochs = [line["epochs"] for line in builders.log_lines(reference, run_files.EVAL)]
    drawn = sum(line["problems_per_batch"] for line in lines)
    assert epochs[-1] == drawn / 16
    written = json.loads((reference / run_files.CONFIG).read_text())
    assert written["schedule"] == f"n {SCHEDULE.group_size}; B {SCHEDULE.problems_per_batch}; rate cosine"
    assert written["group_size"] == 4 and written["num_steps"] == len(lines)


def test_interrupted_at_a_switch_it_ends_with_the_same_bits(scheduled, reference, tmp_path):
    lines = builders.log_lines(reference, run_files.METRICS)
    sizes = [(line["group_size"], line["problems_per_batch"]) for line in lines]
    switches = [step for step in range(1, len(sizes)) if sizes[step] != sizes[step - 1]]
    assert len(switches) == 2
    for step in switches:
        with builders.interrupted_in_step(step), pytest.raises(KeyboardInterrupt):
            loop.train(scheduled, tmp_path / "run")
    loop.train(scheduled, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"curriculum": CurriculumConfig(dynamic_sampling=True, max_sampled_batches=2.0)},
        {"max_staleness": 3, "asynchrony": "phases"},
    ],
    ids=["dynamic sampling", "phases"],
)
def test_other_ways_to_draw_cross_a_switch_and_resume(base_run, changes, tmp_path):
    schedule = ScheduleConfig("4@0,8@128", problems_per_batch="4@0,2@250")
    config = dataclasses.replace(base_run, max_compute=360, schedule=schedule, **changes)
    loop.train(config, tmp_path / "whole")
    with builders.interrupted_in_step(9), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "halves")
    loop.train(config, tmp_path / "halves")
    builders.assert_same_run(tmp_path / "halves", tmp_path / "whole")
    lines = builders.log_lines(tmp_path / "whole", run_files.METRICS)
    sizes = {(line["problems_per_batch"], line["group_size"]) for line in lines}
    assert sizes == {(4, 4), (4, 8), (2, 8)} and lines[-1]["compute"] <= 360


def test_a_fork_with_nothing_changed_is_the_run_itself(scheduled, reference, tmp_path, caplog):
    loop.train(dataclasses.replace(scheduled, fork=f"{reference}@8"), tmp_path / "fork")
    assert "jumps" not in caplog.text
    for name in (run_files.METRICS, run_files.EVAL):
        assert builders.log_lines(tmp_path / "fork", name) == builders.log_lines(reference, name)
    ours, theirs = (builders.final_checkpoint(path) for path in (tmp_path / "fork", reference))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(ours[0], theirs[0], strict=True))


def test_a_fork_keeps_moments_and_says_where_it_comes_from(scheduled, reference, tmp_path, caplog):
    config = dataclasses.replace(
        scheduled, fork=str(reference), schedule=ScheduleConfig(), group_size=8, max_compute=900, problems_per_batch=4
    )
    loop.train(config, tmp_path / "fork")
    assert caplog.text.count("the learning rate jumps from 0.1") == 1
    parent, lines = (builders.log_lines(path, run_files.METRICS) for path in (reference, tmp_path / "fork"))
    assert lines[: len(parent)] == parent
    assert lines[-1]["compute"] == parent[-1]["compute"] + 32 * (len(lines) - len(parent)) <= 900
    written = json.loads((tmp_path / "fork" / run_files.CONFIG).read_text())
    assert written["schedule"] == "fork"
    assert written["fork"]["step"] == len(parent) and written["fork"]["compute"] == parent[-1]["compute"]
    assert any(text.startswith("config.group_size: 4 there, 8 here") for text in written["fork"]["changed"])


@pytest.mark.parametrize(
    ("rate", "theirs", "says"),
    [
        ("cosine", {"rate": "cosine", "final_rate": 0.1}, "0.1 of its peak, in runs/a ('cosine', 512), to 0.55 of it"),
        ("linear", {"rate": "cosine", "final_rate": 0.0}, "0 of its peak, in runs/a ('cosine', 512), to 0.55 of it"),
        ("1@0,0.5@512", {}, "1 of its peak, in runs/a ('constant', 512), to 0.5 of it"),
        ("constant", {}, ""),
        ("1@0,0.5@800", {"rate": "1@0,0.5@700"}, ""),
    ],
)
def test_a_rate_that_jumps_at_a_fork_is_said(base_run, rate, theirs, says, caplog):
    config = dataclasses.replace(base_run, schedule=ScheduleConfig(rate=rate), max_compute=1024)
    path, written = pathlib.Path("runs/a"), {"config": {"schedule": theirs, "max_compute": 512}}
    say_of_jumps(config, Origin(path, written, path, 8, 512, ()))
    assert says in caplog.text and bool(says) == bool(caplog.records)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ((0.6, 0.4), "goes from stage 2, in runs/a ([0.6, 0.4], 512), to stage 1"),
        ((0.3, 0.7), ""),  # in its second stage too
        ((), ""),  # without stages none is left
    ],
)
def test_a_stage_that_jumps_at_a_fork_is_said(base_run, stages, says, caplog):
    curriculum = CurriculumConfig(order="easy_to_hard", pools=(0.5,), stages=stages)
    config = dataclasses.replace(base_run, curriculum=curriculum, max_compute=1024)
    path, written = pathlib.Path("runs/a"), {"config": {"curriculum": {"stages": [0.6, 0.4]}, "max_compute": 512}}
    say_of_jumps(config, Origin(path, written, path, 8, 512, ()))
    assert says in caplog.text and bool(says) == bool(caplog.records)


def test_a_warm_up_that_never_ends_is_said(base_run, caplog):
    config = base_run.resolved()
    inputs = read_inputs(config)
    for warmup in (config.num_steps, 96):
        assert "warmup_steps" not in caplog.text
        settled(dataclasses.replace(config, optimizer=OptimizerConfig(warmup_steps=warmup)), inputs)
    assert "warmup_steps = 96, and the run has 24 steps: its learning rate ends at 0.25 of its peak" in caplog.text


def test_forks_of_several_seeds_are_one_configuration(base_run):
    def identified(step=8, seed=0, fork="", **ancestor):
        parent = dataclasses.replace(base_run, seed=seed, **ancestor)
        written = {"identity": identity(parent) | ({"fork": fork} if fork else {})}
        path = pathlib.Path(f"seed={seed}")
        config = dataclasses.replace(base_run, seed=seed, group_size=8, fork=f"{path}@{step}")
        return identity_of_fork(config, Origin(path, written, path, step, 64 * step, ()))

    found = identified()
    assert found["fork"] == "step 8 of group_size 16"
    assert identified(seed=1) == found
    others = [{"step": 9}, {"group_size": 4}, {"problems_per_batch": 2}, {"fork": "step 4"}]
    texts = [identified(seed=1, **other)["fork"] for other in others]
    assert texts == [
        "step 9 of group_size 16",
        "step 8 of group_size 4",
        "step 8 of group_size 16, problems_per_batch 2",
        "step 8 of fork step 4, group_size 16",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fork": "nowhere"}, "not a run directory"),
        ({"fork": "RUN@3"}, "holds no such whole checkpoint; there are those of steps"),
        ({"fork": "RUN", "max_compute": 650}, "a fork's compute counts from the beginning"),
        ({"fork": "RUN", "problem_set_size": 12, "max_compute": 900}, "the position in the data is of its problems"),
        (
            {"schedule": ScheduleConfig("2@0", problems_per_batch="4@0,99@100")},
            "a batch of 99 problems, but the training set",
        ),
        ({"schedule": ScheduleConfig("4@0,64@650")}, "comes to steps of 4 x 64 rollouts when less than one of them"),
        (
            {"schedule": ScheduleConfig("theory"), "loss": LossConfig(kl_coef=0.01)},
            "it knows runs without KL and entropy terms",
        ),
    ],
)
def test_what_is_refused_leaves_no_run_behind(scheduled, reference, changes, says, tmp_path):
    changes = {
        name: str(reference).join(value.split("RUN")) if name == "fork" else value for name, value in changes.items()
    }
    with pytest.raises(InputError, match=says):
        loop.train(dataclasses.replace(scheduled, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / run_files.CONFIG).exists()


@pytest.mark.parametrize(
    ("field", "value"), [("sets", {}), ("sets", {"other": "validation"}), ("max_problems", 3), ("solved_at", 0.5)]
)
def test_a_fork_that_chooses_n_evaluates_what_the_run_before_did(scheduled, reference, field, value, tmp_path):
    sets = scheduled.evaluation.sets
    value = {name: sets[of] for name, of in value.items()} | {"train": sets["train"]} if field == "sets" else value
    evaluation = dataclasses.replace(scheduled.evaluation, **{field: value})
    for schedule in (ScheduleConfig("auto"), ScheduleConfig()):
        config = dataclasses.replace(scheduled, fork=str(reference), max_compute=900, evaluation=evaluation)
        config = dataclasses.replace(config, schedule=schedule)
        if schedule.kind != "auto":  # others may
            assert origin_of(config, {}).compute <= 700
            continue
        with pytest.raises(InputError, match=rf"config.evaluation.{field}.* 'auto' compares its evaluations with that"):
            loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run" / run_files.CONFIG).exists()


def test_a_fork_keeps_the_pools_of_the_run_before(scheduled, reference):
    pools = CurriculumConfig(order="easy_to_hard", pools=(0.5,))
    with pytest.raises(InputError, match="the position in the data is of its pools"):
        origin_of(dataclasses.replace(scheduled, fork=str(reference), max_compute=900, curriculum=pools), {})


def test_a_fit_of_other_problems_is_refused_where_that_is_to_be_seen(scheduled, reference, tmp_path):
    """Their number is the same; the problems are not."""
    content = {
        "schema": 3,
        "optimal": {"budgets": [100.0, 400.0], "group_size": [4.0, 8.0]},
        "inputs": [{"problem_set_size": 16, "source": str(reference / run_files.EVAL)}],
    }
    (tmp_path / "summary.json").write_text(json.dumps(content))
    config = dataclasses.replace(scheduled, schedule=ScheduleConfig(f"frontier:{tmp_path / 'summary.json'}"))
    inputs = read_inputs(config.resolved())
    assert settled(config, inputs).schedule.group_size == "4@0,8@200"
    problems = tasks.read_problems(scheduled.train_set)
    others = [dataclasses.replace(problem, prompt=str(problem.prompt).replace("+", "-")) for problem in problems]
    tasks.write_problems(tmp_path / "others.jsonl", others)
    config = dataclasses.replace(config, train_set=str(tmp_path / "others.jsonl"))
    with pytest.raises(InputError, match=f"is of runs on the problems of {scheduled.train_set}, and this run has oth"):
        settled(config, read_inputs(config.resolved()))
    content["inputs"][0]["source"] = "gone/eval.jsonl"
    (tmp_path / "summary.json").write_text(json.dumps(content))
    assert settled(config, read_inputs(config.resolved())).schedule.group_size == "4@0,8@200"


def test_theory_schedules_measured_problems(scheduled, tmp_path):
    problems = tasks.read_problems(scheduled.train_set)
    measured = [dataclasses.replace(problem, measured={"avg@16": 0.1}) for problem in problems]
    tasks.write_problems(tmp_path / "train.jsonl", measured)
    config = dataclasses.replace(
        scheduled,
        train_set=str(tmp_path / "train.jsonl"),
        schedule=ScheduleConfig("theory"),
        evaluation=EvaluationConfig(),
        max_compute=100,
    )

    def stop():
        raise KeyboardInterrupt

    for _ in range(2):  # the second time it is recognised, as when it is done
        with builders.before_step(1, stop), pytest.raises(KeyboardInterrupt):
            loop.train(config, tmp_path / "run")
    written = json.loads((tmp_path / "run" / run_files.CONFIG).read_text())
    assert written["schedule"] == "n theory"
    assert written["config"]["schedule"]["group_size"] == "4@0,8@32" and written["group_size"] == 4
    (tmp_path / "run" / run_files.DONE).touch()
    loop.train(config, tmp_path / "run")


def test_auto_grows_n_and_its_log_says_why_and_repeats_it(scheduled, tmp_path, caplog):
    evaluation = dataclasses.replace(scheduled.evaluation, points=8, first_compute=200)
    schedule = ScheduleConfig("auto", largest=8)
    config = dataclasses.replace(
        scheduled, group_size=4, max_compute=800, schedule=schedule, evaluation=evaluation, checkpoint_every_s=60.0
    )
    with caplog.at_level("INFO"):
        loop.train(config, tmp_path / "whole")
    lines = builders.log_lines(tmp_path / "whole", run_files.METRICS)
    sizes = [line["group_size"] for line in lines]
    changes = [step for step in range(1, len(sizes)) if sizes[step] != sizes[step - 1]]
    assert sizes == sorted(sizes) and changes
    assert [step for step, line in enumerate(lines) if "decision" in line] == changes
    for step in changes:
        assert lines[step]["decision"] in caplog.text
        assert lines[step]["decision"].startswith(
            f"n {sizes[step - 1]} -> {sizes[step]} at {lines[step - 1]['compute']:,}"
        )
    evaluations = builders.log_lines(tmp_path / "whole", run_files.EVAL)
    controller = Controller(4, 8)
    for until in range(len(lines)):
        seen = [line for line in evaluations if line["step"] <= until]
        assert replay(controller, lines[:until], seen).group_size == sizes[until]
    for step in sorted({*changes, changes[0] + 2}):
        with builders.interrupted_in_step(step), pytest.raises(KeyboardInterrupt):
            loop.train(config, tmp_path / "parts")
    loop.train(config, tmp_path / "parts")
    builders.assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_change_beyond_the_end_is_said(scheduled, caplog):
    for text, said in (("4@0,8@600", False), ("4@0,8@700", True)):
        config = dataclasses.replace(scheduled, schedule=ScheduleConfig(text)).resolved()
        assert settled(config, read_inputs(config)) == config
        assert ("config.schedule changes at 700 rollouts: the run ends before" in caplog.text) == said


def test_auto_wants_held_out_problems(scheduled, tmp_path):
    evaluation = dataclasses.replace(scheduled.evaluation, sets={})
    config = dataclasses.replace(scheduled, schedule=ScheduleConfig("auto"), evaluation=evaluation)
    with pytest.raises(InputError, match="decides on one half of the held-out problems"):
        loop.train(config, tmp_path / "run")
