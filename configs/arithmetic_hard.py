"""GRPO on the hard arithmetic set of the study, embedded base model.

    python -m isocompute_jax.train --config=configs/arithmetic_hard.py --workdir=runs/hard

Needs `make study` (or `make study-smoke` with the paths overridden) to have made the base model and the sets.
Cost: 2^18 rollouts, about a minute on one CPU core. Expected avg@4 on the held-out problems: see README.
"""

from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig
from isocompute_jax.learner import OptimizerConfig

STUDY = "runs/study-quick"


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return RunConfig(
        model=f"{STUDY}/base",
        train_set=f"{STUDY}/curated/hard/train.jsonl",
        group_size=8,
        problems_per_batch=8,
        max_compute=2**18,
        recipe=RecipeConfig(healthy="hard", microbatch_tokens=144),
        optimizer=OptimizerConfig(base_lr=2.5e-4, base_batch=64, lr_scaling_exponent=0.0),
        evaluation=EvaluationConfig(sets={"validation": f"{STUDY}/curated/hard/validation.jsonl"}),
    )
