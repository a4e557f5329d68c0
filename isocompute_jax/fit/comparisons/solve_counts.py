"""How many samples of each evaluation problem were right, for runs that logged it.

A line of eval.jsonl, and a row of a gallery's Parquet, has `solve_counts`: for each problem, in the order of the set,
how many of `samples` completions solved it.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from isocompute_jax.fit.curves.seeds import ConfigurationRuns, group_runs
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.results import Configuration
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import read_lines

COUNTS, SAMPLES = "solve_counts", "samples"
COLUMNS = ("run", "eval_set", "compute", SAMPLES, COUNTS)
EVALUATION_SET = "validation"


@dataclasses.dataclass(frozen=True, eq=False)
class SolveTrajectories:
    """What the seeds of one configuration solved at each evaluation that all of them have.

    Attributes:
      configuration: which one.
      seeds: its S seeds.
      compute: [E] in the unit of the runs, rising.
      counts: [S, E, P] right samples of each problem.
      samples: [S, E] samples drawn of each problem.
    """

    configuration: Configuration
    seeds: tuple[int, ...]
    compute: np.ndarray
    counts: np.ndarray
    samples: np.ndarray

    @property
    def rates(self) -> np.ndarray:
        """[S, E, P] measured solve rates."""
        return self.counts / self.samples[..., None]

    @property
    def mean_rates(self) -> np.ndarray:
        """[E, P] of all samples of all seeds."""
        return self.counts.sum(axis=0) / self.samples.sum(axis=0)[:, None]


def solve_trajectories(runs: Sequence[RunCurve], *, eval_set: str = EVALUATION_SET) -> tuple[SolveTrajectories, ...]:
    """The solve counts of every configuration whose runs have them, ordered by n.

    Args:
      runs: as read (`SweepResult.runs`, `read_curves`); their files are read once more. Seeds without counts, and
        configurations whose seeds share fewer than two evaluations, are left out.
      eval_set: evaluation set; rows that name none belong to every set.

    Raises:
      InputError: the counts of a file are damaged, or the seeds of a configuration have different problems.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {source: _rows(source) for source in {run.source for run in runs}}
    read = {id(run): _of_run(run, rows[run.source], eval_set) for run in runs}
    found = [_of_configuration(group, [read[id(run)] for run in group.runs]) for group in group_runs(runs)[0]]
    return tuple(each for each in found if each is not None)


def alike(found: Iterable[SolveTrajectories]) -> tuple[SolveTrajectories, ...]:
    """Those with as many problems as most have: only problems of one set can be laid beside each other."""
    found = tuple(found)
    sizes = [each.counts.shape[-1] for each in found]
    most = max(sizes, key=sizes.count, default=0)
    return tuple(each for each, size in zip(found, sizes, strict=True) if size == most)


def _rows(source: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """The rows of a file that have counts; none of a file of another kind."""
    path = pathlib.Path(source)
    if not path.is_file():  # a table in memory
        return []
    if path.suffix == ".jsonl":
        rows = read_lines(path, partial_last_line=True)
    elif path.suffix == ".parquet" and {COUNTS, SAMPLES} <= set((names := pq.read_schema(path)).names):
        rows = pq.read_table(path, columns=[c for c in COLUMNS if c in names.names], use_threads=False).to_pylist()
    else:
        return []
    return [row for row in rows if row.get(COUNTS) and row.get(SAMPLES)]


def _of_run(run: RunCurve, rows: Sequence[Mapping[str, Any]], eval_set: str) -> dict[float, tuple[np.ndarray, int]]:
    """Compute -> (counts [P], samples) of a run, at its evaluations; of what a file gives twice the later counts."""
    rollouts = run.columns.get("compute", np.full_like(run.compute, np.nan))
    place = dict(zip(rollouts.tolist(), run.compute.tolist(), strict=True))
    found = {}
    for row in rows:
        own = row.get("run", run.run) == run.run and (row.get("eval_set") or eval_set) == eval_set
        if own and row.get("compute") in place:
            found[place[row["compute"]]] = _checked(row, run)
    return found


def _checked(row: Mapping[str, Any], run: RunCurve) -> tuple[np.ndarray, int]:
    counts, samples = np.asarray(row[COUNTS]), row[SAMPLES]
    whole = counts.ndim == 1 and np.issubdtype(counts.dtype, np.integer)
    if not whole or counts.min() < 0 or counts.max() > samples:
        raise InputError(
            f"{run.source}: run {run.run} at compute {row['compute']}: {COUNTS} must be whole numbers from 0 to "
            f"{SAMPLES} = {samples}; correct the row, or delete its {COUNTS}"
        )
    return counts.astype(np.int64), int(samples)


def _of_configuration(
    group: ConfigurationRuns, read: Sequence[dict[float, tuple[np.ndarray, int]]]
) -> SolveTrajectories | None:
    """The evaluations that all seeds with counts share; None where they are fewer than two."""
    known = [(run, found) for run, found in zip(group.runs, read, strict=True) if found]
    compute = sorted(set.intersection(*(set(found) for _, found in known))) if known else []
    if len(compute) < 2:
        return None
    sizes = {len(counts) for _, found in known for counts, _ in found.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{known[0][0].source}: {group.configuration.name}: {COUNTS} has {min(sizes)} problems in one evaluation "
            f"and {max(sizes)} in another; analyse runs with one evaluation set at a time"
        )
    return SolveTrajectories(
        configuration=group.configuration,
        seeds=tuple(run.facts.seed for run, _ in known),
        compute=np.array(compute),
        counts=np.array([[found[at][0] for at in compute] for _, found in known]),
        samples=np.array([[found[at][1] for at in compute] for _, found in known]),
    )
