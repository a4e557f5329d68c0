"""Every named layout compiles for its accelerators, by their own compilers, and fits."""

import pathlib

import pytest

from isocompute_jax.accelerators import DEVICES

CONFIGS = {
    path.stem: str(path) for path in sorted((pathlib.Path(__file__).parents[2] / "configs/layouts").glob("*.py"))
}
SHARDS = {  # of the dense model's parameters
    "h200_1x8_dense8b_16k": 8,
    "h200_1x8_dense8b_128k": 8,  # over context
    "h200_2x8_dense8b_32k": 8,
    "v5p_4x4x4_dense8b_32k": 16,
    "v6e_16x16_dense8b_16k": 16,
}
DENSE = 8_030_261_248
"""Parameters of Llama 3.1 8B, by hand: 32 layers of 218,112,000, two tables of 128,256 x 4,096, and the last norm."""
EXPERTS = "h200_1x8_qwen3_30b_a3b_16k"
SCOUT = "h200_8x8_scout_16k"


def test_every_layout_is_here():
    assert {*SHARDS, EXPERTS, SCOUT} == set(CONFIGS)


def planned(name, request):
    """The figures of a layout, which fits."""
    target = request.getfixturevalue("gpu" if name.startswith("h200") else "tpu")
    found = target.call("tests.aot.layout_programs:figures_of", CONFIGS[name], timeout=1800)
    assert found["fits"], f"{found['needed'] / 2**30:.1f} GiB"
    device = DEVICES[name.partition("_")[0]]
    memory = found["memory"]
    assert 0 < found["free"] == device.usable - found["needed"]
    assert memory["moments"] == pytest.approx(2 * memory["params"], rel=1e-3)
    assert memory["outputs"] < 2**20  # the old state's memory is used again
    # No scores of all pairs, no logits of all tokens: a row of activations takes what its layers keep.
    assert memory["temporaries"] < 0.8 * device.memory
    return found


@pytest.mark.parametrize("name", SHARDS)
def test_a_dense_model_is_fully_sharded(name, request):
    found = planned(name, request)
    # Float32 masters, divided; only vectors are whole on every device.
    assert found["memory"]["params"] == pytest.approx(4 * DENSE / SHARDS[name], rel=2e-3)
    # Each micro-batch gathers bfloat16 weights twice, and receives no more than that and the gradients, twice at most.
    weights = 2 * DENSE * (1 - 1 / SHARDS[name])
    received = sum(found["collectives"].values()) / found["microbatches"]
    assert 1.6 * weights < received < 6 * weights
    if name.startswith("h200"):  # on TPUs products are convolutions in fusions of their own
        assert 0.99 < found["products"] < 1.08


def test_experts_are_divided_and_never_gathered(request):
    found = planned(EXPERTS, request)
    experts, others = 48 * 128 * 3 * 2048 * 768, 30_532_122_624 - 48 * 128 * 3 * 2048 * 768
    assert found["memory"]["params"] == pytest.approx(4 * (experts / 8 + others), rel=1e-6)
    assert "all-gather" not in found["collectives"]


def test_experts_and_all_weights_are_divided(request):
    """Experts over all 64 devices; what is no expert, over the 8 hosts, and whole among the devices of one."""
    found = planned(SCOUT, request)
    experts = 48 * 16 * 3 * 5120 * 8192
    others = 107_769_861_120 - experts
    assert found["memory"]["params"] == pytest.approx(4 * (experts / 64 + others / 8), rel=2e-3)
    # Of a micro-batch's weights each device gathers its own experts and all that are none, in bfloat16, three times at
    # most; gradients go the same way.
    weights = 2 * (experts / 8 + others) * 7 / 8
    gathered = found["collectives"]["all-gather"] / found["microbatches"]
    assert 1.6 * weights < gathered < 3 * weights


def test_what_does_not_fit_is_told_with_a_knob_that_helps(gpu):
    """Everything kept of 28k tokens in 32 layers is more than an H200 has; the results of products are not."""
    found = gpu.call("tests.aot.layout_programs:misfit", CONFIGS["h200_1x8_dense8b_16k"], timeout=1800)
    assert not found["fits"]
    [knob] = found["knobs"]
    assert knob["flags"] == ["--config.compute.remat=dots"] and knob["fits"]
    assert found["needed"] - knob["saves"] <= DEVICES["h200"].usable < found["needed"]
