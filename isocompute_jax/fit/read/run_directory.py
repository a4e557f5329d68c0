"""Run directories in: config.json says which run it is, eval.jsonl has its evaluations.

The reward of training comes out of metrics.jsonl: what a run's own problems gave, between its evaluations.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from isocompute_jax.fit.read.read_options import FACTS, is_whole
from isocompute_jax.fit.read.tables import TableError
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import curve_identity_of
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL

TRAIN_REWARD = "train/reward"
"""Column of a run's evaluations: mean reward of the rollouts since the evaluation before; NaN at the base model's."""

_LINE = pa.schema([("step", pa.int64()), ("compute", pa.float64()), ("reward", pa.float64())])


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A run directory whose config.json has been read; `identity` and `finished` as in `RunCurve`."""

    name: str
    log: pathlib.Path
    facts: dict[str, int]
    identity: dict[str, Any]
    finished: bool


def read_directory(path: pathlib.Path) -> RunDirectory:
    """Reads config.json of a run directory.

    Raises:
      InputError: it cannot be read, or lacks a fact.
    """
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        facts = _facts(config)
        name, done = path.name or path.resolve().name, (path / DONE).exists()
        return RunDirectory(name, path / EVAL, facts, curve_identity_of(config), done)
    except (InputError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path / CONFIG}: run left out: {error}") from None


def _facts(config: Any) -> dict[str, int]:
    if not isinstance(config, dict):
        raise InputError("not a JSON object")
    facts = {}
    for name in FACTS:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_whole(value):
            raise InputError(f"field {name} is {value!r}, not a whole number")
        facts[name] = int(value)
    if min(facts["group_size"], facts["problems_per_batch"]) < 1:
        raise InputError("group_size and problems_per_batch must be at least 1")
    return facts


def training_reward(log: pathlib.Path, step: np.ndarray) -> np.ndarray:
    """Mean reward of the rollouts that were sampled for training since the evaluation before.

    Every rollout that training paid for counts once: those of groups without signal too, which the update may drop,
    and those that dynamic sampling drew beyond its batch. Rewards that failed do not: a step's line leaves out the
    groups that `config.reward.on_failure = "drop_group"` dropped, while its other groups stand for all of its rollouts.

    Args:
      log: metrics.jsonl; its last line may be unfinished. Of lines of one step the last counts.
      step: [E] of the evaluations, not falling.

    Returns:
      [E], NaN where no step with a reward lies in between.

    Raises:
      TableError: a line is damaged.
    """
    steps, rollouts, reward = _steps(log)
    after = np.searchsorted(step, steps)  # the first evaluation at or after a step
    counted = np.isfinite(reward) & (after < len(step))
    weight = np.bincount(after[counted], rollouts[counted], len(step))
    total = np.bincount(after[counted], (rollouts * reward)[counted], len(step))
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def _steps(log: pathlib.Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step, in order: its number, its rollouts and its mean reward, each [M]."""
    text = log.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    if not text.strip():
        return np.empty(0), np.empty(0), np.empty(0)
    read = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    parse = pa_json.ParseOptions(explicit_schema=_LINE, newlines_in_values=False, unexpected_field_behavior="ignore")
    try:
        table = pa_json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse)
    except pa.ArrowException as error:
        raise TableError(f"its training reward cannot be read: {str(error).splitlines()[0]}") from None
    found = [table[name].to_numpy().astype(np.float64) for name in _LINE.names]
    step, compute, reward = (values[np.isfinite(found[0])] for values in found)
    last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
    rollouts = np.diff(compute[last], prepend=0.0)
    return step[last], rollouts, reward[last]
