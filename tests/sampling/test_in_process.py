"""The sampler draws from what the learner scores, and what else is in the batch never matters."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import model, sharding
from isocompute_jax.plan.hlo import token_loop
from isocompute_jax.plan.unit import abstract_unit
from isocompute_jax.records.errors import InputError
from isocompute_jax.sampling.in_process import (
    LEAST_LATER,
    UnitShape,
    _by_size_or_step,
    later_unit_shape,
    sample_unit,
    unit_shape,
)
from tests.sampling.builders import (
    CONFIG,
    GROUP,
    LENGTH,
    PARAMS,
    PROMPT,
    STOP,
    assert_same_group,
    learner_logprobs,
    make_request,
    make_sampler,
    sample,
    token_lists,
    weights,
)

NAMES = ["ant", "bee", "cat", "dog", "elk"]


@pytest.fixture(scope="module")
def groups():
    return sample([make_request(name) for name in NAMES])


def test_logprobs_equal_the_learners(groups):
    """Decoding token by token from a cache, and scoring whole completions: one distribution, within 1e-5."""
    lengths = {len(group.prompt_tokens) for group in groups.values()}
    assert len(lengths) >= 3  # prompts padded by various amounts
    expected = learner_logprobs(weights(), list(groups.values()), PARAMS.temperature)
    for group, scores in zip(groups.values(), expected, strict=True):
        for completion, score in zip(group.completions, scores, strict=True):
            assert completion.logprobs.dtype == np.float32
            np.testing.assert_allclose(completion.logprobs, score, rtol=0, atol=1e-5)
            assert completion.logprobs.max() < 0


def test_groups_carry_their_request(groups):
    assert list(groups) == NAMES
    for name, group in groups.items():
        assert group.step == 2 and group.rewards is None
        np.testing.assert_array_equal(group.prompt_tokens, make_request(name).prompt_tokens)
        assert group.num_tokens == sum(map(len, token_lists(group)))
        for completion in group.completions:
            assert completion.mask.all() and len(completion.mask) == len(completion.tokens)
            assert completion.policy_versions.tolist() == [0] * len(completion.tokens)


def test_stop_tokens_end_a_completion_and_belong_to_it(groups):
    completions = [completion for group in groups.values() for completion in group.completions]
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        body, last = completion.tokens[:-1], completion.tokens[-1]
        assert not np.isin(body, STOP).any()
        assert completion.finish_reason == ("stop" if last in STOP else "length")
        assert len(completion.tokens) == LENGTH or last in STOP
        assert len(completion.logprobs) == len(completion.tokens)


def test_a_unit_retried_is_bit_identical(groups):
    for name, group in sample([make_request(name) for name in NAMES]).items():
        assert_same_group(group, groups[name], atol=0)


def test_other_splits_draw_the_same_tokens(groups):
    """Problem by problem, and in units of two."""
    for name, group in sample([make_request(name) for name in NAMES], budget=4).items():
        assert_same_group(group, groups[name], atol=1e-5)


def test_order_and_company_do_not_matter(groups):
    """Reversed, among strangers, and with requests of another size and temperature in the queue."""
    queue = [make_request(name) for name in ["yak", *reversed(NAMES), "zebu"]]
    queue.insert(3, make_request("other", params=dataclasses.replace(PARAMS, temperature=1.5)))
    queue.insert(5, make_request("seven", group_size=7, stop=()))
    mixed = sample(queue)
    assert len(mixed) == len(NAMES) + 4
    assert len(mixed["seven"].completions) == 7
    for name in NAMES:
        assert_same_group(mixed[name], groups[name], atol=1e-5)


def test_groups_larger_than_the_budget_come_back_whole():
    """Seven rollouts in units of four: complete, in rollout order, each from a stream of its own."""
    requests = [make_request(name, group_size=7, stop=()) for name in NAMES[:2]]
    pieces, whole = sample(requests, budget=4), sample(requests, budget=8)
    assert list(pieces) == NAMES[:2]
    for name in NAMES[:2]:
        assert len(pieces[name].completions) == 7
        assert_same_group(pieces[name], whole[name], atol=1e-5)
        assert len({tuple(tokens) for tokens in token_lists(pieces[name])}) == 7
    four = sample([make_request(NAMES[0], stop=())], budget=4)[NAMES[0]]
    assert token_lists(four) == token_lists(pieces[NAMES[0]])[:4]  # rollout i is rollout i in a group of any size


def test_random_streams_are_keyed_by_seed_step_problem_and_rollout():
    """Changing any one of the four changes the draws; nothing else does."""
    make = functools.partial(make_request, prompt=[3, 7, 1], stop=())
    base = sample([make("same")])["same"]
    again = sample([make("same")])["same"]
    assert token_lists(base) == token_lists(again)
    changed = {
        "seed": make("same", seed=2),
        "step": make("same", step=3),
        "swapped": make("same", seed=2, step=1),
        "problem": make("same2"),
    }
    draws = {"base": token_lists(base)}
    for kind, request in changed.items():
        draws[kind] = token_lists(sample([request])[request.problem_id])
    rollouts = [tuple(tokens) for lists in draws.values() for tokens in lists]
    assert len(set(rollouts)) == len(rollouts) == 5 * 4


def test_update_weights_changes_the_distribution_and_the_marks():
    """Everything sampled after the update, queued before or not, is of the new weights and carries their version."""
    sampler = make_sampler()
    sampler.submit([make_request("ant")])
    sampler.update_weights(weights(9), version=3)
    sampler.submit([make_request("bee")])
    found = list(sampler.completed())
    for group, scores, old in zip(
        found,
        learner_logprobs(weights(9), found, PARAMS.temperature),
        learner_logprobs(weights(), found, PARAMS.temperature),
        strict=True,
    ):
        for completion, score, old_score in zip(group.completions, scores, old, strict=True):
            np.testing.assert_allclose(completion.logprobs, score, rtol=0, atol=1e-5)
            assert np.abs(completion.logprobs - old_score).max() > 1e-3
            assert completion.policy_versions.tolist() == [3] * len(completion.tokens)
    assert list(sampler.completed()) == []


def test_weights_are_cast_to_the_dtype_of_the_model():
    """The learner's float32 masters, at the start and at an update; tokens are as if they had been cast before."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    drawn = []
    for params in (weights(3), model.cast_params(weights(3), "bfloat16")):
        sampler = make_sampler(config=config, params=params)
        for version in (0, 1):
            if version:
                sampler.update_weights(params, version=1)
            sampler.submit([make_request("ant")])
            drawn += sampler.completed()
    for group in drawn[1:]:
        assert_same_group(group, drawn[0], atol=0)


