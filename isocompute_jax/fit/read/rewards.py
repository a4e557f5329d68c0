"""Which column is the reward, where nobody says: one that clearly is a held-out reward, or else one of training.

Names are cut into words. What is a share, an extreme, a spread or a cost of something is no reward.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.read import cells
from isocompute_jax.fit.read.cells import pc
from isocompute_jax.fit.read.layout import (
    EVERY_OTHER,
    MAX_LISTED,
    PREFIX,
    SEPARATOR,
    is_measured,
    is_ours,
    shared_headers,
)
from isocompute_jax.fit.read.notices import Notices
from isocompute_jax.fit.read.read_options import METRIC, ReadOptions
from isocompute_jax.fit.read.tables import Table

HELD_OUT = frozenset(
    {"eval", "evaluation", "val", "valid", "validation", "test", "heldout", "held", "dev", "benchmark"}
)
REWARD = frozenset({"reward", "rewards", "acc", "accuracy", "score", "scores", "correct", "correctness"})
TRAINED = frozenset({"train", "training", "critic", "rollout"})
RATES = frozenset({"pass", "solve", "solved", "success"})
"""Rewards beside the word rate."""
NOT_REWARD = frozenset({
    "std", "stddev", "var", "variance", "min", "max", "best", "worst", "maj", "peak", "first", "median", "stderr",
    "sem", "loss", "kl", "entropy", "lr", "learning", "length", "len", "token", "tokens", "time", "timing", "runtime",
    "second", "seconds", "advantage", "advantages", "returns", "grad", "norm", "ratio", "clip", "num", "count", "steps",
    "format", "penalty", "aux", "baseline", "threshold", "scale", "weight", "zero", "url", "batch", "size", "margin",
    "is", "ci", "index", "delta", "gain", "improvement", "false", "positive", "negative",
})  # fmt: skip
LOOKS_LIKE = r"^\s*(?:[+-]?[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?\s*%?|\[.*\])\s*$"
"""Text that is a number for people, or a list."""
WIDE = "reward"
"""What the values of a table with a column for each run are called."""
RUN_NAME = re.compile(
    r"(?!.*[/@])(?:(?:.*[-_ ])?\d+(?:\.\d+)?[bm]|.*(?<![a-z])(?:n|g|s|seed|run|b|group|lr)[-_=]?\d.*)", re.IGNORECASE
)


def choose(tables: Sequence[Table], options: ReadOptions, notices: Notices) -> ReadOptions:
    """The options with the one column that clearly is the reward of the tables; unchanged where none or several are."""
    held_out, training = {}, {}
    for table in tables:
        own = candidates(table, options)
        held_out |= {name: table for name, held in own.items() if held}
        training |= {name: table for name, held in own.items() if not held}
    found = held_out or training
    if len(found) == 1:
        (name,) = found
        what = "held-out reward" if held_out else "training reward" if is_training(name) else "reward"
        notices.remark(f"{name} is taken, the one column that clearly is a {what}; --metric names another.")
        return dataclasses.replace(options, metric=name)
    wide = [] if found else [_runs_side_by_side(table, options) for table in tables]
    if wide and all(wide):
        what = f"read with a column for each run, whose values are called {WIDE}"
        places = (f"{table.path}, {len(runs)} runs" for table, runs in zip(tables, wide, strict=True))
        notices.changed("file", what, places, count=len(tables))
        return dataclasses.replace(options, metric=WIDE, columns={**options.columns, EVERY_OTHER: WIDE})
    return options


def is_named(options: ReadOptions) -> bool:
    """Whether the user says which column is the reward."""
    return options.metric != METRIC or METRIC in options.columns.values()


def candidates(table: Table, options: ReadOptions) -> dict[str, bool]:
    """Columns, or metrics of a panel, that are clearly rewards, and whether held out; of equal columns the first."""
    found: dict[str, bool] = {}
    seen: list[np.ndarray] = []
    for header in numeric(table, options):
        name = header.rpartition(SEPARATOR)[2] if SEPARATOR in header else header
        if name in found or not is_reward(name):
            continue
        if name == header:  # two names of one column, as TRL's reward of one function has
            values = cells.numbers(table.columns[header])
            if np.isfinite(values).any() and any(np.array_equal(values, each, equal_nan=True) for each in seen):
                continue
            seen.append(values)
        found[name] = is_held_out(name)
    return found


def numeric(table: Table, options: ReadOptions) -> list[str]:
    """Headers of the columns with a number, or what people write for one, that are neither ours nor renamed."""
    known = shared_headers(table.headers, options)
    free = [name for name in table.columns if name and name not in known and (is_measured(name) or not is_ours(name))]
    return [name for name in free if not name.endswith(("__MIN", "__MAX")) and _has_numbers(table.columns[name])]


def _has_numbers(column: cells.Column) -> bool:
    if np.isfinite(cells.numbers(column)).any():
        return True
    if isinstance(column, list):
        return any(isinstance(each, list) and each for each in column)
    if str(column.type) != "string":
        return str(column.type).startswith(("list", "large_list"))
    return bool(pc.any(pc.match_substring_regex(column, LOOKS_LIKE)).as_py())


def words(name: str) -> set[str]:
    """The words of a name, in small letters."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", PREFIX.sub("", name))
    return set(re.split(r"[^a-z0-9]+|(?<=[a-z])(?=[0-9])", split.lower())) - {""}


