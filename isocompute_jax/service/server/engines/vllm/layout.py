"""Which part of each tensor a rank of vLLM reads: its slices under tensor parallelism. Imports no vllm.

vLLM's loaders take whole tensors and cut their own part out of each; a rank needs no other numbers, and may be
given whole tensors that hold its part alone. What this table does not know, or what does not divide evenly, a rank is
given whole: more bytes, never wrong ones. That nothing else was read is checked at the first update of every start
(`weight_transfer`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from isocompute_jax.records.tensors import Box, TensorSpec

VOCAB_PADDING = 64
"""vLLM pads vocabularies to multiples of it before it cuts them."""

BY_ROWS = ("gate_proj.weight", "up_proj.weight", "gate_proj.bias", "up_proj.bias")
BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
OF_VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
EXPERT = ".experts."


@dataclasses.dataclass(frozen=True)
class Heads:
    """Heads of a model's attention.

    Attributes:
      queries: N.
      keys: K, of keys and values.
    """

    queries: int
    keys: int


@dataclasses.dataclass(frozen=True)
class Place:
    """A rank's place among those that share a model.

    Attributes:
      tensor: index among the ranks of its replica.
      tensor_parallel: ranks of a replica.
      replica: which replica.
      data_parallel: replicas.
    """

    tensor: int
    tensor_parallel: int
    replica: int
    data_parallel: int

    @property
    def of_experts(self) -> tuple[int, int]:
        """(index, count) of what experts are cut into: vLLM cuts them over the ranks of all replicas together."""
        return self.replica * self.tensor_parallel + self.tensor, self.data_parallel * self.tensor_parallel


def places(tensor_parallel: int, data_parallel: int) -> list[Place]:
    """All ranks of a server, in vLLM's order: replica by replica."""
    return [
        Place(tensor, tensor_parallel, replica, data_parallel)
        for replica in range(data_parallel)
        for tensor in range(tensor_parallel)
    ]


def wanted(tensors: Sequence[TensorSpec], place: Place, heads: Heads) -> Iterator[Box]:
    """The boxes that a rank reads, tensor by tensor."""
    for tensor in tensors:
        for axis, low, high in _cuts(tensor, place, heads):
            if low < high:
                offset, shape = [0] * len(tensor.shape), list(tensor.shape)
                offset[axis], shape[axis] = low, high - low
                yield Box(tensor.name, tensor.dtype, tuple(shape), tuple(offset))


def _cuts(tensor: TensorSpec, place: Place, heads: Heads) -> list[tuple[int, int, int]]:
    """(axis, first, last + 1) of each part; all of the tensor where nothing else is known."""
    name, shape = tensor.name, tensor.shape
    whole = [(0, 0, shape[0])]
    if EXPERT in name:
        index, count = place.of_experts
        if name.endswith(".gate_up_proj"):  # [E, D, 2 F]: gates, then ups
            gates = _even(shape[2] // 2, index, count)
            return [(2, first + gates[0], first + gates[1]) for first in (0, shape[2] // 2)] if gates else whole
        if name.endswith(".down_proj"):  # [E, F, D]
            return _part(1, shape[1], index, count) or whole
    else:
        index, count = place.tensor, place.tensor_parallel
    if name.endswith(OF_VOCABULARY):
        rows = -(-shape[0] // VOCAB_PADDING) * VOCAB_PADDING
        found = _even(rows, index, count)
        return [(0, min(found[0], shape[0]), min(found[1], shape[0]))] if found else whole
    kind = name.rsplit(".", 2)[-2] if "." in name else name
    if kind == "q_proj":
        return _part(0, shape[0], index, count) if heads.queries % count == 0 else whole
    if kind in ("k_proj", "v_proj"):
        parts = min(count, heads.keys)  # a head that there are too few of is held by several ranks
        return _part(0, shape[0], index // (count // parts), parts) if _divide(heads.keys, count) else whole
    if name.endswith(BY_ROWS):
        return _part(0, shape[0], index, count) or whole
    if name.endswith(BY_COLUMNS):
        return _part(1, shape[1], index, count) or whole
    return whole


def _divide(heads: int, count: int) -> bool:
    return heads % count == 0 or count % heads == 0


def _part(axis: int, size: int, index: int, count: int) -> list[tuple[int, int, int]]:
    """One even part along an axis; nothing where there are no even parts."""
    found = _even(size, index, count)
    return [(axis, *found)] if found else []


def _even(size: int, index: int, count: int) -> tuple[int, int] | None:
    return (size // count * index, size // count * (index + 1)) if size % count == 0 else None
