"""Results as plain data: a frozen record becomes a dict, field by field, in the order of its declaration.

A field's metadata says how it is written: `INTERNAL` ones are left out, `OPTIONAL` ones are left out where they are
None, and of an `INLINE` one the fields stand in its place (of `inline(prefix)` with a prefix). A record that is written
otherwise has a method `written`, which returns name -> value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

INTERNAL = {"internal": True}
OPTIONAL = {"optional": True}
INLINE = {"inline": ""}


def inline(prefix: str) -> dict[str, Any]:
    """Metadata of a record whose fields stand in its place, each with a prefix."""
    return {"inline": prefix}


def fields_of(record: Any) -> dict[str, Any]:
    """Name -> value of what is written of a record; records among the values stay what they are."""
    return record.written() if hasattr(record, "written") else declared(record)


def declared(record: Any) -> dict[str, Any]:
    """The same by the metadata of its fields alone."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value, how = getattr(record, field.name), field.metadata
        if "inline" in how:
            found |= {how["inline"] + key: inner for key, inner in fields_of(value).items()}
        elif not ("internal" in how or ("optional" in how and value is None)):
            found[field.name] = value
    return found


def plain(value: Any) -> Any:
    """Plain Python for JSON: records as dicts, NumPy scalars and arrays unpacked, NaN and infinity as None."""
    if dataclasses.is_dataclass(value):
        value = fields_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
