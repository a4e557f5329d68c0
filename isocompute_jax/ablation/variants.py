"""The variants of an ablation: a recipe, the recipe with some fields changed, and how the flag writes them.

Known lists of variants go by a name: ScaleRL's leave-one-out and the playbook's ablations.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from isocompute_jax.experiment.config import HEALTHY_COEFFICIENT, RunConfig, override
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


# --- known lists

_OFF = {"recipe.healthy": "none", "loss.kl_coef": 0.0, "loss.entropy_coef": 0.0}
_ON = {"loss.kl_coef": HEALTHY_COEFFICIENT, "loss.entropy_coef": HEALTHY_COEFFICIENT}

REGULARISATION = (
    Variant("no_regularisation", _OFF),
    Variant("kl_alone", {**_OFF, "loss.kl_coef": HEALTHY_COEFFICIENT}),
    Variant("entropy_alone", {**_OFF, "loss.entropy_coef": HEALTHY_COEFFICIENT}),
    Variant("kl_and_entropy", {**_OFF, **_ON}),
)
"""KL, entropy, both, none (IsoCompute Playbook, arXiv 2603.12151); the one that the recipe has is left out."""

LEARNING_RATE = (
    Variant("constant_rate", {"optimizer.lr_scaling_exponent": 0.0}),
    Variant("sqrt_rate", {"optimizer.lr_scaling_exponent": 0.5}),
    Variant("linear_rate", {"optimizer.lr_scaling_exponent": 1.0}),
)
"""The learning rate as B^0, B^(1/2), B (the same)."""

ZERO_VARIANCE = (
    Variant("zero_variance_dropped", {"recipe.zero_variance_groups": "drop"}),
    Variant("zero_variance_without_regularisers", {"recipe.zero_variance_groups": "drop_regularizers"}),
    Variant("zero_variance_kept", {"recipe.zero_variance_groups": "keep"}),
)
"""What groups of equal rewards take part in (the same)."""

SCALERL = (
    Variant("dapo_loss", {"loss.policy_loss": "clipped", "loss.clip_low": 0.2, "loss.clip_high": 0.28}),
    Variant(
        "gspo_loss",
        {
            "loss.policy_loss": "gspo",
            "loss.clip_low": 3e-4,
            "loss.clip_high": 4e-4,
            "recipe.aggregation": "sequence_mean",
        },
    ),
    Variant("sequence_mean", {"recipe.aggregation": "sequence_mean"}),
    Variant("token_mean", {"recipe.aggregation": "token_mean"}),
    Variant("group_deviation", {"recipe.advantage_scale": "group_std"}),
    Variant("no_deviation", {"recipe.advantage_scale": "none"}),
    Variant("zero_variance_kept", {"recipe.zero_variance_groups": "keep"}),
    Variant("nothing_retired", {"curriculum.retire_rate": 0.0}),
    Variant("no_interruption", {"sampling.thinking.high": 0}),
    Variant("head_in_bfloat16", {"compute.head": "bf16"}),
)
"""One part of ScaleRL's recipe at a time (arXiv 2510.13786, section 4), by what it replaced; of its other axes, write
`group_size=8,32`, `problems_per_batch=...` or `sampling.max_tokens=...`."""

KNOWN: Mapping[str, Sequence[Variant]] = {
    "regularisation": REGULARISATION,
    "learning_rate": LEARNING_RATE,
    "zero_variance": ZERO_VARIANCE,
    "scalerl": SCALERL,
}
