"""Fused attention, forward and backward, compiled for its accelerators: linear memory, and the kernel that is meant."""

import pytest

LONGEST_MIB = 2048
"""Of temporaries at 32k tokens, where the queries take 256 MiB and the scores of one head would take 4 GiB."""


@pytest.mark.parametrize(
    ("kernel", "called", "mib_at_8k"), [("auto", ["mosaic_gpu"], 200), ("triton", ["triton"], 300)]
)
def test_h200(gpu, kernel, called, mib_at_8k):
    (short, kernels), (long, _) = (
        gpu.call("tests.aot.attention_programs:compiled", "h200:1x8", length, kernel) for length in (8192, 32768)
    )
    assert kernels == called
    assert short < mib_at_8k and long < LONGEST_MIB


@pytest.mark.parametrize("name", ["tpu:v5p:2x2x2", "tpu:v6e:2x2"])
def test_tpu(tpu, name):
    (short, kernels), (long, _) = (
        tpu.call("tests.aot.attention_programs:compiled", name, length, "auto") for length in (8192, 32768)
    )
    assert kernels == ["tpu_custom_call"]
    assert short < 300 and long < LONGEST_MIB


@pytest.mark.parametrize(("kernel", "dtype", "size"), [("mosaic", "bfloat16", 32), ("triton", "float32", 128)])
def test_h200_other_heads(gpu, kernel, dtype, size):
    """Heads cut over two devices, of a size that has to be filled up, and TF32."""
    mib, kernels = gpu.call("tests.aot.attention_programs:compiled", "h200:1x8", 1000, kernel, 2, size, dtype)
    assert kernels == ["mosaic_gpu" if kernel == "mosaic" else "triton"]
    assert mib < 64


@pytest.mark.parametrize(
    ("target", "topology", "context", "called", "most_mib"),
    [("gpu", "h200:1x8", 8, "mosaic_gpu", 700), ("tpu", "tpu:v5p:2x2x2", 4, "tpu_custom_call", 1200)],
)
def test_cut_rows(target, topology, context, called, most_mib, request):
    """128k tokens that eight H200 share, or four v5p; the queries of all of them are 1 GiB."""
    program = "tests.aot.attention_programs:compiled"
    cut = (topology, 2**17, "auto", 1, 128, "bfloat16", context)
    mib, kernels = request.getfixturevalue(target).call(program, *cut)
    assert kernels == [called]
    assert mib < most_mib


def test_tokamax_is_asked_for_the_same_function(gpu):
    """Our use of it, with its reference operator, on this CPU: values and gradients of q, k and v in bfloat16."""
    assert max(gpu.call("tests.aot.attention_programs:tokamax_by_reference")) < 2**-7


def test_saved_outputs_spare_the_second_forward_on_h200(gpu):
    """One kernel forward and two backward; one more where nothing is saved."""
    assert gpu.call("tests.aot.attention_programs:kernel_calls", "h200:1x8", "mosaic", "mosaic_gpu") == [3, 3, 4]


def test_saved_outputs_spare_the_second_forward_on_tpu(tpu):
    assert tpu.call("tests.aot.attention_programs:kernel_calls", "tpu:v6e:2x2", "splash", "tpu_custom_call") == [
        3,
        3,
        4,
    ]
