"""The updates of a step: how groups are dealt, what each trains on, and that a run of them repeats.

Most of them train a policy of one distribution for all tokens, whose every layout is a look-up: what is tested is what
lies around it, and gradients can be written out.
"""

import dataclasses
import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import learner
from isocompute_jax.allocation.schedule import BatchSize
from isocompute_jax.distributed import alone
from isocompute_jax.experiment import loop, updates
from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig, override
from isocompute_jax.experiment.pipeline import Sampled
from isocompute_jax.learner import LossConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.sampling import InProcessSampler
from tests.experiment import builders
from tests.experiment.samplers import Makes
from tests.learner.builders import GROUP, LENGTH, PROMPT, REWARDS, VOCAB, make_groups

GROUPS = make_groups()
SIZES: dict[str, Any] = dict(group_size=GROUP, max_prompt_tokens=PROMPT, max_tokens=LENGTH)


# --- dealing


@given(
    kept=st.lists(st.booleans(), min_size=1, max_size=40).map(np.array),
    epochs=st.integers(1, 3),
    minibatches=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    step=st.integers(0, 10**6),
)
def test_every_epoch_deals_every_group_that_takes_part_once(kept, epochs, minibatches, seed, step):
    dealt = updates.deal(kept, epochs=epochs, minibatches=minibatches, seed=seed, step=step)
    assert len(dealt) == epochs
    for parts in dealt:
        np.testing.assert_array_equal(np.sum(parts, axis=0), kept)
        sizes = {int(part.sum()) for part in parts}
        assert max(sizes) - min(sizes) <= 1 and len(parts) == max(1, min(minibatches, kept.sum()))
    again = updates.deal(kept, epochs=epochs, minibatches=minibatches, seed=seed, step=step)
    np.testing.assert_array_equal(dealt, again)


def test_seed_step_and_epoch_each_deal_anew():
    def deal(**changed):
        return np.array(
            updates.deal(np.ones(32, bool), **{"epochs": 2, "minibatches": 4, "seed": 0, "step": 0, **changed})
        )

    one = deal()
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one, deal(seed=1)) and not np.array_equal(one, deal(step=1))
    np.testing.assert_array_equal(one[:1], deal(epochs=1))


# --- metrics


def test_metrics_of_several_updates_by_hand():
    """8 and 2 tokens: means over tokens are 8:2, of losses 1:1; the update without tokens did not step."""
    line = {"trained_tokens": 8.0, "ratio": 1.0, "ratio_max": 1.5, "clip_fraction": 0.0, "entropy": 2.0, "loss": 0.1}
    line |= {"gradient_norm": 1.0, "num_rows": 3}
    second = line | {"trained_tokens": 2.0, "ratio": 2.0, "ratio_max": 3.0, "clip_fraction": 0.5, "entropy": 1.0}
    second |= {"loss": 0.3, "gradient_norm": 3.0, "num_rows": 1}
    nothing = dict.fromkeys(line, 0.0)
    assert updates.together([line, nothing, second]) == pytest.approx(
        {
            **{"trained_tokens": 10, "ratio": 1.2, "ratio_max": 3.0, "clip_fraction": 0.1, "entropy": 1.8, "loss": 0.2},
            **{"gradient_norm": 2.0, "num_rows": 4, "ratio_last": 2.0, "clip_fraction_last": 0.5},
            **{"gradient_norm_max": 3.0, "updates": 2},
        }
    )
    assert updates.together([line]) == line | {"updates": 1}
    assert updates.together([nothing, nothing]) == nothing | {"updates": 0}


# --- what is trained on


def score(params, batch):
    """One distribution for every token."""
    logprobs = jax.nn.log_softmax(params)
    entropy = -jnp.sum(jnp.exp(logprobs) * logprobs)
    return logprobs[batch.tokens], jnp.broadcast_to(entropy, batch.tokens.shape)


def descend(updates: Any, state: Any, params: Any = None, **options: Any) -> tuple[Any, Any]:
    return jax.tree.map(lambda x: -options["learning_rate"] * x, updates), state


SGD = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), descend)


@functools.cache
def train_step(loss):
    return learner.make_train_step(score, loss, SGD)


