"""Columns by other names, as flags spell them: `--columns=theirs:ours,...`."""

from __future__ import annotations

from collections.abc import Sequence

from isocompute_jax.records.errors import InputError


def parse_columns(flag: str, items: Sequence[str], *, example: str) -> dict[str, str]:
    """The items of the flag as theirs -> ours; split at the last colon, since their names may have some.

    Several of theirs may be one of ours, for tables of several kinds; of those that one table has, the first counts.

    Args:
      flag: its name, for messages.
      items: `theirs:ours` each.
      example: what a message shows of the form.

    Raises:
      InputError: an item is not of that form, or one of theirs is given twice.
    """
    columns: dict[str, str] = {}
    for item in items:
        theirs, colon, ours = (part.strip() for part in item.rpartition(":"))
        if not (theirs and colon and ours):
            raise InputError(f"{flag}: {item!r} is not of the form theirs:ours, {example}")
        if theirs in columns:
            raise InputError(f"{flag}: {theirs!r} is given twice, as {columns[theirs]} and as {ours}")
        columns[theirs] = ours
    return columns
