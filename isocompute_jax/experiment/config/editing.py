"""Configs from nested mappings and dotted overrides; errors name the field as the command line does."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from isocompute_jax.options import unknown_field
from isocompute_jax.records.errors import InputError


def build(cls: type, values: Any, path: str) -> Any:
    """Builds `cls` from nested mappings; an unknown field is an error that names the nearest known one."""
    if not isinstance(values, Mapping):
        raise InputError(f"{path} = {values!r}: is a group of fields; set {path}.FIELD")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    built = {}
    for name, value in dict(values).items():
        if name not in fields:
            raise InputError(unknown_field(path, name, fields))
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = build(typing.cast(type, hint), value, f"{path}.{name}")
        else:
            built[name] = _checked(value, hint, f"{path}.{name}")
    return _made(lambda: cls(**built), cls, path)


def override(config: Any, dotted: str, value: Any, path: str = "config") -> Any:
    """A copy of `config` with the field `dotted` (such as `optimizer.base_lr`) replaced by `value`."""
    name, _, rest = dotted.partition(".")
    names = [field.name for field in dataclasses.fields(config)]
    if name not in names:
        raise InputError(unknown_field(path, name, names))
    old = getattr(config, name)
    if rest and isinstance(old, dict):
        return dataclasses.replace(config, **{name: {**old, rest: value}})
    if rest:
        return dataclasses.replace(config, **{name: override(old, rest, value, f"{path}.{name}")})
    checked = _checked(value, typing.get_type_hints(type(config))[name], f"{path}.{name}")
    return _made(lambda: dataclasses.replace(config, **{name: checked}), type(config), path)


_MAPPINGS: Mapping[Any, str] = {
    Any: "must map names to values, such as {'name': 1}",
    str: "must map names to files, such as {'validation': 'v.jsonl'}",
    float: "must map names to numbers, such as {'easy': 0.5}",
}
"""What a field that maps names to values of a type wants."""


def _made(make: Callable[[], Any], cls: type, path: str) -> Any:
    """What `make` makes; an error of `cls` names the field by its path, as it is set on the command line."""
    try:
        return make()
    except InputError as error:
        raise InputError(str(error).replace(f"{cls.__name__}.", f"{path}.")) from None


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value`, checked against a field's type; integers are taken for floats, and the class checks closed choices."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value
    if origin is dict:
        kind = typing.get_args(hint)[1]
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise InputError(f"{where} = {value!r}: {_MAPPINGS[kind]}")
        if kind is Any:
            return dict(value)
        if kind is str and not all(isinstance(item, str) for item in value.values()):
            raise InputError(f"{where} = {value!r}: {_MAPPINGS[kind]}")
        return {name: _checked(item, kind, f"{where}.{name}") for name, item in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{where} = {value!r}: must be several values, such as (0.1, 0.5)")
        return tuple(_checked(item, typing.get_args(hint)[0], where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise InputError(f"{where} = {value!r}: must be of type {hint.__name__}")
    return value
