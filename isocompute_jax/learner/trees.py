"""Trees: what rollouts of a prompt have in common is computed once, the prompt and equal beginnings alike.

The sibling of `layout` for short completions, of which many begin alike or are the same. The prefixes of a group's
completions are the nodes of a tree that grows from the prompt. A row of W nodes holds the trees of one or more groups
in depth-first order, so that a node's descendants follow it at once: node t sees s if s <= t < end[s], where its
descendants end. What a node predicts is an edge, (node, next token), scored once for all rollouts that take it.
Gradients equal those of any other layout: a sum over rollouts is a sum over edges of what their rollouts add up to.

Attention of a row is dense: rows are short. A tree that fills its row continues in the next one, where what it has in
common with the first is computed again. The same groups always give the same batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import flax.struct
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isocompute_jax.learner.credit import first_numbers
from isocompute_jax.learner.layout import RolloutRows
from isocompute_jax.learner.packing import MOST_SIZES
from isocompute_jax.records.errors import Field, InputError
from isocompute_jax.records.rollout import RolloutGroup

SHARD_ROWS = 16
"""Rows of a micro-batch on each shard: what a core's cache holds (BENCHMARKS.md, "Beside TRL and tunix")."""
LEAST_MICROBATCHES = 16
"""Micro-batches of a step whose rollouts have nothing in common, where it has so many rows that they may be larger."""
FIRST_SIZES = (2, 0, 1, 3)
"""Which of the most rows, its half, quarter and eighth come first where a run has less than four sizes: the quarter
leaves few rows empty, whatever a step has, and takes little more time for each than the most."""


@flax.struct.dataclass
class TreeBatch(RolloutRows):
    """One batch, cut into M micro-batches of N rows of W nodes, of E edges, and of R rollouts of T tokens.

    A node is a token that rollouts have read, with all that came before it; an edge is a node and the token after it.
    A micro-batch is the same without the leading M; that is what a score function sees.
    """

    # tokens of prompts, and of completions but their last, depth first; 0 on padding
    nodes: Int[Array | np.ndarray, "*M N W"]
    # of the node in its sequence; a tree begins at 0, and so does each node of padding
    positions: Int[Array | np.ndarray, "*M N W"]
    # where the node's descendants end: node t sees node s if s <= t < ends[s]; its own index on padding, which nobody
    # sees
    ends: Int[Array | np.ndarray, "*M N W"]
    edge_nodes: Int[Array | np.ndarray, "*M N E"]  # nodes that edges leave; any on padding
    edge_tokens: Int[Array | np.ndarray, "*M N E"]  # tokens that they lead to
    edges: Int[Array | np.ndarray, "*M N R T"]  # the edge of each completion token; any on padding
    # the others as in `TokenBatch`
    tokens: Int[Array | np.ndarray, "*M N R T"]
    mask: Bool[Array | np.ndarray, "*M N R T"]
    sampler_logprobs: Float[Array | np.ndarray, "*M N R T"]
    rollout: Int[Array | np.ndarray, "*M N R"]
    num_microbatches: Int[Array | np.ndarray, ""] | np.int32
    old_logprobs: Float[Array | np.ndarray, "*M N R T"] | None = None
    reference_logprobs: Float[Array | np.ndarray, "*M N R T"] | None = None

    axes: ClassVar[tuple[str, ...]] = ("batch",)

    def metrics(self, shards: int = 1) -> dict[str, float | int]:
        """What a line of metrics says of the trees of a step, from the host's arrays.

        Returns:
          `tree_nodes`: tokens that were computed, whatever had them in common; `padding`: share of the nodes computed
          that belong to no tree; `num_rows`: rows computed, of the last micro-batch the empty ones too.
        """
        used = int(self.num_microbatches)
        ends = np.asarray(self.ends)[:used]
        nodes = int((ends > np.arange(ends.shape[-1])).sum())
        return {
            "tree_nodes": nodes,
            "padding": 1 - nodes / ends.size if used else 0.0,
            "num_rows": used * ends.shape[1],
        }


