"""Fused attention, forward and backward, compiled for its accelerators: linear memory, and the kernel that is meant."""

import pytest


@pytest.mark.parametrize(
    ("kernel", "called", "mib_at_8k"), [("auto", ["mosaic_gpu"], 200), ("triton", ["triton"], 300)]
)
def test_h200(gpu, kernel, called, mib_at_8k):
    (short, kernels), (long, _) = (
        gpu.call("tests.aot.attention_programs:compiled", "h200:1x8", length, kernel) for length in (8192, 32768)
    )
    assert kernels == called
    assert short < mib_at_8k and long < 4.2 * short


@pytest.mark.parametrize("name", ["tpu:v5p:2x2x2", "tpu:v6e:2x2"])
def test_tpu(tpu, name):
    (short, kernels), (long, _) = (
        tpu.call("tests.aot.attention_programs:compiled", name, length, "auto") for length in (8192, 32768)
    )
    assert kernels == ["tpu_custom_call"]
    assert short < 300 and long < 4.2 * short
