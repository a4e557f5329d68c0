"""ScaleRL (configs/scalerl_8b.py) on the embedded model: what its leave-one-out ablation starts from.

    python -m isocompute_jax.train --config=configs/scalerl_embedded.py --workdir=runs/scalerl_embedded
    python -m isocompute_jax.ablate --config=configs/scalerl_embedded.py --vary=scalerl --workdir=runs/ablate_scalerl

Needs the base model and the sets of `make study`. Departures are those of every twin (`isocompute_jax.study.embedded`):
among them, PPO-off-policy-8 (phases) takes the place of PipelineRL-8, which needs a service (give
--config.service.endpoints and --config.asynchrony=in_flight for that), and answers of 9 tokens have no thinking to
interrupt (docs/length_control.md shows that).
"""

from configs import scalerl_8b
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(scalerl_8b.recipe())
