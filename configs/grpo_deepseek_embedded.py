"""DeepSeekMath's GRPO (configs/grpo_deepseek.py) on the embedded model.

    python -m isocompute_jax.train --config=configs/grpo_deepseek_embedded.py --workdir=runs/grpo_deepseek_embedded

Needs the base model and the sets of `make study`. Departures are those of every twin: `isocompute_jax.study.embedded`.
"""

from configs import grpo_deepseek
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(grpo_deepseek.recipe())
