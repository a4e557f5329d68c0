"""RLOO (configs/rloo.py) on the embedded model.

    python -m isocompute_jax.train --config=configs/rloo_embedded.py --workdir=runs/rloo_embedded

Needs the base model and the sets of `make study`. Departures are those of every twin: `isocompute_jax.study.embedded`.
"""

from configs import rloo
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(rloo.recipe())
