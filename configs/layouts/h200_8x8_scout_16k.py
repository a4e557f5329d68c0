"""GRPO on Llama 4 Scout (its text: 16 experts and a shared one; 108 B parameters), up to 16k tokens, 8 hosts of 8 H200.

Experts are divided within a host, and all weights between the hosts.

    python -m isocompute_jax.train --config=configs/layouts/h200_8x8_scout_16k.py --dry_run
    python -m isocompute_jax.train --config=configs/layouts/h200_8x8_scout_16k.py --workdir=runs/scout \
      --config.model=DIRECTORY_OF_LLAMA_4_SCOUT --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

vLLM servers sample, here on 64 H200 of 8 more hosts (docs/clusters.md).

Cost, by its plan (estimates from rooflines; nothing was run): 888 to 1,479 H200-hours for 262,144 rollouts in 128 steps
of 2,048, each 25 to 68 s of update, 80 to 120 s of sending weights and 88 to 132 s of sampling by vLLM on 64 others;
evaluations and the last checkpoint are counted. It takes 101.4 of the 140 GiB of each H200 that learns.
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
        model="configs/models/llama-4-scout",
        train_set="data/train.jsonl",
        group_size=16,
        problems_per_batch=128,
        max_compute=2**18,
        dtype="bfloat16",
        mesh=MeshConfig(fsdp=8, expert=8),
        sampling=SamplingConfig(max_prompt_tokens=2048, max_tokens=ROW_TOKENS - 2048),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="attention_output"),
        recipe=RecipeConfig(microbatch_tokens=128 * ROW_TOKENS),
        plan=PlanConfig(
            topology="h200:8x8", median_tokens=2048, prompt_tokens=512, sampler_tensor=8, sampler_devices=64
        ),
    )
