"""Short names for paths: what tells them apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its parts without those that all paths begin or end with: `hard` of `curated/hard/train.jsonl`.

    One path alone is called by its last part, without the ending of a file of problems. A path that would have no name
    keeps all of its parts.
    """
    parts = {path: path.rstrip("/").split("/") for path in paths}
    if len(parts) == 1:
        return {path: _stem(own[-1]) for path, own in parts.items()}
    start = _shared(list(parts.values()))
    end = _shared([own[start:][::-1] for own in parts.values()])
    return {path: _stem("/".join(own[start : len(own) - end])) or path for path, own in parts.items()}


def _stem(name: str) -> str:
    return name.removesuffix(".jsonl").removesuffix(".parquet")


def _shared(sequences: Sequence[Sequence[str]]) -> int:
    """How many of their first parts all have in common."""
    return sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*sequences, strict=False)))
