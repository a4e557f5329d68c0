"""Learning curves of finished runs, kept: `gallery/NAME.parquet` holds those of one sweep, in kilobytes.

`python -m isocompute_jax.fit --runs=gallery/NAME.parquet` fits them, and nothing has to be trained again. A sweep may
take many sittings: each records what it finished, and the run directories may then be removed.

A file has a row for each evaluation of each run. Its columns are those that `isocompute_jax.fit` reads (run, seed,
group_size, problems_per_batch, compute, avg@4, ...), one for each config field in which the runs differ, and

    solve_counts    [problems] how many of `samples` completions solved each problem, in the order of the set
    train/NAME      mean of a column of metrics.jsonl over the steps since the evaluation before
    schedule        of scheduled runs, what changes within them; they have `train/group_size` too, and
    avg@k_even/_odd avg@k of the problems at even and at odd places of the set (`records.metrics.halves`)

Under `METADATA` the schema has a JSON object, the fields of `Facts`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import io
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import SCHEDULE, identity_of, schedule_of
from isocompute_jax.records.metrics import halves

METADATA = b"isocompute_jax"
SUFFIX = ".parquet"
LARGEST = 2_000_000
"""Bytes of all files of a gallery: it is cloned with the project."""

FACTS = ("seed", "group_size", "problems_per_batch", "problem_set_size", "model_params")
EVALUATED = (
    *("eval_set", "step", "compute", "tokens", "epochs", "device_hours"),
    *("entropy", "completion_length", "truncation_rate", "samples", "solve_counts"),
)
"""Columns of eval.jsonl that are kept, beside avg@k, best@k and worst@k."""
AVERAGED = ("reward", "zero_variance_share", "entropy", "kl", "gradient_norm", "updates")
"""Columns of metrics.jsonl that are kept as means between evaluations."""

FILES = ("model", "train_set", "train_sets", "evaluation.sets")
"""Fields, or groups of them, that name a file or directory on one machine; a checksum means something on every one."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the runs of a sweep were."""

    # dotted config field -> value, where it is the same for all runs. Files are named by their checksum.
    shared: Mapping[str, Any]
    runs: Mapping[str, Mapping[str, Any]]  # name of a run -> its other fields, the seed among them
    # checksum of a problem set -> how many of its problems the base model solved at each measured rate ({"0.0625": 120,
    # ...}), where the set says
    pass_rates: Mapping[str, Mapping[str, int]]

    def fields(self, run: str) -> dict[str, Any]:
        """Every field of a run."""
        return {**self.shared, **self.runs[run]}


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """One file of the gallery."""

    name: str  # of the file, without its ending
    table: pa.Table  # its rows; see the module
    facts: Facts  # what its runs were

    def column(self, name: str) -> np.ndarray:
        """[rows] a column; NaN where a row has no number.

        Raises:
          InputError: there is no such column.
        """
        if name not in self.table.column_names:
            raise InputError(f"{self.name}{SUFFIX} has no column {name!r}; it has {', '.join(self.table.column_names)}")
        return self.table[name].to_numpy(zero_copy_only=False)


def read_sweep(path: str | pathlib.Path) -> Sweep:
    """Reads a file of the gallery.

    Raises:
      InputError: it is missing, or was not written by `record`.
    """
    path = pathlib.Path(path)
    try:
        table = pq.read_table(path, use_threads=False)
    except FileNotFoundError:
        known = ", ".join(sorted(other.stem for other in path.parent.glob(f"*{SUFFIX}"))) or "none"
        raise InputError(f"{path} does not exist; sweeps beside it: {known}") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not a Parquet file ({error})") from error
    facts = (table.schema.metadata or {}).get(METADATA)
    if facts is None:
        raise InputError(f"{path} is a table of something else: sweeps are written by `make gallery-record`")
    return Sweep(path.stem, table, Facts(**json.loads(facts)))


@dataclasses.dataclass(frozen=True, eq=False)
class Seeds:
    """One configuration: `compute` [T] rollouts above 0, rising, and `values` [S, T, M] of S seeds in M columns."""

    compute: np.ndarray
    values: np.ndarray


