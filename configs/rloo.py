"""RLOO on a dense model of 8 B parameters (Llama 3.1 8B Instruct), 3k tokens, one host of 8 H200 (arXiv 2402.14740).

    python -m isocompute_jax.train --config=configs/rloo.py --dry_run
    python -m isocompute_jax.train --config=configs/rloo.py --workdir=runs/rloo \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B_INSTRUCT --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

REINFORCE on whole completions, each rollout's baseline the mean of the other three of its problem, the KL to the start
of the run (0.03) subtracted from the reward; no ratio, no clip, one update on each batch.

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 157 to 243 H200-hours for 262,144 rollouts in 512 steps
of 512, each 4.5 to 8.6 s of update, 48 to 71 s of sending weights and 13 to 20 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 47.8 of the 140 GiB of each H200 that learns. On one host,
where 4 learn and 4 sample (--config.mesh.fsdp=4 --config.recipe.microbatch_tokens=32768; weights go by a file): 38 to
65 H200-hours.

Expected, by the paper's figures: above PPO and far above RAFT at equal samples, more so with k = 4 than with k = 2; it
has no curve for verified rewards.

Departures:

- verified rewards in place of a reward model of human preferences;
- a constant divides the sum over a completion's tokens, so that Adam's step is the paper's;
- truncated importance sampling (cap 2) corrects for the sampler's engine;
- a batch of 128 problems at 1e-6: the paper's differ by task.
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
        model="configs/models/llama-3.1-8b",
        train_set="data/train.jsonl",
        group_size=4,
        problems_per_batch=128,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8),
        prompts=PromptConfig(
            chat_template="on", suffix="Please reason step by step, and put your final answer within \\boxed{}."
        ),
        sampling=SamplingConfig(max_prompt_tokens=1024, max_tokens=3072),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(
            aggregation="constant",
            advantage_scale="none",
            baseline="leave_one_out",
            zero_variance_groups="keep",
            microbatch_tokens=16 * ROW_TOKENS,
        ),
        loss=LossConfig(policy_loss="reinforce", kl_coef=0.03, kl_in="reward"),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=512, lr_scaling_exponent=0.0, warmup_steps=10),
        evaluation=EvaluationConfig(
            sets={"validation": "data/validation.jsonl"}, samples=8, k=4, points=15, first_compute=2**12
        ),
        plan=PlanConfig(topology="h200:1x8", median_tokens=512, prompt_tokens=192, sampler_devices=8),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
