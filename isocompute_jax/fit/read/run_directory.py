"""Run directories in: config.json says which run it is, eval.jsonl has its evaluations."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from isocompute_jax.fit.read.read_options import FACTS, is_whole
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import curve_identity_of
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL


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