def curves_of(sweep: Sweep, *columns: str, eval_set: str = "validation") -> dict[int, Seeds]:
    """n -> its curves, in a sweep with one B_problem for each n; runs of an n are evaluated at the same C.

    Raises:
      InputError: there is no such column.
    """
    table = sweep.table.filter(pc.field("eval_set") == eval_set).sort_by("compute")
    if SCHEDULE in table.column_names:  # scheduled runs have no n
        table = table.filter(pc.fill_null(table[SCHEDULE], "").to_numpy(zero_copy_only=False) == "")
    evaluated = Sweep(sweep.name, table, sweep.facts)
    size, seed, compute = (evaluated.column(name) for name in ("group_size", "seed", "compute"))
    values = np.stack([evaluated.column(name) for name in columns], axis=-1).astype(float)
    curves = {}
    for n in np.unique(size):
        trained = (size == n) & (compute > 0)
        runs = [values[trained & (seed == one)] for one in np.unique(seed[size == n])]
        curves[int(n)] = Seeds(np.unique(compute[trained]), np.stack(runs))
    return curves


def record(sweep: str | pathlib.Path, gallery: str | pathlib.Path, *, name: str = "") -> dict[str, str]:
    """Appends the finished runs below `sweep` to `gallery`/NAME.parquet, but for those that are in it.

    Args:
      sweep: directory with run directories.
      gallery: directory of the gallery; made if absent.
      name: of the file; that of `sweep` if empty.

    Returns:
      Run -> `added`, `known`, which was in the file, or `unfinished`.

    Raises:
      InputError: there is no run, a run of this name and another configuration is in the file, what a run was trained
        on is gone, or the gallery would become larger than `LARGEST`. The file is then what it was.
    """
    sweep, gallery = pathlib.Path(sweep), pathlib.Path(gallery)
    target = gallery / f"{name or sweep.name}{SUFFIX}"
    runs = [run_files.read_run(path) for path in run_files.find_runs(sweep)]
    if not runs:
        raise InputError(f"{sweep} has no runs: name the directory that `sweep --workdir` or `make study` wrote")
    before = read_sweep(target) if target.exists() else None
    old = {name: before.facts.fields(name) for name in before.facts.runs} if before else {}
    done = {run.path.name: run for run in runs if run.done}
    for name, run in done.items():
        if name in old:
            _check_same(run, old[name], target)
    new = [run for name, run in done.items() if name not in old]
    if new:
        gallery.mkdir(parents=True, exist_ok=True)
        _write(target, _extended(before, new))
    found = {name: "known" if name in old else "added" for name in done}
    return {run.path.name: "unfinished" for run in runs if not run.done} | found


def _check_same(run: run_files.Run, recorded: Mapping[str, Any], target: pathlib.Path) -> None:
    """A name stands for one configuration. Files that are gone by now cannot be compared, and are not."""
    ours = _identity(run)
    changed = [
        name
        for name, value in sorted(ours.items())
        if name in recorded and value != recorded[name] and not _is_file(name, value)
    ]
    changed += [SCHEDULE] if ours.get(SCHEDULE) != recorded.get(SCHEDULE) else []
    if changed:
        field = changed[0]
        raise InputError(
            f"{run.path}: {target} has a run of this name with {field} = {recorded.get(field)!r} in place of "
            f"{ours.get(field)!r}; give --name to begin another file"
        )


def _extended(before: Sweep | None, new: Sequence[run_files.Run]) -> pa.Table:
    """The rows there were and those of new runs, with what they all are."""
    rows, fields, rates = [], {}, {}
    if before:
        rows, rates = before.table.to_pylist(), dict(before.facts.pass_rates)
        fields = {name: before.facts.fields(name) for name in before.facts.runs}
    for run in new:
        identity = _identity(run)
        files = {name: _checksum(value, run) for name, value in identity.items() if _is_file(name, value)}
        fields[run.path.name] = {**identity, **files}
        rates |= {digest: counts for name, digest in files.items() if (counts := _pass_rates(identity[name]))}
        rows += _rows(run)
    names = dict.fromkeys(name for one in fields.values() for name in one)
    values = {name: [one.get(name) for one in fields.values()] for name in names}
    shared = {name: each[0] for name, each in values.items() if all(value == each[0] for value in each)}
    varied = {run: {name: value for name, value in one.items() if name not in shared} for run, one in fields.items()}
    for row in rows:
        row |= {name: value for name, value in varied[row["run"]].items() if name not in FACTS}
    facts = Facts(shared, varied, rates)
    table = pa.Table.from_pylist(rows, schema=_schema(rows))
    return table.replace_schema_metadata({METADATA: json.dumps(dataclasses.asdict(facts), sort_keys=True).encode()})


