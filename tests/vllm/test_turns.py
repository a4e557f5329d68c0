"""Forced interruption over vLLM: budgets of each rollout, turns with seeds of their own, scores as the learner's."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.sampling import NO_DEVICES, TurnSampler
from isocompute_jax.service.proto import convert
from tests.sampling.turn_builders import END, PHRASE, interruption
from tests.vllm.builders import LONG, SHORT, collect, learner_logprobs

pytestmark = pytest.mark.vllm


class OneServer:
    """The protocol, group by group."""

    concurrent = False
    redrawn_rollouts = 0
    device_seconds = NO_DEVICES

    def __init__(self, client):
        self._stub = client.stub
        self._queue = []
        self.asked = 0

    def submit(self, requests, *, lane="train"):
        self._queue += requests

    def completed(self, *, lane="train"):
        while self._queue:
            request = self._queue.pop(0)
            self.asked += 1
            message = convert.request_to_message(request, group_id=f"{lane}/{self.asked}")
            yield request.grouped(collect(self._stub.Sample(message, timeout=120)))

    def update_weights(self, params, *, version):
        raise NotImplementedError

    def close(self):
        pass


def request(prompt, **fields) -> SampleRequest:
    params = SamplingParams(1.0, 1.0, 100)
    made = SampleRequest("p", np.array(prompt, np.int32), 6, seed=1, step=2, stop_tokens=(0, 3), params=params)
    return dataclasses.replace(made, **fields)


def test_interrupted_rollouts_are_scored_as_the_learner_scores_them(served):
    client, config, params, _ = served("tied")
    policy = interruption(low=10, high=30, answer_tokens=20)
    for prompt in (SHORT, LONG):
        sampler = TurnSampler(OneServer(client), policy)
        sampler.submit([request(prompt)])
        [group] = sampler.completed()
        inserted = 0
        for completion in group.completions:
            drawn = completion.mask
            wanted = learner_logprobs(config, params, prompt, completion.tokens[None], 1.0)[0]
            np.testing.assert_allclose(completion.logprobs[drawn], wanted[drawn], atol=1e-4)
            assert completion.drawn_tokens <= 50 and len(set(completion.policy_versions)) == 1
            if not drawn.all():
                inserted += 1
                start = int(np.flatnonzero(~drawn)[0])
                assert 10 <= start <= 30 and END not in completion.tokens[:start]
                np.testing.assert_array_equal(completion.tokens[start : start + 3], PHRASE)
        assert inserted > 0


def test_rollouts_have_budgets_indices_and_turns(served):
    client, *_ = served("tied")

    def sample(**fields):
        message = convert.request_to_message(request(SHORT, stop_tokens=(), **fields), group_id="g")
        return [completion.tokens.tolist() for completion in collect(client.stub.Sample(message, timeout=120))]

    whole = sample()
    assert {len(tokens) for tokens in whole} == {100}
    budgets = (1, 100, 7, 30, 2, 64)
    assert sample(budgets=budgets) == [tokens[:budget] for tokens, budget in zip(whole, budgets, strict=True)]
    assert sample(group_size=2, first_rollout=3) == whole[3:5]
    first, second = sample(turn=1), sample(turn=2)
    assert not {tuple(tokens) for tokens in whole} & {tuple(tokens) for tokens in (*first, *second)}
    assert first != second and first == sample(turn=1)
