"""ScaleRL's recipe on a dense model of 8 B parameters (Llama 3.1 8B), PipelineRL-8 (arXiv 2510.13786).

    python -m isocompute_jax.train --config=configs/scalerl_8b.py --dry_run
    python -m isocompute_jax.train --config=configs/scalerl_8b.py --workdir=runs/scalerl_8b \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

CISPO on the ratio to the sampler with a cap above alone, prompt means, advantages over the batch's deviation, rewards
of -1 and 1, groups without signal dropped, problems retired at 0.9, rollouts up to 8 updates old, thinking interrupted
between 10,000 and 12,000 tokens. 8 H200 learn, 24 sample (launch/local.py, docs/samplers.md).

Cost, by its plan (estimates from rooflines; nothing was run): 12,383 to 19,410 H200-hours for 5,683,200 rollouts in
7,400 steps of 768, each 44 to 79 s of update, 143 to 214 s of sending weights and 79 to 118 s of sampling by vLLM on 24
others, meanwhile; evaluations and the last checkpoint are counted. It takes 68.3 of the 140 GiB of each H200 that
learns.

Expected, by the paper's first figure: mean@16 on held-out problems follows one sigmoid in compute over 7,400 steps and
100,000 GPU-hours, whose ceiling the first half of the run foretells; `python -m isocompute_jax.fit` draws it.
Its hours are many times the plan's: docs/plan.md, "Beside figures that others published".

Departures:

- Llama 3.1 8B in place of the authors' own model, and of its supervised start;
- a cap of 5 on the ratio, from the paper's range of 4 to 8;
- the head in three bfloat16 products (`compute.head=auto`), which is float32 but for rounding;
  --config.compute.head=float32 is exact, and by its plan an update takes nearly twice as long;
- a problem is retired once it had 16 rollouts, as many as a step draws.
"""

from isocompute_jax.experiment.config import (
    ComputeConfig,
    CurriculumConfig,
    EvaluationConfig,
    MeshConfig,
    PackingConfig,
    PlanConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
    ThinkingConfig,
)
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import PromptConfig

ROW_TOKENS = 16 * 1024


def recipe() -> RunConfig:
    """The recipe of this file."""
    return RunConfig(
        model="configs/models/llama-3.1-8b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=48,
        max_compute=7400 * 768,
        max_staleness=8,
        asynchrony="in_flight",
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8),
        prompts=PromptConfig(
            chat_template="on",
            suffix="Please reason step by step, and put your final answer within \\boxed{}.",
            generation_prefix="<think>\n",
        ),
        sampling=SamplingConfig(
            max_prompt_tokens=2048,
            max_tokens=12288 + 2048,
            thinking=ThinkingConfig(low=10_000, high=12_000, answer_tokens=2048),
        ),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(
            aggregation="prompt_mean",
            advantage_scale="batch_std",
            reward_values="plus_minus_one",
            zero_variance_groups="drop",
            microbatch_tokens=8 * ROW_TOKENS,
        ),
        loss=LossConfig(policy_loss="cispo", clip_low=1.0, clip_high=4.0, ratio_from="sampler", correction_mode="off"),
        curriculum=CurriculumConfig(retire_rate=0.9, retire_attempts=16),
        optimizer=OptimizerConfig(
            base_lr=5e-7, base_batch=768, lr_scaling_exponent=0.0, warmup_steps=100, eps=1e-15, weight_decay=0.01
        ),
        service=ServiceConfig(endpoints="sampler-0:50051,sampler-1:50051,sampler-2:50051"),
        evaluation=EvaluationConfig(
            sets={"validation": "data/validation.jsonl"}, samples=16, k=4, points=15, first_compute=2**15
        ),
        plan=PlanConfig(
            topology="h200:1x8", median_tokens=4096, prompt_tokens=256, sampler_devices=24, evaluation_problems=1000
        ),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
