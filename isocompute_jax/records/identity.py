"""What makes two runs the same configuration, and two directories hold the same run.

Every field of a run's config says what it is where it is declared (`isocompute_jax.options.option`):

- most are part of the configuration: runs that differ in one of them answer different questions;
- `replicate=True`: runs that differ in it alone repeat one configuration (the seed, how often engines are checked);
- `later=True`: the same, but it came when runs had been recorded already: at its default, with which a run is what runs
  without the field were, it is left out;
- `identity=False`: it only says where or how a run is executed, and may change when the run is resumed.

A run directory's config.json has the first kind under `identity`, by dotted name, so that its readers need not know
the fields. `identity_of` reads that block; files without one, of releases before it and of other programs, are
flattened and lose the names of `NOT_IDENTIFYING` in its place.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from isocompute_jax.records.errors import InputError

IDENTITY = "identity"
"""Key of the block in config.json, and of a field's metadata: whether it identifies a run at all."""
REPLICATE = "replicate"
"""Key of a field's metadata: whether runs that differ in it alone repeat one configuration."""
LATER = "later"
"""Key of a field's metadata: whether it came after the first runs."""
FACTS = ("group_size", "problems_per_batch", "problem_set_size", "model_params")
"""Facts at the top of config.json that identify a run too: the sizes of the files that its config only names."""
NOT_IDENTIFYING = frozenset({
    # replicates of one configuration
    "seed", "agreement",
    # what follows from other fields, or from where and when the run was made
    "num_steps", "versions", "version", "commit", "devices", "device", "workdir", "out", "run", "name", "title",
    "host", "hostname", "created", "started", "command",
    # how a run is executed
    "checkpoint_every_s", "chunk_tokens", "max_rollouts_per_dispatch", "mesh",
    "endpoints", "endpoints_file", "token_file", "ca_file", "cert_file", "key_file", "push", "shared_dir", "streams",
    "changes", "stall_s", "wait_s",
})  # fmt: skip
"""Names that did not tell configurations apart in files without an `identity` block, at any depth."""
NO_LONGER_IDENTIFYING = frozenset({
    "loss.chunk_tokens", "sampling.max_rollouts_per_dispatch",
    "mesh.data", "mesh.fsdp", "mesh.context", "mesh.tensor", "mesh.expert",
})  # fmt: skip
"""Dotted names that are in `identity` blocks of earlier releases, and only say how a run was executed."""

CONTENTS = "contents"
"""Key of config.json: digests of the rows and tokens that the run began with."""
SCHEDULE = "schedule"
"""Key of config.json, and column of a table, of a scheduled run: a text that says what changes within it."""

FILES = ("train_set", "curriculum.train_sets", "evaluation.sets")
"""Fields that name files of rows; the digest of a mixture is called `train_set` too."""

OF_LENGTH = ("max_compute", "evaluation.samples", "evaluation.points", "evaluation.first_compute")
"""How far a run goes, and what is settled by that where a config leaves it open: see `curve_identity_of`."""
STAGES, NO_STAGES = "curriculum.stages", "[]"
"""See `curve_identity_of`."""


def identity(config: Any) -> dict[str, Any]:
    """The fields of a (nested) config dataclass that tell configurations apart, replicates left out.

    Returns:
      Dotted name -> value as JSON has it; lists are text, so that values can be compared and sorted.
    """
    return {
        name: value
        for name, value, field in _walk(config)
        if not field.replicate and not (field.later and value == field.default)
    }


def identity_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """What tells the configuration of a config.json apart: equal for the seeds of one configuration.

    Args:
      content: the whole of a config.json, with an `identity` block or without.
    """
    block = content.get(IDENTITY)
    if isinstance(block, Mapping):
        found = {name: value for name, value in block.items() if name not in NO_LONGER_IDENTIFYING}
    else:
        nested = content.get("config")
        inner = {SCHEDULE} | ({"config"} if isinstance(nested, Mapping) else set())
        outer = {name: value for name, value in content.items() if name not in inner}
        found = dict(flatten(nested)) if isinstance(nested, Mapping) else {}
        found |= dict(flatten(outer))
        found = {name: value for name, value in found.items() if not NOT_IDENTIFYING & set(name.split("."))}
    schedule = schedule_of(content)
    found |= {SCHEDULE: schedule} if schedule else {}
    return found | {name: content[name] for name in FACTS if name in content}


