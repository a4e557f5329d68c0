"""A run that goes on finds the rows and the tokens that it began with, or is refused."""

import dataclasses
import json
import pathlib
import shutil

import pytest

from isocompute_jax import model
from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, override
from isocompute_jax.experiment.fork import origin_of
from isocompute_jax.experiment.workdir import export_checkpoint
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks import RewardConfig
from tests.experiment import builders
from tests.model.tiny import random_params


@pytest.fixture
def begun(tmp_path):
    """A run that was interrupted in its third step, and its config; the training file is its own."""
    config = builders.make_inputs(tmp_path)
    train = shutil.copy(config.train_set, tmp_path / "own.jsonl")
    config = dataclasses.replace(config, train_set=str(train), max_compute=4 * config.rollouts_per_step)
    with builders.interrupted_in_step(3), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run")
    return config, tmp_path / "run"


def rows_of(config):
    return pathlib.Path(config.train_set).read_text().splitlines(keepends=True)


def test_other_rows_under_the_same_name_are_refused(begun):
    config, run = begun
    rows, path = rows_of(config), pathlib.Path(config.train_set)
    before = (run / run_files.METRICS).read_bytes()
    other = [json.dumps({**json.loads(row), "id": f"x{i}"}) + "\n" for i, row in enumerate(rows)]
    for changed in (other, rows[::-1]):
        path.write_text("".join(changed))
        with pytest.raises(
            InputError, match=r"own.jsonl has other rows, or these in another order, than when this run"
        ):
            loop.train(config, run)
        assert (run / run_files.METRICS).read_bytes() == before
    path.write_text("".join(rows))
    loop.train(config, run)
    assert (run / run_files.DONE).exists()


def test_a_reward_that_was_edited_meanwhile_is_said_and_named(tmp_path, monkeypatch, caplog):
    """By the module that the function is from, wherever it is named; a fork compares with the run it comes from."""
    own = tmp_path / "own_reward.py"
    own.write_text("def graded(problem, completion):\n    return float(len(completion) > 2)\n")
    (tmp_path / "own_rewards.py").write_text("from own_reward import graded\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = builders.make_inputs(tmp_path)
    reward = RewardConfig("own_rewards:graded", workers=1)
    config = dataclasses.replace(config, reward=reward, max_compute=2 * config.rollouts_per_step)
    with builders.interrupted_in_step(1), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run")
    own.write_text("# edited\n" + own.read_text())
    said = f"{own} has changed since {tmp_path / 'run'} began: its curve may mix rewards of two kinds from here on"
    for directory in ("fork", "run"):
        caplog.clear()
        fork = str(tmp_path / "run") if directory == "fork" else ""
        loop.train(dataclasses.replace(config, fork=fork), tmp_path / directory)
        assert [record.getMessage() for record in caplog.records].count(said) == 1


def test_a_log_that_is_gone_or_cut_is_said_when_the_run_goes_on(begun, caplog):
    config, run = begun
    kept = (run / run_files.METRICS).read_text().splitlines(keepends=True)
    (run / run_files.METRICS).write_text("".join(kept[1:]))
    (run / run_files.EVAL).unlink()
    loop.train(config, run)
    for name in (run_files.METRICS, run_files.EVAL):
        [said] = [text for text in caplog.messages if text.startswith(f"{run / name} lacks lines of steps up to ")]
        assert said.endswith("goes on without them, unless a copy of the file is put back")


def test_nothing_is_said_of_logs_that_are_whole_or_that_no_set_fills(begun, tmp_path, caplog):
    config, run = begun
    loop.train(config, run)
    alone = dataclasses.replace(config, evaluation=EvaluationConfig())
    with builders.interrupted_in_step(3), pytest.raises(KeyboardInterrupt):
        loop.train(alone, tmp_path / "alone")
    loop.train(alone, tmp_path / "alone")
    loop.train(dataclasses.replace(config, fork=str(tmp_path / "alone") + "@3"), tmp_path / "fork")
    assert not any("lacks lines" in text for text in caplog.messages)


def test_of_a_finished_run_whose_model_is_gone_it_is_said_how_to_get_it_back(begun, caplog):
    config, run = begun
    caplog.set_level("INFO")
    loop.train(config, run)
    loop.train(config, run)
    assert caplog.messages[-1] == f"{run} is done already"
    before = (run / run_files.MODEL / "model.safetensors").read_bytes()
    shutil.rmtree(run / run_files.MODEL)
    loop.train(config, run)
    command = f"python -m isocompute_jax.export --run={run} --out={run / run_files.MODEL}"
    assert caplog.messages[-1] == f"{run} is done already; its model/ is gone: {command}"
    export_checkpoint(run, out=run / run_files.MODEL)
    assert (run / run_files.MODEL / "model.safetensors").read_bytes() == before


def test_the_same_rows_elsewhere_are_accepted(begun, tmp_path):
    config, run = begun
    moved = shutil.move(config.train_set, tmp_path / "moved.jsonl")
    loop.train(dataclasses.replace(config, train_set=str(moved)), run)
    assert (run / run_files.DONE).exists()


def test_a_run_that_goes_on_has_the_evaluation_sets_that_it_began_with(begun):
    config, run = begun
    file = next(iter(config.evaluation.sets.values()))
    sets = {**config.evaluation.sets, "more": file}
    with pytest.raises(InputError, match=r"another config \(config.evaluation.sets.more: None there"):
        loop.train(dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, sets=sets)), run)


