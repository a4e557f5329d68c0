"""GSPO (configs/gspo.py) on the embedded model.

    python -m isocompute_jax.train --config=configs/gspo_embedded.py --workdir=runs/gspo_embedded

Needs the base model and the sets of `make study`. Departures are those of every twin: `isocompute_jax.study.embedded`.
"""

from configs import gspo
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(gspo.recipe())
