"""What the import hook of conftest.py holds calls to."""

import typing
from collections.abc import Callable
from typing import Any, Literal

import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, but for what the package sees to itself.

    Dataclasses are not held to the annotations of their fields: those with options check themselves and say so in
    words, and JAX fills pytrees with shardings and None. Nor are closed choices, for the same reason as options.
    """
    if function.__name__ == "__init__":
        return function
    for name, hint in function.__annotations__.items():
        if any(typing.get_origin(part) is Literal for part in (hint, *typing.get_args(hint))):
            function.__annotations__[name] = object
    return beartype.beartype(function)
