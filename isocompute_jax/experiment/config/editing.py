"""Configs from nested mappings, files and dotted overrides, and all fields as a page (docs/config.md).

Errors name a field as the command line does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from isocompute_jax.experiment.config.run import RunConfig
from isocompute_jax.options import bounds_of, choices_of, default_of, help_of, unknown_field
from isocompute_jax.records.errors import InputError, fields_called


def from_dict(values: Any) -> RunConfig:
    """The config that nested mappings spell; an unknown field is an error that names the nearest known one."""
    return build(RunConfig, values, "config")


def read_resolved(path: str | os.PathLike[str], flag: str) -> RunConfig:
    """The config in a config.json; `flag` is how the user named the file.

    Raises:
      InputError: it is no run's config.json, or a field in it is at fault.
    """
    try:
        values = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{flag}={path}: not a run's config.json ({error!r})") from error
    return from_dict(values)


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
    with fields_called(f"{path}."):
        return cls(**built)


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
    with fields_called(f"{path}."):
        return dataclasses.replace(config, **{name: checked})


_MAPPINGS: Mapping[Any, str] = {
    Any: "must map names to values, such as {'name': 1}",
    str: "must map names to files, such as {'validation': 'v.jsonl'}",
    float: "must map names to numbers, such as {'easy': 0.5}",
}
"""What a field that maps names to values of a type wants."""


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


HEAD = """\
# Config fields

Every field of a run. Config files (`configs/*.py`) set them in Python, in what their `get_config()` returns,
`RunConfig(...)`; `--config.FIELD=VALUE` sets one on the command line of `train`, `sweep` and `ablate`; `sweep --grid`
and `ablate --vary` name them without `config.`. Where a field maps names to values,
`--config.evaluation.sets.validation=FILE` sets one of them, whether the config file has that name or not.

This page is what `python -m isocompute_jax.train --config_fields > docs/config.md` writes.
"""


def config_page(config: type) -> str:
    """The page of a config's dataclass, and of the groups in it, in Markdown."""
    return HEAD + "".join(f"\n{section}\n" for section in _sections(config, "config"))


def _sections(cls: type, path: str) -> Iterator[str]:
    """The table of a group, then those of the groups in it."""
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    groups = {field.name: hints[field.name] for field in fields if dataclasses.is_dataclass(hints[field.name])}
    rows = [_row(path, field, hints[field.name]) for field in fields if field.name not in groups]
    what = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
    yield "\n".join([f"## {path}", "", what, "", "| field | type | default | |", "| --- | --- | --- | --- |", *rows])
    for name, group in groups.items():
        yield from _sections(group, f"{path}.{name}")


def _row(path: str, field: dataclasses.Field[Any], hint: Any) -> str:
    cells = (f"`{path}.{field.name}`", _kind(field, hint), f"`{default_of(field)!r}`", help_of(field))
    return " | ".join(["", *(cell.replace("|", "\\|") for cell in cells), ""]).strip()


def _kind(field: dataclasses.Field[Any], hint: Any) -> str:
    """What may be given: the words, or the type and its bounds."""
    if choices := choices_of(hint):
        return ", ".join(f"`{choice}`" for choice in choices)
    parts = [part.__name__ for part in typing.get_args(hint) if isinstance(part, type)]
    match typing.get_origin(hint):
        case origin if origin is dict:
            kind = f"name: {parts[1].replace('Any', 'value')}"
        case origin if origin is tuple:
            kind = f"{parts[0]}s"
        case None:
            kind = hint.__name__
        case _:  # an optional value
            kind = " or ".join(part.replace("NoneType", "None") for part in parts)
    return ", ".join(filter(None, [kind, bounds_of(field)]))
