"""The sampler's unit in the learner's process, compiled for H200s: what it takes, and what its tokens move."""

import pathlib

import pytest

from isocompute_jax.accelerators import DEVICES
from isocompute_jax.sampling.in_process import MARGIN

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("config", "parameters", "state"),
    [  # float32 masters and two moments, over eight devices
        ("isocompute_hard_qwen2_5_7b.py", 7_615_616_512, 12 * 7_615_616_512 / 8),
        ("layouts/h200_1x8_dense8b_16k.py", 8_030_261_248, 12 * 8_030_261_248 / 8),
    ],
)
def test_as_many_rollouts_as_memory_holds(gpu, config, parameters, state):
    """By the arrays of a unit and its margin they fit, in fact; and each token gathers at least half of the weights."""
    found = gpu.call("tests.aot.unit_programs:unit_of", str(CONFIGS / config))
    taken = found["temporaries"] + found["moved"]
    assert 0.85 * found["counted"] < taken < MARGIN * found["counted"]
    assert state + 2 * parameters / 8 + taken < DEVICES["h200"].usable
    assert found["keys"] < found["temporaries"] < 1.15 * found["keys"]  # in place but for a layer's
    assert 0.5 < found["wire_bytes"] / (2 * parameters) < 1.0
    assert found["launches"] > 1000
