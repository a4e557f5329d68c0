"""Turns: whole groups whatever finishes first, segments that say what they are, and what a forward pass gives."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Completion
from isocompute_jax.sampling import NO_DEVICES, SamplingParams, TurnSampler
from isocompute_jax.sampling.turn_policies import Interruption, ToolTurns, thinking_budget, thought_before
from tests.sampling.builders import CONFIG, PARAMS, PROMPT, learner_logprobs, make_request, make_sampler, weights
from tests.sampling.slot_builders import make_slots, run
from tests.sampling.turn_builders import (
    END,
    PHRASE,
    STOP,
    RuleSampler,
    Scripted,
    assert_equal_completions,
    ends,
    interruption,
    rule,
)

REQUESTS = [
    make_request(name, params=SamplingParams(1.0, 1.0, 13), stop=(STOP,), group_size=size)
    for name, size in (("ant", 5), ("bee", 1), ("cat", 8))
]


def by_hand(request, policy=None):
    """The completions of a group, rollout by rollout and turn by turn, without any bookkeeping."""
    policy = policy or interruption()
    completions = []
    for i in range(request.group_size):
        budget = thinking_budget(request, request.first_rollout + i, policy.low, policy.high)
        params = dataclasses.replace(request.params, max_tokens=budget)
        alone = dataclasses.replace(request, group_size=1, first_rollout=request.first_rollout + i, params=params)
        first = rule(alone, 0)
        left, phrase = policy.answer_tokens, PHRASE
        if (thought := ends(first.tokens)) is not None:
            left, phrase = left - (len(first.tokens) - thought), PHRASE[:0]
        if first.finish_reason == "stop" or left <= 0:
            completions.append(first)
            continue
        prompt = np.concatenate([request.prompt_tokens, first.tokens, phrase])
        params = dataclasses.replace(request.params, max_tokens=left)
        second = rule(dataclasses.replace(alone, prompt_tokens=prompt, turn=1, params=params), 0)
        parts = [(first.tokens, first.logprobs, True, 3), (phrase, 0 * phrase, False, 4)]
        parts.append((second.tokens, second.logprobs, True, 4))
        completions.append(
            Completion(
                np.concatenate([tokens for tokens, *_ in parts]),
                np.concatenate([logprobs for _, logprobs, *_ in parts]).astype(np.float32),
                np.concatenate([np.full(len(tokens), drawn) for tokens, _, drawn, _ in parts]),
                np.concatenate([np.full(len(tokens), version, np.int32) for tokens, _, _, version in parts]),
                second.finish_reason,
            )
        )
    return completions


@pytest.fixture(scope="module")
def expected():
    return {request.problem_id: by_hand(request) for request in REQUESTS}


@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 3))
def test_groups_are_whole_and_the_same_whatever_finishes_first(expected, seed, background, late):
    """Groups and turns in any order, some groups submitted while others are read, in this thread or another."""
    random = np.random.default_rng(seed)
    sampler = TurnSampler(RuleSampler(lambda out: random.integers(out)), interruption(), background=background)
    sampler.submit(REQUESTS[late:])
    groups, rest = {}, REQUESTS[:late]
    while len(groups) < len(REQUESTS):
        for group in sampler.completed():
            assert group.problem_id not in groups
            groups[group.problem_id] = group
            if rest:
                sampler.submit([rest.pop()])
        if rest:
            sampler.submit([rest.pop()])
    assert list(sampler.completed()) == []
    for request in REQUESTS:
        group = groups[request.problem_id]
        assert (group.step, group.turn, group.first_rollout) == (request.step, 0, 0)
        np.testing.assert_array_equal(group.prompt_tokens, request.prompt_tokens)
        for ours, theirs in zip(group.completions, expected[request.problem_id], strict=True):
            assert_equal_completions(ours, theirs)


def test_every_kind_of_rollout_is_among_them(expected):
    """Done in time, interrupted, already answering, and cut while it answers: else the property says little."""
    completions = [completion for group in expected.values() for completion in group]
    interrupted = [c for c in completions if not c.mask.all()]
    going_on = [c for c in completions if c.mask.all() and 4 in c.policy_versions]
    assert interrupted and going_on and len(interrupted) + len(going_on) < len(completions)
    assert {c.finish_reason for c in interrupted} == {"stop", "length"}
    for completion in interrupted:
        assert completion.drawn_tokens == len(completion.tokens) - len(PHRASE)
        np.testing.assert_array_equal(completion.tokens[~completion.mask], PHRASE)
        assert not completion.logprobs[~completion.mask].any() and completion.mask[[0, -1]].all()


def test_a_golden_interruption():
    """Three drawn, three inserted, two drawn: every array by hand."""
    sampler = TurnSampler(Scripted([4, 5, 6], [2, STOP]), interruption(3, 3))
    sampler.submit([make_request("ant", group_size=1, stop=(STOP,))])
    [[completion]] = [group.completions for group in sampler.completed()]
    assert completion.tokens.tolist() == [4, 5, 6, 8, END, 9, 2, STOP]
    assert completion.mask.tolist() == [True] * 3 + [False] * 3 + [True] * 2
    assert completion.logprobs.tolist() == [-1.0] * 3 + [0.0] * 3 + [-1.0] * 2
    assert completion.policy_versions.tolist() == [0] * 3 + [1] * 5
    assert completion.finish_reason == "stop"


@pytest.mark.parametrize(
    ("drawn", "turn", "following"),
    [
        ([4, 5, 6], 0, (PHRASE.tolist(), 4)),  # cut while it thinks
        ([4, STOP], 0, None),  # done in time
        ([4, END, 6], 0, ([], 3)),  # cut after the first token of its answer
        ([4, 5, END], 0, ([], 4)),  # cut before it
        ([END, 1, 2, 3, 4, 5], 0, None),  # it has had its answer
        ([4, 5, 6, *PHRASE, 1], 1, None),
    ],
)
def test_what_follows(drawn, turn, following):
    tokens = np.array(drawn, np.int32)
    reason = "stop" if drawn[-1] == STOP else "length"
    so_far = Completion.drawn(tokens, np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32), reason)
    found = interruption().next_turn(REQUESTS[0], 0, turn, so_far)
    assert (None if found is None else (found.context.tolist(), found.budget)) == following


def test_thinking_budgets_are_uniform_and_each_rollouts_own():
    request = make_request("ant", group_size=2000, params=SamplingParams(1.0, 1.0, 100))
    policy = interruption(10, 19)
    asked = policy.first_turn(request)
    assert asked.params.max_tokens == 19 and asked.budgets is not None
    counts = np.bincount(asked.budgets, minlength=20)[10:]
    assert counts.sum() == 2000 and ((counts - 200) ** 2 / 200).sum() < 27.9  # chi-squared of 9 degrees, p = 0.001
    part = dataclasses.replace(request, group_size=5, first_rollout=100)
    assert policy.first_turn(part).budgets == asked.budgets[100:105]
    for change in ({"seed": 9}, {"step": 9}, {"problem_id": "bee"}):
        assert policy.first_turn(dataclasses.replace(request, **change)).budgets != asked.budgets


def test_the_end_of_thinking_is_found_in_the_text():
    """Where a tokenizer joins its last character with what follows."""
    words = ["a", "</", "think", ">", ">\n\n", "</think>"]
    thought = thought_before("</think>", lambda ids: "".join(words[i] for i in ids))
    for ids, wanted in (
        ([0, 1, 2, 3, 0], 4),
        ([0, 1, 2, 4, 0, 0], 4),
        ([5], 1),
        ([0, 5, 5, 0], 2),
        ([0, 1, 2], None),
        ([0, 0, 0], None),
    ):
        assert thought(np.array(ids)) == wanted


def test_lanes_of_one_turn_are_left_alone(expected):
    inner = RuleSampler()
    sampler = TurnSampler(inner, interruption(), single=("evaluation",))
    sampler.submit(REQUESTS, lane="evaluation")
    sampler.submit(REQUESTS)
    assert inner.asked[: len(REQUESTS)] == REQUESTS
    for request, group in zip(REQUESTS, sampler.completed(lane="evaluation"), strict=True):
        assert all(ours.mask.all() and set(ours.policy_versions) == {3} for ours in group.completions)
        assert max(len(ours.tokens) for ours in group.completions) <= request.params.max_tokens
    assert len(list(sampler.completed())) == len(REQUESTS)


def test_a_group_that_is_out_cannot_be_asked_for_again():
    sampler = TurnSampler(RuleSampler(), interruption())
    for again in ([REQUESTS[0], REQUESTS[0]], [REQUESTS[0]]):
        with pytest.raises(ValueError, match="'ant' of step 2"):
            sampler.submit(again)
        if len(again) == 2:
            sampler.submit([REQUESTS[0]])
    assert len(list(sampler.completed())) == 1


def test_what_ends_a_sampler_ends_those_who_wait():
    """In the background too, at once and again; there a sampler that loses groups is found out."""

    class Gone(RuleSampler):
        def completed(self, *, lane="train"):
            yield from ()
            raise InputError("the server is gone")

    class Losing(RuleSampler):
        def completed(self, *, lane="train"):
            yield next(super().completed(lane=lane))
            self.close()

    for kind, background, error in ((Gone, False, InputError), (Gone, True, InputError), (Losing, True, RunError)):
        sampler = TurnSampler(kind(), interruption(), background=background)
        sampler.submit(REQUESTS)
        for _ in range(2):
            with pytest.raises(error, match=r"the server is gone|lost groups"):
                list(sampler.completed())


# --- tools


def test_a_tool_answers_calls():
    """Two calls are answered, the third is not, and one without an answer ends the rollout."""
    answers = {"12=": [6], "12=61=": [7, 7]}
    policy = ToolTurns(
        answer=lambda text: np.array(answers[text], np.int32) if text in answers else None,
        decode=lambda ids: "".join("=" if i == 5 else str(i) for i in ids),
        stop_token=5,
        calls=2,
        call_tokens=3,
        longest_answer=2,
    )
    sampler = TurnSampler(Scripted([1, 2, 5], [1, 5], [9, 5]), policy)
    sampler.submit([make_request("ant", group_size=1, params=SamplingParams(1.0, 1.0, 13), stop=(STOP,))])
    [[completion]] = [group.completions for group in sampler.completed()]
    assert completion.tokens.tolist() == [1, 2, 5, 6, 1, 5, 7, 7, 9, 5]
    assert (~completion.mask).nonzero()[0].tolist() == [3, 6, 7]
    assert completion.policy_versions.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    sampler = TurnSampler(Scripted([2, 2, 5]), policy)
    sampler.submit([make_request("ant", group_size=1, stop=(STOP,))])
    [[completion]] = [group.completions for group in sampler.completed()]
    assert completion.tokens.tolist() == [2, 2, 5] and completion.mask.all()


# --- real models


THINKS = Interruption(low=2, high=5, answer_tokens=4, phrase=PHRASE, thought=ends)
LONGEST = PROMPT + 5 + len(PHRASE)


@pytest.fixture(scope="module")
def interrupted():
    """Groups of a real model, interrupted."""
    params = dataclasses.replace(PARAMS, max_tokens=12)
    requests = [make_request(name, params=params, stop=(STOP,)) for name in ("ant", "bee", "cat")]
    sampler = TurnSampler(make_sampler(max_continued_tokens=LONGEST), THINKS)
    sampler.submit(requests)
    return requests, list(sampler.completed())


def test_drawn_tokens_are_scored_as_the_learner_scores_them(interrupted):
    """A pass over the prompt and the whole completion, what was put into it included."""
    _, groups = interrupted
    expected = learner_logprobs(weights(), groups, PARAMS.temperature, length=12)
    compared = later = 0
    for group, scores in zip(groups, expected, strict=True):
        for completion, score in zip(group.completions, scores, strict=True):
            drawn = completion.mask
            np.testing.assert_allclose(completion.logprobs[drawn], score[drawn], rtol=0, atol=1e-5)
            assert np.abs(score[~drawn]).min(initial=1.0) > 1e-3  # context has no log-probability of its own
            compared += 1
            later += not drawn.all()
    assert compared == 12 and 3 <= later < 12


def test_slots_draw_the_same_turns(interrupted):
    requests, groups = interrupted
    sampler = TurnSampler(SlotsAsSampler(), THINKS)
    sampler.submit(requests)
    found = {group.problem_id: group for group in sampler.completed()}
    for group in groups:
        for ours, theirs in zip(found[group.problem_id].completions, group.completions, strict=True):
            assert_equal_completions(ours, theirs, atol=1e-5)


class SlotsAsSampler:
    """The protocol around slots, one lane, one batch of groups after the other."""

    concurrent = False
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(self):
        self._slots = make_slots()
        self._queue = []

    def submit(self, requests, *, lane="train"):
        self._queue += requests

    def completed(self, *, lane="train"):
        while self._queue:
            requests, self._queue = self._queue, []
            done = run(self._slots, requests)
            for number, request in enumerate(requests):
                yield request.grouped([done[number][i] for i in range(request.group_size)])

    def update_weights(self, params, *, version):
        raise NotImplementedError

    def close(self):
        pass


@pytest.fixture(scope="module")
def first_turns(interrupted):
    """Groups of one problem: as asked for, with budgets, and from another rollout on; in the shape of turn 0."""
    requests, _ = interrupted
    request = dataclasses.replace(requests[0], params=dataclasses.replace(PARAMS, max_tokens=5))
    found = []
    for change in ({"budgets": (1, 5, 3, 2)}, {"first_rollout": 2}):
        sampler = make_sampler()
        sampler.submit([request, dataclasses.replace(request, **change)])
        found.append([group.completions for group in sampler.completed()])
    return found


def test_budgets_cut_each_rollout_alone(first_turns):
    """A rollout with a smaller budget is the beginning of what it is with a larger one; others are not touched."""
    [whole, cut], _ = first_turns
    for ours, theirs, budget in zip(cut, whole, (1, 5, 3, 2), strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens[:budget], strict=True)
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs[:budget])
        assert (ours.finish_reason == "length") == (ours.tokens[-1] != STOP)
    assert max(len(completion.tokens) for completion in whole) > 3


def test_a_rollout_is_known_by_its_index(first_turns):
    """Whatever stands before it in its group."""
    _, [whole, rest] = first_turns
    for ours, theirs in zip(rest[:2], whole[2:], strict=True):
        assert_equal_completions(ours, theirs, atol=1e-5)


def test_turns_have_random_numbers_of_their_own():
    params = dataclasses.replace(PARAMS, max_tokens=THINKS.turn_tokens)
    request = make_request("ant", params=params, stop=(STOP,), group_size=1)
    sampler = make_sampler(max_continued_tokens=LONGEST)
    sampler.submit([dataclasses.replace(request, turn=turn) for turn in (1, 2, 3, 1)])
    one, two, three, again = (group.completions[0].tokens.tolist() for group in sampler.completed())
    assert one == again and len({tuple(tokens) for tokens in (one, two, three)}) == 3


def test_continuations_that_do_not_fit_are_refused():
    sampler = make_sampler(max_continued_tokens=PROMPT + 1)
    later = dataclasses.replace(make_request("ant", prompt=[1] * (PROMPT + 2), group_size=1), turn=1)
    with pytest.raises(InputError, match=rf"max_continued_tokens = {PROMPT + 1}"):
        sampler.submit([later])
    with pytest.raises(InputError, match="max_continued_tokens = 0"):
        make_sampler().submit([later])


@pytest.mark.parametrize(
    ("budgets", "message"), [((1, 2), "2 numbers for group_size = 4"), ((1, 2, 3, 7), "1 .. 6"), ((0, 1, 1, 1), "0 to")]
)
def test_budgets_that_cannot_be(budgets, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_request("ant"), budgets=budgets)


def test_experts_of_a_joined_completion_are_those_of_the_first_reading():
    from isocompute_jax.sampling.turns import joined

    def drawn(tokens, read, mark):
        count = len(tokens)
        experts = np.full((read, 1, 1), mark, np.int16) + np.arange(read, dtype=np.int16)[:, None, None]
        return Completion.drawn(
            np.array(tokens, np.int32), np.zeros(count, np.float32), np.zeros(count, np.int32), "length", experts
        )

    # A prompt of 2, then 3 drawn: 4 were read. Again with 2 inserted, then 2 drawn: 8 were read.
    first, second = drawn([4, 5, 6], 4, 100), drawn([2, 3], 8, 200)
    both = joined(first, np.array([8, 9], np.int32), second)
    assert both.experts is not None
    assert both.experts[:, 0, 0].tolist() == [100, 101, 102, 103, 204, 205, 206, 207]
    assert len(both.experts) == 2 + len(both.tokens) - 1
    assert joined(dataclasses.replace(first, experts=None), PHRASE, second).experts is None
    assert CONFIG.num_experts == 0


def test_what_could_be_drawn_of_a_joined_completion_is_not_said_of_its_context():
    from isocompute_jax.sampling.turns import joined

    def drawn(tokens):
        support = np.array(tokens, np.int32)[:, None] + np.arange(2, dtype=np.int32)
        zeros = np.zeros(len(tokens))
        return Completion.drawn(
            np.array(tokens, np.int32), zeros.astype(np.float32), zeros.astype(np.int32), "stop", support=support
        )

    nothing = dataclasses.replace(drawn([]), support=None)
    begun = joined(nothing, np.array([7], np.int32), drawn([1, 2]))
    both = joined(begun, np.array([8, 9], np.int32), drawn([3]))
    assert both.support is not None and both.support.dtype == np.int32
    assert both.support.tolist() == [[-1, -1], [1, 2], [2, 3], [-1, -1], [-1, -1], [3, 4]]
    assert both.mask.tolist() == [False, True, True, False, False, True]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=4))
def test_turns_whose_tokens_had_more_or_fewer_alternatives_are_one_completion(turns):
    from isocompute_jax.sampling.turns import joined

    nothing = np.zeros(0, np.int32)
    whole, expected = Completion.drawn(nothing, nothing.astype(np.float32), nothing, "stop"), []
    for length, more, inserts in turns:
        tokens = np.arange(length, dtype=np.int32)
        support = tokens[:, None] + np.arange(1 + more, dtype=np.int32)
        drawn = Completion.drawn(tokens, np.zeros(length, np.float32), tokens, "stop", support=support)
        context = np.full(int(inserts), 9, np.int32)
        whole, expected = joined(whole, context, drawn), [*expected, *([[]] * len(context)), *support.tolist()]
    assert whole.support is not None and whole.support.dtype == np.int32
    assert [row[row >= 0].tolist() for row in whole.support] == expected
    assert whole.support_of(8).shape == (len(expected), 8)
