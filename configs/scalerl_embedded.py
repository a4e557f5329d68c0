"""ScaleRL's recipe (arXiv 2510.13786) on the embedded model: what its leave-one-out ablation starts from.

    python -m isocompute_jax.train --config=configs/scalerl_embedded.py --workdir=runs/scalerl_embedded
    python -m isocompute_jax.ablate --config=configs/scalerl_embedded.py --vary=scalerl --workdir=runs/ablate_scalerl

Needs `make study` (or `make study-smoke` with the paths overridden) to have made the base model and the sets.

The recipe's: CISPO on the ratio to the sampler with a cap above alone, prompt means, advantages over the batch's
deviation, rewards of -1 and 1, groups without signal dropped, problems retired at 0.9, 16 rollouts a problem, k = 8,
AdamW with eps 1e-15 and weight decay 0.01, a constant rate after 100 steps of warm-up. Departures:

- PPO-off-policy-8 (phases) in place of PipelineRL-8, which needs a service: give --config.service.endpoints and
  --config.asynchrony=in_flight for that;
- no forced interruption: answers of 9 tokens have no thinking (docs/length_control.md shows it);
- 8 problems a batch in place of 48, and the learning rate of the embedded model in place of 5e-7.
"""

from ml_collections import config_dict

from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, RecipeConfig, RunConfig
from isocompute_jax.learner import LossConfig, OptimizerConfig

STUDY = "runs/study-quick"


def get_config() -> config_dict.ConfigDict:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return RunConfig(
        model=f"{STUDY}/base",
        train_set=f"{STUDY}/curated/hard/train.jsonl",
        group_size=16,
        problems_per_batch=8,
        max_compute=2**17,
        max_staleness=8,
        asynchrony="phases",
        recipe=RecipeConfig(
            aggregation="prompt_mean",
            advantage_scale="batch_std",
            reward_values="plus_minus_one",
            zero_variance_groups="drop",
            microbatch_tokens=144,
        ),
        loss=LossConfig(policy_loss="cispo", clip_low=1.0, clip_high=4.0, ratio_from="sampler", correction_mode="off"),
        curriculum=CurriculumConfig(retire_rate=0.9, retire_attempts=16),
        optimizer=OptimizerConfig(
            base_lr=2.5e-4,
            base_batch=128,
            lr_scaling_exponent=0.0,
            warmup_steps=100,
            eps=1e-15,
            weight_decay=0.01,
        ),
        evaluation=EvaluationConfig(sets={"validation": f"{STUDY}/curated/hard/validation.jsonl"}),
    ).editable()
