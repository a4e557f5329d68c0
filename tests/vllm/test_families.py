"""vLLM serves every family that the learner trains: its log-probabilities, and weights that replace them in place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from isocompute_jax import model
from tests.model.tiny import LLAMA4
from tests.vllm.builders import LONG, SHORT, TIED, learner_logprobs, make_params, stacked, tensors_of

pytestmark = pytest.mark.vllm

FAMILIES = {
    "llama": dict(attention_bias=False, rope_scaling=model.RopeScaling(8.0, 1.0, 4.0, 64)),
    "qwen3": dict(attention_bias=False, qk_norm=True),
    "qwen3_moe": dict(attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=2, tied_embeddings=False),
    # Chunks and the floor of the temperature are shorter than the long prompt.
    "llama4_text": LLAMA4
    | dict(attention_chunk=128, query_scaling=model.QueryScaling(100, 0.5), tied_embeddings=False, num_heads=4),
}


# A server for each: CI has those with experts.
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if "num_experts" in FAMILIES[name] else pytest.mark.slow) for name in FAMILIES],
)
def test_log_probabilities_are_the_learners(start, tmp_path, family):
    config = dataclasses.replace(TIED, **FAMILIES[family])
    first, second = (make_params(config, seed) for seed in (0, 1))
    model.save_checkpoint(tmp_path / "model", config, first, tokenizer_from=None)
    server = start(tmp_path / "model")
    client = server.client()
    for version, params in ((0, first), (1, second)):
        if version:
            client.update(tensors_of(config, params), version)
        for prompt in (SHORT, LONG):
            tokens, logprobs, _ = stacked(client.sample(prompt, 4, 30))
            wanted = learner_logprobs(config, params, prompt, tokens, 1.0)
            assert wanted.std() > 0.3
            np.testing.assert_allclose(logprobs, wanted, atol=1e-4)
    server.end()
