"""MaxRL (arXiv 2602.02710), on the embedded model.

    python -m isocompute_jax.train --config=configs/maxrl_embedded.py --workdir=runs/maxrl_embedded

A = (r - mean) / mean of the group: the gradient of log pass@1 in place of pass@1's, cut off by the size of the group,
so that hard problems weigh the more the larger n is. One update a batch, 16 rollouts of each of 8 problems.

Needs the base model and the sets of `make study`. Departures are those of every twin:
`isocompute_jax.study.embedded`.
"""

import dataclasses

from configs import dr_grpo
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    recipe = dataclasses.replace(dr_grpo.recipe().recipe, advantage_scale="group_mean", minibatches=1)
    return twin(dataclasses.replace(dr_grpo.recipe(), recipe=recipe, group_size=16))
