"""What travels between processes arrives as it was sent, and nothing else does."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from isocompute_jax.distributed.link import Codec
from isocompute_jax.records.rollout import Completion, RolloutGroup

CODEC = Codec([RolloutGroup, Completion])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=40)
def test_plain_values_come_back_equal_and_of_their_types(value):
    found = CODEC.decode(CODEC.encode(value))
    assert found == value and type(found) is type(value)


@given(arrays.arrays(st.sampled_from([np.int32, np.float32, np.bool_, np.int16]), arrays.array_shapes(min_dims=0)))
def test_arrays_come_back_bit_for_bit_and_can_be_written_to(array):
    found = CODEC.decode(CODEC.encode({"x": array}))["x"]
    assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()
    assert found.flags.writeable


def test_a_group_comes_back_with_everything_that_it_has():
    completion = Completion.drawn(
        np.arange(3, dtype=np.int32),
        np.zeros(3, np.float32),
        np.full(3, 7, np.int32),
        "stop",
        np.ones((4, 1, 2), np.int16),
    )
    group = RolloutGroup(
        "p",
        3,
        np.arange(2, dtype=np.int32),
        (completion, completion),
        np.array([0, 1], np.float32),
        task="t",
        failures={1: "why"},
    )
    found = CODEC.decode(CODEC.encode([group]))[0]
    assert isinstance(found, RolloutGroup) and found.failures == {1: "why"} and found.task == "t" and found.step == 3
    for field in dataclasses.fields(Completion):
        ours, theirs = getattr(completion, field.name), getattr(found.completions[1], field.name)
        assert np.array_equal(ours, theirs), field.name


def test_scalars_of_numpy_become_numbers():
    assert CODEC.decode(CODEC.encode([np.float32(0.5), np.int64(3), np.bool_(True)])) == [0.5, 3, True]


def test_what_was_not_announced_does_not_travel():
    with pytest.raises(TypeError, match="a object does not travel"):
        CODEC.encode({"x": object()})
    with pytest.raises(TypeError, match="a RolloutGroup does not travel"):
        Codec().encode(RolloutGroup("p", 0, np.zeros(1, np.int32), ()))
