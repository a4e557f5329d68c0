"""The reward of training, out of metrics.jsonl: what a run's own problems gave, between its evaluations."""

from __future__ import annotations

import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from isocompute_jax.fit.read.blocks import TableError

TRAIN_REWARD = "train/reward"
"""Column of a run's evaluations: mean reward of the rollouts since the evaluation before; NaN at the base model's."""

_LINE = pa.schema([("step", pa.int64()), ("compute", pa.float64()), ("reward", pa.float64())])


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
