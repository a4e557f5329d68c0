"""Packed rows: every rollout once and whole, shards alike, few shapes."""

import dataclasses
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.packing import draw_lengths
from isocompute_jax import learner, sharding
from isocompute_jax.learner.batches import CompiledShapes, microbatch_of
from isocompute_jax.learner.packing import arrange, best_fit, shard_attention
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.learner.builders import make_groups

SHAPE = learner.PackShape(microbatches=8, rows=4, row_tokens=16, shards=2)
FIELDS = ("tokens", "first", "mask", "sampler_logprobs", "rollout")


def completion(tokens, mask=None) -> Completion:
    """Its log-probabilities say its tokens: -token / 100."""
    tokens = np.asarray(tokens, np.int32)
    mask = np.ones(len(tokens), bool) if mask is None else np.asarray(mask, bool)
    logprobs = (-tokens / 100).astype(np.float32)
    return Completion(tokens, logprobs, mask, np.zeros(len(tokens), np.int32), "stop")


def group(prompt, *completions) -> RolloutGroup:
    return RolloutGroup("p", 0, np.asarray(prompt, np.int32), completions)


def random_groups(rng, lengths, *, size) -> list[RolloutGroup]:
    """Groups of `size` whose sequences are about `lengths` long: the prompt is at most half of the group's shortest."""
    groups = []
    for start in range(0, len(lengths), size):
        part = lengths[start : start + size]
        prompt = rng.integers(1, 1 + min(part) // 2)
        drawn = [rng.integers(1, 99, length - prompt) for length in part]
        groups.append(group(rng.integers(1, 99, prompt), *(completion(d, rng.random(len(d)) < 0.8) for d in drawn)))
    return groups


def segments(batch):
    """(micro-batch, row, start, end) of what `first` holds together, padding included, token by token."""
    first = np.asarray(batch.first)
    for m, n in np.ndindex(first.shape[:2]):
        start = 0
        while start < first.shape[2]:
            end = start + 1
            while end < first.shape[2] and first[m, n, end] == start:
                end += 1
            yield m, n, start, end
            start = end


# --- by hand


def test_golden():
    """Lengths 5, 3 and 7, 3 in rows of 10: the longest alone first, then the least attention that has room."""
    groups = [
        group([70, 71], completion([1, 2, 3], [1, 0, 1]), completion([4])),
        group([90], completion([5, 6, 7, 8, 9, 10]), completion([11, 12])),
    ]
    batch = learner.PackShape(2, 2, 10, 2).lay_out(groups)
    assert int(batch.num_microbatches) == 1
    expected = {
        "tokens": [[90, 5, 6, 7, 8, 9, 10, 90, 11, 12], [70, 71, 1, 2, 3, 70, 71, 4, 0, 0]],
        "first": [[0, 0, 0, 0, 0, 0, 0, 7, 7, 7], [0, 0, 0, 0, 0, 5, 5, 5, 8, 9]],
        "mask": [[0, 1, 1, 1, 1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 1, 0, 0, 1, 0, 0]],
        "sampler_logprobs": np.array([[0, 5, 6, 7, 8, 9, 10, 0, 11, 12], [0, 0, 1, 2, 3, 0, 0, 4, 0, 0]]) / -100,
        "rollout": [[2, 2, 2, 2, 2, 2, 2, 3, 3, 3], [0, 0, 0, 0, 0, 1, 1, 1, 0, 0]],
    }
    for name, value in expected.items():
        found = getattr(batch, name)
        assert found.dtype == {"mask": bool, "sampler_logprobs": np.float32}.get(name, np.int32)
        np.testing.assert_array_equal(found, np.asarray(value, found.dtype)[None], err_msg=name)
    assert batch.metrics(2) == {
        "padding": 2 / 20,
        # 7 x 8 / 2 + 3 x 4 / 2 = 34 pairs beside 5 x 6 / 2 + 3 x 4 / 2 = 21
        "attention_imbalance": 34 / 27.5,
        "num_rows": 2,
    }


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([6, 5, 4, 3, 2], [[0, 2], [1, 3, 4]]),  # 4 fills the first row
        ([7, 6, 3, 2, 2], [[0, 2], [1, 3, 4]]),  # 3 goes where the least is left, 2 where it still fits
        ([10, 10], [[0], [1]]),
        ([], []),
    ],
)
def test_best_fit_golden(lengths, rows):
    assert best_fit(lengths, 10) == rows


# --- whatever the lengths


