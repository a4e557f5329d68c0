"""The loop: what it logs, what it books, when it evaluates, and that it learns."""

import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import re
import socket
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from isocompute_jax import model, tasks
from isocompute_jax.experiment import checkpoints, loop
from isocompute_jax.experiment.config import EvaluationConfig, override
from isocompute_jax.experiment.evaluation import evaluation_seed
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.experiment.metrics import PHASES
from isocompute_jax.experiment.workdir import locked
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import read_problems
from tests.experiment import builders


def tensors(directory) -> dict[str, np.ndarray]:
    """The parameters of a Hugging Face directory, by their names there."""
    return safetensors.numpy.load_file(pathlib.Path(directory) / "model.safetensors")


# --- the logs


def test_metrics_have_a_line_per_step_and_every_column(undisturbed, base_run):
    lines = run_files.read_lines(undisturbed / run_files.METRICS)
    assert [line["step"] for line in lines] == list(range(1, base_run.num_steps + 1))
    columns = {
        *run_files.LINE_KEYS,
        *("reward", "entropy", "sampler_entropy", "kl", "loss", "policy_loss", "gradient_norm", "learning_rate"),
        *("ratio", "ratio_max", "clip_fraction", "correction", "correction_cut", "logprob_difference"),
        *("truncation_rate", "zero_variance_share", "completion_length", "trained_tokens", "staleness", "phase_s"),
        *("padding", "num_rows", "speed"),
        *("evaluation_rollouts", "evaluation_tokens", "redrawn_rollouts", "staleness_mean"),
    }
    for line in lines:
        assert columns <= set(line)
        assert all(np.isfinite(line[name]) for name in columns - {"phase_s", "speed"})
        assert set(line["phase_s"]) == set(PHASES) and min(line["phase_s"].values()) >= 0
        assert 0 <= line["reward"] <= 1 and 0 <= line["truncation_rate"] <= 1
        assert line["reward"] * 64 == round(line["reward"] * 64)
        assert line["zero_variance_share"] * 4 == round(line["zero_variance_share"] * 4)
        assert 1 <= line["completion_length"] <= 2
        assert line["staleness"] == line["staleness_mean"] == line["redrawn_rollouts"] == 0
        assert line["staleness_histogram"] == [line["completion_length"] * 64]
        assert 0 < line["entropy"] < np.log(32) + 1e-5 and line["sampler_entropy"] > 0
    # One update per batch: the policy is the one that sampled.
    stepped = [line for line in lines if line["trained_tokens"]]
    assert len(stepped) > len(lines) / 2
    for line in stepped:
        assert line["ratio"] == pytest.approx(1, abs=1e-6) and line["ratio_max"] == pytest.approx(1, abs=1e-6)
        assert line["correction"] == pytest.approx(1, abs=1e-4) and line["logprob_difference"] < 1e-4
        assert line["gradient_norm"] > 0
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-9) and lines[-1]["kl"] > 0


def test_the_learning_rate_warms_up_and_scales_with_the_batch(undisturbed, base_run):
    rates = [line["learning_rate"] for line in run_files.read_lines(undisturbed / run_files.METRICS)]
    optimizer = base_run.optimizer
    peak = optimizer.base_lr * (base_run.rollouts_per_step / optimizer.base_batch) ** optimizer.lr_scaling_exponent
    assert rates[0] < peak
    assert rates[optimizer.warmup_steps :] == pytest.approx([peak] * (base_run.num_steps - optimizer.warmup_steps))


def test_evaluations_have_a_line_per_set_and_every_column(undisturbed, base_run):
    lines = run_files.read_lines(undisturbed / run_files.EVAL)
    points = base_run.evaluation.compute_points(num_steps=24, rollouts_per_step=64)
    assert [(line["compute"], line["eval_set"]) for line in lines] == [
        (point, name) for point in points for name in ("validation", "train")
    ]
    assert all(line["compute"] == 64 * line["step"] for line in lines)
    for line in lines:
        number = {"validation": 8, "train": 16}[line["eval_set"]]
        assert set(run_files.LINE_KEYS) <= set(line)
        histogram = line["solve_rate_histogram"]
        assert len(histogram) == 5 and sum(histogram) == number == line["problems"]
        assert line["samples"] == 4
        assert [line["solve_counts"].count(c) for c in range(5)] == histogram
        # From the histogram, by counting pairs: the chance that two of four drawn without replacement are (all) right.
        average = sum(c * count for c, count in enumerate(histogram)) / 4 / number
        worst = sum(c * (c - 1) / 12 * count for c, count in enumerate(histogram)) / number
        best = 1 - sum((4 - c) * (3 - c) / 12 * count for c, count in enumerate(histogram)) / number
        assert [line["avg@2"], line["best@2"], line["worst@2"]] == pytest.approx([average, best, worst])
        assert line["epochs"] == pytest.approx(line["compute"] / (16 * 16))
        assert line["entropy"] > 0 and 0 <= line["truncation_rate"] <= 1 and 1 <= line["completion_length"] <= 2


