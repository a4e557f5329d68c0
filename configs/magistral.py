"""Magistral's GRPO on Qwen2.5 32B, up to 16k tokens, asynchronous (arXiv 2506.10910).

    python -m isocompute_jax.train --config=configs/magistral.py --dry_run
    python -m isocompute_jax.train --config=configs/magistral.py --workdir=runs/magistral \
      --config.model=DIRECTORY_OF_QWEN2_5_32B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

No KL, token means, advantages over the batch's deviation, clip-higher, groups without signal removed, a soft length
penalty of up to 0.1, weights that reach rollouts while they are drawn. 4 hosts of 8 H200 learn, 4 more sample.

Cost, by its plan (estimates from rooflines; nothing was run): 1,779 to 3,143 H200-hours for 1,048,576 rollouts in 512
steps of 2,048, each 143 to 266 s of update, 49 to 73 s of sending weights and 177 to 266 s of sampling by vLLM on 32
others, meanwhile; evaluations and the last checkpoint are counted. It takes 110.2 of the 140 GiB of each H200 that
learns.

Expected, by the paper (Mistral Medium 3, no supervised traces): AIME 2024 pass@1 from about 27% to 73.6%, completions
that grow as reward does.

Departures:

- Qwen2.5 32B in place of Mistral's models, whose family is not supported;
- rewards of 0 and 1 by the math grader: no rewards for the format or for the language of the question;
- an upper clip of 0.28, from the paper's range of 0.26 to 0.28, on the ratio to the sampler;
- 128 problems x 16 rollouts, 1e-6, at most 2 updates old, one length: the paper prints no group size or rate, and lets
  lengths grow in stages.
"""

from isocompute_jax.experiment.config import (
    ComputeConfig,
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
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import PromptConfig

ROW_TOKENS = 18 * 1024


def recipe() -> RunConfig:
    """The recipe of this file."""
    return RunConfig(
        model="configs/models/qwen2.5-32b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=128,
        max_compute=2**20,
        max_staleness=2,
        asynchrony="in_flight",
        dtype="bfloat16",
        mesh=MeshConfig(data=4, fsdp=8),
        prompts=PromptConfig(
            chat_template="on",
            system="Think inside <think> and </think>, then answer. Put your final answer within \\boxed{}.",
            generation_prefix="<think>\n",
        ),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(
            aggregation="token_mean",
            advantage_scale="batch_std",
            zero_variance_groups="drop",
            microbatch_tokens=32 * ROW_TOKENS,
        ),
        loss=LossConfig(
            policy_loss="clipped", clip_low=0.2, clip_high=0.28, ratio_from="sampler", correction_mode="off"
        ),
        length=LengthConfig(overlong="all", overlong_penalty=0.1),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=2048, lr_scaling_exponent=0.0, warmup_steps=10),
        service=ServiceConfig(endpoints="sampler-0:50051,sampler-1:50051,sampler-2:50051,sampler-3:50051"),
        evaluation=EvaluationConfig(
            sets={"aime24": "data/aime24.jsonl"}, samples=32, k=32, points=15, first_compute=2**14
        ),
        plan=PlanConfig(
            topology="h200:4x8",
            median_tokens=4096,
            prompt_tokens=256,
            sampler_devices=32,
            sampler_tensor=4,
            evaluation_problems=30,
        ),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
