"""Groups through slots, for the tests of slots."""

import collections

import numpy as np

from isocompute_jax.sampling import SamplingParams
from isocompute_jax.sampling.slot_sampler import SlotSampler
from tests.sampling.builders import CONFIG, STOP, make_request, weights

LENGTH = 24


def make_slots(*, config=CONFIG, params=None, slots=8, length=LENGTH, chunk_steps=5, key_block=256, mesh=None):
    params = weights() if params is None else params
    return SlotSampler(
        config, params, slots=slots, length=length, chunk_steps=chunk_steps, key_block=key_block, mesh=mesh
    )


def make_requests(count, *, config=CONFIG, length=LENGTH, seed=0, max_group=5, top_p=(1.0, 0.8), stop=STOP):
    """Requests of all sizes, temperatures and lengths; some fill `length` to the last token."""
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(count):
        prompt = rng.integers(0, config.vocab_size, rng.integers(1, length))
        room = length - len(prompt)
        params = SamplingParams(
            temperature=float(rng.choice([0.6, 1.0, 1.3])),
            top_p=float(rng.choice(top_p)),
            max_tokens=int(rng.choice([1, room, int(rng.integers(1, room + 1))])),
        )
        size = int(rng.integers(1, max_group + 1))
        requests.append(make_request(f"problem {number}", group_size=size, params=params, prompt=prompt, stop=stop))
    return requests


def run(sampler, requests, *, at_once=True):
    """Completions by [request number][rollout index], each there once; `at_once`, or a group more before every step."""
    done = collections.defaultdict(dict)
    waiting = collections.deque(enumerate(requests))
    while waiting or sampler.busy:
        while waiting:
            number, request = waiting.popleft()
            sampler.submit(number, request)
            if not at_once:
                break
        collect(done, sampler.step())
    for number, request in enumerate(requests):
        assert sorted(done[number]) == list(range(request.group_size))
    return done


def collect(done, finished):
    for ticket, index, completion in finished:
        assert index not in done[ticket]
        done[ticket][index] = completion


def assert_equal(ours, theirs, *, atol):
    """Completions by index: the same tokens and reasons; log-probabilities within `atol` (0: bit for bit)."""
    assert ours.keys() == theirs.keys()
    for index, completion in ours.items():
        other = theirs[index]
        np.testing.assert_array_equal(completion.tokens, other.tokens)
        np.testing.assert_allclose(completion.logprobs, other.logprobs, rtol=0, atol=atol)
        assert completion.finish_reason == other.finish_reason
