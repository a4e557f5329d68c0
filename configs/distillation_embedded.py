"""On-policy distillation (arXiv 2306.13649) of a trained model into the base model of the study.

    python -m isocompute_jax.train --config=configs/distillation_embedded.py --workdir=runs/distillation_embedded

The policy draws, and the KL term alone is learned from: per token (lp - teacher's lp)^2 / 2, whose gradient is that of
the reverse KL to the teacher (`kl_estimator=k2`). --config.teacher names another directory, or a plain vLLM server.

Needs the base model and the sets of `make study`, and a teacher: what a run of configs/dr_grpo_embedded.py left.
Departures are those of every twin: `isocompute_jax.study.embedded`.
"""

import dataclasses

from configs import dr_grpo
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import LossConfig
from isocompute_jax.study.embedded import twin


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    loss = LossConfig(policy_loss="none", kl_coef=1.0, kl_estimator="k2")
    recipe = dataclasses.replace(dr_grpo.recipe().recipe, aggregation="token_mean", minibatches=1)
    recipe = dataclasses.replace(dr_grpo.recipe(), loss=loss, recipe=recipe)
    return twin(dataclasses.replace(recipe, teacher="runs/dr_grpo_embedded/model"))
