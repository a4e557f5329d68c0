"""GRPO on a dense model of 8 B parameters (Llama 3.1 8B), up to 32k tokens, two hosts of 8 H200.

Weights are gathered within a host; only gradients cross between them.

    python -m isocompute_jax.train --config=configs/layouts/h200_2x8_dense8b_32k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/h200_2x8_dense8b_32k.py --workdir=runs/dense8b_32k \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

vLLM servers sample, here on 16 H200 of two more hosts (docs/clusters.md).

Cost, by its plan (estimates from rooflines; nothing was run): 665 to 1,024 H200-hours for 262,144 rollouts in 256 steps
of 1,024, each 42 to 75 s of update, 48 to 71 s of sending weights and 202 to 303 s of sampling by vLLM on 16 others;
evaluations and the last checkpoint are counted. It takes 41.8 of the 140 GiB of each H200 that learns.
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

ROW_TOKENS = 32 * 1024


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return RunConfig(
        model="configs/models/llama-3.1-8b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=64,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(data=2, fsdp=8),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(microbatch_tokens=16 * ROW_TOKENS),
        plan=PlanConfig(topology="h200:2x8", median_tokens=4096, prompt_tokens=512, sampler_devices=16),
    )
