"""Dr. GRPO on Qwen2.5 Math 7B, 3,000 tokens, one host of 8 H200 (arXiv 2503.20783).

    python -m isocompute_jax.train --config=configs/dr_grpo.py --dry_run
    python -m isocompute_jax.train --config=configs/dr_grpo.py --workdir=runs/dr_grpo \
      --config.model=DIRECTORY_OF_QWEN2_5_MATH_7B --config.train_set=data/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

Neither the deviation of a group nor the length of a completion divides anything: advantages are centred alone, and
tokens have one constant weight. 128 problems x 8 rollouts, 8 updates on each batch, no KL, rewards of 0 and 1; for
problems of MATH, levels 3 to 5, with the Qwen-Math template.

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 172 to 271 H200-hours for 524,288 rollouts in 512 steps
of 1,024, each 8 updates of 1.6 to 2.9 s, 45 to 68 s of sending weights and 13 to 20 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 55.1 of the 140 GiB of each H200 that learns. On one host,
where 4 learn and 4 sample (--config.mesh.fsdp=4 --config.recipe.microbatch_tokens=49152; weights go by a file): 60 to
103 H200-hours.

Expected, by the paper: 43.3% on AIME 2024 after 27 hours on 8 A100, and answers that do not grow longer where they are
wrong. Of its hours and the plan's: docs/plan.md, "Beside figures that others published".

Departures:

- truncated importance sampling (cap 2) corrects for the sampler's engine;
- 512 steps: the paper picks a step by its benchmarks.
"""

from isocompute_jax.experiment.config import (
    ComputeConfig,
    EvaluationConfig,
    MeshConfig,
    PackingConfig,
    PlanConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
)
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.tasks import PromptConfig

ROW_TOKENS = 4096


def recipe() -> RunConfig:
    """The recipe of this file."""
    return RunConfig(
        model="configs/models/qwen2.5-math-7b",
        train_set="data/train.jsonl",
        group_size=8,
        problems_per_batch=128,
        max_compute=2**19,
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8),
        prompts=PromptConfig(
            chat_template="on", system="Please reason step by step, and put your final answer within \\boxed{}."
        ),
        sampling=SamplingConfig(max_prompt_tokens=1024, max_tokens=3000),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(
            aggregation="constant",
            advantage_scale="none",
            zero_variance_groups="keep",
            minibatches=8,
            microbatch_tokens=24 * ROW_TOKENS,
        ),
        loss=LossConfig(policy_loss="clipped", clip_low=0.2, clip_high=0.2),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=1024, lr_scaling_exponent=0.0, warmup_steps=0, b2=0.95),
        evaluation=EvaluationConfig(
            sets={"validation": "data/validation.jsonl"}, samples=8, k=4, points=15, first_compute=2**13
        ),
        plan=PlanConfig(topology="h200:1x8", median_tokens=768, prompt_tokens=192, sampler_devices=8),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
