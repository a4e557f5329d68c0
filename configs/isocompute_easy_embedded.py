"""The IsoCompute Playbook's recipe for Easy problems (configs/isocompute_easy_*.py) on the embedded model.

    python -m isocompute_jax.train --config=configs/isocompute_easy_embedded.py --workdir=runs/isocompute_easy_embedded

Needs the base model and the sets of `make study`. Departures are those of every twin: `isocompute_jax.study.embedded`.
"""

from configs import isocompute_easy_qwen2_5_7b
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(isocompute_easy_qwen2_5_7b.recipe(), "easy")