def test_in_one_process_there_is_nothing_to_check(undisturbed):
    assert not (undisturbed / run_files.AGREEMENT).exists()


def test_the_books_keep_evaluation_apart(undisturbed, base_run):
    metrics = run_files.read_lines(undisturbed / run_files.METRICS)
    evaluations = run_files.read_lines(undisturbed / run_files.EVAL)
    assert [line["compute"] for line in metrics] == [64 * step for step in range(1, 25)]
    tokens = np.diff([0, *(line["tokens"] for line in metrics)])
    assert tokens == pytest.approx([line["completion_length"] * 64 for line in metrics])
    # 8 validation and 16 training problems, 4 samples each, whenever there is an evaluation.
    spent = np.cumsum([4 * line["problems"] for line in evaluations])
    assert [line["evaluation_rollouts"] for line in evaluations] == spent.tolist()
    assert metrics[-1]["compute"] == base_run.max_compute
    for line in evaluations:
        assert line["compute"] == 64 * line["step"]
    walls = [line["wall_s"] for line in metrics]
    assert walls == sorted(walls)
    assert metrics[-1]["device_hours"] == pytest.approx(walls[-1] / 3600, abs=1e-5)
    for line in (*metrics, *evaluations):  # one device learns and samples, and counts once
        assert line["learner_device_hours"] == {"cpu": line["device_hours"]} and line["sampler_device_hours"] == {}
        assert line["lost_device_hours"] == 0


def test_config_json_has_what_repeats_the_run(undisturbed, base_run):
    content = json.loads((undisturbed / run_files.CONFIG).read_text())
    assert content["config"] == json.loads(json.dumps(dataclasses.asdict(base_run.resolved())))
    assert {"jax", "jaxlib", "optax", "orbax-checkpoint", "numpy", "isocompute_jax"} <= set(content["versions"])
    assert re.fullmatch(r"([0-9a-f]{40}\+?)?", content["commit"]) and content["devices"]
    facts = run_files.read_run(undisturbed).facts
    assert facts == run_files.RunFacts(
        group_size=16,
        problems_per_batch=4,
        num_steps=24,
        problem_set_size=16,
        model_params=model.count_params(builders.MODEL),
        seed=0,
    )


# --- evaluation


