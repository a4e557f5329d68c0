"""GRPO on a mixture of experts (Qwen3 30B-A3B: 128 experts, 8 of them for a token), up to 16k tokens, 8 H200.

    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_qwen3_30b_a3b_16k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_qwen3_30b_a3b_16k.py --workdir=runs/qwen3_30b_a3b \
      --config.model=DIRECTORY_OF_QWEN3_30B_A3B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 170 to 278 H200-hours for 262,144 rollouts in 256 steps
of 1,024, each 23 to 54 s of update, 45 to 68 s of sending weights and 80 to 120 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 108.6 of the 140 GiB of each H200 that learns.
"""

from isocompute_jax.experiment.config import (
    ComputeConfig,
    MeshConfig,
    PackingConfig,
    PlanConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
)

ROW_TOKENS = 16 * 1024


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return RunConfig(
        model="configs/models/qwen3-30b-a3b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=64,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(expert=8),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(microbatch_tokens=8 * ROW_TOKENS),
        plan=PlanConfig(
            topology="h200:1x8", median_tokens=2048, prompt_tokens=512, sampler_tensor=4, sampler_devices=8
        ),
    )
