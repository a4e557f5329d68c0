"""The embedded base model: it learns the teacher's answers, is a checkpoint, and follows from its seed."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.study import base_model
from isocompute_jax.study.base_model import BaseModelConfig, train_base_model
from isocompute_jax.tasks import load_tokenizer, make_problems, make_teacher, save_arithmetic_tokenizer

CONFIG = BaseModelConfig(steps=60, batch_size=64, warmup_steps=10)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Trains with some config; returns the final loss and the directory. Equal configs train anew."""
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    save_arithmetic_tokenizer(tokenizer)
    problems, teacher = make_problems(256, seed=0), make_teacher(4)

    def train(config):
        directory = tmp_path_factory.mktemp("base") / "model"
        loss = train_base_model(
            directory,
            config,
            problems=problems,
            teacher=teacher,
            tokenizer=load_tokenizer(tokenizer),
            tokenizer_directory=tokenizer,
        )
        return loss, directory

    return train


@pytest.fixture(scope="module")
def first(taught):
    return taught(CONFIG)


@pytest.mark.slow
def test_the_loss_falls(first, taught):
    untaught, _ = taught(dataclasses.replace(CONFIG, steps=2, peak_lr=1e-9, warmup_steps=1))
    assert untaught == pytest.approx(np.log(model.EMBEDDED.vocab_size), rel=0.2)
    assert first[0] < untaught - 0.5


@pytest.mark.slow
def test_the_checkpoint_loads_with_its_tokenizer(first):
    _, directory = first
    config = model.load_config(directory)
    assert config == model.EMBEDDED
    params = model.load_params(directory, config)
    assert all(np.isfinite(np.asarray(x)).all() for x in params["layers"].values())
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode([tokenizer.encode("47+3-2=").tolist()]) == ["47+3-2="]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(taught):
    short = dataclasses.replace(CONFIG, steps=6, warmup_steps=2)
    first, same, other = taught(short), taught(short), taught(dataclasses.replace(short, seed=1))
    weights = [(directory / "model.safetensors").read_bytes() for _, directory in (first, same, other)]
    assert weights[0] == weights[1] != weights[2]
    assert first[0] == same[0] != other[0]


def test_batches_are_demonstrations_that_end(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    tokenizer, problems = load_tokenizer(tmp_path), make_problems(32, seed=0)
    (prompts, prompt_mask), (answers, mask) = next(base_model._batches(CONFIG, problems, make_teacher(4), tokenizer))
    assert prompts.shape == (64, CONFIG.max_prompt_tokens) and answers.shape == (64, 1, CONFIG.max_tokens)
    assert prompt_mask[:, -1].all()  # padded on the left
    known = {problem.prompt for problem in problems}
    for row in range(64):
        assert tokenizer.decode([prompts[row][prompt_mask[row]]])[0] in known
        assert answers[row, 0][mask[row, 0]][-1] in tokenizer.eos_ids
        assert not (answers[row, 0][~mask[row, 0]] != tokenizer.pad_id).any()
