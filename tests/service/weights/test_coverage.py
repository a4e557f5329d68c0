"""Which numbers of a tensor have arrived."""

import grpc
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.weights.check import Coverage


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2), st.integers(1, 2)), max_size=8))
def test_what_is_missing_and_what_came_twice_is_known(boxes):
    tensor = TensorSpec("t", "float32", (5, 5))
    counts, coverage, refusal = np.zeros((5, 5), int), Coverage([tensor]), None
    try:
        for row, column, height, width in boxes:
            counts[row : row + height, column : column + width] += 1
            coverage.add(Box("t", "float32", (height, width), (row, column)))
        coverage.check_complete()
    except Refusal as error:
        refusal = error
    if counts.max() > 1:
        assert refusal and refusal.code == grpc.StatusCode.INVALID_ARGUMENT and "overlap" in refusal.message
    else:
        assert counts.sum() < 25 and refusal and refusal.code == grpc.StatusCode.DATA_LOSS
        assert f"{counts.sum()} of its 25" in refusal.message
