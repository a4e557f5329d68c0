"""IcePop (Ring-1T, arXiv 2510.18855): tokens on which sampler and learner disagree are left out; embedded model.

    python -m isocompute_jax.train --config=configs/icepop_embedded.py --workdir=runs/icepop_embedded

A token whose ratio of the learner's probability to the sampler's lies outside 0.5 .. 5 is dropped; others are weighed
by it. Rollouts are drawn at temperature 1.3 and trained at 1, so that there is something to disagree on.

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
    loss = LossConfig(policy_loss="clipped", correction_mode="mask", correction_low=0.5, correction_high=5.0)
    base = dr_grpo.recipe()
    recipe = dataclasses.replace(base.recipe, minibatches=1)
    sampling = dataclasses.replace(base.sampling, temperature=1.3)
    return twin(dataclasses.replace(base, loss=loss, recipe=recipe, sampling=sampling, learner_temperature=1.0))
