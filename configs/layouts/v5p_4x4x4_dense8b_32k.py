"""GRPO on a dense model of 8 B parameters (Llama 3.1 8B), up to 32k tokens, a v5p slice of 64 chips.

Not fsdp=64: shards of 4096 / 64 numbers fill half of a TPU's lanes, and are gathered by all-reduces, at twice the cost.

    python -m isocompute_jax.train --config=configs/layouts/v5p_4x4x4_dense8b_32k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/v5p_4x4x4_dense8b_32k.py --workdir=runs/dense8b_32k \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

Servers of the JAX engine sample, here on another slice (docs/clusters.md).

Cost, by its plan (estimates from rooflines; nothing was run): 1,486 to 2,271 chip-hours for 262,144 rollouts in 128
steps of 2,048, each 46 to 77 s of update, 5.9 to 8.9 s of sending weights and 275 to 412 s of sampling by the JAX
engine on 64 others; evaluations and the last checkpoint are counted. It takes 38.4 of the 95 GiB of each v5p chip that
learns.
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
        problems_per_batch=128,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(data=4, fsdp=16),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(microbatch_tokens=64 * ROW_TOKENS),
        plan=PlanConfig(topology="tpu:v5p:4x4x4", median_tokens=4096, prompt_tokens=512, sampler_devices=64),
    )
