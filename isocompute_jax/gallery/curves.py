"""Mean curves of a recorded sweep, n*(C) read off them, and what a statistic of them would be with other seeds.

No form is fitted to a curve, so that sweeps can be laid beside each other whatever their curves look like: what counts
at C is the highest mean reward up to it, the record. n*(C) is the n of the highest record (`best_sizes`), or, with less
noise, the vertex of a parabola through the records over log n (`profile_sizes`; approach 2 of Hoffmann et al. 2022,
arXiv 2203.15556, over group sizes). Intervals are of a bootstrap over seeds: the seeds of every configuration are drawn
anew with replacement, and the statistic computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc
from jaxtyping import Float

from isocompute_jax.gallery.tables import Sweep

REPLICATES = 1000
LEVEL = 95.0


@dataclasses.dataclass(frozen=True, eq=False)
class Seeds:
    """One configuration: `compute` [T] rollouts above 0, rising, and `values` [S, T, M] of S seeds in M columns."""

    compute: Float[np.ndarray, "T"]
    values: Float[np.ndarray, "S T M"]


Curves = Mapping[int, Seeds]
"""n -> its seeds."""
Means = Mapping[int, tuple[Float[np.ndarray, "T"], Float[np.ndarray, "T M"]]]
"""n -> compute and means over seeds there."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A statistic, its 95% interval over seeds, and how many seeds a configuration has at least."""

    value: float
    low: float
    high: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is on one side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def curves_of(sweep: Sweep, *columns: str, eval_set: str = "validation") -> Curves:
    """The curves of each n of a sweep that has one B_problem for each n; runs of an n are evaluated at the same C."""
    table = sweep.table.filter(pc.field("eval_set") == eval_set).sort_by("compute")
    here = Sweep(sweep.name, table, sweep.facts)
    size, seed, compute = (here.column(name) for name in ("group_size", "seed", "compute"))
    values = np.stack([here.column(name) for name in columns], axis=-1).astype(float)
    found = {}
    for n in np.unique(size):
        trained = (size == n) & (compute > 0)
        rows = [values[trained & (seed == one)] for one in np.unique(seed[size == n])]
        found[int(n)] = Seeds(np.unique(compute[trained]), np.stack(rows))
    return found


def with_seeds(curves: Curves, more: Curves) -> Curves:
    """The seeds of two sweeps that differ in them alone; n that one of them has keep its own."""
    joined = dict(curves)
    for n, one in more.items():
        values = [each[n].values for each in (curves, more) if n in each]
        joined[n] = Seeds(one.compute, np.concatenate(values))
    return dict(sorted(joined.items()))


def means(curves: Curves) -> Means:
    """Over seeds."""
    return {n: (seeds.compute, seeds.values.mean(axis=0)) for n, seeds in curves.items()}


def records_at(mean: Means, budgets: Float[np.ndarray, "C"], column: int = 0) -> Float[np.ndarray, "N C"]:
    """Highest mean value of each n up to each budget, between evaluations by log C; NaN before the first."""
    rows = []
    for compute, value in mean.values():
        found = np.interp(np.log(budgets), np.log(compute), np.maximum.accumulate(value[:, column]))
        rows.append(np.where(budgets < compute[0] * (1 - 1e-9), np.nan, found))
    return np.stack(rows)


def best_sizes(mean: Means, budgets: Float[np.ndarray, "C"], column: int = 0) -> Float[np.ndarray, "C"]:
    """log2 n*(C)."""
    return np.log2(list(mean))[np.nanargmax(records_at(mean, budgets, column), axis=0)]


def profile_sizes(mean: Means, budgets: Float[np.ndarray, "C"], column: int = 0) -> Float[np.ndarray, "C"]:
    """log2 n*(C), the vertex of a parabola in log2 n through the records at C, within the n that were run.

    Where the parabola has no maximum it is the better end. Fewer than three n have no parabola: then `best_sizes`.
    """
    records, sizes = records_at(mean, budgets, column), np.log2(list(mean))
    found = best_sizes(mean, budgets, column)
    for at, record in enumerate(records.T):
        known = np.isfinite(record)
        if known.sum() < 3:
            continue
        x = sizes[known]
        parabola = np.polyfit(x, record[known], 2)
        ends = np.polyval(parabola, x[[0, -1]])
        vertex = -parabola[1] / (2 * parabola[0]) if parabola[0] < 0 else x[-1 if ends[1] > ends[0] else 0]
        found[at] = np.clip(vertex, x[0], x[-1])
    return found


def common_budgets(*sweeps: Curves, points: int = 13) -> Float[np.ndarray, "C"]:
    """Log-spaced budgets that every configuration of every sweep was evaluated up to."""
    every = [seeds.compute for curves in sweeps for seeds in curves.values()]
    return np.geomspace(max(one[0] for one in every), min(one[-1] for one in every), points)


def estimates(
    statistics: Callable[..., Sequence[float] | np.ndarray], *sweeps: Curves, seed: int = 0
) -> list[Estimate]:
    """`statistics(*means)`, and the interval over seeds of each of its numbers.

    Args:
      statistics: of one `Means` for each sweep.
      sweeps: whose seeds are drawn.
      seed: of the bootstrap.
    """
    rng = np.random.default_rng(seed)
    values = statistics(*(means(curves) for curves in sweeps))
    drawn = np.array([statistics(*(_drawn(curves, rng) for curves in sweeps)) for _ in range(REPLICATES)])
    lows, highs = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    count = min(len(one.values) for curves in sweeps for one in curves.values())
    return [
        Estimate(float(v), float(low), float(high), count) for v, low, high in zip(values, lows, highs, strict=True)
    ]


def estimate(statistic: Callable[..., float], *sweeps: Curves, seed: int = 0) -> Estimate:
    """The same of one number."""
    return estimates(lambda *found: [statistic(*found)], *sweeps, seed=seed)[0]


def _drawn(curves: Curves, rng: np.random.Generator) -> Means:
    """Means over as many seeds of each n, drawn with replacement."""
    return {
        n: (one.compute, one.values[rng.integers(len(one.values), size=len(one.values))].mean(axis=0))
        for n, one in curves.items()
    }
