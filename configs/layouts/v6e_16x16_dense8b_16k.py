"""GRPO on a dense model of 8 B parameters (Llama 3.1 8B), up to 16k tokens, a v6e slice of 256 chips.

    python -m isocompute_jax.train --config=configs/layouts/v6e_16x16_dense8b_16k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/v6e_16x16_dense8b_16k.py --workdir=runs/v6e_16x16_dense8b \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

Servers of the JAX engine sample, here on another slice (docs/clusters.md).

Its plan takes many minutes to compile (BENCHMARKS.md has one); what it costs is said there, and by no test held here.
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
        model="configs/models/llama-3.1-8b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=256,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(data=16, fsdp=16),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(microbatch_tokens=256 * ROW_TOKENS),
        plan=PlanConfig(topology="tpu:v6e:16x16", median_tokens=2048, prompt_tokens=512, sampler_devices=256),
    )
