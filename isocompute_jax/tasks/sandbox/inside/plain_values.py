"""Values as plain JSON data: what crosses from the program to the grader, which compares nothing else."""

from __future__ import annotations

import collections
from typing import Any


def plain(value: Any) -> Any:
    """The value in lists, dicts with text keys, numbers, text, bool and None: tuples as lists, sets in order.

    Only exact types count: an object of a class of the program's own, whatever it overrides, is refused.

    Raises:
      TypeError: it is, or holds, something else.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple, collections.deque):
        return [plain(item) for item in value]
    if kind in (set, frozenset):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, dict):
        return {_key(key): plain(item) for key, item in dict.items(value)}
    raise TypeError(f"a test cannot compare a {kind.__name__}")


def _key(key: Any) -> str:
    return key if type(key) is str else repr(plain(key))
