"""The embedded base model: a tiny Qwen2 taught by an imperfect teacher, saved as a Hugging Face checkpoint.

Pre-training on demonstrations that are wrong at fact-specific rates gives what real base models have: broad,
problem-dependent solve rates, from never to nearly always, for reinforcement learning to work on.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isocompute_jax import model
from isocompute_jax.experiment.progress import progress
from isocompute_jax.learner import completion_logprobs
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.options import check, described, option
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Tokenizer

WIDTHS = ("embed_dim", "num_heads", "num_kv_heads", "mlp_dim")


class TeacherLike(Protocol):
    """Who demonstrates answers."""

    def answers(self, problems: Sequence[Problem], rng: np.random.Generator) -> list[str]:
        """One demonstration per problem, drawn anew at each call."""
        ...


@described
@dataclasses.dataclass(frozen=True)
class BaseModelConfig:
    """The embedded model and its supervised phase."""

    steps: int = option(1200, "Optimizer steps.", low=1)
    batch_size: int = option(256, "Demonstrations per step, each sampled anew from the teacher.", low=1)
    peak_lr: float = option(3e-3, "Learning rate after warm-up; cosine decay to zero.", low=0)
    warmup_steps: int = option(100, "Linear warm-up, in steps.", low=0)
    seed: int = option(0, "Seeds the problems, the data and the initial weights.", low=0)
    teacher_seed: int = option(
        4, "Seeds the teacher's errors; 4 is one whose problems spread well over Easy and Hard.", low=0
    )
    max_prompt_tokens: int = option(9, "Compiled prompt length.", low=1)
    max_tokens: int = option(9, "Compiled answer length, end-of-sequence token included.", low=1)
    width: int = option(1, "Heads, embeddings and hidden units, in those of the embedded model.", low=1)

    def __post_init__(self) -> None:
        check(self)

    @property
    def model(self) -> ModelConfig:
        """The embedded model, `width` times as wide."""
        wider = {name: self.width * getattr(model.EMBEDDED, name) for name in WIDTHS}
        return dataclasses.replace(model.EMBEDDED, **wider)


def train_base_model(
    directory: str | os.PathLike[str],
    config: BaseModelConfig,
    *,
    problems: Sequence[Problem],
    teacher: TeacherLike,
    tokenizer: Tokenizer,
    tokenizer_directory: str | os.PathLike[str],
) -> float:
    """Trains the embedded model on the teacher's demonstrations of `problems` and saves it in `directory`.

    Returns:
      The mean loss of the last 50 steps, nats per answer token.
    """
    model_config = config.model
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.peak_lr, config.warmup_steps, config.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.0))
    params = model.init_params(model_config, jax.random.key(config.seed))
    opt_state = optimizer.init(params)
    losses: list[jax.Array] = []
    demonstrations = _batches(config, problems, teacher, tokenizer)
    with progress("base model", config.steps) as report:
        for step in range(config.steps):
            params, opt_state, loss = _sft_step(params, opt_state, *next(demonstrations), model_config, optimizer)
            losses.append(loss)
            if step % 50 == 49:
                report(step + 1, f"loss {float(loss):.3f}")
        report(config.steps)
    model.save_checkpoint(pathlib.Path(directory), model_config, params, tokenizer_from=tokenizer_directory)
    return float(np.mean(jax.device_get(losses[-50:])))


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=(0, 1))
def _sft_step(
    params: Params,
    opt_state: optax.OptState,
    prompts: tuple[jax.Array, jax.Array],
    answers: tuple[jax.Array, jax.Array],
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
) -> tuple[Any, optax.OptState, jax.Array]:
    """One step of maximum likelihood on the answers' tokens."""

    def loss(params: Params) -> jax.Array:
        tokens, mask = answers
        logprobs, _ = completion_logprobs(config, params, *prompts, tokens, temperature=1.0, chunk_tokens=1 << 16)
        return -jnp.sum(jnp.where(mask, logprobs, 0.0)) / jnp.sum(mask)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def _batches(
    config: BaseModelConfig, problems: Sequence[Problem], teacher: TeacherLike, tokenizer: Tokenizer
) -> Iterator[tuple]:
    """Endless batches ((prompt tokens, mask), (answer tokens [P, 1, T], mask))."""
    rng = np.random.default_rng(config.seed)
    encoded = [tokenizer.encode(problem.text) for problem in problems]
    [eos, *_] = tokenizer.eos_ids
    while True:
        chosen = rng.integers(len(problems), size=config.batch_size)
        answers = teacher.answers([problems[i] for i in chosen], rng)
        prompts = _pad([encoded[i] for i in chosen], config.max_prompt_tokens, tokenizer.pad_id, left=True)
        tokens = [np.append(tokenizer.encode(answer), eos) for answer in answers]
        completions = _pad(tokens, config.max_tokens, tokenizer.pad_id, left=False)
        yield prompts, tuple(x[:, None] for x in completions)


def _pad(sequences: Sequence[np.ndarray], length: int, pad_token: int, *, left: bool) -> tuple[np.ndarray, np.ndarray]:
    """[P, length] tokens and mask."""
    tokens = np.full((len(sequences), length), pad_token, np.int32)
    mask = np.zeros(tokens.shape, bool)
    for row, sequence in enumerate(sequences):
        place = slice(length - len(sequence), length) if left else slice(len(sequence))
        tokens[row, place] = sequence
        mask[row, place] = True
    return tokens, mask
