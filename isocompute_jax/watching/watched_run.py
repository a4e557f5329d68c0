"""One run directory, read while it grows."""

from __future__ import annotations

import itertools
import json
import math
import os
import pathlib
import statistics
import time
from typing import Any

from isocompute_jax.records import run_files
from isocompute_jax.records.identity import SCHEDULE
from isocompute_jax.watching.growing_logs import Columns, GrowingFile

QUIET_S = 60.0
"""A run may be silent for so long, or for `QUIET_STEPS` of its steps, before it counts as waiting, or dead."""
QUIET_STEPS = 10
RECENT = 20
"""Steps that throughput is averaged over."""


class WatchedRun:
    """What the files of a run have said so far.

    `name` is what the page calls it, the path from the root that is watched; `config` its config.json.
    """

    def __init__(self, path: pathlib.Path, name: str, config: dict[str, Any]):
        self.path, self.name, self.config = path, name, config
        self._files = {log: GrowingFile(path / log) for log in (run_files.METRICS, run_files.EVAL, run_files.ROLLOUTS)}
        self.metrics = Columns()  # of metrics.jsonl
        self.evaluations: dict[str, Columns] = {}  # evaluation set -> columns of eval.jsonl
        self.alarms: list[tuple[int, str]] = []  # (step, alarm) for each time that one came on
        # for each line of rollouts.jsonl where it begins, its step and its problems
        self.rollouts: list[tuple[int, int, list[str]]] = []
        self._on: set[str] = set()

    def refresh(self) -> None:
        """Reads what is new."""
        anew, lines = self._files[run_files.METRICS].lines()
        if anew:
            self.metrics, self.alarms, self._on = Columns(), [], set()
        for _, line in lines:
            self.metrics.add(line)
            on = {alarm for alarm in line.get("alarms", ()) if isinstance(alarm, str)}
            self.alarms += [(line["step"], alarm) for alarm in sorted(on - self._on)]
            self._on = on
        anew, lines = self._files[run_files.EVAL].lines()
        if anew:
            self.evaluations = {}
        for _, line in lines:
            self.evaluations.setdefault(str(line.get("eval_set", "")), Columns()).add(line)
        anew, lines = self._files[run_files.ROLLOUTS].lines()
        if anew:
            self.rollouts = []
        for offset, line in lines:
            groups = [group for group in line.get("groups", ()) if isinstance(group, dict)]
            self.rollouts.append((offset, line["step"], [str(group.get("problem_id", "")) for group in groups]))

    def rollouts_at(self, index: int) -> dict[str, Any]:
        """A line of rollouts.jsonl; empty where it is gone."""
        try:
            with open(self.path / run_files.ROLLOUTS, "rb") as file:
                file.seek(self.rollouts[index][0])
                return json.loads(file.readline())
        except (OSError, ValueError, IndexError):
            return {}

    @property
    def fleet(self) -> dict[str, Any] | None:
        """fleet.json; None for a run without servers."""
        return read_json(self.path / run_files.FLEET)

    def state(self, locked: set[int], now: float) -> str:
        """`done`, `running`, `waiting` or `dead`.

        A run that has its lock on this machine is alive: `waiting` while it has logged nothing for much longer than a
        step takes, or nothing yet. Locks of other machines are not seen; there what was written lately is a sign of
        life.

        Args:
          locked: inodes of the files that are locked on this machine.
          now: seconds since 1970.
        """
        if (self.path / run_files.DONE).exists():
            return "done"
        quiet = now - max(_modified(self.path / name) for name in (run_files.METRICS, run_files.EVAL, run_files.CONFIG))
        heard = now - _modified(self.path / run_files.FLEET)  # written by a learner that waits for servers, too
        patience = max(QUIET_S, QUIET_STEPS * self.step_s)
        try:
            alive = os.stat(self.path / run_files.LOCK).st_ino in locked
        except OSError:
            alive = False
        if not (alive or quiet <= patience or heard <= QUIET_S):
            return "dead"
        return "running" if quiet <= patience and (len(self.metrics) or self.evaluations) else "waiting"

    @property
    def step_s(self) -> float:
        """Median seconds from line to line, lately; 0 where there are none."""
        walls = self.metrics.column("wall_s")[-RECENT - 1 :]
        steps = [later - before for before, later in itertools.pairwise(walls) if not math.isnan(later - before)]
        return statistics.median(steps) if steps else 0.0

    def summary(self, locked: set[int]) -> dict[str, Any]:
        """What the list of runs says of it."""
        now, last = time.time(), self.metrics.last
        facts = {name: self.config.get(name) for name in ("group_size", "problems_per_batch", "num_steps", "seed")}
        settings = self.config.get("config") or {}
        state = self.state(locked, now)
        fleet = self.fleet if state in ("running", "waiting") else None  # of a run that is over it is the last word
        members = [member for member in (fleet or {}).get("members") or [] if isinstance(member, dict)]
        return {
            "name": self.name,
            "state": state,
            **facts,
            "schedule": self.config.get(SCHEDULE) or "",
            "n": last.get("group_size"),
            "model_params": self.config.get("model_params"),
            "max_compute": settings.get("max_compute"),
            "step": last.get("step", 0),
            "compute": last.get("compute", 0),
            "wall_s": last.get("wall_s", 0.0),
            "reward": last.get("reward"),
            "scores": self._scores(),
            "step_s": self.step_s or None,
            "alarms": last.get("alarms", []),
            "logged": max(_modified(self.path / name) for name in (run_files.METRICS, run_files.EVAL)) or None,
            "servers": [sum(bool(member.get("up")) for member in members), len(members)] if fleet else None,
            "rollouts": len(self.rollouts),
        }

    def _scores(self) -> dict[str, float]:
        """Evaluation set -> its last avg@k."""
        scores = {}
        for name, columns in self.evaluations.items():
            score = next((v for key, v in columns.last.items() if key.startswith("avg@") and "/" not in key), None)
            if score is not None:
                scores[name] = score
        return scores


def read_json(path: pathlib.Path) -> dict[str, Any] | None:
    """A file's JSON object; None where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def locked_inodes() -> set[int]:
    """Inodes of the files that a process of this machine has locked; empty where the system does not say.

    Read from the kernel's list: trying a lock would take it for a moment, and a run that starts then would give up.
    """
    try:
        text = pathlib.Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return set()
    fields = (line.split() for line in text.splitlines())
    return {int(words[5].rpartition(":")[2]) for words in fields if len(words) > 5 and words[1] == "FLOCK"}


def _modified(path: pathlib.Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
