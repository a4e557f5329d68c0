"""The updates of a step: one sampled batch, dealt to mini-batches once an epoch, each of them one optimizer step.

Advantages are those of the whole batch. Denominators are those of a mini-batch, over all of its shards and
micro-batches: it is what one update minimises. Groups stay whole.

Where groups may be of unequal size, an update takes the credit of a flat list of rollouts, as many as the step has: one
program for every deal of them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from isocompute_jax import learner, sharding
from isocompute_jax.allocation.policies import LOOKS
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.experiment import dealing
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.loop_state import LoopState, ReadyBatch
from isocompute_jax.experiment.pipeline import Sampled, groups_with_signal
from isocompute_jax.learner import Batch, TrainState
from isocompute_jax.learner.batches import moved, rollout_sums
from isocompute_jax.learner.credit import completion_lengths, truncated
from isocompute_jax.learner.turn_credit import turns_of
from isocompute_jax.records.rollout import RolloutGroup


def deal(
    kept: Bool[np.ndarray, "P"], *, epochs: int, minibatches: int, seed: int, step: int
) -> list[list[Bool[np.ndarray, "P"]]]:
    """Which groups each update of a step trains on: for each epoch its mini-batches, as masks [P].

    Every epoch deals anew, in an order that (seed, step, epoch) decide. Only groups that take part are dealt, so that
    mini-batches have as much signal as each other: as many groups up to one, and at least one while there are any.
    """
    groups = np.flatnonzero(kept)
    dealt = []
    for epoch in range(epochs):
        order = groups if minibatches == 1 else np.random.default_rng([seed, step, epoch]).permutation(groups)
        parts = np.array_split(order, min(minibatches, max(len(groups), 1)))
        dealt.append([np.isin(np.arange(len(kept)), part) for part in parts])
    return dealt


def lay_out(parts: Parts, state: LoopState, sampled: Sampled, step: int) -> ReadyBatch:
    """Tokens and credit of the updates of step `step`, with scores of now where they are asked for.

    Groups are scored once, however many epochs there are.
    """
    config, policy = parts.config, parts.config.schedule.per_problem
    if config.curriculum.dynamic_sampling:
        kept = groups_with_signal(sampled.groups, config.environment.credited_turns)
    else:
        kept = [group for group in sampled.groups if not group.dropped]
    groups = kept or sampled.groups[: sampled.size.problems]  # none has a signal: nothing is trained on
    graded = credited_by(config, groups)
    drawn, shape = drawn_of(groups, parts.block), graded["rewards"].shape
    there = np.ones(shape, bool) if drawn is None else drawn
    penalties, masked = graded.pop("penalties"), graded.pop("masked")
    if not kept:
        masked = np.ones(shape, bool)
    columns = {}  # what length took from rewards, and the share of rollouts that left the loss
    if penalties is not None:
        columns["length_penalty"] = float(penalties[there].mean())
    if masked is not None:
        columns["masked_share"] = float(masked[there].mean())
    credit = functools.partial(
        learner.credit if policy not in LOOKS else functools.partial(dealing.credit, policy, groups),
        **graded,
        recipe=config.recipe,
        masked=masked,
        drawn=drawn,
    )
    takes_part = credit().kept
    dealt = deal(
        takes_part,
        epochs=config.recipe.epochs,
        minibatches=config.recipe.minibatches,
        seed=config.seed,
        step=step,
    )
    lay_out = parts.lay_outs(sampled.size)
    first = [lay_out(groups, part) for part in dealt[0]]
    old, began = [], time.perf_counter()
    if config.scores_first:
        old = [parts.score(parts.weights(state), tokens) for tokens in first]
    if parts.teacher is not None:
        parts.team.arrive()
        said = parts.teacher(first, groups, dealt[0], lay_out)
        first = [dataclasses.replace(tokens, reference_logprobs=x) for tokens, x in zip(first, said, strict=True)]
    if config.loss.in_reward:
        distance, metrics = reward_penalties(parts, first, old, there)
        penalties, columns = distance if penalties is None else penalties + distance, columns | metrics
    scored = old, [tokens.reference_logprobs for tokens in first]
    jax.block_until_ready(scored)  # or the update would wait for them, and its time say so
    scoring_s = time.perf_counter() - began
    if config.keeps_old_logprobs:
        first = [dataclasses.replace(tokens, old_logprobs=scores) for tokens, scores in zip(first, old, strict=True)]
    updates = []
    for epoch, masks in enumerate(dealt):
        again = epoch > 0 and len(masks) > 1
        laid_out = [relay(parts, lay_out(groups, part), first) for part in masks] if again else first
        updates += [
            (tokens, _of_one_shape(credit(penalties=penalties, part=part), drawn, sampled.size))
            for tokens, part in zip(laid_out, masks, strict=True)
        ]
    trained = [group for group, is_trained in zip(groups, takes_part, strict=True) if is_trained]
    return ReadyBatch(sampled, updates, columns, trained, scoring_s)


def credited_by(config: RunConfig, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    """Collects what `learner.credit` reads of groups, in training and wherever gradients are measured."""
    rewards = learner.group_rewards(groups)
    found = {
        "rewards": rewards,
        "lengths": learner.trained_lengths(groups),
        "max_tokens": config.sampling.max_tokens,
        "penalties": length_penalties(config, groups, rewards),
        "masked": masked_rollouts(config, groups),
    }
    if config.environment.credited_turns:
        found["turns"] = turns_of(groups, config.environment.credited_turns)
    return found


def drawn_of(groups: Sequence[RolloutGroup], block: int | None) -> Bool[np.ndarray, "P G"] | None:
    """As `learner.drawn_of`; with a block all of [P, G] where groups happen to be of one size: the path is the same."""
    drawn = learner.drawn_of(groups)
    if drawn is None and block is not None:
        return np.ones((len(groups), len(groups[0].completions)), bool)
    return drawn


def _of_one_shape(credit: learner.Credit, drawn: Bool[np.ndarray, "P G"] | None, size: BatchSize) -> learner.Credit:
    """Credit as an update takes it: [P, G] of a whole batch of groups, or [B] of its rollouts."""
    return credit.padded(size.problems) if drawn is None else credit.flat(drawn, size.rollouts)


def shared_of(batches: Sequence[ReadyBatch]) -> dict[str, Any]:
    """What every process computes on: all lay out and weigh the whole of a step, and each computes its own part of it.

    Shapes decide which collectives they meet in. Checksums stand for the rest: a process that packed rows in another
    order, or found other advantages, would train the others' parameters on them, and nothing would show.
    """
    updates = [update for batch in batches for update in batch.updates]
    tokens = [tokens for tokens, _ in updates]
    groups = [group for batch in batches for group in batch.sampled.groups]
    # not those of rows: of padded and packed ones each process writes its own alone
    drawn = [np.concatenate([completion.tokens for completion in group.completions]) for group in groups]
    return {
        "shapes": [[list(np.shape(x)) for x in jax.tree.leaves(batch)] for batch in tokens],
        "micro-batches": [int(batch.num_microbatches) for batch in tokens],
        "rewards (checksum)": checksum([group.rewards for group in groups]),
        "tokens (checksum)": checksum(drawn),
        "rows (checksum)": checksum([(x.mask, x.rollout) for x in tokens]),
        "advantages and weights (checksum)": checksum([credit for _, credit in updates]),
    }


def checksum(tree: Any) -> int:
    """CRC-32 of every bit of the host's arrays in a tree."""
    found = 0
    for array in jax.tree.leaves(tree):
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return found


