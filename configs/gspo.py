"""GSPO on a mixture of experts (Qwen3 30B-A3B), up to 16k tokens, one host of 8 H200 (arXiv 2507.18071).

    python -m isocompute_jax.train --config=configs/gspo.py --dry_run
    python -m isocompute_jax.train --config=configs/gspo.py --workdir=runs/gspo \
      --config.model=DIRECTORY_OF_QWEN3_30B_A3B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

The ratio is that of whole completions, its length's root taken, and is clipped at 3e-4 and 4e-4; each batch is cut into
4 mini-batches. No routing replay: what the ratio of a token needs it for, that of a sequence does without.

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 267 to 449 H200-hours for 262,144 rollouts in 256 steps
of 1,024, each 4 updates of 10 to 23 s, 45 to 68 s of sending weights and 127 to 191 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 108.3 of the 140 GiB of each H200 that learns.

Expected, by the paper's figures: a reward that rises steadily where GRPO's needs routing replay to converge, with two
orders of magnitude more tokens clipped (`clip_fraction_last`).

Departures:

- 64 problems x 16 rollouts, a learning rate of 1e-6 and 14k tokens: the paper prints none of them;
- the published Qwen3 30B-A3B in place of a start that was fine-tuned on long answers;
- the correction for the sampler's engine is of sequences too, with a cap of 2.
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

ROW_TOKENS = 16 * 1024


def recipe() -> RunConfig:
    """The recipe of this file."""
    return RunConfig(
        model="configs/models/qwen3-30b-a3b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=64,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(expert=8),
        prompts=PromptConfig(
            chat_template="on", suffix="Please reason step by step, and put your final answer within \\boxed{}."
        ),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(
            aggregation="sequence_mean",
            advantage_scale="group_std",
            zero_variance_groups="drop",
            minibatches=4,
            microbatch_tokens=8 * ROW_TOKENS,
        ),
        loss=LossConfig(policy_loss="gspo", clip_low=3e-4, clip_high=4e-4, correction_level="sequence"),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=1024, lr_scaling_exponent=0.0, warmup_steps=10),
        evaluation=EvaluationConfig(
            sets={"aime24": "data/aime24.jsonl"}, samples=32, k=32, points=15, first_compute=2**13
        ),
        plan=PlanConfig(
            topology="h200:1x8",
            median_tokens=4096,
            prompt_tokens=256,
            sampler_devices=8,
            sampler_tensor=4,
            evaluation_problems=30,
        ),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
