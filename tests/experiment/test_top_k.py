"""Runs whose sampling is truncated: sampler and learner agree on the distribution, in each layout, and in turns."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import EvaluationConfig, PackingConfig
from isocompute_jax.learner import LossConfig
from isocompute_jax.records.errors import InputError
from tests.experiment.builders import log_lines, make_inputs


def truncated(path, **changes):
    config = make_inputs(path)
    sampling = dataclasses.replace(config.sampling, top_p=0.9, top_k=12)
    config = dataclasses.replace(
        config,
        sampling=sampling,
        max_compute=64 * 3,
        evaluation=EvaluationConfig(),
        loss=LossConfig(kl_coef=1e-2, entropy_coef=1e-3, policy_loss="clipped"),
    )
    return dataclasses.replace(config, **changes)


@pytest.mark.parametrize(
    "packing",
    [
        pytest.param(PackingConfig(), id="padded", marks=pytest.mark.slow),
        pytest.param(PackingConfig(row_tokens=16), id="packed"),
    ],
)
def test_sampler_and_learner_agree_on_a_truncated_distribution(tmp_path, packing):
    """They would differ by some tenth of a nat, the mass that was cut off, if it were not said what was kept."""
    loop.train(truncated(tmp_path, packing=packing), tmp_path / "run")
    lines = log_lines(tmp_path / "run", "metrics.jsonl")
    assert len(lines) == 3
    assert all(line["logprob_difference_max"] < 1e-5 and np.isfinite(line["kl"]) for line in lines)
    assert 0 < lines[0]["entropy"] < np.log(12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": {"top_k": 0}}, r"config.sampling.top_p = 0.9: .* set config.sampling.top_k"),
        ({"packing": {"trees": "on"}}, r"config.sampling.top_k is not for config.packing.trees = 'on'"),
    ],
)
def test_what_does_not_go_together(tmp_path, changes, message):
    config = truncated(tmp_path)
    changed = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changes.items()}
    with pytest.raises(InputError, match=message):
        loop.train(dataclasses.replace(config, **changed), tmp_path / "run")
