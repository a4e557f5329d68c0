"""A whole run whose rollouts a policy deals, in rounds and groups of unequal size, sampled by a vLLM server."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.experiment import loop
from isocompute_jax.records import run_files
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.experiment import builders
from tests.experiment.test_dealt_runs import STEPS, B, dealt
from tests.vllm.builders import TIED, make_params

pytestmark = pytest.mark.vllm


def test_rollouts_are_booked_as_dealt_and_scored_as_the_learner_scores_them(servers, tmp_path):
    base, server = builders.make_inputs(tmp_path), servers["tied"]
    served, tokenizer = tmp_path / "served", tmp_path / "tokenizer"
    model.save_checkpoint(served, TIED, make_params(TIED, 0), tokenizer_from=tokenizer)
    service = ServiceConfig(endpoints=server.address(), token_file=str(server.token), push="stream")
    config = dataclasses.replace(dealt(base, "hit"), model=str(served), service=service)
    loop.train(config, tmp_path / "run")
    lines, kept = (builders.log_lines(tmp_path / "run", name) for name in (run_files.METRICS, run_files.ROLLOUTS))
    assert [line["compute"] for line in lines] == [B * step for step in range(1, STEPS + 1)]
    for line, step in zip(lines, kept, strict=True):
        counts = [len(group["rewards"]) for group in step["groups"]]
        assert sum(counts) == B and (min(counts), max(counts)) == (line["group_size_min"], line["group_size_max"])
        assert line["staleness"] == 0 and line["logprob_difference_max"] < 1e-3
        drawn = [tuple(one["tokens"]) for group in step["groups"] for one in group["completions"]]
        assert len(set(drawn)) > B / 2  # of second rounds, too
    assert any(line["group_size_min"] < line["group_size_max"] for line in lines)
    assert np.ptp([line["reward"] for line in lines]) > 0
