"""Magistral's GRPO (configs/magistral.py) on the embedded model.

    python -m isocompute_jax.train --config=configs/magistral_embedded.py --workdir=runs/magistral_embedded

Needs the base model and the sets of `make study`. Departures are those of every twin: `isocompute_jax.study.embedded`.
"""

from configs import magistral
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(magistral.recipe())