def relay(parts: Parts, tokens: Batch, first: Sequence[Batch]) -> Batch:
    """A batch with the scores that the batches `first` have of its rollouts."""
    for name in ("old_logprobs", "reference_logprobs"):
        if getattr(first[0], name) is None:
            continue
        parts.team.arrive()
        found = moved(first, [sharding.to_host(getattr(batch, name)) for batch in first], tokens)
        if parts.inputs.mesh is None:  # where those of the first epoch lie: it is their program then
            found = jax.device_put(found, jax.local_devices()[0])
        tokens = dataclasses.replace(tokens, **{name: found})
    return tokens


def reward_penalties(
    parts: Parts, batches: Sequence[Batch], old: Sequence[jax.Array], drawn: Bool[np.ndarray, "P G"]
) -> tuple[Float[np.ndarray, "P G"], dict[str, float]]:
    """What KL and entropy terms that stand in the reward take from it, and what the log says of them.

    kl_coef x sum_t(old_t - ref_t) (k1, of the policy before the update) + entropy_coef x sum_t(old_t), over the trained
    tokens of a rollout (PPO in InstructGPT, 2203.02155; RLOO, 2402.14740). Both are constants to the gradient: what
    makes them act is that they are part of what a rollout is worth.

    `batches` hold each rollout at most once, `old` are their log-probabilities, and `drawn` says which rollouts the
    step has.
    """
    loss, rollouts = parts.config.loss, int(drawn.sum())
    penalties, metrics = np.zeros(rollouts), {}
    if loss.kl_in == "reward" and loss.kl_coef:
        kl = np.zeros(rollouts)
        for tokens, scores in zip(batches, old, strict=True):
            reference = tokens.reference_logprobs
            if reference is None and parts.reference_params is not None:
                reference = parts.score(parts.reference_params, tokens)
            scores, reference = sharding.to_host(scores), sharding.to_host(reference)
            kl += rollout_sums(tokens, scores.astype(np.float64) - reference, rollouts)
        penalties += loss.kl_coef * kl
        metrics["kl"] = float(kl.sum()) / max(1, sum(int(np.sum(tokens.mask)) for tokens in batches))
    if loss.entropy_in == "reward" and loss.entropy_coef:
        for tokens, scores in zip(batches, old, strict=True):
            penalties += loss.entropy_coef * rollout_sums(tokens, sharding.to_host(scores), rollouts)
    placed = np.zeros(drawn.shape)
    placed[drawn] = penalties
    return placed, metrics