def test_stop_tokens_are_those_of_each_request():
    requests = [make_request("ant", stop=()), make_request("bee")]
    groups = sample(requests)
    assert {c.finish_reason for c in groups["ant"].completions} == {"length"}
    for request in requests:
        for completion in groups[request.problem_id].completions:
            assert (completion.finish_reason == "stop") == (completion.tokens[-1] in request.stop_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [dict(data=2, fsdp=2, tensor=2), dict(fsdp=2, context=4)], ids=str)
def test_eight_devices_sample_what_one_does(groups, axes):
    mesh = sharding.make_mesh(**axes)
    params = jax.device_put(weights(), model.param_shardings(CONFIG, mesh))
    sharded = sample([make_request(name) for name in NAMES], budget=16, params=params, mesh=mesh)
    for name in NAMES:
        assert_same_group(sharded[name], groups[name], atol=1e-5)


@pytest.mark.slow
def test_weights_are_gathered_once_and_not_for_every_token():
    mesh = sharding.make_mesh(fsdp=2)
    cut = jax.device_put(weights(), model.param_shardings(CONFIG, mesh))
    copied = model.sampling_params(CONFIG, cut, mesh)
    for layer, parts in enumerate(copied["layers"]):
        jax.tree.map(np.testing.assert_array_equal, parts, jax.tree.map(lambda x, i=layer: x[i], cut["layers"]))
    expected = model.abstract_sampling_params(CONFIG, mesh)
    assert jax.tree.map(lambda x: x.sharding, copied) == jax.tree.map(lambda x: x.sharding, expected)
    wire = {}
    for name, params in (("cut", cut), ("copied", copied)):
        program = sample_unit.lower(
            params, abstract_unit(UnitShape(2, GROUP), PROMPT, mesh), np.float32(1), np.float32(1), config=CONFIG,
            max_tokens=LENGTH, stop_tokens=STOP, mesh=mesh,
        )  # fmt: skip
        collectives, _ = token_loop(program.compile().as_text() or "", num_devices=2)
        wire[name] = sum(one.count * one.wire_bytes for one in collectives)
    assert wire["copied"] < 64 < 1000 < wire["cut"]  # whether any is unfinished is asked across devices


@pytest.mark.parametrize("length", [0, PROMPT + 1])
def test_prompts_that_do_not_fit_are_refused_by_name(length):
    sampler = make_sampler()
    good, bad = make_request("ant"), make_request("yeti", prompt=[1] * length)
    with pytest.raises(InputError, match=rf"'yeti'.* {length} tokens.*max_prompt_tokens = {PROMPT}"):
        sampler.submit([good, bad])
    assert list(sampler.completed()) == []  # nothing of the refused call was queued


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.0), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.1), ("max_tokens", 0)],
)
def test_impossible_sampling_params_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(PARAMS, **{field: value})


