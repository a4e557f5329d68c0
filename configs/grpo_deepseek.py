"""GRPO as DeepSeekMath first ran it, on its 7B model, 1,024 tokens, one host of 8 H200 (arXiv 2402.03300).

    python -m isocompute_jax.train --config=configs/grpo_deepseek.py --dry_run
    python -m isocompute_jax.train --config=configs/grpo_deepseek.py --workdir=runs/grpo_deepseek \
      --config.model=DIRECTORY_OF_DEEPSEEK_MATH_7B_INSTRUCT --config.train_set=data/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

64 rollouts a problem, 1,024 a batch, one update on each; means over tokens of a completion, then over completions, the
group's deviation, and a KL term of 0.04 in the loss (k3). Nothing is left out where rewards are equal. C is one pass
over the paper's 144,000 questions.

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 2,021 to 3,114 H200-hours for 9,216,000 rollouts in 9,000
steps of 1,024, each 3.8 to 7.7 s of update, 41 to 61 s of sending weights and 5.8 to 8.7 s of sampling by vLLM on 8
others; evaluations and the last checkpoint are counted. It takes 44.1 of the 140 GiB of each H200 that learns. On one
host, where 4 learn and 4 sample (--config.mesh.fsdp=4 --config.recipe.microbatch_tokens=32768; weights go by a file):
362 to 637 H200-hours.

Expected, by the paper: GSM8K 82.9% to 88.2%, MATH 46.8% to 51.7%, greedily.

Departures:

- rewards of 0 and 1 by the math grader in place of a reward model;
- truncated importance sampling (cap 2) corrects for the sampler's engine;
- the reference is the start of the run.
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

ROW_TOKENS = 2048


def recipe() -> RunConfig:
    """The recipe of this file."""
    return RunConfig(
        model="configs/models/deepseek-math-7b",
        train_set="data/train.jsonl",
        group_size=64,
        problems_per_batch=16,
        max_compute=144_000 * 64,
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8),
        prompts=PromptConfig(
            chat_template="on", suffix="Please reason step by step, and put your final answer within \\boxed{}."
        ),
        sampling=SamplingConfig(max_prompt_tokens=1024, max_tokens=1024),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(
            aggregation="sequence_mean",
            advantage_scale="group_std",
            zero_variance_groups="keep",
            microbatch_tokens=32 * ROW_TOKENS,
        ),
        loss=LossConfig(policy_loss="clipped", clip_low=0.2, clip_high=0.2, kl_coef=0.04, kl_estimator="k3"),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=1024, lr_scaling_exponent=0.0),
        evaluation=EvaluationConfig(
            sets={"validation": "data/validation.jsonl"}, samples=8, k=4, points=15, first_compute=2**14
        ),
        plan=PlanConfig(topology="h200:1x8", median_tokens=256, prompt_tokens=128, sampler_devices=8),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
