"""ScaleRL's recipe on Llama 4 Scout (its text: 16 experts and a shared one; 108 B parameters) (arXiv 2510.13786).

    python -m isocompute_jax.train --config=configs/scalerl_scout.py --dry_run
    python -m isocompute_jax.train --config=configs/scalerl_scout.py --workdir=runs/scalerl_scout \
      --config.model=DIRECTORY_OF_LLAMA_4_SCOUT --config.train_set=PROBLEMS.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN

The recipe is that of configs/scalerl_8b.py. 8 hosts of 8 H200 learn, experts divided within a host and all weights
between the hosts, and 8 more sample, each one copy.

Cost, by its plan (estimates from rooflines; nothing was run): 25,196 to 44,204 H200-hours for 5,452,800 rollouts in
7,100 steps of 768, each 19 to 54 s of update, 80 to 120 s of sending weights and 88 to 132 s of sampling by vLLM on 64
others, meanwhile; evaluations and the last checkpoint are counted. It takes 81.8 of the 140 GiB of each H200 that
learns.

Expected, by the paper's first figure: over 7,100 steps and 50,000 GPU-hours a sigmoid that ends above the 8B model's,
and gets there sooner. Its hours beside the plan's: docs/plan.md, "Beside figures that others published".

Departures:

- those of configs/scalerl_8b.py.
"""

import dataclasses

from configs import scalerl_8b
from isocompute_jax.experiment.config import ComputeConfig, MeshConfig, PlanConfig, RunConfig
from isocompute_jax.service.client.service_config import ServiceConfig


def recipe() -> RunConfig:
    """The recipe of this file: that of the 8B model, laid out for a larger one."""
    smaller = scalerl_8b.recipe()
    return dataclasses.replace(
        smaller,
        model="configs/models/llama-4-scout",
        max_compute=7100 * 768,
        mesh=MeshConfig(fsdp=8, expert=8),
        compute=ComputeConfig(remat="attention_output"),
        recipe=dataclasses.replace(smaller.recipe, microbatch_tokens=64 * scalerl_8b.ROW_TOKENS),
        service=ServiceConfig(endpoints=",".join(f"sampler-{host}:50051" for host in range(8))),
        plan=PlanConfig(
            topology="h200:8x8",
            median_tokens=4096,
            prompt_tokens=256,
            sampler_devices=64,
            sampler_tensor=8,
            evaluation_problems=1000,
        ),
    )


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
