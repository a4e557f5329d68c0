"""What the learner's tests train on: ragged groups, and train steps that are compiled once for all modules."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isocompute_jax import learner, model, sharding
from isocompute_jax.learner.credit import AdvantageScale, Aggregation, ZeroVariance
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.model.tiny import random_params, tiny_config

PROMPT, LENGTH, GROUP, VOCAB = 6, 5, 4, 12
REWARDS = ((1, 0, 0, 0), (0, 1, 1, 0), (1, 1, 1, 1), (0, 0, 1, 1), (0, 0.5, 1, 0), (1, 1, 0, 1))
"""Six groups, the third without signal."""

TEMPERATURE = 0.8
REGULARIZED = learner.LossConfig(kl_coef=0.05, entropy_coef=0.02, clip_low=0.1, clip_high=0.2, correction_high=1.2)
CLIPPING = learner.OptimizerConfig(weight_decay=0.01, clip_norm=0.05)
"""A norm that clips every gradient here, and weight decay."""


def one_layer(**changes: Any) -> model.ModelConfig:
    """The learner knows nothing of layers, and a program of one compiles in less time."""
    return tiny_config(num_layers=1, **changes)


def make_group(rng, rewards, *, name="p", lengths=None) -> RolloutGroup:
    """Completions of 1 to LENGTH tokens; the first is of full length, and one token of the last is context."""
    lengths = rng.integers(1, LENGTH + 1, len(rewards)) if lengths is None else np.asarray(lengths)
    completions = []
    for i, length in enumerate(lengths):
        mask = np.ones(length, bool)
        if i == len(lengths) - 1 and length > 2:
            mask[1] = False
        completions.append(
            Completion(
                tokens=rng.integers(0, VOCAB, length).astype(np.int32),
                logprobs=rng.normal(-2.5, 0.5, length).astype(np.float32),
                mask=mask,
                policy_versions=np.zeros(length, np.int32),
                finish_reason="stop" if length < LENGTH else "length",
            )
        )
    prompt = rng.integers(0, VOCAB, rng.integers(1, PROMPT + 1)).astype(np.int32)
    return RolloutGroup(name, 0, prompt, tuple(completions), np.asarray(rewards, np.float32))


def make_groups(rewards=REWARDS, seed=0) -> list[RolloutGroup]:
    rng = np.random.default_rng(seed)
    return [make_group(rng, group, name=f"p{i}") for i, group in enumerate(rewards)]


def shape_for(microbatch_tokens: int, *, batch_shards: int = 1, problems: int = len(REWARDS)) -> learner.BatchShape:
    return learner.batch_shape(
        problems_per_batch=problems,
        group_size=GROUP,
        max_prompt_tokens=PROMPT,
        max_tokens=LENGTH,
        microbatch_tokens=microbatch_tokens,
        batch_shards=batch_shards,
    )


WHOLE = shape_for(1000)
SEVERAL = shape_for(80, batch_shards=4)  # micro-batches of 4 groups; the last is partly padding
CUT = shape_for(10)  # every group cut into two rows of two rollouts


def pack(
    groups: Sequence[RolloutGroup],
    shape: learner.BatchShape = SEVERAL,
    *,
    scale: AdvantageScale = "group_std",
    aggregation: Aggregation = "sequence_mean",
    zero_variance: ZeroVariance = "drop",
) -> tuple[learner.TokenBatch, learner.Credit]:
    """Tokens and credit of one step; groups without credit are not laid out."""
    recipe = learner.CreditConfig(scale, aggregation, zero_variance)
    rewards, lengths = learner.group_rewards(groups), learner.trained_lengths(groups)
    credited = learner.credit(rewards, lengths, recipe, max_tokens=LENGTH)
    return shape.lay_out(groups, kept=credited.kept), credited


def recording(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optimizer`, with the last gradient kept in `opt_state[0]`: exactly what the step computed."""

    def record(updates, state, params=None):
        return updates, updates

    zeros = optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), record)
    return optax.chain(zeros, optimizer)


@functools.cache
def optimizer() -> optax.GradientTransformation:
    return recording(learner.make_optimizer(CLIPPING))


@functools.cache
def mesh():
    return sharding.make_mesh(data=2, fsdp=2, tensor=2)


LOSSES = {
    "regularized": REGULARIZED,
    "gspo": learner.LossConfig(policy_loss="gspo", clip_low=3e-4, clip_high=4e-4),
    "sequence": learner.LossConfig(policy_loss="cispo", correction_level="sequence", correction_mode="mask"),
}
"""By the names that tests of layouts give them."""


def train_step(loss=REGULARIZED, *, dtype="float32", sharded=False) -> learner.TrainStep:
    """One for all modules: a program of it is traced and compiled once. The sharded one donates its state."""
    return _train_step(loss, dtype, sharded)


@functools.cache
def _train_step(loss, dtype, sharded):
    shardings = learner.state_shardings(one_layer(), mesh(), optimizer()) if sharded else None
    score = score_function(dtype=dtype, sharded=sharded)
    return learner.make_train_step(score, loss, optimizer(), shardings=shardings, donate=sharded)


def score_function(*, dtype="float32", sharded=False) -> learner.Score:
    """The log-probabilities of the model, at `TEMPERATURE`.

    Float64 is compared with a plain objective, so that the chunks of the head are proven, too; they take longer to
    compile.
    """
    return _score_function(dtype, sharded)


@functools.cache
def _score_function(dtype, sharded):
    config, where = one_layer(dtype=dtype), mesh() if sharded else None
    chunk_tokens = 7 if dtype == "float64" else 4096
    return learner.make_score(config, temperature=TEMPERATURE, chunk_tokens=chunk_tokens, mesh=where)


@functools.cache
def scorer():
    return learner.make_scorer(score_function())


def take_step(state, tokens, credited, *, lr=1e-3, reference=None, step=None):
    """The state after a step and its metrics; always of the same signature, so that nothing is traced twice."""
    step = train_step() if step is None else step
    rate: Any = np.float32(lr)
    return step(state, tokens, credited, rate, reference)


def gradient_and_metrics(loss, batch, credited, *, dtype="float32", mesh=None):
    """What a step on a batch of any layout computed, before its optimizer changed it."""
    params = random_params(one_layer(dtype=dtype))
    reference = random_params(one_layer(dtype=dtype), seed=1)
    shardings = None if mesh is None else learner.state_shardings(one_layer(), mesh, optimizer())
    state = learner.init_state(params, optimizer(), shardings)
    step = train_step(LOSSES[loss], dtype=dtype, sharded=mesh is not None)
    state, metrics = take_step(state, learner.place_batch(batch, mesh), credited, reference=reference, step=step)
    return state.opt_state[0], metrics


def relative_difference(ours, theirs) -> float:
    """Global norm of the difference of two trees, relative to that of the second."""
    difference = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), ours, theirs)
    norms = [
        np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in jax.tree.leaves(tree)))
        for tree in (difference, theirs)
    ]
    assert norms[1] > 0
    return norms[0] / norms[1]