def is_reward(name: str) -> bool:
    """Whether a name is clearly a reward's: best@4 and pass@4 are none, pass@1 is."""
    own = words(name)
    mean_of = re.search(r"\b(?:mean|avg)@\d+", name) is not None
    if re.search(r"pass@(?!1\b)\d+", name) or own & NOT_REWARD:
        return False
    return mean_of or "pass@1" in name or bool(own & REWARD) or (bool(own & RATES) and "rate" in own)


def is_held_out(name: str) -> bool:
    """Whether a name says that the problems are not trained on."""
    own = words(name)
    return not is_training(name) and (bool(own & HELD_OUT) or re.search(r"\b(?:mean|avg|pass)@\d+", name) is not None)


def is_training(name: str) -> bool:
    """Whether a name says that a reward is of training: a log's plain reward is."""
    own = words(name)
    return bool(own & TRAINED) or (bool(own & {"reward", "rewards"}) and not own & HELD_OUT)


def missing(table: Table, options: ReadOptions) -> str:
    """What to say of a table without the metric: its rewards, held-out ones first, and the flag that takes one."""
    free = dict.fromkeys(name.rpartition(SEPARATOR)[2] for name in numeric(table, options))
    if not free:
        return f"no column {options.metric}, and no other column with numbers"
    clear = sorted((name for name in free if is_reward(name)), key=lambda name: not is_held_out(name))
    listed = [*clear, *sorted((name for name in free if name not in clear), key=lambda name: _rank(table, name))]
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    what = "Several may be the reward:" if len(clear) > 1 else "Its columns with numbers are"
    over_steps = len(free) > 1 and "step" in shared_headers(table.headers, options).values()
    wide = f"; if each is a run, --metric={WIDE} '--columns={EVERY_OTHER}:{WIDE}'" * (over_steps and not clear)
    flag, names = shlex.quote(f"--metric={listed[0]}"), ", ".join(listed[:MAX_LISTED])
    return f"no column {options.metric}. {what} {names}{more}; say which one is meant, e.g. {flag}{wide}"


def _rank(table: Table, name: str) -> tuple[bool, bool, bool]:
    """Orders columns of which none is clearly a reward: costs last, held-out ones first, and those within 0 and 1."""
    values = cells.numbers(table.columns[name]) if name in table.columns else np.zeros(1)
    known = values[np.isfinite(values)]
    own = words(name)
    return bool(own & NOT_REWARD), not own & HELD_OUT, not len(known) or known.min() < 0 or known.max() > 1


def _runs_side_by_side(table: Table, options: ReadOptions) -> list[str]:
    """The columns of a table that are all runs by their names, side by side over steps."""
    if "run" in shared_headers(table.headers, options).values():
        return []
    free = numeric(table, options)
    return free if len(free) > 1 and all(RUN_NAME.fullmatch(name) and not words(name) & REWARD for name in free) else []