def schedule_of(content: Mapping[str, Any]) -> str:
    """What changes within the run of a config.json, such as `n auto`; empty for a run whose n, B_problem and rate stay.

    Raises:
      InputError: it is no text.
    """
    text = content.get(SCHEDULE) or ""
    if not isinstance(text, str):
        raise InputError(f"field {SCHEDULE} is {text!r}, not a text")
    return text


def curve_identity_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """`identity_of` with digests of what it read, and without how far it was to go: curves are the same up to there.

    So a run that goes further is one more seed of its configuration. Pools by `curriculum.stages` are shares of
    `max_compute`, and a schedule may know where it ends: there it counts.
    """
    found = identity_of(content)
    if isinstance(contents := content.get(CONTENTS), Mapping):
        found |= {f"{CONTENTS}.{name}": digest for name, digest in contents.items() if name != "model"}
    if found.get(STAGES, NO_STAGES) == NO_STAGES and SCHEDULE not in found:
        found = {name: value for name, value in found.items() if name not in OF_LENGTH}
    return found


def differences(ours: Any, theirs: Mapping[str, Any], path: str = "config") -> list[str]:
    """The fields, replicates included, in which a config that was written is not ours.

    Args:
      ours: a config dataclass.
      theirs: the fields of another one, as nested mappings out of a file. A field that is not among them has its
        default: it did not exist yet when the file was written.
      path: stands before the names.

    Returns:
      `path.field: a there, b here`, sorted; empty where they are the same run.
    """
    known = {name: (value, field) for name, value, field in _walk(ours, execution=True)}
    written = dict(flatten(theirs))
    found = []
    for name in sorted(known.keys() | written.keys()):
        here, field = known.get(name, (None, _Field()))
        there = written.get(name, field.default)
        if field.identifying and here != there:
            found.append(f"{path}.{name}: {there!r} there, {here!r} here")
    return found


def is_of(difference: str, fields: Collection[str]) -> bool:
    """Whether what `differences` found is one of these fields of a run's config, or lies below one."""
    return any(difference.startswith((f"config.{field}:", f"config.{field}.")) for field in fields)


def moved(known: Mapping[str, str], contents: Mapping[str, str]) -> list[str]:
    """The fields whose files have the same rows in two runs, wherever they lie, by digests (`CONTENTS`) of both."""
    same = [name for name, digest in contents.items() if name != "model" and known.get(name) == digest]
    return [*same, "curriculum.train_sets"] if "train_set" in same else same


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, leaf) of nested mappings; lists are leaves, as text."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from flatten(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, json.dumps(value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class _Field:
    """What a dotted field is declared as; a group's declaration holds for the fields below it."""

    identifying: bool = True
    replicate: bool = False
    later: bool = False
    default: Any = None


def _walk(config: Any, group: _Field = _Field(), *, execution: bool = False) -> Iterator[tuple[str, Any, _Field]]:
    """(dotted name, value, declaration) of every leaf; those that only say how a run is executed where asked for."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        declared = _Field(
            identifying=group.identifying and field.metadata.get(IDENTITY, True),
            replicate=group.replicate or field.metadata.get(REPLICATE, False),
            later=group.later or field.metadata.get(LATER, False),
        )
        if not (declared.identifying or execution):
            continue
        if dataclasses.is_dataclass(value):
            for name, leaf, inner in _walk(value, declared, execution=execution):
                yield f"{field.name}.{name}", leaf, inner
            continue
        default = None if field.default is dataclasses.MISSING else _plain(field.default)
        declared = dataclasses.replace(declared, default=json.dumps(default) if isinstance(default, list) else default)
        for name, leaf in flatten(_plain(value), field.name):
            yield name, leaf, declared


def _plain(value: Any) -> Any:
    """As JSON gives it back; dataclasses within lists and mappings become mappings."""
    return json.loads(json.dumps(value, default=dataclasses.asdict))
