"""All runs below a directory, and what the page asks of them."""

from __future__ import annotations

import math
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import SCHEDULE
from isocompute_jax.watching.watched_run import WatchedRun, locked_inodes, read_json

FRESH_S = 1.0
"""What was read so lately is not read again."""
POINTS = 400
"""Most points of a curve that is sent; of more, means of neighbours."""
PHASES_SHOWN = 60
"""Steps, or means of neighbours, that the split of step time is shown for."""
AXES = {"compute": "compute", "step": "step", "wall_s": "wall_s", "tokens": "tokens"}


class UnknownRun(LookupError):
    """The page asked for a run that is not there."""


class WatchedRuns:
    """The runs at or below the directory `root`; may be asked from several threads. Raises InputError: it is none."""

    def __init__(self, root: pathlib.Path):
        if not root.is_dir():
            raise InputError(f"--runs={root} is no directory: give one that holds run directories")
        self.root = root
        self._lock = threading.Lock()
        self._runs: dict[pathlib.Path, WatchedRun] = {}
        self._read = -math.inf

    def overview(self) -> dict[str, Any]:
        """The list of runs, and the metrics that can be drawn; the page opens on the first: a score, or the reward."""
        with self._lock:
            runs, locked = self._fresh(), locked_inodes()
            train = dict.fromkeys(name for run in runs for name in run.metrics.names)
            evals = dict.fromkeys(
                f"{eval_set}/{name}"
                for run in runs
                for eval_set, columns in run.evaluations.items()
                for name in columns.names
            )
            spent = {*run_files.LINE_KEYS, "evaluation_rollouts", "evaluation_tokens", "redrawn_rollouts"}
            shown = [f"train/{name}" for name in sorted(train, key=lambda name: name != "reward") if name not in spent]
            hidden = {*spent, "samples", "problems", "epochs"}
            scores = [f"eval/{name}" for name in evals if name.partition("/")[2] not in hidden]
            return {
                "root": str(self.root),
                "now": time.time(),
                "runs": [run.summary(locked) for run in runs],
                "metrics": sorted(scores, key=lambda name: "/avg@" not in name) + shown,
            }

    def curves(self, metric: str) -> dict[str, Any]:
        """Run -> points of `eval/SET/COLUMN` or `train/COLUMN`, against each axis."""
        kind, _, name = metric.partition("/")
        curves = {}
        with self._lock:
            for run in self._fresh():
                if kind == "eval":
                    eval_set, _, column = name.partition("/")
                    columns = run.evaluations.get(eval_set)
                else:
                    columns, column = run.metrics, name
                if columns is None or column not in columns:
                    continue
                values = {"y": columns.column(column)}
                values |= {axis: columns.column(source) for axis, source in AXES.items()}
                curves[run.name] = thinned(values, POINTS)
        return {"metric": metric, "runs": curves}

    def detail(self, name: str) -> dict[str, Any]:
        """What the page shows of one run. Raises UnknownRun: there is none of this name."""
        with self._lock:
            run = self._named(name)
            metrics, fleet = run.metrics, run.fleet
            phases = [column for column in metrics.names if column.startswith("phase_s/")]
            speeds = [column for column in metrics.names if column.startswith("speed/")]
            wanted = {column: metrics.column(column) for column in ("step", *phases, *speeds, "padding")}
            return {
                **run.summary(locked_inodes()),
                "now": time.time(),
                "series": thinned(wanted, PHASES_SHOWN, drop="step"),
                "speed": metrics.last.get("speed"),
                "phase_s": metrics.last.get("phase_s"),
                "alarms_raised": run.alarms,
                "fleet": fleet,
                "rollout_lines": [[step, problems] for _, step, problems in run.rollouts],
                "commit": run.config.get("commit"),
                "devices": len(run.config.get("devices") or []),
            }

    def rollouts(self, name: str, index: int) -> dict[str, Any]:
        """One line of a run's rollouts.jsonl. Raises UnknownRun: there is none of this name."""
        with self._lock:
            run = self._named(name)
        return run.rollouts_at(index)

    def evaluated(self) -> tuple[int, int]:
        """How many configurations of a fixed (n, B_problem) have been evaluated, and how many evaluations there are."""
        with self._lock:
            runs = [run for run in self._fresh() if run.evaluations]
            fixed = [run.config for run in runs if not run.config.get(SCHEDULE)]
            sizes = {(config.get("group_size"), config.get("problems_per_batch")) for config in fixed}
            return len(sizes), sum(len(columns) for run in runs for columns in run.evaluations.values())

    def _named(self, name: str) -> WatchedRun:
        for run in self._fresh():
            if run.name == name:
                return run
        raise UnknownRun(name)

    def _fresh(self) -> Sequence[WatchedRun]:
        """The runs, read again unless that was just done."""
        if time.monotonic() - self._read > FRESH_S:
            runs = {}
            for path in run_directories(self.root):
                config = read_json(path / run_files.CONFIG)
                known = self._runs.get(path)
                if config is not None and is_run(config):
                    same = known is not None and known.config == config
                    runs[path] = known if same else WatchedRun(path, self._name(path), config)
            self._runs = runs
            for run in runs.values():
                run.refresh()
            self._read = time.monotonic()
        return list(self._runs.values())

    def _name(self, path: pathlib.Path) -> str:
        return self.root.resolve().name if path == self.root else str(path.relative_to(self.root))


def is_run(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of a run, and not of a model."""
    return isinstance(config.get("config"), dict) and "group_size" in config and "num_steps" in config


def run_directories(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Directories at or below `root` that have a config.json and may be runs; what lies in a run is not looked at."""
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        if run_files.CONFIG in files:
            subfolders.clear()
            yield pathlib.Path(folder)


def thinned(columns: dict[str, Any], most: int, *, drop: str = "y") -> dict[str, list[float | None]]:
    """At most so many points: those that have a number in `drop`, or means over neighbours, rounded to 6 digits."""
    kept = [place for place, value in enumerate(columns[drop]) if not math.isnan(value)]
    size = -(-len(kept) // most) if kept else 1
    parts = [kept[start : start + size] for start in range(0, len(kept), size)]
    return {name: [_mean([values[place] for place in part]) for part in parts] for name, values in columns.items()}


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return float(f"{sum(known) / len(known):.6g}") if known else None