@pytest.mark.parametrize(
    ("groups", "group_size", "budget", "shards", "expected"),
    [
        (6, 4, 8, 1, UnitShape(2, 4)),
        (6, 4, 11, 1, UnitShape(2, 4)),
        (3, 4, 64, 1, UnitShape(3, 4)),  # no larger than there is work
        (9, 4, 32, 1, UnitShape(5, 4)),  # 5 and 4, not 8 and 1
        (6, 10, 4, 1, UnitShape(1, 4)),  # parts of 4, 4 and 2
        (6, 9, 8, 1, UnitShape(1, 5)),  # 5 and 4, not 8 and 1
        (6, 4, 1, 1, UnitShape(1, 1)),
        (16, 4, 32, 4, UnitShape(8, 4)),
        (5, 4, 32, 4, UnitShape(8, 4)),  # 5 groups on 4 shards: two each, one of them idle on three
        (2, 10, 16, 4, UnitShape(4, 4)),  # each shard decodes 4
    ],
)
def test_unit_shapes(groups, group_size, budget, shards, expected):
    assert unit_shape(groups, group_size, budget, batch_shards=shards) == expected


@given(st.integers(1, 40), st.integers(2, 70), st.integers(1, 300), st.integers(1, 8))
def test_unit_shape_properties(groups, group_size, budget, shards):
    """Within budget (or one rollout per shard), sharded evenly, and no more units than the budget asks for."""
    shape = unit_shape(groups, group_size, budget, batch_shards=shards)
    assert shape.problems % shards == 0
    assert shape.problems * shape.rollouts <= max(budget, shards)
    rows = groups * -(-group_size // shape.rollouts)
    fullest = max(1, budget // shards // shape.rollouts) * shards
    assert -(-rows // shape.problems) <= -(-rows // fullest)


@given(st.integers(1, 4096), st.integers(1, 8))
def test_units_of_later_turns_come_in_few_shapes(budget, shards):
    """Within the budget (or a row per shard), and no more than twice what is needed, but for the smallest."""
    shapes = {later_unit_shape(rollouts, budget, batch_shards=shards) for rollouts in range(1, budget + 1)}
    assert len(shapes) <= 10 and {shape.rollouts for shape in shapes} == {1}
    for rollouts in {1, budget // 3 + 1, budget}:
        shape = later_unit_shape(rollouts, budget, batch_shards=shards)
        assert shape.problems % shards == 0 and shape.problems <= max(budget, shards)
        assert shape.problems <= max(LEAST_LATER * shards, 2 * (rollouts + shards))
        assert shape.problems >= min(rollouts, max(1, budget // shards) * shards)


def test_units_of_later_turns_are_as_long_as_their_prompts_need():
    """In quarters of the longest; what is drawn does not depend on it, but for rounding."""
    lengths, prompts = [], [np.arange(1, n + 1, dtype=np.int32) for n in (3, 9, 14, 16)]

    class Noting(type(make_sampler())):
        def make_unit(self, rows, shape, prompt):
            lengths.append(prompt)
            return super().make_unit(rows, shape, prompt)

    for prompt in prompts:
        sampler = make_sampler(max_continued_tokens=16)
        sampler.__class__ = Noting
        request = dataclasses.replace(make_request("p", group_size=1), prompt_tokens=prompt, turn=1)
        sampler.submit([request])
        [group] = sampler.completed()
        assert len(group.completions[0].tokens)
    assert lengths == [4, 12, 16, 16]


def test_groups_of_unequal_size_share_a_shape(groups):
    """Pieces of four in one shape, however 20 rollouts are dealt; tokens are those of groups of one size."""
    shapes = set()

    class Noting(type(make_sampler())):
        def make_unit(self, rows, shape, prompt):
            shapes.add(shape)
            return super().make_unit(rows, shape, prompt)

    for deal in ((4, 8, 8), (12, 4, 4)):
        sampler = make_sampler()
        sampler.__class__ = Noting
        sampler.submit([make_request(name, group_size=size) for name, size in zip(NAMES, deal, strict=False)])
        found = list(sampler.completed())
        assert [len(group.completions) for group in found] == list(deal)
        for group in found:
            whole = groups[group.problem_id]
            shared = min(len(group.completions), 4)
            ours, theirs = (dataclasses.replace(each, completions=each.completions[:shared]) for each in (group, whole))
            assert_same_group(ours, theirs, atol=1e-5)
    assert shapes == {UnitShape(problems=2, rollouts=4)}


def test_steps_of_one_size_each_are_not_cut(groups):
    """At a switch of n one step waits behind another: pieces would be a third shape for one unit."""
    requests = [make_request(name, step=2) for name in NAMES[:2]]
    requests += [make_request(name, step=3, group_size=8) for name in NAMES[:2]]
    sampler = make_sampler()
    parts = [[request.group_size for request in part] for part in _by_size_or_step(requests)]
    assert parts == [[4, 4], [8, 8]]
    mixed = [make_request("yak", step=3, group_size=6), *requests, make_request("zebu", step=2, group_size=2)]
    parts = [[(request.step, request.group_size) for request in part] for part in _by_size_or_step(mixed)]
    assert parts == [[(3, 6)], [(2, 4), (2, 4)], [(3, 8), (3, 8)], [(2, 2)]]
    sampler.submit(requests)
    for group in itertools.islice(sampler.completed(), 2):
        assert_same_group(group, groups[group.problem_id], atol=0)
