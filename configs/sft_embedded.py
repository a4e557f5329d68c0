"""Supervised fine-tuning on the answers of the study's problems, on the embedded model.

    python -m isocompute_jax.train --config=configs/sft_embedded.py --workdir=runs/sft_embedded

The step is that of REINFORCE on texts in place of rollouts, each with an advantage of 1: the mean of -log p over the
tokens of a batch. --config.supervised names the column of the train set that has the texts.

Needs the base model and the sets of `make study`. Departures are those of every twin:
`isocompute_jax.study.embedded`.
"""

import dataclasses

from configs import dr_grpo
from isocompute_jax.experiment.config import RecipeConfig, RunConfig
from isocompute_jax.learner import LossConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    loss = LossConfig(policy_loss="reinforce", correction_mode="off")
    recipe = RecipeConfig(advantage_scale="none", baseline="none", zero_variance_groups="keep")
    config = dataclasses.replace(dr_grpo.recipe(), loss=loss, recipe=recipe, group_size=1, supervised="answer")
    return dataclasses.replace(twin(config), problems_per_batch=64)
