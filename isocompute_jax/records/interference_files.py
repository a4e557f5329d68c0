"""interference.json: how the policy gradients of different problems align, as it is written and read.

    RUN/interference/interference.json    at the weights at the end of a run, on problems that it trained on

has the mean cosines of `SETS` under `cosines`, each with `cosine`, `stderr` (null where there are none) and `pairs`.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic

DIRECTORY, SUMMARY = "interference", "interference.json"
SETS = ("all", "solved", "unsolved", "between")
"""All problems, those solved in half of the rollouts or more, the others, and pairs of one of each."""


class Cosine(NamedTuple):
    """A mean cosine, its standard error over problems, and over how many pairs; NaN where there is none."""

    cosine: float
    stderr: float
    pairs: int


class Summary(NamedTuple):
    """What is read of interference.json: problems with signal, and a mean cosine for each of `SETS`."""

    with_signal: int
    cosines: dict[str, Cosine]


def write_summary(out: str | os.PathLike[str], found: Summary, made: Mapping[str, Any]) -> None:
    """Writes interference.json into a directory, with how it was made."""
    cosines = {
        name: {key: value if math.isfinite(value) else None for key, value in mean._asdict().items()}
        for name, mean in found.cosines.items()
    }
    summary = {**made, "with_signal": found.with_signal, "cosines": cosines}
    write_atomic(pathlib.Path(out) / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def read_summary(run: str | os.PathLike[str]) -> Summary | None:
    """The summary in a run directory; None without.

    Raises:
      InputError: it is something else.
    """
    path = pathlib.Path(run) / DIRECTORY / SUMMARY
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        cosines = {name: _cosine(found["cosines"][name]) for name in SETS}
        return Summary(int(found["with_signal"]), cosines)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not what `python -m isocompute_jax.interference` writes ({error!r}): measure again or remove it"
        ) from error


def _cosine(row: Mapping[str, Any]) -> Cosine:
    """Null is NaN."""
    value, error = (math.nan if row[key] is None else float(row[key]) for key in ("cosine", "stderr"))
    return Cosine(value, error, int(row["pairs"]))
