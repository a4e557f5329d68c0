"""Results as plain data: a frozen record becomes a dict, field by field, in the order of its declaration.

What a field's metadata says is all that a dump knows: `internal` fields are left out, `inline` ones bring their own
fields in their place, `optional` ones are left out where they are None, and `key` is another name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

INTERNAL = {"internal": True}
INLINE = {"inline": True}
OPTIONAL = {"optional": True}


def fields_of(record: Any) -> dict[str, Any]:
    """A record of results as a dict, records within it too."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value, how = getattr(record, field.name), field.metadata
        if how.get("internal") or (how.get("optional") and value is None):
            continue
        if how.get("inline"):
            found |= fields_of(value)
        else:
            found[how.get("key", field.name)] = dumped(value)
    return found


def dumped(value: Any) -> Any:
    """A value of results with each record within it as a dict."""
    if dataclasses.is_dataclass(value):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {str(key): dumped(inner) for key, inner in value.items()}
    return [dumped(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """Plain Python for JSON: NumPy scalars and arrays unpacked, NaN and infinity as None."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