def test_evaluations_are_log_spaced_from_the_first_to_the_end():
    config = EvaluationConfig(points=8, first_compute=2048)

    def steps(config, num_steps):
        points = config.compute_points(num_steps=num_steps, rollouts_per_step=64)
        assert list(points) == sorted(set(points)) and all(point % 64 == 0 for point in points)
        return {point // 64 for point in points}

    assert steps(config, 4096) == {0, 32, 64, 128, 256, 512, 1024, 2048, 4096}
    # A run too short for its points, and one that ends before the first of them.
    assert steps(config, 40) >= {0, 32, 40}
    assert steps(config, 3) == {0, 3}
    assert steps(dataclasses.replace(config, points=1), 40) == {0, 32, 40}


def test_evaluation_draws_numbers_of_its_own():
    seeds = [evaluation_seed(seed, name) for seed in range(3) for name in ("train", "validation")]
    assert len(set(seeds)) == 6 and not set(seeds) & set(range(3))


@pytest.mark.slow
def test_evaluation_does_not_change_training(base_run, tmp_path):
    short = override(base_run, "max_compute", 6 * 64)
    sets = base_run.evaluation.sets
    logs = []
    for number, some in enumerate(({}, {**sets, "again": sets["train"]})):
        loop.train(override(short, "evaluation.sets", some), tmp_path / str(number))
        lines = builders.log_lines(tmp_path / str(number), run_files.METRICS)
        logs.append([{k: v for k, v in line.items() if not k.startswith("evaluation")} for line in lines])
    assert logs[0] == logs[1]
    weights = [(tmp_path / str(number) / "model" / "model.safetensors").read_bytes() for number in range(2)]
    assert weights[0] == weights[1]
    assert not (tmp_path / "0" / run_files.EVAL).exists()
    names = [line["eval_set"] for line in run_files.read_lines(tmp_path / "1" / run_files.EVAL)]
    assert names[:3] == ["validation", "train", "again"]


# --- training


@pytest.mark.slow
def test_another_seed_draws_other_rollouts(base_run, undisturbed, tmp_path):
    """That one seed repeats itself, bit for bit, is what every test of resuming shows."""
    loop.train(dataclasses.replace(base_run, seed=6, max_compute=64, evaluation=EvaluationConfig()), tmp_path)
    [line], [other, *_] = (run_files.read_lines(path / run_files.METRICS) for path in (tmp_path, undisturbed))
    assert all(line[name] != other[name] for name in ("reward", "tokens", "gradient_norm"))


def test_steps_without_signal_leave_the_weights_and_count_as_compute(base_run, tmp_path):
    problems = [Problem(f"p{i}", f"{i}+{i}=", "777", "numeric") for i in range(8)]  # two tokens never give 777
    tasks.write_problems(tmp_path / "train.jsonl", problems)
    config = dataclasses.replace(base_run, train_set=str(tmp_path / "train.jsonl"), max_compute=64 * 3)
    loop.train(config, tmp_path / "run")
    before, after = tensors(base_run.model), tensors(tmp_path / "run" / "model")
    assert set(before) == set(after)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    lines = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert [line["compute"] for line in lines] == [64, 128, 192]
    assert {line["zero_variance_share"] for line in lines} == {1.0}
    assert {line["trained_tokens"] for line in lines} == {0.0}


@pytest.mark.slow
def test_the_trained_model_loads_in_transformers_and_agrees(undisturbed, base_run):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = undisturbed / "model"
    theirs = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokens = AutoTokenizer.from_pretrained(directory)("12+3=")["input_ids"]
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0, -1].numpy()
    config = model.load_config(directory)
    params = model.load_params(directory, config)
    array = jnp.asarray([tokens])
    hidden, _ = model.prefill(config, params, array, jnp.ones_like(array, bool))
    ours = hidden[0, -1] @ params["embed"].T
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    before, after = (model.load_params(path, config) for path in (base_run.model, directory))
    assert any(not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


@pytest.mark.slow
def test_learning_raises_the_reward_beyond_noise(base_run, tmp_path):
    """Every problem has the same answer, so that the first rewards already say what to do."""
    problems = [Problem(f"p{i}", f"{i}+{i}=", "7", "numeric") for i in range(16)]
    tasks.write_problems(tmp_path / "train.jsonl", problems[:12])
    tasks.write_problems(tmp_path / "validation.jsonl", problems[12:])
    config = dataclasses.replace(
        base_run,
        train_set=str(tmp_path / "train.jsonl"),
        max_compute=64 * 40,
        checkpoint_every_s=60.0,
        loss=LossConfig(),
        optimizer=OptimizerConfig(base_lr=2e-2, base_batch=64, warmup_steps=2),
        evaluation=EvaluationConfig(sets={"held out": str(tmp_path / "validation.jsonl")}, points=1, samples=32),
    )
    loop.train(config, tmp_path / "run")
    rewards = np.array([line["reward"] for line in run_files.read_lines(tmp_path / "run" / run_files.METRICS)])
    first, last = rewards[:5], rewards[-5:]
    noise = np.sqrt(0.25 / (5 * 64))  # at most, of a mean over five steps
    assert last.mean() - first.mean() > 6 * noise, (first, last)
    scores = [line["avg@4"] for line in run_files.read_lines(tmp_path / "run" / run_files.EVAL)]
    assert scores[-1] > scores[0] + 0.3
    assert run_files.read_lines(tmp_path / "run" / run_files.METRICS)[0]["kl"] is None  # no reference was scored


@pytest.mark.slow
def test_a_sharded_run_equals_one_device(base_run, tmp_path):
    """Two steps, from the same rollouts up to rounding. The random weights are far from any tie."""
    config = dataclasses.replace(base_run, max_compute=64 * 2, evaluation=EvaluationConfig())
    loop.train(config, tmp_path / "one")
    loop.train(override(config, "mesh.data", 2), tmp_path / "many")
    start, ours, theirs = (tensors(path) for path in (base_run.model, tmp_path / "many/model", tmp_path / "one/model"))
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-5, err_msg=name)
    assert max(np.abs(theirs[name] - start[name]).max() for name in theirs) > 1e-3
    for one, many in zip(*(builders.log_lines(tmp_path / n, run_files.METRICS) for n in ("one", "many")), strict=True):
        assert one["reward"] == many["reward"] and one["tokens"] == many["tokens"]
        assert one["gradient_norm"] == pytest.approx(many["gradient_norm"], rel=1e-4)


