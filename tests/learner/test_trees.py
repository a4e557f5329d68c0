"""Trees: every prefix of a group once in a row, every rollout whole, and the step that of the padded layout."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import learner
from isocompute_jax.learner import packing
from isocompute_jax.learner.trees import subtree_ends
from isocompute_jax.records.errors import InputError
from tests.learner.builders import LENGTH, make_groups
from tests.learner.test_packing import completion, group


def test_golden():
    groups = [
        group([1, 2], completion([5, 7, 3]), completion([5, 6, 3]), completion([4]), completion([5, 6, 3])),
        group([9], *(completion([8, 3]) for _ in range(4))),
    ]
    shape = learner.TreeShape(microbatches=2, rows=1, nodes=8, rollouts=8, tokens=3)
    batch = shape.lay_out(groups)
    assert batch.num_microbatches == 1
    # 1 2 5 6 7 of the first prompt, 9 8 of the second, and padding: no completion's last token predicts anything.
    assert batch.nodes[0, 0].tolist() == [1, 2, 5, 6, 7, 9, 8, 0]
    assert batch.positions[0, 0].tolist() == [0, 1, 2, 3, 3, 0, 1, 0]
    assert batch.ends[0, 0].tolist() == [5, 5, 5, 4, 5, 7, 7, 7]
    # In their order: [4], [5 6 3] twice, [5 7 3], [8 3] four times.
    assert batch.rollout[0, 0].tolist() == [2, 1, 3, 0, 4, 5, 6, 7]
    edges = list(zip(batch.edge_nodes[0, 0].tolist(), batch.edge_tokens[0, 0].tolist(), strict=True))
    assert edges[:8] == [(1, 4), (1, 5), (2, 6), (3, 3), (2, 7), (4, 3), (5, 8), (6, 3)]
    assert batch.edges[0, 0].tolist() == [[0, 0, 0], [1, 2, 3], [1, 2, 3], [1, 4, 5], *[[6, 7, 0]] * 4]
    assert batch.tokens[0, 0, :4].tolist() == [[4, 0, 0], [5, 6, 3], [5, 6, 3], [5, 7, 3]]
    assert batch.mask[0, 0, 0].tolist() == [True, False, False]
    np.testing.assert_allclose(batch.sampler_logprobs[0, 0, 3], [-0.05, -0.07, -0.03])
    assert not batch.mask[1].any() and batch.ends[1, 0].tolist() == list(range(8))
    assert batch.metrics() == {"tree_nodes": 7, "padding": 1 / 8, "num_rows": 1}


@st.composite
def steps(draw):
    """Groups of few tokens, so that they have much in common, the shape for them, and which are kept."""
    size, problems = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    max_prompt, max_tokens = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    alphabet = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = []
    for _ in range(problems):
        drawn = [rng.integers(0, alphabet, rng.integers(1, max_tokens + 1)) for _ in range(size)]
        completions = [completion(d, rng.random(len(d)) < 0.8) for d in drawn]
        groups.append(group(rng.integers(0, 9, rng.integers(1, max_prompt + 1)), *completions))
    shape = learner.tree_shape(
        problems_per_batch=problems,
        group_size=size,
        max_prompt_tokens=max_prompt,
        max_tokens=max_tokens,
        row_nodes=max_prompt + max_tokens - 1 + draw(st.integers(0, 30)),
        microbatch_tokens=draw(st.integers(1, 300)),
        batch_shards=draw(st.integers(1, 4)),
    )
    return groups, shape, rng.random(problems) < draw(st.sampled_from([0.0, 0.5, 1.0]))


def sequence_of(batch, row, node):
    """The tokens that a node sees, its own the last."""
    seen = [s for s in range(node + 1) if node < batch.ends[row][s]]
    assert batch.positions[row][seen].tolist() == list(range(len(seen)))
    return batch.nodes[row][seen].tolist()


@given(steps())
def test_every_kept_rollout_is_read_once_and_whole(step):
    groups, shape, kept = step
    batch = shape.lay_out(groups, kept=kept)
    flat = [(g, c) for g in groups for c in g.completions]
    found, used = [], set()
    for place in zip(*np.nonzero(np.asarray(batch.tokens != 0).any(-1) | batch.mask.any(-1)), strict=True):
        assert place[0] < batch.num_microbatches
        used.add(place[:2])
    for m, n in sorted(used):
        prefixes = []
        for slot in range(shape.rollouts):
            number = int(batch.rollout[m, n, slot])
            origin, drawn = flat[number]
            length = len(drawn.tokens)
            if batch.tokens[m, n, slot, :length].tolist() != drawn.tokens.tolist() or number in found:
                assert not batch.mask[m, n, slot].any()  # padding
                continue
            if not batch.mask[m, n, slot].any() and not drawn.tokens.any():
                continue  # nothing tells it from padding, and it trains on nothing
            found.append(number)
            np.testing.assert_array_equal(batch.mask[m, n, slot, :length], drawn.mask)
            np.testing.assert_array_equal(batch.sampler_logprobs[m, n, slot, :length], drawn.logprobs)
            for t, edge in enumerate(batch.edges[m, n, slot, :length]):
                read = [*origin.prompt_tokens.tolist(), *drawn.tokens[:t].tolist()]
                node = int(batch.edge_nodes[m, n, edge])
                assert sequence_of(batch, (m, n), node) == read
                assert batch.edge_tokens[m, n, edge] == drawn.tokens[t]
                prefixes.append((node, number // len(origin.completions), tuple(read)))
        nodes = {}
        for node, problem, read in prefixes:
            nodes.setdefault((problem, read), set()).add(node)
        assert all(len(same) == 1 for same in nodes.values())  # in a row, a prefix of a group is one node
    size = len(groups[0].completions)
    wanted = {i for i in range(len(flat)) if kept[i // size] and flat[i][1].mask.any()}
    assert wanted <= set(found) and all(kept[i // size] for i in found)


@given(st.integers(0, 2**32))
def test_descendants_end_where_the_next_node_is_no_deeper(seed):
    positions = np.random.default_rng(seed).integers(0, 5, (3, 12))
    for row, ends in zip(positions, subtree_ends(positions), strict=True):
        for t, end in enumerate(ends):
            assert all(row[t + 1 : end] > row[t]) and (end == len(row) or row[end] <= row[t])


def alike_groups():
    """Groups of a small alphabet: some completions are the same, others begin alike, a mask differs."""
    groups = make_groups()
    return [
        dataclasses.replace(
            group, completions=tuple(dataclasses.replace(c, tokens=c.tokens % 2) for c in group.completions)
        )
        for group in groups
    ]


def test_micro_batches_are_large_unless_that_leaves_rows_empty():
    sizes = {"problems_per_batch": 32, "group_size": 16, "max_prompt_tokens": 9, "max_tokens": 9, "row_nodes": 64}
    one = learner.tree_shape(**sizes, microbatch_tokens=2048)
    assert one.sizes == (16, 8, 4, 2) and one.microbatches * one.rows >= 512 / 3  # three of the longest to a row
    assert [one.size_for(rows) for rows in (1, 20, 23, 32, 33, 40, 100)] == [2, 4, 8, 16, 4, 8, 16]
    cut = learner.tree_shape(**sizes, microbatch_tokens=2048, batch_shards=4)
    assert cut.sizes == (32, 16, 8, 4)
    assert learner.tree_shape(**sizes, microbatch_tokens=1, batch_shards=3).sizes == (3,)


def test_a_short_run_has_fewer_sizes_compiled():
    """One for each 64 updates, 4 at most: first the quarter, which leaves few rows empty whatever a step has."""
    assert [packing.sizes_worth(updates) for updates in (1, 50, 127, 128, 192, 256, 10**6)] == [1, 1, 1, 2, 3, 4, 4]
    sizes = {"problems_per_batch": 32, "group_size": 16, "max_prompt_tokens": 9, "max_tokens": 9, "row_nodes": 64}
    shapes = [learner.tree_shape(**sizes, microbatch_tokens=2048, most_sizes=most) for most in (1, 2, 3, 4)]
    assert [shape.sizes for shape in shapes] == [(4,), (16, 4), (16, 8, 4), (16, 8, 4, 2)]
    two = learner.tree_shape(**sizes, microbatch_tokens=144, most_sizes=1)
    assert two.rows == 2 and two.sizes == (2,)  # there is no quarter
    assert learner.PackShape(20, 4, 64, most_sizes=1).sizes == (20,)
    assert learner.PackShape(20, 4, 64, most_sizes=2).sizes == (10, 20)


def test_a_batch_of_any_size_holds_the_same_rows():
    groups = alike_groups()
    batches = [
        learner.TreeShape(8 // rows, rows, nodes=16, rollouts=12, tokens=LENGTH).lay_out(groups) for rows in (8, 2)
    ]
    assert [int(batch.num_microbatches) * batch.nodes.shape[1] for batch in batches] == [6, 6]
    whole = [batch.nodes.reshape(-1, 16) for batch in batches]
    np.testing.assert_array_equal(whole[0][:6], whole[1][:6])


def test_what_does_not_fit_is_an_error():
    sizes = {"problems_per_batch": 2, "group_size": 2, "microbatch_tokens": 64}
    with pytest.raises(InputError, match=r"row_nodes = 8, but a prompt and its completion take up to 9 tokens"):
        learner.tree_shape(max_prompt_tokens=5, max_tokens=5, row_nodes=8, **sizes)
    shape = learner.tree_shape(max_prompt_tokens=2, max_tokens=2, row_nodes=3, **sizes)
    with pytest.raises(ValueError, match="a prompt of 3 and a completion of 2 tokens"):
        shape.lay_out([group([1, 2, 3], completion([1, 2]), completion([1]))])
    with pytest.raises(ValueError, match=r"5 rollouts take 5 rows"):
        shape.lay_out([group([1, 2], *(completion([i, 2]) for i in range(5)))])
