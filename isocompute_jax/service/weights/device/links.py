"""What a plan makes each network adapter carry, and what it must carry at least."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from isocompute_jax.records.tensors import TensorSpec
from isocompute_jax.service.weights.device.plan import Device, Plan, pieces


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of one update, by rank.

    Attributes:
      out: over the adapter, away from the rank's node.
      into: over the adapter, from another node.
      local: sent to ranks of the same node.
    """

    out: tuple[int, ...]
    into: tuple[int, ...]
    local: tuple[int, ...]

    @property
    def busiest(self) -> int:
        """Most bytes over one adapter in one direction."""
        return max((*self.out, *self.into), default=0)


def traffic(plan: Plan) -> Traffic:
    """Counts a plan's bytes."""
    out, into, local = ([0] * len(plan.nodes) for _ in range(3))
    for message in plan.messages:
        for hop in message.hops:
            if plan.nodes[hop.source] == plan.nodes[hop.target]:
                local[hop.source] += message.nbytes
            else:
                out[hop.source] += message.nbytes
                into[hop.target] += message.nbytes
    return Traffic(tuple(out), tuple(into), tuple(local))


def lower_bounds(
    tensors: Sequence[TensorSpec], senders: Sequence[Device], receivers: Sequence[Device]
) -> tuple[float, float]:
    """What no plan goes below: bytes of the busiest sender's adapter, and of the busiest receiver's.

    Each byte that is wanted on a node that does not hold it leaves the learner once at least, by one of the devices
    that hold it, and enters that node, by one of the devices that want it. Shares may be any fraction here.
    """
    nodes = [device.node for device in (*senders, *receivers)]
    out: collections.Counter[frozenset[int]] = collections.Counter()
    into: collections.Counter[frozenset[int]] = collections.Counter()
    for piece in pieces(tensors, senders, receivers):
        away = {nodes[rank] for rank in piece.targets} - {nodes[rank] for rank in piece.sources}
        if away:
            out[frozenset(piece.sources)] += piece.box.nbytes
        for node in away:
            into[frozenset(rank for rank in piece.targets if nodes[rank] == node)] += piece.box.nbytes
    return fewest_each(out), fewest_each(into)


def fewest_each(work: Mapping[frozenset[int], int]) -> float:
    """The least that the busiest of some workers has to do, where each piece of work may be split among its own set.

    Args:
      work: amounts by the set of those who can do them.
    """
    if not work:
        return 0.0
    import numpy as np
    from scipy import optimize, sparse

    pairs = [(job, worker) for job, who in enumerate(work) for worker in sorted(who)]
    workers = {worker: row for row, worker in enumerate(sorted({worker for _, worker in pairs}))}
    columns = range(len(pairs))
    ones = np.ones(len(pairs))
    size = (len(work), len(pairs) + 1)
    all_done = sparse.csr_array((ones, ([job for job, _ in pairs], columns)), shape=size)
    load = sparse.csr_array((ones, ([workers[worker] for _, worker in pairs], columns)), shape=(len(workers), size[1]))
    most = sparse.csr_array(
        (np.ones(len(workers)), (range(len(workers)), [len(pairs)] * len(workers))), shape=load.shape
    )
    whole = sum(work.values())  # in shares of it, so that the solver's tolerance means something
    found = optimize.linprog(
        np.eye(1, size[1], len(pairs))[0],
        A_ub=load - most,
        b_ub=np.zeros(len(workers)),
        A_eq=all_done,
        b_eq=np.array(list(work.values())) / whole,
        method="highs",
    )
    return float(found.fun) * whole