def _identity(run: run_files.Run) -> dict[str, Any]:
    """What the run was, its seed included; of a frontier's file what it came to, and not where it lay."""
    found = {**identity_of(run.config), "seed": run.facts.seed}
    return found | {name: _placeless(found[name]) for name in (SCHEDULE, "schedule.source") if name in found}


def _placeless(schedule: str) -> str:
    """`n frontier:PATH; rate cosine` without the path."""
    return re.sub(r"frontier:[^;]*", "frontier", schedule)


def _rows(run: run_files.Run) -> Iterator[dict[str, Any]]:
    """A row for each evaluation of a run."""
    facts, schedule = dataclasses.asdict(run.facts), _placeless(schedule_of(run.config))
    last: dict[str, int] = collections.defaultdict(int)
    for line in run.evaluations:
        since = [step for step in run.metrics if last[line["eval_set"]] < step["step"] <= line["step"]]
        last[line["eval_set"]] = line["step"]
        yield {
            "run": run.path.name,
            **{name: facts[name] for name in FACTS},
            **{name: line.get(name) for name in EVALUATED},
            **{name: line[name] for name in line if name.partition("@")[0] in ("avg", "best", "worst")},
            **{f"train/{name}": _mean(since, name) for name in AVERAGED},
            **(_of_schedule(schedule, since, line) if schedule else {}),
        }


def _of_schedule(
    schedule: str, since: Sequence[Mapping[str, Any]], line: Mapping[str, Any]
) -> dict[str, str | float | None]:
    """Columns of a scheduled run: what changes, its n, and the halves of the problems, where one may have decided."""
    counts, samples = line.get("solve_counts") or (), line.get("samples")
    found: dict[str, str | float | None] = {SCHEDULE: schedule, "train/group_size": _mean(since, "group_size")}
    if samples and len(counts) > 1:
        even, odd = halves(np.asarray(counts), samples)
        found |= {f"avg@{samples}_even": even, f"avg@{samples}_odd": odd}
    return found


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Mean of a column over the lines that have it."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return float(np.mean(values)) if values else None


def _schema(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """A type for each column; shares and means need no float64."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, _type(name, [row.get(name) for row in rows])) for name in names])


def _type(name: str, values: Sequence[Any]) -> pa.DataType:
    if name == "solve_counts":
        return pa.list_(pa.uint8())
    present = {type(value) for value in values if value is not None}
    return {frozenset({str}): pa.string(), frozenset({int}): pa.int64()}.get(frozenset(present), pa.float32())


def _is_file(name: str, value: Any) -> bool:
    """Whether a field names a file or directory."""
    return bool(value) and (name in FILES or name.startswith(tuple(f"{group}." for group in FILES)))


@functools.cache
def _digest(path: pathlib.Path) -> str:
    """Checksum of a file, or of the weights in a directory."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    digest = hashlib.blake2b(digest_size=6)
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _checksum(value: str, run: run_files.Run) -> str:
    """What a path of a run's config is replaced by: it means something on every machine.

    Raises:
      InputError: there is nothing at the path any more.
    """
    path = pathlib.Path(value)
    if not path.exists():
        raise InputError(
            f"{run.path}: there is no {value}, which it was trained or evaluated with; record before it is removed, "
            "and from the directory that the run was started in"
        )
    return _digest(path)


def _pass_rates(value: str) -> dict[str, int]:
    """Measured rate -> number of problems, of a problem set whose rows say it as curation does; else nothing."""
    if not value.endswith(".jsonl"):
        return {}
    rows = run_files.read_lines(value)
    column = next((name for name in rows[0] if name.startswith("avg@")), "") if rows else ""
    rates = collections.Counter(row.get(column) for row in rows) if column else {}
    return {str(rate): count for rate, count in sorted(rates.items())}


def _write(path: pathlib.Path, table: pa.Table) -> None:
    """Writes the file aside and renames it; nothing is written where the gallery would become too large."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=19)
    size = buffer.tell() + sum(one.stat().st_size for one in path.parent.glob(f"*{SUFFIX}") if one != path)
    if size > LARGEST:
        raise InputError(
            f"{path.parent} would have {size:,} bytes, and {LARGEST:,} is the most that is kept: record fewer seeds, "
            "or remove a sweep that no finding rests on"
        )
    run_files.write_atomic(path, buffer.getvalue())
