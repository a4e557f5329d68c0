"""GRPO on a dense model of 8 B parameters (Llama 3.1 8B), up to 16k tokens, one host of 8 H200.

    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_dense8b_16k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_dense8b_16k.py --workdir=runs/h200_1x8_dense8b \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 208 to 325 H200-hours for 262,144 rollouts in 256 steps
of 1,024, each 35 to 64 s of update, 48 to 71 s of sending weights and 100 to 150 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 68.3 of the 140 GiB of each H200 that learns.
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
        problems_per_batch=64,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(microbatch_tokens=8 * ROW_TOKENS),
        plan=PlanConfig(topology="h200:1x8", median_tokens=2048, prompt_tokens=512, sampler_devices=8),
    )
