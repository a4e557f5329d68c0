"""Columns by other names: `--columns=theirs:ours,...`, where theirs may be a path into a nested column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.records import columns

ABSENT = object()
"""What `at_path` gives where there is nothing."""


def parse_columns(flag: str, items: Sequence[str]) -> dict[str, str]:
    """The items of --columns=theirs:ours,... as a mapping; split at the last colon.

    Several of theirs may be one of ours; of those that a row has, the first counts.

    Raises:
      InputError: an item is not of that form, or one of theirs is given twice.
    """
    return columns.parse_columns(flag, items, example="such as question:prompt")


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path, such as `reward_model.ground_truth` or `prompt.0.content`; ABSENT if nothing does.

    A name that has dots itself is found too: the longest that is there counts.
    """
    if not path:
        return value
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        inside = head.isdecimal() and int(head) < len(value)
        return at_path(value[int(head)], rest) if inside else ABSENT
    if not isinstance(value, Mapping):
        return ABSENT
    names = path.split(".")
    for length in range(len(names), 0, -1):
        name = ".".join(names[:length])
        if name in value:
            return at_path(value[name], ".".join(names[length:]))
    return ABSENT


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any], set[str]]:
    """A row under our names, and which of theirs it had.

    What is not renamed keeps its name, unless another column takes that name.
    """
    found = {theirs: value for theirs in columns if (value := at_path(row, theirs)) is not ABSENT}
    ours: dict[str, Any] = {}
    for theirs, value in found.items():
        if ours.get(columns[theirs]) is None:
            ours[columns[theirs]] = value
    rest = {name: value for name, value in row.items() if name not in columns and name not in ours}
    return ours | rest, set(found)
