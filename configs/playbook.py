"""What the six recipes of the IsoCompute Playbook (arXiv 2603.12151) share; see configs/isocompute_*.py."""

from typing import Literal

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

ROW_TOKENS = 10 * 1024
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


def recipe(model: str, problem_set: Literal["easy", "hard"]) -> RunConfig:
    """GRPO on-policy, sampled at 0.6, with truncated importance sampling, on one host of 8 H200.

    Args:
      model: a folder of configs/models, whose shape plans read; runs are given --config.model.
      problem_set: Easy with KL and entropy terms on, Hard with both off (the healthy recipes).
    """
    return RunConfig(
        model=f"configs/models/{model}",
        train_set=f"data/{problem_set}/train.jsonl",
        group_size=16,
        problems_per_batch=64,
        max_compute=2**19,
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8),
        prompts=PromptConfig(chat_template="on", suffix=BOXED),
        sampling=SamplingConfig(temperature=0.6, max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(healthy=problem_set, microbatch_tokens=8 * ROW_TOKENS),
        loss=LossConfig(policy_loss="clipped", correction_mode="truncate", correction_high=2.0),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=1024, lr_scaling_exponent=0.5, warmup_steps=10),
        evaluation=EvaluationConfig(
            sets={"validation": f"data/{problem_set}/validation.jsonl"}, samples=4, k=4, points=15, first_compute=2**13
        ),
        plan=PlanConfig(topology="h200:1x8", median_tokens=1024, prompt_tokens=256, sampler_devices=8),
    )
