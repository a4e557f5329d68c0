"""Supervised fine-tuning: texts in place of rollouts, and the cross-entropy that it is."""

import contextlib
import dataclasses

import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import EvaluationConfig, PackingConfig, RecipeConfig
from isocompute_jax.experiment.demonstrations import demonstrations, text_of
from isocompute_jax.learner import LossConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import read_problems
from isocompute_jax.tasks.tokenizer import load_tokenizer
from tests.experiment.builders import MODEL, log_lines, make_inputs
from tests.experiment.test_teacher import scores
from tests.tasks import chat_tokenizers


@pytest.fixture
def supervised(tmp_path):
    """A run on the 16 answers of its train set, all in each step."""
    config = make_inputs(tmp_path)
    recipe = RecipeConfig(advantage_scale="none", baseline="none", zero_variance_groups="keep", microbatch_tokens=64)
    return dataclasses.replace(
        config,
        supervised="answer",
        group_size=1,
        problems_per_batch=16,
        max_compute=16 * 12,
        recipe=recipe,
        loss=LossConfig(policy_loss="reinforce", correction_mode="off"),
        optimizer=dataclasses.replace(config.optimizer, base_lr=4e-2),
        evaluation=EvaluationConfig(),
    )


@pytest.mark.parametrize(
    "packing",
    [
        pytest.param(PackingConfig(), id="padded"),
        pytest.param(PackingConfig(row_tokens=16), id="packed", marks=pytest.mark.slow),
    ],
)
def test_the_loss_is_the_cross_entropy_of_the_texts(supervised, tmp_path, packing, monkeypatch):
    """Of the answer and the token that ends it, the prompt given; mean over tokens. And it is learned."""
    shown = []
    report = contextlib.nullcontext(lambda completed, note: shown.append(note))
    monkeypatch.setattr(loop, "progress", lambda *args, **kwargs: report)
    loop.train(dataclasses.replace(supervised, packing=packing), tmp_path / "run")
    lines = log_lines(tmp_path / "run", "metrics.jsonl")
    assert shown == [f"step {line['step']}, loss {line['loss']:.3f}" for line in lines]
    tokenizer, params = load_tokenizer(supervised.model), model.load_params(supervised.model, MODEL)
    terms = []
    for problem in read_problems(supervised.train_set):
        prompt, answer = tokenizer.encode(problem.text), tokenizer.encode(problem.answer)
        terms += [-each for each in scores(MODEL, params, prompt, np.array([*answer, tokenizer.eos_ids[0]]))]
    assert len(terms) == 32
    assert lines[0]["loss"] == pytest.approx(np.mean(terms), rel=1e-5)
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
    assert all(line["reward"] == 1 and line["tokens"] == 32 * line["step"] for line in lines)
    assert {line[name] for line in lines for name in ("logprob_difference", "sampler_entropy")} == {None}


@pytest.mark.slow
def test_what_is_learned_is_sampled_in_evaluations(supervised, tmp_path):
    sets = {"train": supervised.train_set}
    loop.train(
        dataclasses.replace(supervised, evaluation=EvaluationConfig(sets, samples=4, k=2, points=2)), tmp_path / "run"
    )
    found = [line["avg@2"] for line in log_lines(tmp_path / "run", "eval.jsonl")]
    assert found[-1] > found[0] + 0.2


def test_a_text_that_is_too_long_is_cut(supervised, tmp_path):
    sampling = dataclasses.replace(supervised.sampling, max_tokens=1)
    loop.train(dataclasses.replace(supervised, sampling=sampling, max_compute=16), tmp_path / "run")
    [line] = log_lines(tmp_path / "run", "metrics.jsonl")
    assert line["truncation_rate"] == 1 and line["trained_tokens"] == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_size", 2),
        ("loss.policy_loss", "clipped"),
        ("loss.entropy_target", 1.0),
        ("recipe.zero_variance_groups", "drop"),
        ("max_staleness", 1),
        ("curriculum.retire_rate", 0.9),
    ],
)
def test_what_does_not_go_with_texts(supervised, tmp_path, field, value):
    group, _, name = field.rpartition(".")
    changed = {group: dataclasses.replace(getattr(supervised, group), **{name: value})} if group else {name: value}
    with pytest.raises(InputError, match=rf"config.{field} = .* with config.supervised = 'answer'"):
        loop.train(dataclasses.replace(supervised, **changed), tmp_path / "run")


def test_problems_have_their_texts_or_none():
    problem = Problem("p", "1+1=", "2", "numeric", extra={"solution": "2", "count": 3, "empty": ""})
    assert text_of(problem, "answer") == text_of(problem, "solution") == "2"
    for column in ("count", "empty", "nothing"):
        with pytest.raises(
            InputError,
            match=rf"supervised = '{column}': problem 'p' has .* there, which is no text: .*solution, count, empty are",
        ):
            text_of(problem, column)


@pytest.mark.parametrize("text", ["4", "4<|im_end|>", "4<|im_end|>\n", "4<think>"])
def test_a_text_ends_once(text, tmp_path, caplog):
    """Whether or not it has the token that ends it, as a chat template writes answers."""
    tokenizer = load_tokenizer(chat_tokenizers.save_chatml(tmp_path))
    problem = Problem("a", "2+2=", "4", "numeric", extra={"text": text})
    ids = demonstrations([problem], "text", tokenizer, len(tokenizer.encode_within(text.strip())) + 1)["a"]
    assert ids.tolist() == tokenizer.encode_within(text.strip().removesuffix("<|im_end|>") + "<|im_end|>").tolist()
    assert not caplog.messages


def test_what_is_wrong_with_texts_shows_before_anything_is_made(supervised, tmp_path, caplog):
    with pytest.raises(
        InputError, match=r"config.supervised = 'solution': problem 'p0' has None there, which is no text"
    ):
        loop.train(dataclasses.replace(supervised, supervised="solution"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    problems = [Problem("a", "1+1=", "2", "numeric", extra={"text": "2é"}), Problem("b", "1+2=", "3", "numeric")]
    tokens = demonstrations(problems[:1], "text", load_tokenizer(supervised.model), 1)
    assert len(tokens["a"]) == 2
    assert "1 of 1 texts have characters that the tokenizer does not know" in caplog.text
    assert "1 of 1 texts have no room for the token that ends them in sampling.max_tokens = 1" in caplog.text
    nothing = Problem("c", "1+1=", "2", "numeric", extra={"text": "é"})
    with pytest.raises(InputError, match=r"config.supervised: 'é' has no token that the tokenizer knows"):
        demonstrations([nothing], "text", load_tokenizer(supervised.model), 9)