SCORER = learner.make_scorer(score)
START = jnp.array(np.random.default_rng(1).normal(size=VOCAB), jnp.float32)
REFERENCE = jnp.array(np.random.default_rng(2).normal(size=VOCAB), jnp.float32)


def lay_out_for(layout, problems):
    sizes: dict[str, Any] = dict(SIZES, problems_per_batch=problems)
    if layout == "packed":
        rows = learner.pack_shape(**sizes, row_tokens=32, microbatch_tokens=64)
        return lambda groups, kept: rows.lay_out(groups, kept=kept)
    if layout == "trees":
        trees = learner.tree_shape(**sizes, row_nodes=40, microbatch_tokens=80)
        return lambda groups, kept: trees.lay_out(groups, kept=kept)
    shape = learner.batch_shape(**sizes, microbatch_tokens=40)
    return lambda groups, kept: shape.lay_out(groups, kept=kept)


def parts_of(layout="padded", loss=LossConfig(), **recipe: Any) -> Any:  # noqa: B008 (frozen)
    """What `updates` asks of the parts of a run."""
    config = RunConfig(
        model="m",
        train_set="t",
        group_size=GROUP,
        problems_per_batch=len(REWARDS),
        seed=7,
        sampling=SamplingConfig(max_prompt_tokens=PROMPT, max_tokens=LENGTH),
        recipe=RecipeConfig(**recipe),
        loss=loss,
    ).resolved()
    return types.SimpleNamespace(
        config=config,
        inputs=types.SimpleNamespace(mesh=None),
        lay_outs=lambda size: lay_out_for(layout, size.problems // config.recipe.minibatches),
        block=None,
        score=SCORER,
        programs=types.SimpleNamespace(train_step=train_step(loss)),
        reference_params=REFERENCE,
        teacher=None,
        frozen=None,
        weights=lambda state: state.learner.params,
        team=alone(),
    )


def all_of(groups):
    """What a step without dynamic sampling gets."""
    return Sampled(groups, BatchSize(len(REWARDS), GROUP))


def fresh() -> Any:
    return types.SimpleNamespace(learner=learner.init_state(START, SGD))


def trained(parts, *, learning_rate=1.0, step=3):
    """The learner after the updates of one step, and what the log says."""
    state = fresh()
    batch = updates.lay_out(parts, state, all_of(GROUPS), step)
    return updates.make_updates(parts, state.learner, batch, learning_rate, None)


WIDE = LossConfig(clip_low=0.05, clip_high=0.05, correction_mode="off")
LAYOUTS = ("padded", *(pytest.param(name, marks=pytest.mark.slow) for name in ("packed", "trees")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_are_those_of_a_walk_written_out(layout):
    """Two epochs of three mini-batches, in NumPy: float64, token by token, with the advantages of the whole batch."""
    parts = parts_of(layout, WIDE, epochs=2, minibatches=3, aggregation="prompt_mean", advantage_scale="batch_std")
    state, metrics = trained(parts)

    def log_softmax(x):
        return x - np.log(np.sum(np.exp(x)))

    theta = np.asarray(START, np.float64)
    old = log_softmax(theta)
    rewards = np.array(REWARDS, np.float64)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    signal = centred.any(axis=1)
    advantages = centred / (centred[signal].std() + 1e-6)
    cut = tokens = 0
    for masks in updates.deal(signal, epochs=2, minibatches=3, seed=7, step=3):
        for mask in masks:
            taking_part = np.flatnonzero(mask)
            logp, gradient = log_softmax(theta), np.zeros(VOCAB)
            for p in taking_part:
                drawn = [(g, t) for g, c in enumerate(GROUPS[p].completions) for t in c.tokens[c.mask]]
                for g, t in drawn:
                    rho, advantage = np.exp(logp[t] - old[t]), advantages[p, g]
                    tokens += 1
                    if (rho > 1.05 and advantage > 0) or (rho < 0.95 and advantage < 0):
                        cut += 1
                        continue
                    slope = np.eye(VOCAB)[t] - np.exp(logp)
                    gradient -= rho * advantage * slope / (len(taking_part) * len(drawn))
            theta = theta - gradient
    np.testing.assert_allclose(state.params, theta, rtol=0, atol=3e-6)
    assert np.abs(theta - np.asarray(START)).max() > 0.05
    assert metrics["trained_tokens"] == tokens
    assert metrics["clip_fraction"] == pytest.approx(cut / tokens) and cut > 0
    assert (int(state.step), metrics["updates"]) == (6, 6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_learning_rate_every_ratio_stays_one(layout):
    state, metrics = trained(parts_of(layout, WIDE, epochs=3, minibatches=3), learning_rate=0.0)
    np.testing.assert_array_equal(state.params, START)
    for name in ("ratio", "ratio_max", "ratio_last"):
        assert metrics[name] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_fraction"] == 0 and metrics["gradient_norm"] > 0


def test_one_update_is_the_step_itself():
    """Bit for bit what the learner's own functions give, put together by hand, with no score taken."""
    parts = parts_of()
    parts.score = None
    batch = updates.lay_out(parts, fresh(), all_of(GROUPS), 0)
    [update] = batch.updates
    rewards, lengths = learner.group_rewards(GROUPS), learner.trained_lengths(GROUPS)
    credited = learner.credit(rewards, lengths, parts.config.recipe, max_tokens=LENGTH)
    tokens = parts.lay_outs(BatchSize(len(REWARDS), GROUP))(GROUPS, credited.kept)
    for ours, theirs in zip(jax.tree.leaves(update), jax.tree.leaves((tokens, credited)), strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    assert update[0].old_logprobs is None


def test_without_signal_nothing_steps():
    """Two groups of six with a signal make two mini-batches, of three that are asked for. And none make one."""
    parts = parts_of(loss=WIDE, epochs=2, minibatches=3)
    for groups, made, stepped in ((2, 4, 4), (0, 2, 0)):
        same = [dataclasses.replace(group, rewards=np.ones(GROUP, np.float32)) for group in GROUPS[groups:]]
        batch = updates.lay_out(parts, fresh(), all_of([*GROUPS[:groups], *same]), 0)
        state, metrics = updates.make_updates(parts, fresh().learner, batch, 1.0, None)
        assert (int(state.step), metrics["updates"]) == (made, stepped)
        assert np.array_equal(state.params, START) == (not groups) == (not metrics["trained_tokens"])


def test_a_batch_of_fewer_groups_is_that_of_all_without_signal_in_the_others():
    """What dynamic sampling could not fill up has the compiled shapes of a whole batch."""
    parts = parts_of(loss=WIDE, epochs=2, minibatches=3)
    same = [dataclasses.replace(group, rewards=np.zeros(GROUP, np.float32)) for group in GROUPS[4:]]
    whole, fewer = (updates.lay_out(parts, fresh(), all_of([*GROUPS[:4], *rest]), 3) for rest in (same, []))
    for one, other in zip(whole.updates, fewer.updates, strict=True):
        for ours, theirs in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for ours, theirs in zip(jax.tree.leaves(one[1]), jax.tree.leaves(other[1]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_dropped_group_leaves_the_loss_and_every_denominator():
    """Its reward is not known. The others are worth what they are without it, and with nothing left nothing is."""
    parts = parts_of(loss=WIDE, zero_variance_groups="keep", advantage_scale="batch_std")
    dropped = [dataclasses.replace(group, rewards=100 * learner.rewards_of(group), dropped=True) for group in GROUPS]
    alone, beside = (updates.lay_out(parts, fresh(), all_of([*GROUPS[:4], *rest]), 3) for rest in ([], dropped[4:]))
    for ours, theirs in zip(jax.tree.leaves(alone.updates[0][1]), jax.tree.leaves(beside.updates[0][1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    [nothing] = updates.lay_out(parts, fresh(), all_of(dropped), 3).updates
    assert not nothing[1].takes_part.any()


@pytest.mark.slow
def test_a_given_weight_of_the_bonus_stands_in_for_the_configs():
    """A step under entropy_coef = 0.3 is the step of 0 that is given 0.3; and given 0 it has no bonus."""
    plain, bonus = (parts_of(loss=LossConfig(entropy_coef=coef)) for coef in (0.0, 0.3))
    batch = updates.lay_out(plain, fresh(), all_of(GROUPS), 0)

    def after(parts, coef):
        return np.asarray(updates.make_updates(parts, fresh().learner, batch, 1.0, coef)[0].params)

    np.testing.assert_allclose(after(plain, 0.3), after(bonus, None), rtol=1e-6)
    np.testing.assert_allclose(after(bonus, 0.0), after(plain, None), rtol=1e-6)
    assert np.abs(after(bonus, None) - after(plain, None)).max() > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_terms_in_the_reward_by_hand(layout):
    """r - 0.1 sum(old - ref) - 0.02 sum(old) of each rollout; RLOO of that, before any update, for all epochs."""
    loss = LossConfig(kl_coef=0.1, kl_in="reward", entropy_coef=0.02, entropy_in="reward")
    recipe: dict[str, Any] = dict(epochs=2, minibatches=3, advantage_scale="none", baseline="leave_one_out")
    parts = parts_of(layout, loss, **recipe)
    batch = updates.lay_out(parts, fresh(), all_of(GROUPS), 0)
    old, reference = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in (START, REFERENCE))
    expected, kl, tokens = np.zeros((6, GROUP)), 0.0, 0
    for p, group in enumerate(GROUPS):
        drawn = [c.tokens[c.mask] for c in group.completions]
        own = np.array([np.sum(old[t] - reference[t]) for t in drawn])
        values = np.array(REWARDS[p]) - 0.1 * own - 0.02 * np.array([np.sum(old[t]) for t in drawn])
        expected[p] = [values[g] - np.delete(values, g).mean() for g in range(GROUP)]
        if p != 2:  # without signal, and not scored
            kl, tokens = kl + own.sum(), tokens + sum(map(len, drawn))
    signal = [0, 1, 3, 4, 5]
    for update in batch.updates:
        np.testing.assert_allclose(update[1].advantages[signal], expected[signal], rtol=0, atol=2e-6)
    assert batch.columns["kl"] == pytest.approx(kl / tokens, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe.minibatches": 4}, r"recipe\.minibatches = 4 does not divide .*problems_per_batch = 6.*1, 2, 3, 6"),
        ({"loss.dual_clip": 3.0, "loss.policy_loss": "cispo"}, r"loss\.dual_clip = 3\.0 .*policy_loss='clipped'"),
        ({"loss.kl_ratio": True}, r"loss\.kl_ratio weighs the KL terms.*set config\.loss\.kl_coef"),
        ({"loss.entropy_target": 0.2, "loss.entropy_in": "reward"}, r"loss\.entropy_target = 0\.2 .*entropy_in='loss'"),
        ({"learner_temperature": 0.5, "loss.correction_mode": "off"}, r"learner_temperature = 0\.5 .*nothing corrects"),
        ({"loss.entropy_target": 0.2, "recipe.healthy": "easy"}, r"loss\.entropy_target is on without .*kl_coef"),
        ({"loss.entropy_target": 0.2, "recipe.healthy": "hard"}, r"under recipe\.healthy=hard both are off"),
    ],
)
def test_what_cannot_be_together_is_refused_by_name(changes, message):
    config = parts_of().config
    with pytest.raises(InputError, match=message):
        for name, value in changes.items():
            config = override(config, name, value)
        config.resolved()


# --- groups of unequal size


UNEQUAL = make_groups(((1, 0), (0, 1, 1, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (0, 0.5), (1, 1, 0, 1, 0, 1)))
"""24 rollouts, as many as GROUPS has; the third group has no signal."""


def unequal_parts(loss=LossConfig(), **recipe: Any) -> Any:  # noqa: B008 (frozen)
    parts = parts_of(loss=loss, **recipe)
    shape = learner.batch_shape(**SIZES, problems_per_batch=6, microbatch_tokens=40, block=2)
    parts.block, parts.lay_outs = 2, lambda size: lambda groups, kept: shape.lay_out(groups, kept=kept)
    return parts


def test_updates_on_unequal_groups_are_those_of_a_walk_written_out():
    """Two epochs of three mini-batches; old log-probabilities move with the rollouts. Problems weigh alike."""
    recipe: dict[str, Any] = dict(advantage_scale="none", baseline="leave_one_out", aggregation="constant")
    parts = unequal_parts(WIDE, epochs=2, minibatches=3, **recipe)
    batch = updates.lay_out(parts, fresh(), all_of(UNEQUAL), 3)
    assert {update[1].advantages.shape for update in batch.updates} == {(24,)}
    state, metrics = updates.make_updates(parts, fresh().learner, batch, 10.0, None)

    def log_softmax(x):
        return x - np.log(np.sum(np.exp(x)))

    theta = np.asarray(START, np.float64)
    old, cut = log_softmax(theta), 0
    signal = np.array([True, True, False, True, True, True])
    for masks in updates.deal(signal, epochs=2, minibatches=3, seed=7, step=3):
        for mask in masks:
            logp, gradient = log_softmax(theta), np.zeros(VOCAB)
            for p in np.flatnonzero(mask):
                rewards = learner.rewards_of(UNEQUAL[p]).astype(np.float64)
                for i, completion in enumerate(UNEQUAL[p].completions):
                    advantage = rewards[i] - np.delete(rewards, i).mean()
                    for t in completion.tokens[completion.mask]:
                        rho = np.exp(logp[t] - old[t])
                        if (rho > 1.05 and advantage > 0) or (rho < 0.95 and advantage < 0):
                            cut += 1
                            continue
                        slope = np.eye(VOCAB)[t] - np.exp(logp)
                        gradient -= rho * advantage * slope / (mask.sum() * len(rewards) * LENGTH)
            theta = theta - 10 * gradient
    np.testing.assert_allclose(state.params, theta, rtol=0, atol=1e-5)
    assert np.abs(theta - np.asarray(START)).max() > 0.05 and cut > 0 and metrics["updates"] == 6


def test_terms_in_the_reward_of_unequal_groups_by_hand():
    loss = LossConfig(kl_coef=0.1, kl_in="reward", entropy_coef=0.02, entropy_in="reward")
    parts = unequal_parts(loss, minibatches=3, advantage_scale="none")
    batch = updates.lay_out(parts, fresh(), all_of(UNEQUAL), 0)
    old, reference = (np.asarray(jax.nn.log_softmax(x), np.float64) for x in (START, REFERENCE))
    expected = []
    for p, group in enumerate(UNEQUAL):
        drawn = [c.tokens[c.mask] for c in group.completions]
        taken = [0.1 * np.sum(old[t] - reference[t]) + 0.02 * np.sum(old[t]) for t in drawn]
        values = learner.rewards_of(group) - taken
        expected += [0.0] * len(drawn) if p == 2 else (values - values.mean()).tolist()
    for update in batch.updates:
        worth = np.where(np.asarray(update[1].takes_part), expected, update[1].advantages)
        np.testing.assert_allclose(update[1].advantages, worth, rtol=0, atol=2e-6)
    assert sum(int(update[1].takes_part.sum()) for update in batch.updates) == 20


def test_every_deal_of_a_step_has_one_shape():
    """Equal groups too, and fewer of them; what equal groups are worth is what it was to the last bit."""
    parts = unequal_parts()
    made = [updates.lay_out(parts, fresh(), all_of(groups), 0) for groups in (UNEQUAL, UNEQUAL[:2], GROUPS)]
    shapes = [updates.shared_of([batch])["shapes"] for batch in made]
    assert shapes[0] == shapes[1] == shapes[2]
    assert [[np.shape(x) for x in jax.tree.leaves(batch.updates[0][1])] for batch in made] == [[(24,)] * 3] * 3
    plain = updates.lay_out(parts_of(), fresh(), all_of(GROUPS), 0)
    for ours, theirs in zip(jax.tree.leaves(made[2].updates[0][1]), jax.tree.leaves(plain.updates[0][1]), strict=True):
        assert ours.tobytes() == np.ravel(theirs).tobytes()


def test_processes_that_differ_in_an_unequal_group_are_told_apart():
    """Checksums see a rollout more or less, another reward, and another order of groups."""
    parts = unequal_parts()
    others = [
        UNEQUAL[::-1],
        [dataclasses.replace(UNEQUAL[0], rewards=np.array([0, 1], np.float32)), *UNEQUAL[1:]],
        [
            *UNEQUAL[:5],
            dataclasses.replace(
                UNEQUAL[5], completions=UNEQUAL[5].completions[:4], rewards=np.array([1, 1, 0, 1], np.float32)
            ),
        ],
    ]
    shared = [updates.shared_of([updates.lay_out(parts, fresh(), all_of(groups), 0)]) for groups in (UNEQUAL, *others)]
    assert shared[0] == updates.shared_of([updates.lay_out(parts, fresh(), all_of(list(UNEQUAL)), 0)])
    for other in shared[1:]:
        assert other["shapes"] == shared[0]["shapes"]
        assert other["rewards (checksum)"] != shared[0]["rewards (checksum)"]
        assert other["advantages and weights (checksum)"] != shared[0]["advantages and weights (checksum)"]


# --- whole runs


@pytest.fixture(scope="module")
def several(often):
    """Four updates a step, and every option whose state a checkpoint has to hold."""
    return dataclasses.replace(
        often,
        max_compute=64 * 3,
        recipe=dataclasses.replace(often.recipe, epochs=2, minibatches=2, baseline="leave_one_out"),
        loss=LossConfig(dual_clip=3.0, kl_coef=1e-2, kl_in="reward", entropy_target=10.0, entropy_coef_change=1e-3),
        evaluation=EvaluationConfig(),
    )


@pytest.mark.slow
def test_a_run_of_several_updates_a_step_resumes_exactly(several, tmp_path):
    loop.train(several, tmp_path / "whole")

    def dies():
        raise KeyboardInterrupt

    with builders.before_step(3, dies), pytest.raises(KeyboardInterrupt):
        loop.train(several, tmp_path / "run")
    loop.train(several, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "whole")
    lines = run_files.read_lines(tmp_path / "whole" / run_files.METRICS)
    assert [line["compute"] for line in lines] == [64, 128, 192]  # a rollout is paid for once
    [state, found] = builders.final_checkpoint(tmp_path / "whole")
    made = sum(line["updates"] or 2 for line in lines)  # a step without signal counts one an epoch
    assert made > 3 and made in [int(x) for x in state if x.ndim == 0 and x.dtype == np.int32]
    coef = 0.0
    for line in lines:
        coef, used = learner.adapted_entropy_coef(coef, line["sampler_entropy"], several.loss)
        assert line["entropy_coef"] == used
        assert 0 <= line["updates"] <= 4 and line["kl"] is not None
    assert found["entropy_coef"] == coef > 0
    assert max(line["ratio_max"] for line in lines if line["updates"]) > 1.001
    for line in lines:
        if line["updates"] > 1:
            assert line["ratio_last"] != 1 and line["gradient_norm_max"] >= line["gradient_norm"]


@pytest.mark.slow
def test_two_temperatures(base_run, tmp_path):
    """The correction accounts for them; what sampler and learner say of each token is compared at the sampler's."""
    config = dataclasses.replace(
        base_run,
        max_compute=64,
        learner_temperature=0.7,
        sampling=dataclasses.replace(base_run.sampling, temperature=1.4),
        evaluation=EvaluationConfig(),
    )
    config = override(override(config, "service.endpoints", "nowhere:1"), "agreement.every", 1)
    loop.train(config, tmp_path, make_sampler=Makes(InProcessSampler))
    [line] = run_files.read_lines(tmp_path / run_files.METRICS)
    assert line["logprob_difference"] is None and line["logprob_difference_max"] is None
    assert abs(line["correction"] - 1) > 0.01
    assert line["entropy"] < line["sampler_entropy"]
    for check in run_files.read_lines(tmp_path / run_files.AGREEMENT):
        assert check["logprob_difference"] < 1e-5


@pytest.mark.slow
def test_sharded_rows_make_the_same_updates(several, tmp_path):
    """Old log-probabilities that are scored on two devices, in packed rows, and dealt anew in the second epoch."""
    config = dataclasses.replace(
        several,
        max_compute=64,
        loss=LossConfig(clip_low=0.01, clip_high=0.01, kl_coef=1e-2, kl_ratio=True),
    )
    loop.train(config, tmp_path / "one")
    config = override(override(config, "mesh.data", 2), "packing.row_tokens", 32)
    loop.train(override(config, "recipe.microbatch_tokens", 128), tmp_path / "two")
    ours, theirs = (run_files.read_lines(tmp_path / name / run_files.METRICS) for name in ("two", "one"))
    names = ("reward", "updates", "trained_tokens", "loss", "kl", "ratio_max", "clip_fraction", "clip_fraction_last")
    for mine, yours in zip(ours, theirs, strict=True):
        for name in names:
            np.testing.assert_allclose(mine[name], yours[name], rtol=2e-3, atol=1e-5, err_msg=name)
    assert theirs[0]["clip_fraction_last"] > 0
