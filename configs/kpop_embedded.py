"""KPop (the Ring team's successor of IcePop, 2026), on the embedded model.

    python -m isocompute_jax.train --config=configs/kpop_embedded.py --workdir=runs/kpop_embedded

A token is dropped where the KL divergence of two outcomes, it or another, between sampler and learner is above 0.1 in
either direction: wide in ratio for rare tokens, narrow for likely ones. Rollouts are drawn at temperature 1.3 and
trained at 1, so that there is something to disagree on.

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
    loss = LossConfig(policy_loss="clipped", correction_mode="kpop", correction_high=0.1)
    base = dr_grpo.recipe()
    recipe = dataclasses.replace(base.recipe, minibatches=1)
    sampling = dataclasses.replace(base.sampling, temperature=1.3)
    return twin(dataclasses.replace(base, loss=loss, recipe=recipe, sampling=sampling, learner_temperature=1.0))
