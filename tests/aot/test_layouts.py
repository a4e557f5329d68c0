"""Every named layout compiles for its accelerators, by their own compilers, and fits."""

import pathlib

import pytest

from isocompute_jax.plan.devices import DEVICES
from isocompute_jax.plan.tables import named_layouts

CONFIGS = {pathlib.Path(path).stem: path for path in named_layouts(pathlib.Path(__file__).parents[2] / "configs")}
SHARDS = {  # over which parameters are divided
    "h200_1x8_dense8b_16k": 8,
    "h200_2x8_dense8b_32k": 8,
    "v5p_4x4x4_dense8b_32k": 16,
    "v6e_16x16_dense8b_16k": 16,
}
DENSE = 8_030_261_248
"""Parameters of Llama 3.1 8B, as its model card counts them."""


def test_every_layout_is_here():
    assert set(SHARDS) == set(CONFIGS)


@pytest.mark.parametrize("name", SHARDS)
def test_it_compiles_and_fits(name, request):
    target = request.getfixturevalue("gpu" if name.startswith("h200") else "tpu")
    found = target.call("tests.aot.layout_programs:figures_of", CONFIGS[name], timeout=1800)
    assert found["fits"], f"{found['needed'] / 2**30:.1f} GiB"
    device = DEVICES[name.partition("_")[0]]
    memory = found["memory"]
    assert 0 < found["free"] == device.memory - device.reserve - memory["peak"]
    # Float32 masters and two moments, divided; only vectors are whole on every device.
    assert memory["params"] == pytest.approx(4 * DENSE / SHARDS[name], rel=2e-3)
    assert memory["moments"] == pytest.approx(2 * memory["params"], rel=1e-3)
    assert memory["outputs"] < 2**20  # the old state's memory is used again
    # Fully sharded: each micro-batch gathers bfloat16 weights twice, and receives no more than that and the gradients.
    weights = 2 * DENSE * (1 - 1 / SHARDS[name])
    received = sum(found["collectives"].values()) / found["microbatches"]
    assert 2 * weights * 0.8 < received < 6 * weights
    # No scores of all pairs, no logits of all tokens: a row of activations takes what its layers keep.
    assert memory["temporaries"] < 0.5 * device.memory
