"""Which numbers each rank of vLLM reads, worked by hand. tests/vllm holds vLLM itself to it."""

import numpy as np
import pytest

from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.server.engines.vllm.layout import Heads, Place, places, wanted

HEADS = Heads(queries=4, keys=2)


def parts(name, shape, place, heads=HEADS):
    """The index of each box of one tensor."""
    return [box.slices for box in wanted([TensorSpec(name, "bfloat16", shape)], place, heads)]


def at(tensor, tensor_parallel, replica=0, data_parallel=1):
    return Place(tensor, tensor_parallel, replica, data_parallel)


ALL = slice(0, 8)


@pytest.mark.parametrize(
    ("name", "shape", "place", "found"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (16, 8), at(1, 2), [(slice(8, 16), ALL)]),
        ("model.layers.0.self_attn.q_proj.bias", (16,), at(1, 2), [(slice(8, 16),)]),
        ("model.layers.0.self_attn.k_proj.weight", (8, 8), at(1, 2), [(slice(4, 8), ALL)]),
        # Two heads of four numbers for four ranks: the first of them is that of ranks 0 and 1.
        ("model.layers.0.self_attn.k_proj.weight", (8, 8), at(1, 4), [(slice(0, 4), ALL)]),
        ("model.layers.0.self_attn.v_proj.weight", (8, 8), at(2, 4), [(slice(4, 8), ALL)]),
        ("model.layers.0.self_attn.o_proj.weight", (8, 16), at(1, 2), [(ALL, slice(8, 16))]),
        ("model.layers.0.mlp.up_proj.weight", (12, 8), at(2, 4), [(slice(6, 9), ALL)]),
        ("model.layers.0.mlp.down_proj.weight", (8, 12), at(2, 4), [(ALL, slice(6, 9))]),
        ("model.layers.0.feed_forward.shared_expert.gate_proj.weight", (12, 8), at(0, 4), [(slice(0, 3), ALL)]),
        # Replicas of a dense model cut alike; experts are cut over the ranks of all replicas.
        ("model.layers.0.mlp.up_proj.weight", (12, 8), at(1, 2, 1, 2), [(slice(6, 12), ALL)]),
        ("model.layers.0.mlp.experts.3.up_proj.weight", (12, 8), at(1, 2, 1, 2), [(slice(9, 12), ALL)]),
        ("model.layers.0.mlp.experts.3.down_proj.weight", (8, 12), at(0, 2, 1, 2), [(ALL, slice(6, 9))]),
        # Gates, then ups; each is cut.
        (
            "model.layers.0.feed_forward.experts.gate_up_proj",
            (2, 8, 12),
            at(1, 2),
            [(slice(0, 2), ALL, slice(3, 6)), (slice(0, 2), ALL, slice(9, 12))],
        ),
        ("model.layers.0.feed_forward.experts.down_proj", (2, 6, 8), at(1, 2), [(slice(0, 2), slice(3, 6), ALL)]),
        # 100 rows are padded to 128: 64 for rank 0, 36 for rank 1; over four ranks 32, 32, 32, 4.
        ("model.embed_tokens.weight", (100, 8), at(1, 2), [(slice(64, 100), ALL)]),
        ("lm_head.weight", (100, 8), at(3, 4), [(slice(96, 100), ALL)]),
        ("lm_head.weight", (60, 8), at(1, 2), [(slice(32, 60), ALL)]),
        ("lm_head.weight", (30, 8), at(1, 2), []),  # its rows are all padding
        # Whole: for every rank, what nobody knows, and what does not divide.
        ("model.norm.weight", (8,), at(1, 2), [(ALL,)]),
        ("model.layers.0.self_attn.q_norm.weight", (8,), at(1, 2), [(ALL,)]),
        ("model.layers.0.mlp.gate.weight", (4, 8), at(1, 2), [(slice(0, 4), ALL)]),
        ("model.layers.0.mlp.up_proj.weight", (10, 8), at(1, 4), [(slice(0, 10), ALL)]),
        ("model.layers.0.self_attn.q_proj.weight", (12, 8), at(1, 3), [(slice(0, 12), ALL)]),
    ],
)
def test_what_a_rank_reads(name, shape, place, found):
    assert parts(name, shape, place) == found


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
@pytest.mark.parametrize("data_parallel", [1, 2])
def test_the_ranks_of_a_server_read_everything(tensor_parallel, data_parallel):
    shapes = {
        "model.embed_tokens.weight": (100, 16),
        "model.layers.0.self_attn.q_proj.weight": (32, 16),
        "model.layers.0.self_attn.k_proj.weight": (16, 16),
        "model.layers.0.self_attn.o_proj.weight": (16, 32),
        "model.layers.0.mlp.experts.0.gate_proj.weight": (48, 16),
        "model.layers.0.feed_forward.experts.gate_up_proj": (2, 16, 96),
    }
    for name, shape in shapes.items():
        count = np.zeros(shape, int)
        for place in places(tensor_parallel, data_parallel):
            for index in parts(name, shape, place, Heads(8, 4)):
                count[index] += 1
        whole = 1 if "experts" in name else data_parallel
        assert (count == (whole * 2 if "k_proj" in name and tensor_parallel == 8 else whole)).all(), name
