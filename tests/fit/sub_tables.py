"""Tables that people bring, drawn from the recorded sweeps of gallery/: cut short, ragged, shuffled, in other units."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"
FACTS = ("run", "seed", "group_size", "problems_per_batch", "problem_set_size", "model_params", "eval_set")
MEASURES = ("step", "compute", "tokens", "epochs", "entropy", "train/reward")
REWARDS = ("avg@4", "best@4", "worst@4")


class SubTable(NamedTuple):
    """A table, what else its user says on the command line, and a description for whoever looks for a failure."""

    table: pa.Table
    flags: tuple[str, ...]
    described: str


def recorded() -> list[str]:
    """Names of the recorded sweeps."""
    return sorted(path.stem for path in GALLERY.glob("*.parquet"))


def whole(name: str) -> pa.Table:
    """All rows of a sweep, without its columns of lists."""
    return pq.read_table(GALLERY / f"{name}.parquet", columns=[*FACTS, *MEASURES, *REWARDS], use_threads=False)


def cut(table: pa.Table, share: float, *, base: bool = True) -> pa.Table:
    """The evaluations up to a share of the largest compute; without the `base` model's where wanted."""
    compute = np.array(table["compute"])
    return table.filter(pa.array((compute <= compute.max() * share) & (base | (compute > 0))))


def draw(number: int, most: int = 3) -> SubTable:
    """Sub-table `number`: up to `most` configurations of one or two seeds, cut, and in more than half ragged too."""
    rng = np.random.default_rng([27, number])
    names = recorded()
    name = names[rng.integers(len(names))]
    table = _some_runs(whole(name), rng, most)
    share = 2.0 ** -rng.uniform(0, 7) if rng.random() < 0.7 else 1.0
    base = bool(rng.random() < 0.5)
    table, told, flags = cut(table, share, base=base), [name, f"share {share:.3f}", f"base {base}"], []
    if rng.random() < 0.6:
        table = _ragged(table, rng)
        told.append(f"ragged, columns {', '.join(table.column_names)}")
    if rng.random() < 0.4:
        table = table.take(pa.array(rng.permutation(table.num_rows)))
        told.append("shuffled")
    if rng.random() < 0.3:
        scale = float(rng.choice([100.0, 7.0, 1e-3]))
        table = _rescaled(table, scale)
        flags.append(f"--reward_range=0,{scale:g}")
    if rng.random() < 0.3:
        flags.append(f"--budget={10 ** rng.uniform(2, 7):.4g}")
    if rng.random() < 0.3:
        flags.append("--records=strict")
    return SubTable(table, tuple(flags), f"{number}: {'; '.join(told)}; {table.num_rows} rows; {' '.join(flags)}")


def _some_runs(table: pa.Table, rng: np.random.Generator, most: int) -> pa.Table:
    cells = np.stack([np.array(table["group_size"]), np.array(table["problems_per_batch"])], axis=1)
    distinct, cell = np.unique(cells, axis=0, return_inverse=True)
    seed = np.array(table["seed"])
    chosen = rng.permutation(len(distinct))[: rng.integers(1, most + 1)]
    seeds = rng.permutation(np.unique(seed))[: rng.integers(1, 3)]
    return table.filter(pa.array(np.isin(cell.ravel(), chosen) & np.isin(seed, seeds)))


def _ragged(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Points left out everywhere, some runs ended early, some left out, and any column but the metric missing."""
    compute, run = np.array(table["compute"]), np.array(table["run"].to_pylist(), dtype=str)
    kept = rng.random(len(run)) < rng.uniform(0.3, 1)
    for each in np.unique(run):
        end = compute.max(initial=0) * 2.0 ** -rng.uniform(0, 5) if rng.random() < 0.3 else np.inf
        kept &= (run != each) | ((compute <= end) & (rng.random() > 0.1))
    columns = [name for name in table.column_names if name == REWARDS[0] or rng.random() > 0.2]
    return table.filter(pa.array(kept)).select(columns)


def _rescaled(table: pa.Table, scale: float) -> pa.Table:
    for name in [name for name in REWARDS if name in table.column_names]:
        values = np.array(table[name].to_pylist(), dtype=float) * scale
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table
