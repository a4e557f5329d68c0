"""Experts of Qwen3-30B-A3B, forward and backward, compiled for accelerators: the work of the active ones alone."""

import pytest

TOKENS = 16384
SORTED = TOKENS * 8 * 2048
"""Numbers of the tokens sorted by expert; [tokens, experts x F] would be six times as many."""


def again(axes):
    """Products over those of one pass: a visit in the ring, which is counted once, computes the forward ones twice."""
    return 4 / 3 if "expert" in axes else 1


@pytest.mark.parametrize("axes", [{"fsdp": 8}, {"fsdp": 2, "expert": 4}], ids=str)
def test_h200(gpu, axes):
    found = gpu.call("tests.aot.expert_programs:compiled", "h200:1x8", TOKENS, axes)
    assert found["kernels"] == ["mosaic_gpu"]
    assert found["permutes"] == ("expert" in axes)
    assert found["largest"] <= SORTED
    assert found["mib"] < 6000
    assert 0.99 < found["flops"] / again(axes) < 1.1


def test_scout_on_h200(gpu):
    """Larger experts, whose input is scaled: one of 16 for each token, two on each device."""
    found = gpu.call("tests.aot.expert_programs:compiled", "h200:1x8", TOKENS, {"expert": 8}, "SCOUT")
    assert found["kernels"] == ["mosaic_gpu"] and found["permutes"]
    # The tokens of eight visits, which the backward pass reads; [tokens, experts x F] would be three times as many.
    assert found["largest"] <= 8 * TOKENS * 5120
    # Of three products forward the last is not computed again: nothing multiplies what experts give.
    assert 0.99 < found["flops"] / (11 / 9) < 1.1


@pytest.mark.parametrize(
    ("name", "axes"), [("tpu:v5p:2x2x1", {"expert": 4}), ("tpu:v6e:2x2", {"fsdp": 4})], ids=["v5p", "v6e"]
)
def test_tpu(tpu, name, axes):
    found = tpu.call("tests.aot.expert_programs:compiled", name, TOKENS, axes)
    assert found["kernels"] == ["tpu_custom_call"]
    assert found["largest"] <= SORTED
    assert 0.99 < found["flops"] / again(axes) < 1.1
