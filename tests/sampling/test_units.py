"""Dispatch units: as few as fit the budget, and evenly filled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.sampling.in_process import LEAST_LATER, UnitShape, later_unit_shape, unit_shape


@pytest.mark.parametrize(
    ("groups", "group_size", "budget", "shards", "expected"),
    [
        (6, 4, 8, 1, UnitShape(2, 4)),
        (6, 4, 11, 1, UnitShape(2, 4)),
        (3, 4, 64, 1, UnitShape(3, 4)),  # no larger than there is work
        (9, 4, 32, 1, UnitShape(5, 4)),  # 5 and 4, not 8 and 1
        (6, 10, 4, 1, UnitShape(1, 4)),  # parts of 4, 4 and 2
        (6, 9, 8, 1, UnitShape(1, 5)),  # 5 and 4, not 8 and 1
        (6, 4, 1, 1, UnitShape(1, 1)),
        (16, 4, 32, 4, UnitShape(8, 4)),
        (5, 4, 32, 4, UnitShape(8, 4)),  # 5 groups on 4 shards: two each, one of them idle on three
        (2, 10, 16, 4, UnitShape(4, 4)),  # each shard decodes 4
    ],
)
def test_unit_shapes(groups, group_size, budget, shards, expected):
    assert unit_shape(groups, group_size, budget, batch_shards=shards) == expected


@given(st.integers(1, 40), st.integers(2, 70), st.integers(1, 300), st.integers(1, 8))
def test_unit_shape_properties(groups, group_size, budget, shards):
    """Within budget (or one rollout per shard), sharded evenly, and no more units than the budget asks for."""
    shape = unit_shape(groups, group_size, budget, batch_shards=shards)
    assert shape.problems % shards == 0
    assert shape.problems * shape.rollouts <= max(budget, shards)
    rows = groups * -(-group_size // shape.rollouts)
    fullest = max(1, budget // shards // shape.rollouts) * shards
    assert -(-rows // shape.problems) <= -(-rows // fullest)


@given(st.integers(1, 4096), st.integers(1, 8))
def test_units_of_later_turns_come_in_few_shapes(budget, shards):
    """Within the budget (or a row per shard), and no more than four times what is needed, but for the smallest."""
    shapes = {later_unit_shape(rollouts, budget, batch_shards=shards) for rollouts in range(1, budget + 1)}
    assert len(shapes) <= 6 and {shape.rollouts for shape in shapes} == {1}
    for rollouts in {1, budget // 3 + 1, budget}:
        shape = later_unit_shape(rollouts, budget, batch_shards=shards)
        assert shape.problems % shards == 0 and shape.problems <= max(budget, shards)
        assert shape.problems <= max(LEAST_LATER * shards, 4 * (rollouts + shards))
        assert shape.problems >= min(rollouts, max(1, budget // shards) * shards)