@st.composite
def steps(draw):
    """Groups, the shape for them, and which are kept."""
    size, problems = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    max_prompt, max_tokens = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    row_tokens = max_prompt + max_tokens + draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = []
    for _ in range(problems):
        drawn = [rng.integers(1, 99, rng.integers(1, max_tokens + 1)) for _ in range(size)]
        completions = [completion(d, rng.random(len(d)) < 0.8) for d in drawn]
        groups.append(group(rng.integers(1, 99, rng.integers(1, max_prompt + 1)), *completions))
    shape = learner.pack_shape(
        problems_per_batch=problems,
        group_size=size,
        max_prompt_tokens=max_prompt,
        max_tokens=max_tokens,
        row_tokens=row_tokens,
        microbatch_tokens=draw(st.integers(1, 300)),
        batch_shards=draw(st.integers(1, 4)),
    )
    kept = rng.random(problems) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return groups, shape, kept


@given(steps())
def test_every_kept_rollout_lies_in_one_row_once_and_whole(step):
    groups, shape, kept = step
    batch = shape.lay_out(groups, kept=kept)
    assert batch.tokens.shape[0] in shape.sizes and batch.tokens.shape[1:] == (shape.rows, shape.row_tokens)
    flat = [(g, c) for g in groups for c in g.completions]
    found = []
    for m, n, start, end in segments(batch):
        fields = {name: getattr(batch, name)[m, n, start:end] for name in FIELDS}
        if end - start == 1:
            assert [fields[name].item() for name in FIELDS] == [0, start, False, 0.0, 0]
            continue
        assert m < batch.num_microbatches
        [number] = set(fields["rollout"].tolist())
        found.append(number)
        origin, drawn = flat[number]
        nothing = np.zeros(len(origin.prompt_tokens))
        np.testing.assert_array_equal(fields["tokens"], np.concatenate([origin.prompt_tokens, drawn.tokens]))
        np.testing.assert_array_equal(fields["mask"], np.concatenate([nothing, drawn.mask]))
        np.testing.assert_array_equal(fields["sampler_logprobs"], np.concatenate([nothing, drawn.logprobs]))
    size = len(groups[0].completions)
    assert sorted(found) == [i for i in range(len(flat)) if kept[i // size]]
    held = {(m, n) for m, n, start, end in segments(batch) if end - start > 1}
    assert int(batch.num_microbatches) == -(-len(held) // shape.rows)  # as many rows as needed, and no more


@given(steps())
def test_unpack_returns_what_was_packed(step):
    groups, shape, kept = step
    batch = shape.lay_out(groups, kept=kept)
    size = len(groups[0].completions)
    unpacked = learner.unpack(batch, np.stack([batch.tokens, batch.sampler_logprobs], axis=-1), groups)
    assert len(unpacked) == len(groups) * size
    for number, values in enumerate(unpacked):
        if not kept[number // size]:
            assert values is None
            continue
        drawn = groups[number // size].completions[number % size]
        np.testing.assert_array_equal(values, np.stack([drawn.tokens, drawn.logprobs], axis=-1))


@given(steps(), st.randoms(use_true_random=False))
def test_statistics_do_not_depend_on_the_order(step, random):
    groups, shape, _ = step
    batch = shape.lay_out(groups)
    jax.tree.map(np.testing.assert_array_equal, shape.lay_out(groups), batch)
    moved = [
        dataclasses.replace(g, completions=tuple(random.sample(g.completions, len(g.completions)))) for g in groups
    ]
    random.shuffle(moved)
    again = shape.lay_out(moved)
    np.testing.assert_array_equal(again.first, batch.first)
    assert again.metrics(shape.shards) == batch.metrics(shape.shards)


@given(steps())
def test_statistics_count_what_attention_sees(step):
    groups, shape, _ = step
    batch = shape.lay_out(groups)
    used = int(batch.num_microbatches)
    expected = np.zeros((used, shape.shards))
    for m, n, start, end in segments(batch):
        if end - start > 1:
            expected[m, n * shape.shards // shape.rows] += sum(t + 1 for t in range(end - start))
    np.testing.assert_array_equal(shard_attention(batch, shape.shards), expected)
    tokens = sum(len(g.prompt_tokens) + len(c.tokens) for g in groups for c in g.completions)
    metrics = batch.metrics(shape.shards)
    assert metrics["num_rows"] == used * shape.rows
    assert metrics["padding"] == pytest.approx(1 - tokens / (used * shape.rows * shape.row_tokens), abs=1e-12)


# --- the shape


@given(
    problems=st.integers(1, 40),
    group_size=st.integers(1, 32),
    longest=st.integers(2, 40),
    spare=st.integers(0, 100),
    microbatch_tokens=st.integers(1, 4000),
    shards=st.integers(1, 8),
)
def test_pack_shape_properties(problems, group_size, longest, spare, microbatch_tokens, shards):
    row_tokens = longest + spare
    shape = learner.pack_shape(
        problems_per_batch=problems,
        group_size=group_size,
        max_prompt_tokens=1,
        max_tokens=longest - 1,
        row_tokens=row_tokens,
        microbatch_tokens=microbatch_tokens,
        batch_shards=shards,
    )
    assert shape.rows % shards == 0
    assert shape.rows // shards * row_tokens <= max(microbatch_tokens / shards, row_tokens)  # or a single row
    assert 1 <= len(shape.sizes) <= 4 and shape.sizes[-1] == shape.microbatches
    # The worst lengths fit, the longest and those just above a half, and the longest need every micro-batch.
    for length in (longest, min(longest, row_tokens // 2 + 1), 2):
        rows = arrange([length] * (problems * group_size), shape)
        assert len(rows) <= shape.microbatches * shape.rows
        if length == longest:
            assert len(rows) == shape.microbatches * shape.rows


def test_few_shapes_are_compiled_and_each_is_logged(caplog):
    shape = learner.PackShape(microbatches=20, rows=2, row_tokens=8)
    assert shape.sizes == (3, 5, 10, 20)
    seen = CompiledShapes()
    with caplog.at_level(logging.INFO):
        for rollouts in range(1, 41):
            batch = shape.lay_out([group([1], *[completion([1] * 6)] * rollouts)])
            assert int(batch.num_microbatches) == -(-rollouts // 2)
            assert batch.tokens.shape[0] == min(s for s in shape.sizes if s >= -(-rollouts // 2))
            seen.note(batch)
    assert len(seen) == 4
    assert [record.message for record in caplog.records][1:3] == [
        "the step is compiled for 5 x 2 rows of 8 tokens (its shape 2)",
        "the step is compiled for 10 x 2 rows of 8 tokens (its shape 3)",
    ]


# --- what it is for


@pytest.mark.parametrize(("rows", "shards"), [(8, 8), (8, 4), (16, 8)])
def test_real_lengths_are_packed_tightly_and_evenly(rows, shards):
    """1,024 rollouts, log-normal with median 2k and sigma 1 up to 14k after prompts of 200 to 2k, in rows of 16k."""
    shape = learner.PackShape(1024 // rows, rows, 16_384, shards)
    sizes = set()
    for seed in range(20):
        prompts, completions = draw_lengths(np.random.default_rng(seed))
        lengths = np.ravel(prompts[:, None] + completions)
        placed = arrange(lengths.tolist(), shape)
        assert sorted(itertools.chain(*placed)) == list(range(1024))
        tokens = np.array([sum(lengths[i] for i in row) for row in placed])
        squares = np.array([sum(int(lengths[i]) ** 2 for i in row) for row in placed], float)
        assert tokens.max() <= 16_384
        # Beyond the rounding to whole micro-batches, a hundredth at most.
        assert 1 - lengths.sum() / (len(placed) * 16_384) < min(0.05 if rows == 8 else 1, 0.01 + rows / len(placed))
        by_microbatch = squares.reshape(-1, rows)
        assert np.all(by_microbatch.min(axis=1)[:-1] >= by_microbatch.max(axis=1)[1:])  # rows that are alike, together
        loads = squares.reshape(-1, shards, rows // shards).sum(axis=2)
        assert loads.sum(axis=0).max() / loads.sum(axis=0).mean() < 1.01
        assert loads.max(axis=1).sum() / loads.mean(axis=1).sum() < 1.05
        sizes.add(min(size for size in shape.sizes if size * rows >= len(placed)))
    assert len(sizes) <= 2


def test_the_batch_is_as_balanced_as_its_lengths_say():
    """The same distribution at a sixty-fourth of its lengths, through the arrays."""
    rng = np.random.default_rng(0)
    prompts, completions = draw_lengths(rng)
    lengths = np.ravel(prompts[:, None] + completions) // 64 + 1
    groups = random_groups(rng, lengths.tolist(), size=16)
    shape = learner.PackShape(microbatches=128, rows=8, row_tokens=256, shards=8)
    metrics = shape.lay_out(groups).metrics(8)
    assert metrics["padding"] < 0.05 and 1 <= metrics["attention_imbalance"] < 1.05
    totals = shard_attention(shape.lay_out(groups), 8).sum(axis=0)
    assert totals.max() / totals.mean() < 1.01


def test_sequences_are_spread_over_the_rows_of_the_last_microbatch():
    """Two rows would hold all eight; the other six are computed anyway."""
    groups = [group([1], *[completion([1] * 3)] * 8)]
    batch = learner.PackShape(2, 8, 16, 8).lay_out(groups)
    assert batch.metrics(8) == {"padding": 0.75, "attention_imbalance": 1.0, "num_rows": 8}


# --- beside the padded layout


def test_numbers_and_tokens_are_those_of_the_padded_layout():
    """`Credit.of` and everything that is summed over trained tokens find the same in both."""
    groups = make_groups()
    kept = np.array([True, True, False, True, True, True])
    shape = learner.batch_shape(
        problems_per_batch=6, group_size=4, max_prompt_tokens=6, max_tokens=5, microbatch_tokens=100
    )
    padded, packed = shape.lay_out(groups, kept=kept), SHAPE.lay_out(groups, kept=kept)
    numbers = np.broadcast_to(padded.rollout[..., None], padded.tokens.shape)

    def trained(batch, rollout):
        columns = rollout, batch.tokens, batch.sampler_logprobs
        return sorted(zip(*(np.asarray(x)[batch.mask].tolist() for x in columns), strict=True))

    assert trained(packed, packed.rollout) == trained(padded, numbers)


def test_placed_and_cut_into_microbatches_like_the_padded_layout():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    batch = dataclasses.replace(SHAPE, shards=4).lay_out(make_groups())
    assert int(batch.num_microbatches) > 1
    placed = learner.place_batch(batch, mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, batch)
    for name in FIELDS:
        value = getattr(placed, name)
        assert value.sharding.shard_shape(value.shape) == (value.shape[0], 1, 16)
    cut = jax.jit(lambda batch, index: microbatch_of(batch, index, mesh))(placed, jnp.int32(1))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(cut, name), getattr(batch, name)[1])


# --- nothing to train on, and bad input


def test_a_step_without_signal_holds_no_microbatch():
    batch = SHAPE.lay_out(make_groups(), kept=np.zeros(6, bool))
    assert int(batch.num_microbatches) == 0 and batch.tokens.shape == (1, 4, 16)
    assert not batch.mask.any()
    np.testing.assert_array_equal(batch.first, np.broadcast_to(np.arange(16), (1, 4, 16)))
    assert batch.metrics(2) == {"padding": 0.0, "attention_imbalance": 1.0, "num_rows": 0}
    assert learner.unpack(batch, batch.tokens, make_groups()) == [None] * 24


def test_a_row_that_cannot_hold_the_longest_sequence_is_refused():
    with pytest.raises(InputError) as caught:
        learner.pack_shape(
            problems_per_batch=2,
            group_size=4,
            max_prompt_tokens=2048,
            max_tokens=8192,
            row_tokens=8192,
            microbatch_tokens=65_536,
        )
    message = str(caught.value)
    for field in ("row_tokens = 8192", "max_prompt_tokens = 2048", "max_tokens = 8192"):
        assert field in message
    assert "raise row_tokens to 10240" in message


@pytest.mark.parametrize(
    ("prompt", "lengths", "message"),
    [
        (3, [14], "problem 'p': a prompt of 3 and a completion of 14 tokens; rows hold 16"),
        (0, [4], "a prompt of 0 and a completion of 4 tokens; .* a prompt is not empty"),
        (1, [15] * 33, r"33 rollouts take 36 rows, and PackShape\(.*\) has 32"),
    ],
)
def test_what_does_not_fit_is_an_error(prompt, lengths, message):
    groups = [group([1] * prompt, *(completion([1] * length) for length in lengths))]
    with pytest.raises(ValueError, match=message):
        SHAPE.lay_out(groups)


def test_unpack_refuses_values_of_another_batch():
    batch = SHAPE.lay_out(make_groups())
    with pytest.raises(ValueError, match=r"values \(1, 4, 16\) are not of a batch"):
        learner.unpack(batch, batch.tokens[:1], make_groups())


def test_a_process_writes_its_rows_alone_and_knows_what_lies_in_the_others():
    rng = np.random.default_rng(0)
    groups = random_groups(rng, rng.integers(3, 12, 24), size=4)
    shape = learner.pack_shape(
        problems_per_batch=6, group_size=4, max_prompt_tokens=4, max_tokens=12, row_tokens=24, microbatch_tokens=96
    )
    whole = shape.lay_out(groups)
    own = np.arange(shape.rows) % 2 == 0
    half = shape.lay_out(groups, own=own)
    for name in ("first", "mask", "rollout", "num_microbatches"):
        np.testing.assert_array_equal(getattr(half, name), getattr(whole, name))
    for name in ("tokens", "sampler_logprobs"):
        np.testing.assert_array_equal(getattr(half, name)[:, own], getattr(whole, name)[:, own])
        assert not np.any(getattr(half, name)[:, ~own]) and np.any(getattr(whole, name)[:, ~own])
