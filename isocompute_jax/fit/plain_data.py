"""Results as plain data: a frozen record becomes a dict, field by field, in the order of its declaration.

A field's metadata says how it is dumped: `INTERNAL` ones are left out, `INLINE` ones bring their own fields in their
place (`inline(prefix)` with a prefix), `OPTIONAL` ones are left out where they are None, `within(key)` ones stand
together in a dict of that key, `only(names)` ones are records of which these attributes are dumped, and `key` is
another name. A class may name its attributes itself, as `DUMPED`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

INTERNAL = {"internal": True}
INLINE = {"inline": ""}
OPTIONAL = {"optional": True}


def inline(prefix: str) -> dict[str, Any]:
    """Metadata of a record whose fields stand in its place, each with a prefix."""
    return {"inline": prefix}


def within(key: str) -> dict[str, Any]:
    """Metadata of a field that stands in a dict of that key, with others of the same key."""
    return {"within": key}


def only(*names: str) -> dict[str, Any]:
    """Metadata of a record, or of several in a mapping or sequence, of which these attributes alone are dumped."""
    return {"only": names}


def fields_of(record: Any) -> dict[str, Any]:
    """A record of results as a dict, records within it too."""
    if hasattr(record, "DUMPED"):
        return _attributes(record, record.DUMPED)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value, how = getattr(record, field.name), field.metadata
        if how.get("internal") or (how.get("optional") and value is None):
            continue
        content = dumped(value, how.get("only"))
        if "inline" in how:
            found |= {how["inline"] + key: inner for key, inner in content.items()}
        elif "within" in how:
            found.setdefault(how["within"], {})[field.name] = content
        else:
            found[how.get("key", field.name)] = content
    return found


def dumped(value: Any, names: Sequence[str] | None = None) -> Any:
    """A value of results with each record within it as a dict, of the attributes `names` where they are given."""
    if dataclasses.is_dataclass(value):
        return fields_of(value) if names is None else _attributes(value, names)
    if isinstance(value, Mapping):
        return {str(key): dumped(inner, names) for key, inner in value.items()}
    return [dumped(inner, names) for inner in value] if isinstance(value, list | tuple) else value


def _attributes(record: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: dumped(getattr(record, name)) for name in names}


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
