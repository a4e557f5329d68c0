"""Known lists of variants, by the name that `--vary` takes: ScaleRL's leave-one-out and the playbook's ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isocompute_jax.ablation.variants import Variant
from isocompute_jax.experiment.config import HEALTHY_COEFFICIENT

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
