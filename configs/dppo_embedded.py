"""DPPO's trust region (arXiv 2602.04879) in place of Dr. GRPO's clip, on the embedded model.

    python -m isocompute_jax.train --config=configs/dppo_embedded.py --workdir=runs/dppo_embedded

The gradient is taken from tokens that move away from the policy that drew them by more than 0.15 in total variation,
|p - q| of the token, whatever the ratio of the two: `dppo_kl` with 0.05 is the paper's other one. 8 updates a batch.

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
    loss = LossConfig(policy_loss="dppo_tv", clip_low=0.15, clip_high=0.15, ratio_from="sampler", correction_mode="off")
    return twin(dataclasses.replace(dr_grpo.recipe(), loss=loss))
