"""The sampler's unit in the learner's process, compiled for H200s: what it takes, and what its tokens move."""

import pathlib

import pytest

from isocompute_jax.accelerators import DEVICES
from isocompute_jax.sampling.in_process import MARGIN

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


DENSE_8B, QWEN_7B = 8_030_261_248, 7_615_616_512


@pytest.mark.parametrize(
    ("target", "config", "parameters", "shards"),
    [
        ("gpu", "isocompute_hard_qwen2_5_7b.py", QWEN_7B, 8),
        ("gpu", "layouts/h200_1x8_dense8b_16k.py", DENSE_8B, 8),
        ("tpu", "layouts/v5p_4x4x4_dense8b_32k.py", DENSE_8B, 16),
    ],
)
def test_a_token_reads_weights_and_keys_where_they_lie(request, target, config, parameters, shards):
    """As many rollouts as there is memory for; no weights travel, and nothing large is copied."""
    device = DEVICES["h200" if target == "gpu" else "v5p"]
    found = request.getfixturevalue(target).call("tests.aot.unit_programs:unit_of", str(CONFIGS / config))
    taken, copy = found["temporaries"] + found["moved"], 2 * parameters
    assert 0.85 * found["counted"] < taken < MARGIN * found["counted"]
    state = 12 * parameters / shards  # float32 masters and two moments
    assert state + copy + taken < device.usable
    assert found["keys"] < found["temporaries"] < 1.1 * found["keys"]
    assert found["wire_bytes"] == 0
    assert 1 < found["token_bytes"] / (copy + found["keys"]) < 1.3
