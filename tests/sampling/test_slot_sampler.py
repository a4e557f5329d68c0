"""Every rollout comes back once, whatever happens meanwhile; new weights are taken between two chunks."""

import collections

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.sampling import SamplingParams
from tests.sampling.builders import CONFIG, PROMPT, learner_logprobs, make_request, weights
from tests.sampling.slot_builders import LENGTH, assert_equal, collect, make_requests, make_slots, run


@pytest.fixture(scope="module")
def sampler():
    return make_slots()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 3),
    events=st.lists(st.tuples(st.sampled_from(["submit", "step", "cancel"]), st.integers(0, 11)), max_size=40),
)
def test_every_rollout_comes_back_once(sampler, seed, events):
    """Groups larger than all slots, cancels of what runs, waits or has ended: the others are whole and undisturbed."""
    requests = make_requests(12, seed=seed, max_group=20)
    done, submitted, cancelled = collections.defaultdict(dict), set(), set()
    for event, number in events:
        if event == "submit" and number not in submitted:
            submitted.add(number)
            sampler.submit(number, requests[number])
        elif event == "cancel":
            sampler.cancel([number])
            cancelled |= {number} & submitted
        elif event == "step" and sampler.busy:
            collect(done, sampler.step())
    while sampler.busy:
        collect(done, sampler.step())
    for number in submitted - cancelled:
        assert sorted(done[number]) == list(range(requests[number].group_size))
    for number, completions in done.items():
        assert number in submitted
        alone = reference(seed, number)
        assert_equal(completions, {index: alone[index] for index in completions}, atol=0)


_REFERENCES = {}


def reference(seed, number):
    """The group drawn in a sampler of its own."""
    if seed not in _REFERENCES:
        _REFERENCES[seed] = run(make_slots(), make_requests(12, seed=seed, max_group=20))
    return _REFERENCES[seed][number]


def test_cancelled_groups_draw_no_more(sampler):
    sampler.submit(0, make_request("a", group_size=3, params=SamplingParams(1.0, 1.0, 20), stop=()))
    sampler.submit(1, make_request("b", group_size=2, params=SamplingParams(1.0, 1.0, 20), stop=()))
    assert sampler.step() == []
    drawn = sampler.tokens_generated
    sampler.cancel([0])
    sampler.step()
    assert sampler.tokens_generated - drawn == 2 * 5
    sampler.cancel([1, 2])
    assert not sampler.busy


def test_one_token(sampler):
    request = make_request("a", group_size=9, params=SamplingParams(1.0, 1.0, 1), stop=())
    [done] = run(sampler, [request]).values()
    assert all(len(c.tokens) == 1 and c.finish_reason == "length" for c in done.values())


def test_stop_on_the_first_token(sampler):
    """Every token ends the completion, however many there are."""
    request = make_request("a", group_size=9, params=SamplingParams(1.0, 1.0, 7), stop=range(CONFIG.vocab_size))
    [done] = run(sampler, [request]).values()
    assert all(len(c.tokens) == 1 and c.finish_reason == "stop" for c in done.values())


@pytest.mark.parametrize("prompt", [1, 2, 17, LENGTH - 1])
def test_prompt_and_completion_fill_the_slot(sampler, prompt):
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, prompt)
    request = make_request("a", prompt=tokens, params=SamplingParams(1.0, 1.0, LENGTH - prompt), stop=())
    [done] = run(sampler, [request]).values()
    assert all(len(c.tokens) == LENGTH - prompt for c in done.values())
    [whole] = run(make_slots(length=2 * LENGTH), [request]).values()
    assert_equal(done, whole, atol=1e-5)


def test_tokens_are_counted(sampler):
    before = sampler.tokens_generated
    done = run(sampler, make_requests(5))
    assert sampler.tokens_generated - before == sum(len(c.tokens) for group in done.values() for c in group.values())


@pytest.mark.parametrize("recompute", [pytest.param(False, marks=pytest.mark.slow), True])
def test_new_weights_in_flight(recompute):
    """Five tokens by the old weights, the rest by the new: versions are exact; recomputed keys give the new scores."""
    sampler, length = make_slots(), 10
    params = SamplingParams(temperature=0.7, top_p=1.0, max_tokens=length)
    request = make_request("a", group_size=11, params=params, stop=())  # three of them begin after the update
    sampler.submit(0, request)
    done = collections.defaultdict(dict)
    collect(done, sampler.step())
    sampler.update_weights(weights(1), version=7, recompute=recompute)
    while sampler.busy:
        collect(done, sampler.step())
    completions = tuple(done[0][i] for i in range(11))
    group = RolloutGroup(request.problem_id, request.step, request.prompt_tokens, completions)
    assert len(request.prompt_tokens) <= PROMPT
    [old], [new] = (learner_logprobs(weights(seed), [group], 0.7, length=length) for seed in (0, 1))
    for index, completion in enumerate(completions):
        cut = 5 if index < 8 else 0
        assert completion.policy_versions.tolist() == [0] * cut + [7] * (length - cut)
        np.testing.assert_allclose(completion.logprobs[:cut], old[index][:cut], rtol=0, atol=1e-5)
        gap = np.abs(completion.logprobs[cut:] - new[index][cut:]).max()
        assert gap < 1e-5 if recompute or not cut else gap > 1e-3


def test_weights_that_overflow_leave_no_trace():
    """NaN in a slot's keys would reach its next sequence as 0 x NaN."""
    requests = make_requests(6, top_p=(1.0,))
    expected = run(make_slots(), requests)
    sampler = make_slots()
    sampler.update_weights(jax.tree.map(lambda x: x * np.nan, weights()), version=1, recompute=False)
    broken = run(sampler, requests)
    assert all(np.isnan(c.logprobs).all() for group in broken.values() for c in group.values())
    sampler.update_weights(weights(), version=2, recompute=False)
    again = run(sampler, requests)
    for number in expected:
        assert_equal(again[number], expected[number], atol=0)
