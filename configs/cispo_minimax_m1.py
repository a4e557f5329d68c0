"""MiniMax-M1's CISPO on Qwen2.5 32B, the paper's comparison with DAPO and GRPO (arXiv 2506.13585, section 3.1).

    python -m isocompute_jax.train --config=configs/cispo_minimax_m1.py --dry_run
    python -m isocompute_jax.train --config=configs/cispo_minimax_m1.py --workdir=runs/cispo_minimax_m1 \
      --config.model=DIRECTORY_OF_QWEN2_5_32B --config.train_set=data/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

CISPO without a lower bound, means over a problem's tokens, DAPO's dynamic sampling and length penalty, 16 updates on
each batch, AdamW with b2 = 0.95 and eps = 1e-15. Data and layout are those of configs/dapo.py.

vLLM servers sample, here on 64 H200 of 8 more hosts (docs/clusters.md).

Cost, by its plan (estimates from rooflines; nothing was run): 14,920 to 24,871 H200-hours for 5,242,880 rollouts in 640
steps of 8,192, each 16 updates of 16 to 29 s, 49 to 73 s of sending weights and 269 to 405 s of sampling by vLLM on 64
others; evaluations and the last checkpoint are counted. It takes 77.1 of the 140 GiB of each H200 that learns.

Expected, by the paper's second figure: on AIME 2024 DAPO's score in half of its steps.

Departures:

- an upper bound of 5 on the ratio: the paper tunes it and does not print it;
- learning rate, warm-up and batch of DAPO, which the paper does not print either;
- the head in three bfloat16 products (`compute.head=auto`), which is float32 but for rounding;
- generation is not stopped early on repetition;
- truncated importance sampling (cap 2) corrects for the sampler's engine.
"""

import dataclasses

from configs import dapo
from isocompute_jax.experiment.config import ComputeConfig, RunConfig
from isocompute_jax.learner import LossConfig, OptimizerConfig


def recipe() -> RunConfig:
    """The recipe of this file: what it has of DAPO's, and what is its own."""
    shared = dapo.recipe()
    return dataclasses.replace(
        shared,
        compute=ComputeConfig(remat="attention_output"),
        recipe=dataclasses.replace(shared.recipe, aggregation="prompt_mean"),
        loss=LossConfig(policy_loss="cispo", clip_low=1.0, clip_high=4.0),
        optimizer=OptimizerConfig(
            base_lr=1e-6, base_batch=8192, lr_scaling_exponent=0.0, warmup_steps=20, b2=0.95, eps=1e-15
        ),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
