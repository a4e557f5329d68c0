"""The grid of a sweep: every combination of some fields' values, as runs with names; and how the flag writes one."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.options import unknown_field
from isocompute_jax.records.errors import InputError

LOG = logging.getLogger(__name__)
TIED = "+"
"""Joins the fields of an axis that change together: `group_size+problems_per_batch`."""
MAX_NAME = 150


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run and its name, which is also its directory's."""

    name: str
    config: RunConfig


def grid(
    base: RunConfig, axes: Mapping[str, Sequence[Any]], *, max_rollouts_per_step: int | None = None
) -> list[PlannedRun]:
    """Every combination of the axes' values, the last axis fastest.

    Args:
      base: what all runs have in common.
      axes: config field (dotted) -> its values. Several fields joined with `+` change together, and their values are
        tuples: `{"group_size+problems_per_batch": [(2, 32), (4, 16)]}`.
      max_rollouts_per_step: B_max. Combinations above it, and those whose C_max (`max_compute`) is less than one step,
        are left out, with a line in the log.

    Raises:
      InputError: an unknown field, a value of the wrong type, the same value twice, a config that cannot work, or
        nothing left.
    """
    planned = []
    for overrides in _combinations(axes):
        config = base
        for field, value in overrides.items():
            config = override(config, field, value)
        name = run_name(overrides)
        reason = _left_out(config, max_rollouts_per_step)
        if reason:
            LOG.info("left out: %s (%s)", name, reason)
            continue
        try:
            config.resolved()
        except InputError as error:
            raise InputError(f"run {name}: {error}") from error
        planned.append(PlannedRun(name, config))
    if not planned:
        raise InputError("the grid is empty: every combination is above B_max or C_max, or an axis has no value")
    return planned


def fixed_rollouts_per_step(rollouts_per_step: int, group_sizes: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
    """The axis of fixed B = n x B_problem, for `grid`."""
    broken = [n for n in group_sizes if rollouts_per_step % n]
    if broken:
        raise InputError(f"{rollouts_per_step} rollouts per step cannot be cut into groups of {broken[0]}")
    return {f"group_size{TIED}problems_per_batch": [(n, rollouts_per_step // n) for n in group_sizes]}


def run_name(overrides: Mapping[str, Any]) -> str:
    """`group_size=8,problems_per_batch=8,seed=0`: fields in RunConfig's order, so that axes may come in any order.

    Characters that file systems or shells mind become `_`; a digest is added where that, or the length, cost something.
    """
    order = [field.name for field in dataclasses.fields(RunConfig)]
    fields = sorted(overrides, key=lambda field: (order.index(field.partition(".")[0]), field))
    exact = ",".join(f"{field}={overrides[field]}" for field in fields) or "run"
    name = re.sub(r"[^A-Za-z0-9._=,+-]", "_", exact)[:MAX_NAME]
    return name if name == exact else f"{name}~{hashlib.blake2b(exact.encode(), digest_size=4).hexdigest()}"


def _combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """The overrides of each combination."""
    columns = []
    seen: set[str] = set()
    for axis, values in axes.items():
        fields = axis.split(TIED)
        repeated = seen.intersection(fields) or len(set(fields)) < len(fields)
        if repeated:
            raise InputError(f"grid: a field of {axis!r} stands in another axis too")
        seen.update(fields)
        rows = [tuple(value) if len(fields) > 1 else (value,) for value in values]
        for row in rows:
            if len(row) != len(fields):
                raise InputError(f"grid: {axis!r} names {len(fields)} fields, but {row!r} has {len(row)} values")
            if rows.count(row) > 1:
                raise InputError(f"grid: {axis!r} has the value {TIED.join(map(str, row))} twice")
        columns.append([dict(zip(fields, row, strict=True)) for row in rows])
    for parts in itertools.product(*columns):
        yield {field: value for part in parts for field, value in part.items()}


def _left_out(config: RunConfig, max_rollouts_per_step: int | None) -> str:
    """Why a combination is not run; empty if it is."""
    if max_rollouts_per_step and config.rollouts_per_step > max_rollouts_per_step:
        return f"B = {config.rollouts_per_step} rollouts per step is above B_max = {max_rollouts_per_step}"
    if config.max_compute < config.rollouts_per_step:
        return f"C_max = {config.max_compute} is less than one step of {config.rollouts_per_step} rollouts"
    return ""


def parse_grid(text: str, config: type) -> dict[str, Sequence[Any]]:
    """`group_size=2,4;seed=0,1` -> axes for `grid`, each value of its field's type.

    Within quotation marks of one kind, `;`, `,` and `+` are a part of the value: `schedule.group_size='4@0,8@2048'`.

    Raises:
      InputError: names the field or value at fault.
    """
    axes: dict[str, Sequence[Any]] = {}
    for part in _split(text, ";"):
        axis, equals, values = part.partition("=")
        axis = axis.strip()
        if not (axis and equals and values):
            raise InputError(f"--grid: {part!r} is not FIELD=VALUE,VALUE,...")
        if axis in axes:
            raise InputError(f"--grid: {axis} stands there twice")
        fields = axis.split("+")
        kinds = [field_type(config, field) for field in fields]
        rows = []
        for value in _split(values, ","):
            cells = _split(value, TIED) if len(fields) > 1 else [value]
            if len(cells) != len(fields):
                raise InputError(
                    f"--grid: {axis}={value}: {len(fields)} fields need {len(fields)} values joined with +"
                )
            row = tuple(parse_value(*cell) for cell in zip(map(_unquoted, cells), kinds, fields, strict=True))
            rows.append(row if len(fields) > 1 else row[0])
        axes[axis] = rows
    return axes


def _split(text: str, mark: str) -> list[str]:
    """The parts of a text between marks that stand outside of quotation marks.

    Raises:
      InputError: a quotation mark is not closed.
    """
    parts, quote = [""], ""
    for letter in text:
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter == mark:
            parts.append("")
            continue
        parts[-1] += letter
    if quote:
        raise InputError(f"--grid: {text!r} has a quotation mark {quote} that is not closed")
    return parts


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def field_type(config: type, dotted: str, *, flag: str = "--grid") -> Any:
    """The declared type of a config field such as `optimizer.base_lr`; `flag` names it."""
    kind, group = config, "config"
    for name in dotted.split("."):
        if typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
            continue
        hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if name not in hints:
            raise InputError(f"{flag}: {unknown_field(group, name, hints)}")
        kind, group = hints[name], f"{group}.{name}"
    if dataclasses.is_dataclass(kind) or typing.get_origin(kind) is dict:
        raise InputError(f"{flag}: {dotted} is a group of fields; name one of them, {dotted}.FIELD")
    return kind


def parse_value(text: str, kind: Any, field: str, *, flag: str = "--grid") -> Any:
    """One value of type `kind`; one of a few words (a Literal) stays text and is checked by `grid`."""
    text = text.strip()
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{flag}: {field}={text}: must be true or false")
        return text.lower() == "true"
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        how = "fields are parted by ;" if "=" in text else "values are written 4,8"
        raise InputError(f"{flag}: {field}={text}: must be {'a whole' if kind is int else 'a'} number, {how}") from None
