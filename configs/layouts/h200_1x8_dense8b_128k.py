"""GRPO on a dense model of 8 B parameters (Llama 3.1 8B), up to 128k tokens, one host of 8 H200.

A row is cut over all eight devices, and so are the weights.

    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_dense8b_128k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/h200_1x8_dense8b_128k.py --workdir=runs/dense8b_128k \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 1,516 to 2,312 H200-hours for 65,536 rollouts in 256
steps of 256, each 116 to 208 s of update, 48 to 71 s of sending weights and 1,168 to 1,752 s of sampling by vLLM on 8
others; evaluations and the last checkpoint are counted. It takes 31.4 of the 140 GiB of each H200 that learns.
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

ROW_TOKENS = 128 * 1024


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return RunConfig(
        model="configs/models/llama-3.1-8b",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=16,
        max_compute=2**16,
        dtype="bfloat16",
        mesh=MeshConfig(context=8),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(microbatch_tokens=ROW_TOKENS),
        plan=PlanConfig(topology="h200:1x8", median_tokens=16384, prompt_tokens=512, sampler_devices=8),
    )
