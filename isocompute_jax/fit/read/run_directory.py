"""Run directories in: config.json says which run it is, eval.jsonl has its evaluations."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from isocompute_jax.fit.read.read_options import FACTS, is_whole
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL

NOT_SWEPT = frozenset({
    "seed", "num_steps", "versions", "version", "commit", "devices", "device", "workdir", "out", "run", "name", "title",
    "host", "hostname", "created", "started", "command", "checkpoint_every_s", "agreement",
    "endpoints", "token_file", "ca_file", "cert_file", "key_file", "push", "shared_dir", "streams", "stall_s", "wait_s",
})  # fmt: skip
"""Names in config.json that say which run it is, or how far it went, and not which configuration it belongs to."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A run directory whose config.json has been read; `swept` and `finished` as in `RunCurve`."""

    name: str
    log: pathlib.Path
    facts: dict[str, int]
    swept: dict[str, Any]
    finished: bool


def read_directory(path: pathlib.Path) -> RunDirectory:
    """Reads config.json of a run directory.

    Raises:
      InputError: it cannot be read, or lacks a fact.
    """
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        facts = _facts(config)
        swept = {key: value for key, value in _flatten(config) if not NOT_SWEPT & set(key.split("."))}
        return RunDirectory(path.name or path.resolve().name, path / EVAL, facts, swept, (path / DONE).exists())
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


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, leaf) of nested dicts; lists are leaves, as text so that they can be compared."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value) if isinstance(value, list) else value
