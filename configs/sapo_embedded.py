"""SAPO's soft gate (arXiv 2511.20347) in place of Dr. GRPO's clip, on the embedded model.

    python -m isocompute_jax.train --config=configs/sapo_embedded.py --workdir=runs/sapo_embedded

A token's term is -(4 / tau) sigmoid(tau (rho - 1)) A, with a tau of 1 where A > 0 and 1.05 where A < 0. 8 updates a
batch.

Needs the base model and the sets of `make study`. Departures are those of every twin:
`isocompute_jax.study.embedded`.
"""

import dataclasses

from configs import dr_grpo
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import LossConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return twin(dataclasses.replace(dr_grpo.recipe(), loss=LossConfig(policy_loss="sapo")))
