"""DAPO on Qwen2.5 32B, up to 20k tokens, 8 hosts of 8 H200 (arXiv 2503.14476).

    python -m isocompute_jax.convert --source=dapo-math-17k.parquet --adapter=dapo_math_17k --out=data/train.jsonl
    python -m isocompute_jax.train --config=configs/dapo.py --dry_run
    python -m isocompute_jax.train --config=configs/dapo.py --workdir=runs/dapo \
      --config.model=DIRECTORY_OF_QWEN2_5_32B --config.train_set=data/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

Clip-higher (0.2 and 0.28), dynamic sampling, token means, the overlong penalty over the last 4,096 tokens, rewards of
-1 and 1, no KL; 512 problems x 16 rollouts, 16 updates on each batch. Its problems ask for the form of the answer
themselves, so that no suffix is added.

vLLM servers sample, here on 64 H200 of 8 more hosts (docs/clusters.md).

Cost, by its plan (estimates from rooflines; nothing was run): 14,920 to 24,871 H200-hours for 5,242,880 rollouts in 640
steps of 8,192, each 16 updates of 16 to 29 s, 49 to 73 s of sending weights and 269 to 405 s of sampling by vLLM on 64
others; evaluations and the last checkpoint are counted. It takes 77.1 of the 140 GiB of each H200 that learns. Groups
that dynamic sampling refills are paid from the same rollouts, so that there are fewer steps then.

Expected, by the paper: avg@32 on AIME 2024 rises from near 0 to 50% within about 10,000 updates (640 steps are 10,240).

Departures:

- truncated importance sampling (cap 2) corrects for the sampler's engine;
- weight decay 0.1, from the authors' script; the paper gives none;
- a batch is refilled by as many problems as it lacks, one round after the other, in place of three batches drawn ahead.
"""

from isocompute_jax.experiment.config import (
    ComputeConfig,
    CurriculumConfig,
    EvaluationConfig,
    LengthConfig,
    MeshConfig,
    PackingConfig,
    PlanConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
)
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.tasks import PromptConfig

ROW_TOKENS = 22 * 1024


def recipe() -> RunConfig:
    """The recipe of this file."""
    return RunConfig(
        model="configs/models/qwen2.5-32b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=512,
        max_compute=640 * 8192,
        dtype="bfloat16",
        mesh=MeshConfig(data=4, fsdp=16),
        prompts=PromptConfig(chat_template="on"),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(
            aggregation="token_mean",
            advantage_scale="group_std",
            reward_values="plus_minus_one",
            zero_variance_groups="drop",
            minibatches=16,
            microbatch_tokens=64 * ROW_TOKENS,
        ),
        loss=LossConfig(policy_loss="clipped", clip_low=0.2, clip_high=0.28),
        curriculum=CurriculumConfig(dynamic_sampling=True, max_sampled_batches=10.0),
        length=LengthConfig(overlong="all", overlong_tokens=4096),
        optimizer=OptimizerConfig(
            base_lr=1e-6, base_batch=8192, lr_scaling_exponent=0.0, warmup_steps=20, weight_decay=0.1
        ),
        evaluation=EvaluationConfig(
            sets={"aime24": "data/aime24.jsonl"}, samples=32, k=32, points=15, first_compute=2**16
        ),
        plan=PlanConfig(
            topology="h200:8x8",
            median_tokens=3072,
            prompt_tokens=256,
            sampler_devices=64,
            sampler_tensor=4,
            evaluation_problems=30,
        ),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