def make_updates(
    parts: Parts, state: TrainState, batch: ReadyBatch, learning_rate: float, entropy_coef: float | None
) -> tuple[TrainState, dict[str, Any]]:
    """The learner after the updates on one batch, and their columns of metrics.jsonl."""
    parts.team.arrive()
    mesh, found = parts.inputs.mesh, []
    reference = parts.reference_params if parts.config.loss.reads_reference else None
    weights = reference, entropy_coef, parts.frozen
    for tokens, credit in batch.updates:
        placed = learner.place_batch(tokens, mesh)
        state, metrics = parts.programs.train_step(state, placed, credit, learning_rate, *weights)
        found.append(metrics)
    lines = [
        {name: value.item() for name, value in metrics.items()} | tokens.metrics(sharding.shards(mesh, tokens.axes[0]))
        for metrics, (tokens, _) in zip(jax.device_get(found), batch.updates, strict=True)
    ]
    return state, {**together(lines), **batch.columns}


COUNTS = frozenset({"trained_tokens", "num_rows", "tree_nodes"})
"""Metrics that add up over updates."""
OF_UPDATES = frozenset({"loss", "policy_loss", "kl", "gradient_norm", "padding", "attention_imbalance"})
"""Metrics that are averaged over updates; what is neither here nor a count or a maximum, over trained tokens."""
LAST = ("ratio", "clip_fraction")
"""Metrics that grow from update to update: the last one's stands in the log too, with `_last` at its name."""


def together(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of a step from those of its updates: of one they are its own.

    Those of several are counts, maxima (`_max`) and means of the updates that stepped, which are those that had tokens
    to train on. `updates` says how many did.
    """
    stepped = [line for line in lines if line["trained_tokens"]]
    if len(lines) == 1 or not stepped:
        return {**lines[0], "updates": len(stepped)}
    tokens = np.array([line["trained_tokens"] for line in stepped], np.float64)
    merged: dict[str, Any] = {}
    for name in stepped[0]:
        values = np.array([line[name] for line in stepped], np.float64)
        if name.endswith("_max"):
            merged[name] = float(values.max())
        elif name in COUNTS:
            merged[name] = sum(line[name] for line in stepped)
        else:
            merged[name] = float(np.average(values, weights=None if name in OF_UPDATES else tokens))
    merged |= {f"{name}_last": stepped[-1][name] for name in LAST}
    return {**merged, "gradient_norm_max": max(line["gradient_norm"] for line in stepped), "updates": len(stepped)}


def length_penalties(config: RunConfig, groups: Sequence[RolloutGroup], rewards: np.ndarray) -> np.ndarray | None:
    """[P, G] what completions lose for their length; None where they lose nothing for it."""
    length = config.length
    if length.overlong == "off":
        return None
    limit = length.overlong_limit or config.sampling.max_tokens
    penalties = learner.overlong_penalty(
        completion_lengths(groups),
        limit=limit,
        buffer=length.overlong_tokens or max(limit // 5, 1),
        penalty=length.overlong_penalty,
    )
    return penalties if length.overlong == "all" else np.where(rewards >= 1.0, penalties, 0.0)


def masked_rollouts(config: RunConfig, groups: Sequence[RolloutGroup]) -> np.ndarray | None:
    """[P, G] bool, completions that leave the loss; None for none."""
    return truncated(groups) if config.length.truncated == "mask" else None
