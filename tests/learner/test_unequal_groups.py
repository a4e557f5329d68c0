"""Groups of unequal size: credit and layouts against plain loops, and the estimator's expectation, enumerated."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import learner
from isocompute_jax.learner.credit import BASELINES, DENOMINATORS, KEPT, SCALES, completion_lengths, truncated
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.learner.builders import LENGTH, PROMPT, VOCAB, make_groups

REWARDS = ((1, 0), (0, 1, 1, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (0, 0.5), (1, 1, 0, 1, 0, 1))
"""24 rollouts of six problems; the third group has no signal."""
GROUPS = make_groups(REWARDS)
DRAWN = np.arange(6) < np.array([len(group) for group in REWARDS])[:, None]
MASKED = np.zeros((6, 6), bool)
MASKED[0] = DRAWN[0]  # a whole group
MASKED[1, [0, 3]] = True

CHOICES: Any = itertools.islice(
    zip(
        itertools.cycle(SCALES),
        itertools.chain.from_iterable([name] * 3 for name in DENOMINATORS),
        itertools.cycle(KEPT),
        itertools.cycle(name for name in BASELINES if name != "none"),
        strict=False,
    ),
    3 * len(DENOMINATORS),
)
WITHOUT = learner.CreditConfig("none", "token_mean", "keep", baseline="none")
recipes = pytest.mark.parametrize("recipe", [*(learner.CreditConfig(*choice) for choice in CHOICES), WITHOUT], ids=str)


def looped(recipe, *, masked=MASKED, penalties=None, part=None):
    """Credit as three lists of rollouts, group by group, in Python."""
    flat = [len(set(rewards)) == 1 for rewards in REWARDS]
    keep = [recipe.zero_variance_groups in ("drop_regularizers", "regularizers_only", "keep") or not f for f in flat]
    policy = [
        k and not (recipe.zero_variance_groups == "regularizers_only" and f) for k, f in zip(keep, flat, strict=True)
    ]
    regular = [
        k and not (recipe.zero_variance_groups == "drop_regularizers" and f) for k, f in zip(keep, flat, strict=True)
    ]
    centred, means = [], []
    for p, rewards in enumerate(REWARDS):
        values = [r - (0 if penalties is None else penalties[p][i]) for i, r in enumerate(rewards)]
        mean = 0.0 if recipe.baseline == "none" else sum(values) / len(values)
        centred.append([v - mean for v in values])
        means.append(mean)
    squares = [c * c for of_group, k in zip(centred, policy, strict=True) if k for c in of_group]
    advantages = []
    for of_group, mean in zip(centred, means, strict=True):
        n = len(of_group)
        scale = {
            "none": 1.0,
            "group_mean": mean if mean > 0 else 1.0,
            "batch_std": np.sqrt(sum(squares) / len(squares)) + 1e-6,
            "group_std": np.sqrt(sum(c * c for c in of_group) / (n - 1)) + 1e-6,
        }[recipe.advantage_scale]
        factor = n / (n - 1) if recipe.baseline == "leave_one_out" else 1.0
        advantages += [c / scale * factor for c in of_group]
    weights = []
    for kept in (policy, regular):
        lengths = [
            {i: int(c.mask.sum()) for i, c in enumerate(group.completions) if not masked[p, i]}
            if kept[p] and (part is None or part[p])
            else {}
            for p, group in enumerate(GROUPS)
        ]
        problems, found = sum(bool(of_group) for of_group in lengths), []
        for of_group, rewards in zip(lengths, REWARDS, strict=True):
            for i in range(len(rewards)):
                if i not in of_group:
                    found.append(0.0)
                    continue
                divisor = {
                    "sequence_mean": problems * len(of_group) * of_group[i],
                    "constant": problems * len(of_group) * LENGTH,
                    "prompt_mean": problems * sum(of_group.values()),
                    "token_mean": sum(sum(other.values()) for other in lengths),
                }[recipe.aggregation]
                found.append(1 / divisor)
        weights.append(found)
    return np.array([advantages, *weights])


def credit_of(groups, recipe, *, drawn=None, **kwargs):
    rewards, lengths = learner.group_rewards(groups), learner.trained_lengths(groups)
    return learner.credit(rewards, lengths, recipe, max_tokens=LENGTH, drawn=drawn, **kwargs)


@recipes
def test_credit_is_that_of_a_loop_over_rollouts(recipe):
    penalties = np.where(DRAWN, np.arange(36).reshape(6, 6) % 5 / 10, 0.0)
    penalties[2] = 0.0
    part = np.array([True, True, True, False, True, True])
    got = credit_of(GROUPS, recipe, drawn=DRAWN, masked=MASKED, penalties=penalties, part=part)
    expected = looped(recipe, penalties=penalties, part=part)
    flat = got.flat(DRAWN, 30)
    for ours, theirs in zip((flat.advantages, flat.policy_weights, flat.regularizer_weights), expected, strict=True):
        assert ours.shape == (30,) and ours.dtype == np.float32
        np.testing.assert_allclose(ours[:24], theirs, rtol=2e-6, atol=1e-7)
        assert not ours[24:].any()
    assert not any(x[~DRAWN].any() for x in jax.tree.leaves(got))


@recipes
def test_a_mask_that_leaves_nothing_out_changes_no_bit(recipe):
    groups = make_groups(((1, 0, 0, 0), (0, 1, 1, 0), (1, 1, 1, 1), (0, 0.25, 1, 0)))
    plain, masked = (credit_of(groups, recipe, drawn=drawn) for drawn in (None, np.ones((4, 4), bool)))
    for ours, theirs in zip(jax.tree.leaves(masked), jax.tree.leaves(plain), strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("scale", ["group_std", "none"])
@given(rewards=st.lists(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=19), min_size=1, max_size=5))
def test_the_size_of_other_groups_changes_no_bit_of_an_advantage(scale, rewards):
    drawn = np.arange(max(map(len, rewards))) < np.array([len(group) for group in rewards])[:, None]
    padded = np.zeros(drawn.shape, np.float32)
    padded[drawn] = np.concatenate(rewards)
    keep = np.ones(len(rewards), bool)
    options: Any = dict(scale=scale, baseline="leave_one_out")
    got = learner.group_advantages(padded, keep, drawn=drawn, **options)
    for group, ours in zip(rewards, got, strict=True):
        alone = learner.group_advantages(np.array([group], np.float32), np.ones(1, bool), **options)[0]
        assert ours[: len(group)].tobytes() == alone.tobytes() and not ours[len(group) :].any()


def test_arrays_of_groups_by_hand():
    """0 stands beyond a smaller group; and a group without signal has none beside the zeros that fill it up."""
    groups = [GROUPS[2], GROUPS[1]]  # four and six rollouts
    drawn = learner.drawn_of(groups)
    assert drawn is not None and drawn.tolist() == [[True] * 4 + [False] * 2, [True] * 6]
    assert learner.drawn_of(groups[:1] * 2) is None
    np.testing.assert_array_equal(learner.group_rewards(groups), [[1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]])
    assert learner.zero_variance(learner.group_rewards(groups), drawn).tolist() == [True, False]
    for array in (learner.trained_lengths(groups), completion_lengths(groups), truncated(groups)):
        assert array.shape == (2, 6) and not array[0, 4:].any() and array[0, :4].any()
    assert learner.mean_reward(groups) == pytest.approx((1 + 1 / 3) / 2)
    assert learner.mean_reward([GROUPS[2], GROUPS[3]]) == 0.75


def test_what_cannot_be_is_refused():
    recipe = learner.CreditConfig()
    with pytest.raises(ValueError, match="group 1 has 1 rollouts, and needs two"):
        credit_of(GROUPS[:2], recipe, drawn=np.arange(6) < np.array([[2], [1]]))
    with pytest.raises(ValueError, match="24 rollouts were drawn for a step of 23"):
        credit_of(GROUPS, recipe, drawn=DRAWN).flat(DRAWN, 23)


# --- layouts


@given(
    deal=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    block=st.integers(1, 4).map(lambda x: 2 * x),
    budget=st.integers(1, 40),
    shards=st.sampled_from([1, 2]),
)
def test_any_deal_of_blocks_has_room_in_one_shape(deal, block, budget, shards):
    """Whatever the rows' length: filled with as many problems, and as many rollouts in all, or fewer of both."""
    blocks = sum(deal)
    total = -(-blocks // len(deal)) * len(deal)  # as problems x group_size have it
    shape = learner.batch_shape(
        problems_per_batch=len(deal),
        group_size=total // len(deal) * block,
        max_prompt_tokens=PROMPT,
        max_tokens=LENGTH,
        microbatch_tokens=budget * LENGTH,
        batch_shards=shards,
        block=block,
    )
    assert shape.rows % shards == 0
    assert block % shape.rollouts == 0 or shape.rollouts % block == 0
    assert shape.rollouts <= max(1, budget // shards)
    rng = np.random.default_rng(blocks)
    one = Completion.drawn(np.ones(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")
    for _ in range(3):
        sizes = 1 + rng.multinomial(total - len(deal), rng.dirichlet(np.full(len(deal), 0.3)))
        groups = [RolloutGroup("p", 0, np.ones(1, np.int32), (one,) * int(block * size)) for size in sizes]
        batch = shape.lay_out(groups)
        mask, rollout = np.asarray(batch.mask).any(axis=-1), np.asarray(batch.rollout)
        assert sorted(rollout[mask].tolist()) == list(range(block * total))


SIZES: dict[str, Any] = dict(problems_per_batch=6, group_size=4, max_prompt_tokens=PROMPT, max_tokens=LENGTH)
SHAPES = {
    "padded": learner.batch_shape(**SIZES, microbatch_tokens=1000, block=2),
    "padded, in micro-batches": learner.batch_shape(**SIZES, microbatch_tokens=4 * LENGTH, block=2),
    "packed": learner.pack_shape(**SIZES, row_tokens=32, microbatch_tokens=64),
    "trees": learner.tree_shape(**SIZES, row_nodes=40, microbatch_tokens=80),
}
LOSS = learner.LossConfig(entropy_coef=0.1, correction_mode="off")


def score(params, batch):
    """One distribution for every token."""
    logprobs = jax.nn.log_softmax(params)
    entropy = -jnp.sum(jnp.exp(logprobs) * logprobs)
    return logprobs[batch.tokens], jnp.broadcast_to(entropy, batch.tokens.shape)


def descend(updates: Any, state: Any, params: Any = None, **options: Any) -> tuple[Any, Any]:
    return jax.tree.map(lambda x: -options["learning_rate"] * x, updates), state


SGD = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), descend)
STEP = learner.make_train_step(score, LOSS, SGD)
START = np.random.default_rng(1).normal(size=VOCAB).astype(np.float32)


@functools.cache
def looped_gradient(recipe):
    """Rollout by rollout, in float64."""
    p = np.exp(START.astype(np.float64))
    p /= p.sum()
    of_entropy = -p * (np.log(p) - np.sum(p * np.log(p)))
    gradient = np.zeros(VOCAB)
    credited = looped(recipe).T
    completions = [completion for group in GROUPS for completion in group.completions]
    for completion, (advantage, policy, regular) in zip(completions, credited, strict=True):
        for token in completion.tokens[completion.mask]:
            gradient -= policy * advantage * (np.eye(VOCAB)[token] - p) + 0.1 * regular * of_entropy
    return gradient


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("aggregation", ["constant", "prompt_mean"])
def test_the_gradient_is_that_of_a_loop_over_rollouts(name, aggregation):
    recipe = learner.CreditConfig("none", aggregation, "drop_regularizers", "leave_one_out")
    credited = credit_of(GROUPS, recipe, drawn=DRAWN, masked=MASKED)
    batch = SHAPES[name].lay_out(GROUPS, kept=credited.kept)
    assert (int(batch.num_microbatches) > 1) == (name in ("packed", "padded, in micro-batches"))
    state = learner.init_state(jnp.asarray(START), SGD)
    after, _ = STEP(state, batch, credited.flat(DRAWN, 24), jnp.float32(1.0))
    gradient = START - np.asarray(after.params, np.float64)
    np.testing.assert_allclose(gradient, looped_gradient(recipe), rtol=0, atol=2e-6)
    assert np.abs(gradient).max() > 0.01


def test_values_of_packed_rows_come_back_group_by_group():
    batch = SHAPES["packed"].lay_out(GROUPS)
    found = learner.unpack(batch, np.asarray(batch.tokens), GROUPS)
    completions = [completion for group in GROUPS for completion in group.completions]
    for ours, completion in zip(found, completions, strict=True):
        np.testing.assert_array_equal(ours, completion.tokens)


# --- the estimator


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (4, 2), (3, 4)])
def test_the_expected_gradient_is_that_of_mean_expected_reward(sizes):
    """All outcomes of a tabular softmax, by their probability: two problems, three and two answers, real rewards.

    d/dlogits of sum(p r) is p (r - sum(p r)); each problem weighs 1/2, whatever it drew. With the group's mean as the
    baseline it would be (n - 1) / n of that: what the test would see.
    """
    tables = [(np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0, 0.25])), (np.array([0.85, 0.15]), np.array([0.0, 1.0]))]
    recipes = {
        baseline: learner.CreditConfig("none", "constant", "keep", baseline)
        for baseline in ("leave_one_out", "group_mean")
    }
    drawn = np.arange(max(sizes)) < np.array(sizes)[:, None]
    outcomes = [list(itertools.product(range(len(p)), repeat=size)) for (p, _), size in zip(tables, sizes, strict=True)]
    found = {name: [np.zeros(3), np.zeros(2)] for name in recipes}
    # A problem's part of the gradient does not depend on what another draws: so each is paired with all in turn.
    for first, second in itertools.zip_longest(*outcomes):
        answers = [outcomes[0][0] if first is None else first, outcomes[1][0] if second is None else second]
        rewards = np.zeros(drawn.shape)
        for row, (of_problem, (_, table)) in enumerate(zip(answers, tables, strict=True)):
            rewards[row, : len(of_problem)] = table[list(of_problem)]
        for name, recipe in recipes.items():
            credited = learner.credit(rewards, drawn.astype(int), recipe, max_tokens=1, drawn=drawn)
            worth = credited.advantages.astype(np.float64) * credited.policy_weights
            for row, new in enumerate((first, second)):
                if new is not None:
                    p = tables[row][0]
                    slopes = np.eye(len(p))[list(new)] - p
                    found[name][row] += np.prod(p[list(new)]) * worth[row, : len(new)] @ slopes
    for row, (p, table) in enumerate(tables):
        expected = p * (table - p @ table) / 2
        np.testing.assert_allclose(found["leave_one_out"][row], expected, rtol=0, atol=2e-8)
        shrunk = (sizes[row] - 1) / sizes[row] * expected
        np.testing.assert_allclose(found["group_mean"][row], shrunk, rtol=0, atol=2e-8)