def test_the_same_rows_of_a_mixture_elsewhere_are_accepted(begun, tmp_path):
    config, _ = begun
    rows, sets = rows_of(config), {name: str(tmp_path / f"{name}.jsonl") for name in ("one", "two")}
    for name, own in zip(sets, (rows[::2], rows[1::2]), strict=True):
        pathlib.Path(sets[name]).write_text("".join(own))
    config = dataclasses.replace(
        config, train_set="", curriculum=CurriculumConfig(train_sets=sets), max_compute=2 * config.rollouts_per_step
    )
    with builders.interrupted_in_step(1), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "mixture")
    moved = {**sets, "two": str(shutil.move(sets["two"], tmp_path / "moved.jsonl"))}
    config = dataclasses.replace(config, curriculum=CurriculumConfig(train_sets=moved))
    loop.train(config, tmp_path / "mixture")
    assert (tmp_path / "mixture" / run_files.DONE).exists()


def test_other_rows_of_an_evaluation_set_are_refused(begun, tmp_path):
    config, run = begun
    name, file = next(iter(config.evaluation.sets.items()))
    own = shutil.copy(file, tmp_path / "moved_validation.jsonl")
    moved = dataclasses.replace(
        config, evaluation=dataclasses.replace(config.evaluation, sets={**config.evaluation.sets, name: str(own)})
    )
    pathlib.Path(own).write_text("".join(pathlib.Path(file).read_text().splitlines(keepends=True)[::-1]))
    with pytest.raises(InputError, match=r"moved_validation.jsonl has other rows, or these in another order"):
        loop.train(moved, run)
    shutil.copy(file, own)
    loop.train(moved, run)
    assert (run / run_files.DONE).exists()


def test_another_tokenizer_of_the_same_size_is_refused(begun, tmp_path):
    config, run = begun
    path = pathlib.Path(config.model) / "tokenizer.json"
    before = path.read_bytes()
    swapped = json.loads(before)
    vocabulary = swapped["model"]["vocab"]
    [(one, i), (two, j)] = list(vocabulary.items())[3:5]
    vocabulary[one], vocabulary[two] = j, i
    try:
        path.write_text(json.dumps(swapped))
        with pytest.raises(InputError, match=r"the tokenizer of .* has other tokens than when this run began"):
            loop.train(config, run)
    finally:
        path.write_bytes(before)


