"""The fields of a config as a page: one table per group, from what their options say (docs/config.md)."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from isocompute_jax.options import bounds_of, choices_of, default_of, help_of

HEAD = """\
# Config fields

Every field of a run. Config files (`configs/*.py`) set them in Python, `--config.FIELD=VALUE` on the command line of
`train`, `sweep` and `ablate`; `sweep --grid` and `ablate --vary` name them without `config.`. Where a field maps names
to values, `--config.evaluation.sets.validation=FILE` sets one of them, whether the config file has that name or not.

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
