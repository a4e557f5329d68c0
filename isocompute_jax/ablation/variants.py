"""The variants of an ablation: a recipe, the recipe with some fields changed, and how the flag writes them."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.experiment.config import RunConfig, override
from isocompute_jax.options import unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.identity import identity
from isocompute_jax.sweeps.grid import PlannedRun, field_type, parse_value

LOG = logging.getLogger(__name__)
RECIPE = "recipe"
"""The name of the variant that changes nothing."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """The recipe with other values of some fields."""

    name: str  # of its directories, and in tables
    overrides: Mapping[str, Any]  # dotted config field -> value
    listed: bool = False  # whether it comes from a known list: it is left out where the recipe is this already


def parse_variants(text: str, known: Mapping[str, Sequence[Variant]]) -> list[Variant]:
    """`--vary` -> variants, in the order that it lists them.

    Parts are separated by `;`. Each is one of: the name of a known list of variants; `NAME: FIELD=VALUE + FIELD=VALUE`,
    one variant; `FIELD=VALUE,VALUE`, a variant for each value.

    Args:
      text: the flag.
      known: name -> variants.

    Raises:
      InputError: names the part, field or value at fault.
    """
    found: list[Variant] = []
    for part in (part.strip() for part in text.split(";")):
        if not part:
            continue
        name, colon, changes = part.partition(":")
        if colon:
            found.append(Variant(_checked_name(name.strip(), part), dict(_change(c, part) for c in changes.split("+"))))
        elif "=" in part:
            field, _, values = part.partition("=")
            found += [
                Variant(f"{field.strip()}={value.strip()}", dict([_change(f"{field}={value}", part)]))
                for value in values.split(",")
            ]
        elif part in known:
            found += [dataclasses.replace(variant, listed=True) for variant in known[part]]
        else:
            raise InputError(f"{unknown_word('--vary', part, known)}; or write NAME: FIELD=VALUE, or FIELD=VALUE,VALUE")
    if not found:
        raise InputError(f"--vary is empty: name what to change; known lists are {', '.join(known)}")
    return found


def planned(base: RunConfig, variants: Sequence[Variant], seeds: Sequence[int]) -> list[PlannedRun]:
    """One run for each variant and seed, those of the recipe first; names are `VARIANT,seed=N`.

    Raises:
      InputError: a variant cannot work, shares a name with another, or equals the recipe or another one without being
        of a known list.
    """
    if len(seeds) < 1 or len(set(seeds)) < len(seeds):
        raise InputError("--seeds must list at least one seed, and none twice")
    recipe = base.resolved()
    seen = {repr(identity(recipe)): RECIPE}
    configs = {RECIPE: base}
    for variant in variants:
        config = base
        try:
            for field, value in variant.overrides.items():
                config = override(config, field, value)
            shape = repr(identity(config.resolved()))
        except InputError as error:
            raise InputError(f"--vary: {variant.name}: {error}") from error
        if variant.name in configs:
            raise InputError(f"--vary: {variant.name} stands there twice")
        if shape in seen and variant.listed:
            LOG.info("--vary: %s is left out: the same run as %s", variant.name, seen[shape])
            continue
        if shape in seen:
            raise InputError(
                f"--vary: {variant.name} is the same run as {seen[shape]}: change something else, or drop it"
            )
        seen[shape] = variant.name
        configs[variant.name] = config
    return [
        PlannedRun(run_name(name, seed), dataclasses.replace(config, seed=seed))
        for name, config in configs.items()
        for seed in seeds
    ]


def run_name(variant: str, seed: int) -> str:
    """The run directory of a variant and seed."""
    return f"{variant},seed={seed}"


def variant_of(run: str) -> str:
    """The variant of a run directory's name."""
    return run.rpartition(",seed=")[0]


def _change(text: str, part: str) -> tuple[str, Any]:
    field, equals, value = (piece.strip() for piece in text.partition("="))
    if not (field and equals and value):
        raise InputError(f"--vary: {part!r}: {text.strip()!r} is not FIELD=VALUE")
    return field, parse_value(value, field_type(RunConfig, field, flag="--vary"), field, flag="--vary")


def _checked_name(name: str, part: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._=+-]+", name) or name == RECIPE:
        raise InputError(
            f"--vary: {part!r}: a variant's name consists of letters, digits and ._=+-, and is not {RECIPE!r}, "
            "which is the config as it is"
        )
    return name
