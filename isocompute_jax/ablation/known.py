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

KNOWN: Mapping[str, Sequence[Variant]] = {
    "regularisation": REGULARISATION,
    "learning_rate": LEARNING_RATE,
    "zero_variance": ZERO_VARIANCE,
}