def test_problem_set_size_trains_on_the_first(base_run):
    config = dataclasses.replace(base_run, max_compute=64 * 4, problem_set_size=4, evaluation=EvaluationConfig())
    inputs = read_inputs(config.resolved())
    assert inputs.problems == read_problems(base_run.train_set)[:4]
    batches = [next(inputs.stream) for _ in range(3)]
    assert all({problem.id for problem in batch} == {"p0", "p1", "p2", "p3"} for batch in batches)


# --- two processes


def test_a_directory_is_worked_in_by_one_process_at_a_time(base_run, tmp_path):
    """A second start is refused before it touches a file, and the first one is none the worse."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    me = re.escape(f"{workdir} ({socket.gethostname()}, pid {os.getpid()})")
    with locked(workdir, "run"), pytest.raises(InputError, match=f"another run is at work in {me}: wait for it"):
        loop.train(base_run, workdir)
    assert not (workdir / run_files.METRICS).exists()
    loop.train(dataclasses.replace(base_run, max_compute=64 * 2, evaluation=EvaluationConfig()), workdir)
    assert (workdir / run_files.DONE).exists()


def test_storage_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    """As Lustre answers where it is mounted with noflock, and NFS without its lock daemon."""

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path, "run"):
        assert f"{tmp_path} cannot be locked (No locks available): see to it that no other run works" in caplog.text


def test_a_finished_run_is_left_alone_loads_nothing_and_reaches_no_sampler(base_run, undisturbed, monkeypatch, caplog):
    """It may be asked for again where the model or the servers are gone."""
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    monkeypatch.setattr(loop, "read_inputs", lambda _: pytest.fail("read"))
    with caplog.at_level("INFO"):
        seldom = override(base_run, "checkpoint_every_s", 60.0)
        loop.train(seldom, undisturbed, make_sampler=lambda *_, **__: pytest.fail("reached"))
    assert "done already" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")} == before


def test_config_json_is_there_before_the_sampler_is_reached_and_nothing_is_when_it_refuses(base_run, tmp_path):
    workdir = tmp_path / "run"

    def refuses(*_, workdir, **__):
        assert (workdir / run_files.CONFIG).exists()
        with pytest.raises(InputError, match="another run is at work"), locked(workdir, "run"):
            pass
        raise InputError("config.service.endpoints: the server serves another model")

    with pytest.raises(InputError, match="another model"):
        loop.train(base_run, workdir, make_sampler=refuses)
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("trained", "failed", "said"),
    [
        (
            0,
            0,
            "nothing was trained: in each of 2 steps every group's rewards were all equal (zero_variance_share 1). T",
        ),
        (0, 7, "(zero_variance_share 1). 15 of 16 rewards failed: look at these first. Take easier problems"),
        (5, 7, ""),
        (0, 8, "nothing was learned: every reward failed, of all 16 rollouts in 2 steps"),
        (5, 8, "nothing was learned: every reward failed"),  # by its KL and entropy terms alone
    ],
)
def test_a_run_that_trained_nothing_says_so_and_why(tmp_path, caplog, trained, failed, said):
    parts: Any = types.SimpleNamespace(path=tmp_path)
    for compute, tokens, failures in ((8, 0, min(failed, 1) * 8), (16, trained, failed)):
        line = dict.fromkeys(run_files.LINE_KEYS, 0)
        line |= {"compute": compute, "trained_tokens": tokens, "reward_failures": failures}
        run_files.append_line(tmp_path / run_files.METRICS, line)
    checkpoints.warn_of_nothing_trained(parts)
    assert said in caplog.text and bool(said) == bool(caplog.text)
