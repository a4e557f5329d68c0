"""Boxes of tensors: how they are cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.records.tensors import Box, TensorSpec


@given(
    shape=st.lists(st.integers(0, 7), max_size=4).map(tuple),
    limit=st.integers(4, 200),
    offset=st.integers(0, 3),
)
def test_cut_boxes_are_runs_of_bytes_that_follow_each_other(shape, limit, offset):
    box = Box("t", "float32", shape, (offset,) * len(shape))
    number = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    at = 0
    for part, start in box.cut(limit):
        assert (part.name, part.dtype) == ("t", "float32") and start == at
        here = tuple(slice(s.start - offset, s.stop - offset) for s in part.slices)
        run = number[here].ravel()
        np.testing.assert_array_equal(run, at // 4 + np.arange(len(run)))
        assert 0 < part.nbytes == 4 * len(run) <= limit
        at += part.nbytes
    assert at == box.nbytes == 4 * number.size


def test_a_tensor_is_a_box_of_itself():
    tensor = TensorSpec("t", "bfloat16", (2, 3))
    assert tensor.box == Box("t", "bfloat16", (2, 3), (0, 0)) and tensor.box.nbytes == tensor.nbytes == 12