@dataclasses.dataclass(frozen=True)
class TreeShape:
    """Up to `microbatches` micro-batches of `rows` rows of `nodes` nodes and `rollouts` completions of `tokens`.

    The rows of a micro-batch are cut into `shards` parts. A run has up to `most_sizes` of its `sizes` compiled.
    """

    microbatches: int
    rows: int
    nodes: int
    rollouts: int
    tokens: int
    shards: int = 1
    most_sizes: int = MOST_SIZES

    axis: ClassVar[str] = "batch"
    least: ClassVar[str] = "a row"

    @property
    def microbatch_tokens(self) -> int:
        """Nodes of a micro-batch, padding included."""
        return self.rows * self.nodes

    @property
    def edges(self) -> int:
        """Of a row, at most: each node ends one, and each rollout's last token is another."""
        return self.nodes + self.rollouts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that micro-batches come in: of the most, its half, and so on, as shards allow."""
        halves = [self.rows // 2**i for i in range(MOST_SIZES) if self.rows % (2**i * self.shards) == 0]
        first = [halves[i] for i in FIRST_SIZES if i < len(halves)][: self.most_sizes]
        return tuple(sorted(first, reverse=True))

    def size_for(self, rows: int) -> int:
        """The largest size with which so many rows take little more than with any other, an eighth at most."""
        computed = [-(-rows // size) * size for size in self.sizes]
        return next(size for size, taken in zip(self.sizes, computed, strict=True) if taken * 8 <= min(computed) * 9)

    @property
    def least_bytes(self) -> int:
        """Of the arrays of a batch, of whatever size."""
        row = 12 * self.nodes + 8 * self.edges + self.rollouts * (13 * self.tokens + 4)
        return self.microbatches * self.rows * row

    def blanks(self) -> list[TreeBatch]:
        """Batches of padding alone, one of each size that batches come in, the largest first."""
        return [_folded(_empty(self), self, size, 0) for size in self.sizes]

    def lay_out(
        self,
        groups: Sequence[RolloutGroup],
        *,
        kept: Bool[np.ndarray, "P"] | None = None,
        own: Bool[np.ndarray, "N"] | None = None,
    ) -> TreeBatch:
        """The trees of one step, as host arrays: they travel with the call of the step, or by `place_batch`.

        Args:
          groups: P groups, of any sizes; none for a batch of padding alone.
          kept: [P] groups to lay out (`Credit.kept`: what has no weight need not be computed); None for all.
          own: not looked at: rows are short, and every process writes all of them.

        Raises:
          ValueError: a rollout is longer than a row, or they need more rows than there are.
        """
        rollouts = _sorted(groups, self.tokens, kept)
        places = _place(rollouts, self)
        rows = int(places.row[-1]) + 1 if len(places.row) else 0
        total = self.microbatches * self.rows
        if rows > total:
            raise ValueError(f"{len(places.row)} rollouts take {rows} rows, and {self} has {total}")
        return _folded(_arrays(rollouts, places, self), self, self.size_for(rows), rows)


def tree_shape(
    *,
    problems_per_batch: int,
    group_size: int,
    max_prompt_tokens: int,
    max_tokens: int,
    row_nodes: int,
    microbatch_tokens: int,
    batch_shards: int = 1,
    most_sizes: int = MOST_SIZES,
) -> TreeShape:
    """The shape of steps of problems x group_size rollouts, for whatever they have in common.

    A micro-batch has up to `microbatch_tokens` nodes, over all of its shards, and at least a row for each of
    `batch_shards`, the number of parts that the batch axis is sharded into. The last one of a step is computed whole,
    so that steps come in several sizes of micro-batches, `most_sizes` at most (see `sizes_worth`).

    Raises:
      InputError: a row does not hold a rollout of the greatest length.
    """
    longest = max_prompt_tokens + max_tokens - 1  # the last token predicts nothing
    if longest > row_nodes:
        raise InputError(
            Field("row_nodes"),
            f" = {row_nodes}, but a prompt and its completion take up to {longest} tokens (",
            Field("max_prompt_tokens"),
            f" = {max_prompt_tokens} and ",
            Field("max_tokens"),
            f" = {max_tokens}), and lie in one row; raise ",
            Field("row_nodes"),
            f" to {longest}, or lower one of the others",
        )
    total = problems_per_batch * group_size
    rollouts = min(total, max(1, row_nodes * 3 // 4))
    # A row is closed only when it has no room for another rollout, so all but the last hold at least that many.
    most_rows = -(-total // min(rollouts, row_nodes // longest))
    budget = microbatch_tokens // row_nodes
    quick = max(SHARD_ROWS * batch_shards, most_rows // LEAST_MICROBATCHES)
    of_a_shard = max(1, min(budget, quick, most_rows) // batch_shards)
    rows = 2 ** (of_a_shard.bit_length() - 1) * batch_shards  # a power of two on each shard: halves are sizes too
    return TreeShape(-(-most_rows // rows), rows, row_nodes, rollouts, max_tokens, batch_shards, most_sizes)


def _folded(arrays: dict[str, np.ndarray], shape: TreeShape, size: int, rows: int) -> TreeBatch:
    """The first `rows` rows in as many micro-batches of `size` rows as they need."""
    folds = shape.microbatches * shape.rows // size
    folded: dict[str, Any] = {name: x.reshape(folds, size, *x.shape[1:]) for name, x in arrays.items()}
    return TreeBatch(num_microbatches=np.int32(-(-rows // size)), **folded)


class _Rollouts(NamedTuple):
    """R rollouts, group by group, and within a group in the order of their tokens.

    number: [R] which rollout of the step it is; prompt: [R] index of its prompt in `prompts`; tokens: [R, T], -1 beyond
    the `length` [R] of each; mask, sampler_logprobs: [R, T], of the tokens, in nats; common: [R] tokens with which it
    and the one before it, of the same group, begin alike.
    """

    number: Int[np.ndarray, "R"]
    prompt: Int[np.ndarray, "R"]
    prompts: list[np.ndarray]
    tokens: Int[np.ndarray, "R T"]
    mask: Bool[np.ndarray, "R T"]
    sampler_logprobs: Float[np.ndarray, "R T"]
    length: Int[np.ndarray, "R"]
    common: Int[np.ndarray, "R"]


def _sorted(groups: Sequence[RolloutGroup], most: int, kept: Bool[np.ndarray, "P"] | None) -> _Rollouts:
    """The rollouts of the kept groups, brought into order."""
    chosen = np.arange(len(groups)) if kept is None else np.flatnonzero(kept)
    taken = [groups[index] for index in chosen.tolist()]
    completions = [completion for group in taken for completion in group.completions]
    prompts = [group.prompt_tokens for group in taken]
    sizes = np.array([len(group.completions) for group in taken], int)
    prompt = np.repeat(np.arange(len(prompts)), sizes)
    number = np.arange(len(completions)) + np.repeat(first_numbers(groups)[chosen] - (np.cumsum(sizes) - sizes), sizes)
    length = np.array([len(completion.tokens) for completion in completions], np.int64)
    filled = np.arange(most) < length[:, None]
    fields = {}
    for name, empty in (("tokens", np.int32(-1)), ("mask", np.False_), ("logprobs", np.float32(0))):
        fields[name] = np.full((len(completions), most), empty)
        if completions:
            fields[name][filled] = np.concatenate([getattr(completion, name) for completion in completions])
    tokens = fields["tokens"]
    order = np.lexsort((*tokens.T[::-1], prompt))
    tokens, prompt = tokens[order], prompt[order]
    alike = (tokens[1:] == tokens[:-1]) & (tokens[1:] >= 0) & (prompt[1:] == prompt[:-1])[:, None]
    common = np.zeros(len(tokens), np.int64)
    common[1:] = np.logical_and.accumulate(alike, axis=1).sum(axis=1)
    return _Rollouts(
        number[order], prompt, prompts, tokens, fields["mask"][order], fields["logprobs"][order], length[order], common
    )


class _Places(NamedTuple):
    """Where R rollouts lie.

    row: [R]; slot: [R] among the rollouts of its row; begins: [R] whether a tree begins with it, prompt and all; start:
    [R] index of the first node that it adds.
    """

    row: Int[np.ndarray, "R"]
    slot: Int[np.ndarray, "R"]
    begins: Bool[np.ndarray, "R"]
    start: Int[np.ndarray, "R"]


def _place(rollouts: _Rollouts, shape: TreeShape) -> _Places:
    """Rollouts in their order, each into the row of the one before it while that has room."""
    places = []
    row, used, slot, before, last = 0, 0, 0, -1, 0
    lengths = [len(prompt) for prompt in rollouts.prompts]
    for prompt, length, common in zip(
        rollouts.prompt.tolist(), rollouts.length.tolist(), rollouts.common.tolist(), strict=True
    ):
        whole = lengths[prompt] + length - 1
        if not lengths[prompt] or whole > shape.nodes:
            raise ValueError(f"a prompt of {lengths[prompt]} and a completion of {length} tokens; {shape}")
        begins = prompt != before
        adds = whole if begins else length - 1 - min(common, last - 1)
        if used + adds > shape.nodes or slot == shape.rollouts:
            row, used, slot, begins, adds = row + 1, 0, 0, True, whole
        places.append((row, slot, begins, used))
        used, slot, before, last = used + adds, slot + 1, prompt, length
    rows, slots, new, starts = zip(*places, strict=True) if places else ((), (), (), ())
    return _Places(np.array(rows, int), np.array(slots, int), np.array(new, bool), np.array(starts, int))


def _arrays(rollouts: _Rollouts, places: _Places, shape: TreeShape) -> dict[str, np.ndarray]:
    """The fields of a `TreeBatch`, not yet folded into micro-batches."""
    row, begins = places.row[:, None], places.begins
    at = np.arange(shape.tokens)
    order = np.arange(len(places.row))
    prompt_tokens = np.array([len(prompt) for prompt in rollouts.prompts], int)[rollouts.prompt]
    common = np.where(begins, 0, rollouts.common)
    before = np.roll(rollouts.length, 1)
    shared = np.where(begins, 0, np.minimum(common, before - 1))  # the last token of a completion is no node

    def since(new: Bool[np.ndarray, "R T"], index: Int[np.ndarray, "R T"]) -> Int[np.ndarray, "R T"]:
        """The index of the last rollout up to this one which has a new one there."""
        owner = np.maximum.accumulate(np.where(new, order[:, None], 0), axis=0) if len(order) else index
        return np.take_along_axis(index, owner, axis=0)

    first = places.start + np.where(begins, prompt_tokens, 0)
    adds = (at >= shared[:, None]) & (at < rollouts.length[:, None] - 1)
    node = since(adds, first[:, None] + at - shared[:, None])
    root = since(begins[:, None], first[:, None] - 1)
    source = np.concatenate([root, node[:, :-1]], axis=1)  # a token is predicted one before it

    scored = (at >= common[:, None]) & (at < rollouts.length[:, None])
    before_row = np.cumsum(scored.sum(axis=1)) - scored.sum(axis=1)
    row_start = since(places.slot[:, None] == 0, before_row[:, None])[:, 0]
    edge = since(scored, (before_row - row_start)[:, None] + at - common[:, None])

    batch = _empty(shape)
    used = int(places.row[-1]) + 1 if len(order) else 0
    filled = np.zeros((used, shape.nodes), bool)
    for i in np.flatnonzero(begins).tolist():
        tokens = rollouts.prompts[rollouts.prompt[i]]
        segment = (places.row[i], slice(places.start[i], places.start[i] + len(tokens)))
        batch["nodes"][segment], batch["positions"][segment], filled[segment] = tokens, np.arange(len(tokens)), True
    rows = np.broadcast_to(row, node.shape)
    batch["nodes"][rows[adds], node[adds]] = rollouts.tokens[adds]
    batch["positions"][rows[adds], node[adds]] = (prompt_tokens[:, None] + at)[adds]
    filled[rows[adds], node[adds]] = True
    batch["ends"][:used][filled] = subtree_ends(batch["positions"][:used])[filled]
    batch["edge_nodes"][rows[scored], edge[scored]] = source[scored]
    batch["edge_tokens"][rows[scored], edge[scored]] = rollouts.tokens[scored]
    own = (places.row, places.slot)
    drawn = at < rollouts.length[:, None]
    batch["edges"][own] = np.where(drawn, edge, 0)
    batch["tokens"][own] = np.where(drawn, rollouts.tokens, 0)
    batch["mask"][own], batch["sampler_logprobs"][own] = rollouts.mask, rollouts.sampler_logprobs
    batch["rollout"][own] = rollouts.number
    return batch


def subtree_ends(positions: Int[np.ndarray, "N W"]) -> Int[np.ndarray, "N W"]:
    """Where the descendants of each node end: at the next node that is no deeper, or at the end of the row.

    Args:
      positions: of nodes in depth-first order; those at position 0 begin a tree.
    """
    width = positions.shape[1]
    ends = np.full(positions.shape, width, np.int32)
    for depth in np.unique(positions):
        here = np.where(positions <= depth, np.arange(width, dtype=np.int32), np.int32(width))
        following = np.minimum.accumulate(here[:, ::-1], axis=1)[:, ::-1]
        at = positions[:, :-1] == depth
        ends[:, :-1][at] = following[:, 1:][at]
    return ends


def _empty(shape: TreeShape) -> dict[str, np.ndarray]:
    """A batch of padding, not yet folded into micro-batches."""
    rows = shape.microbatches * shape.rows
    rollouts = (rows, shape.rollouts)
    completions = (*rollouts, shape.tokens)
    return {
        "nodes": np.zeros((rows, shape.nodes), np.int32),
        "positions": np.zeros((rows, shape.nodes), np.int32),
        "ends": np.tile(np.arange(shape.nodes, dtype=np.int32), (rows, 1)),
        "edge_nodes": np.zeros((rows, shape.edges), np.int32),
        "edge_tokens": np.zeros((rows, shape.edges), np.int32),
        "edges": np.zeros(completions, np.int32),
        "tokens": np.zeros(completions, np.int32),
        "mask": np.zeros(completions, bool),
        "sampler_logprobs": np.zeros(completions, np.float32),
        "rollout": np.zeros(rollouts, np.int32),
    }
