"""Requests and samplers of a few compiled shapes, shared by all tests of this room."""

import functools

import jax
import numpy as np

from isocompute_jax import learner
from isocompute_jax.sampling import InProcessSampler, SampleRequest, SamplingParams
from tests.model.tiny import random_params, tiny_config

CONFIG = tiny_config()
PROMPT, LENGTH, GROUP = 6, 6, 4
STOP = (0, 5)
PARAMS = SamplingParams(temperature=0.7, top_p=1.0, max_tokens=LENGTH)


@functools.cache
def weights(seed=0):
    return random_params(CONFIG, seed)


def make_request(name, *, seed=1, step=2, group_size=GROUP, params=PARAMS, prompt=None, stop=STOP) -> SampleRequest:
    """A request whose prompt (1 to PROMPT tokens) follows from its name."""
    if prompt is None:
        rng = np.random.default_rng(list(name.encode()))
        prompt = rng.integers(0, CONFIG.vocab_size, rng.integers(1, PROMPT + 1)).astype(np.int32)
    return SampleRequest(name, np.asarray(prompt, np.int32), group_size, seed, step, tuple(stop), params)


def make_sampler(*, config=CONFIG, budget=8, params=None, mesh=None, max_continued_tokens=0) -> InProcessSampler:
    return InProcessSampler(
        config,
        weights() if params is None else params,
        pad_token=0,
        max_prompt_tokens=PROMPT,
        max_continued_tokens=max_continued_tokens,
        max_rollouts_per_dispatch=budget,
        mesh=mesh,
    )


def sample(requests, **options):
    """Groups by problem id."""
    sampler = make_sampler(**options)
    sampler.submit(requests)
    return {group.problem_id: group for group in sampler.completed()}


def token_lists(group):
    return [completion.tokens.tolist() for completion in group.completions]


def assert_same_group(ours, theirs, *, atol):
    """The same tokens and reasons; log-probabilities within `atol` (0: bit for bit)."""
    assert token_lists(ours) == token_lists(theirs)
    for a, b in zip(ours.completions, theirs.completions, strict=True):
        assert a.finish_reason == b.finish_reason
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=atol)


@jax.jit
def _scored(params, prompts, mask, tokens, temperature):
    logprobs, _ = learner.completion_logprobs(
        CONFIG, params, prompts, mask, tokens, temperature=temperature, chunk_tokens=1000
    )
    return logprobs


def learner_logprobs(params, groups, temperature, *, length=LENGTH) -> list[list[np.ndarray]]:
    """What the learner gives the completions of each group, of up to `length` tokens."""
    shape = (len(groups), len(groups[0].completions), length)
    prompts, mask = np.zeros((len(groups), PROMPT), np.int32), np.zeros((len(groups), PROMPT), bool)
    tokens = np.zeros(shape, np.int32)
    for p, group in enumerate(groups):
        prompts[p, -len(group.prompt_tokens) :] = group.prompt_tokens
        mask[p, -len(group.prompt_tokens) :] = True
        for g, completion in enumerate(group.completions):
            tokens[p, g, : len(completion.tokens)] = completion.tokens
    logprobs = np.asarray(_scored(params, prompts, mask, tokens, temperature))
    return [
        [logprobs[p, g, : len(c.tokens)] for g, c in enumerate(group.completions)] for p, group in enumerate(groups)
    ]