def test_a_fork_goes_on_with_the_rows_of_the_run_that_it_begins_from(begun, tmp_path):
    config, run = begun
    rows, path = rows_of(config), pathlib.Path(config.train_set)
    forked = dataclasses.replace(config, fork=str(run))
    path.write_text("".join(rows[::-1]))
    with pytest.raises(InputError, match=r"own.jsonl has other rows, .* what it had, or leave config.fork out"):
        loop.train(forked, tmp_path / "fork")
    assert not (tmp_path / "fork" / run_files.CONFIG).exists()
    path.write_text("".join(rows))
    loop.train(forked, tmp_path / "fork")
    assert len(builders.log_lines(tmp_path / "fork", run_files.METRICS)) == 4


def test_a_fork_says_that_it_does_not_train_the_weights_of_another_model(begun, tmp_path, caplog):
    """A copy of the same model is no other one."""
    config, run = begun
    config = dataclasses.replace(override(config, "loss.kl_coef", 0.0), fork=str(run))  # with one it would be refused
    copy, other = (shutil.copytree(config.model, tmp_path / name) for name in ("copy", "other"))
    model.save_checkpoint(other, builders.MODEL, random_params(builders.MODEL, seed=9), tokenizer_from=config.model)
    for path, said in ((copy, 0), (other, 1)):
        loop.train(dataclasses.replace(config, model=str(path)), tmp_path / f"fork of {path.name}")
        text = f"config.model = '{path}', and {run} began with '{config.model}': a fork trains"
        assert caplog.text.count(text) == said
    ours, theirs = (builders.final_checkpoint(tmp_path / f"fork of {name}")[0] for name in ("other", "copy"))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("field", ["train_set", "evaluation.sets.validation"])
def test_a_fork_takes_rows_elsewhere_where_they_are_known_to_be_the_same(begun, field):
    """Of evaluation sets one asks that chooses n itself."""
    config, run = begun
    written = json.loads((run / run_files.CONFIG).read_text())
    contents, sets = written["contents"], config.evaluation.sets | {"validation": "elsewhere.jsonl"}
    forked = dataclasses.replace(config, fork=str(run), schedule=ScheduleConfig(group_size="auto"))
    changed = ("train_set", "elsewhere.jsonl") if field == "train_set" else ("evaluation.sets", sets)
    forked = override(forked, *changed)
    assert origin_of(forked, contents).run == run
    del written["contents"]
    for other in (contents | {field: "other"}, contents):
        with pytest.raises(InputError, match=rf"config.{field}: .* a fork has this in common with the run"):
            origin_of(forked, other)
        (run / run_files.CONFIG).write_text(json.dumps(written))  # of a release that did not know


def test_a_fork_may_grade_otherwise_what_rows_leave_open(begun, tmp_path):
    """A row without a task is of the run's grader, which a fork may change."""
    config, _ = begun
    rows = [{name: x for name, x in json.loads(row).items() if name != "task"} for row in rows_of(config)]
    pathlib.Path(config.train_set).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = dataclasses.replace(config, reward=RewardConfig("numeric"), max_compute=2 * config.rollouts_per_step)
    config = dataclasses.replace(config, evaluation=EvaluationConfig())
    loop.train(config, tmp_path / "origin")
    changes = {"reward": RewardConfig("exact"), "max_compute": 2 * config.max_compute, "fork": str(tmp_path / "origin")}
    loop.train(dataclasses.replace(config, **changes), tmp_path / "fork")
    assert (tmp_path / "fork" / run_files.DONE).exists()


@pytest.mark.parametrize("auto", [False, True])
def test_a_fork_may_be_evaluated_on_other_rows_but_under_auto(begun, tmp_path, auto):
    config, run = begun
    file = next(iter(config.evaluation.sets.values()))
    before = pathlib.Path(file).read_text()
    forked = dataclasses.replace(config, fork=str(run))
    if auto:
        forked = dataclasses.replace(forked, schedule=ScheduleConfig(group_size="auto"))
    try:
        pathlib.Path(file).write_text("".join(before.splitlines(keepends=True)[::-1]))
        if auto:
            with pytest.raises(InputError, match=r"has other rows, or these in another order"):
                loop.train(forked, tmp_path / "fork")
        else:
            loop.train(forked, tmp_path / "fork")
    finally:
        pathlib.Path(file).write_text(before)
    assert (tmp_path / "fork" / run_files.DONE).exists() is not auto
