"""The head, compiled for its accelerators: memory at real sizes, what travels, and whether each product is there."""

import pytest

TOKENS, VOCAB, EMBED = 32_768, 152_064, 3_584
"""A row on each device; vocabulary and width of Qwen2.5-7B."""
PARAMETERS = VOCAB * EMBED * 4
"""Bytes of the head's float32 masters, and of their gradient, on all devices."""


def check_memory(target, name, tied):
    found = target.call(
        "tests.aot.head_programs:gradient", name, dict(vocab=VOCAB, embed=EMBED, tokens=TOKENS, tied=tied)
    )
    assert found["temporaries"] < 2e9
    # Neither logits of all tokens (20 GB), nor a whole head (1.1 GB in bfloat16): gathered, reduced or copied.
    assert found["largest"] <= max(4 * TOKENS * EMBED, PARAMETERS // 8)
    assert found["collective"] < PARAMETERS / 32


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_h200_32k_tokens_add_less_than_2_gb(gpu, tied):
    check_memory(gpu, "h200:1x8", tied)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_v5p_32k_tokens_add_less_than_2_gb(tpu, tied):
    check_memory(tpu, "tpu:v5p:2x2x2", tied)


@pytest.mark.parametrize(("dtype", "products"), [("float32", 3), ("bfloat16", 1)])
@pytest.mark.parametrize(("kind", "name"), [("gpu", "h200:1x8"), ("tpu", "tpu:v5p:2x2x2")])
def test_no_part_of_a_split_is_simplified_away(request, kind, name, dtype, products):
    """XLA may keep excess precision, which would make the low part zero and remove its products.

    There are four products of arrays: logits, once more in the backward pass, and two gradients. Float32 operands have
    three products each; bfloat16 ones have one, and two with the float32 cotangent.
    """
    found = request.getfixturevalue(kind).call(
        "tests.aot.head_programs:gradient",
        name,
        dict(vocab=32_768, embed=1_024, tokens=4_096, dtype=dtype, head="bf16_x3"),
    )
    assert found["products"] == 2 * products + 2 * (3 if products == 3 else 2)
    assert found["splits"] >= 1
