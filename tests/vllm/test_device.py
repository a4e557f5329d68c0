"""Weights from the learner's devices to vLLM's ranks, over sockets: each is sent its part alone, and reads no more."""

from __future__ import annotations

import dataclasses
import logging

import jax
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.service.client.fleet import RemoteSampler
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.vllm.builders import LONG, TIED, UNTIED, learner_logprobs, make_params
from tests.vllm.test_families import FAMILIES

pytestmark = pytest.mark.vllm
CASES = {
    "tied, two slices": (TIED, ("--tensor_parallel=2",)),
    "two replicas": (UNTIED, ("--data_parallel=2",)),
    "llama": (dataclasses.replace(TIED, **FAMILIES["llama"]), ("--tensor_parallel=2",)),
    "qwen3_moe": (dataclasses.replace(TIED, **FAMILIES["qwen3_moe"]), ("--tensor_parallel=2",)),
    "llama4_text": (dataclasses.replace(TIED, **FAMILIES["llama4_text"]), ("--tensor_parallel=2",)),
}


FIRST, *OTHERS = CASES


@pytest.mark.parametrize("case", [FIRST, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)])
def test_what_comes_from_device_to_device_is_what_the_learner_has(start, tmp_path, caplog, case):
    caplog.set_level(logging.INFO)
    config, flags = CASES[case]
    model.save_checkpoint(tmp_path / "model", config, make_params(config, 0), tokenizer_from=None)
    server = start(tmp_path / "model", *flags)
    client = server.client()
    service = ServiceConfig(
        endpoints=server.address(), push="device", shared_dir=str(tmp_path), token_file=str(server.token), stall_s=120
    )
    mesh = sharding.make_mesh(fsdp=2, tensor=2)
    sampler = RemoteSampler(service, config, session="tests", in_flight="wait")
    try:
        for version, seed in ((1, 1), (2, 2)):
            params = make_params(config, seed)
            sharded = jax.device_put(params, model.param_shardings(config, mesh))
            sampler.update_weights(sharded, version=version)
            params_of_request = SamplingParams(1.0, 1.0, 30)
            sampler.submit([SampleRequest("p", np.array(LONG, np.int32), 4, 7, version, (), params_of_request)])
            [group] = sampler.completed()
            tokens = np.stack([each.tokens for each in group.completions])
            logprobs = np.stack([each.logprobs for each in group.completions])
            np.testing.assert_allclose(logprobs, learner_logprobs(config, params, LONG, tokens, 1.0), atol=1e-4)
            assert {v for each in group.completions for v in each.policy_versions} == {version}
        assert "by sockets" in caplog.text and "by file" not in caplog.text
        assert client.status().version == 2
    finally:
        sampler.close()
    server.end()
    assert "Traceback" not in server.text
