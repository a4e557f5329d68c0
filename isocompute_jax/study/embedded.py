"""A recipe's embedded twin: the same losses, credit, curriculum and optimizer, on the study's model.

What a recipe is stays; what only the size of its model asks for becomes that of the embedded default. So that a recipe
can be tried, ablated and compared with others in minutes on a laptop.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from isocompute_jax.experiment.config import (
    ComputeConfig,
    LengthConfig,
    MeshConfig,
    PackingConfig,
    PlanConfig,
    RunConfig,
    SamplingConfig,
)
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.study.presets import embedded_run
from isocompute_jax.tasks import PromptConfig, RewardConfig

STUDY = "runs/study-quick"
"""Where `make study` leaves the base model and the sets."""
COMPUTE = 2**17
GROUP_SIZE, PROBLEMS = 16, 8
"""Most rollouts of a problem, and problems of a batch unless its mini-batches are more."""


def twin(recipe: RunConfig, problem_set: Literal["easy", "hard"] = "hard") -> RunConfig:
    """The recipe on the embedded model and one of its curated sets, for C = 2^17 rollouts.

    Kept: loss, credit, updates per batch, curriculum, KL and entropy, warm-up, weight decay, Adam's decays and epsilon,
    head precision, temperature, learning-rate exponent, staleness. Departures, for every recipe alike:

    - at most 16 rollouts a problem, 8 problems a batch (or one for each mini-batch);
    - the rate that the embedded model learns at, 2.5e-4 for 64 rollouts, scaled by the recipe's exponent;
    - raw prompts and answers of 9 tokens, so no forced interruption, and a length penalty over a fifth of them;
    - where rollouts may be stale, phases (PPO-off-policy-k) in the learner's process in place of a service's.
    """
    small = embedded_run(max_compute=COMPUTE, points=15, samples=8)
    length = recipe.length
    return dataclasses.replace(
        recipe,
        model=f"{STUDY}/base",
        train_set=f"{STUDY}/curated/{problem_set}/train.jsonl",
        group_size=min(recipe.group_size, GROUP_SIZE),
        problems_per_batch=min(recipe.problems_per_batch, max(PROBLEMS, recipe.recipe.minibatches)),
        max_compute=COMPUTE,
        checkpoint_every_s=small.checkpoint_every_s,
        asynchrony="phases" if recipe.max_staleness else recipe.asynchrony,
        dtype="float32",
        prompts=PromptConfig(),
        reward=RewardConfig(),
        sampling=SamplingConfig(temperature=recipe.sampling.temperature),
        length=LengthConfig(
            overlong=length.overlong, overlong_penalty=length.overlong_penalty, truncated=length.truncated
        ),
        recipe=dataclasses.replace(recipe.recipe, microbatch_tokens=small.recipe.microbatch_tokens),
        optimizer=dataclasses.replace(
            recipe.optimizer, base_lr=small.optimizer.base_lr, base_batch=small.optimizer.base_batch
        ),
        evaluation=dataclasses.replace(
            small.evaluation, sets={"validation": f"{STUDY}/curated/{problem_set}/validation.jsonl"}
        ),
        mesh=MeshConfig(),
        packing=PackingConfig(),
        compute=ComputeConfig(head=recipe.compute.head),
        service=ServiceConfig(),
        plan=PlanConfig(),
    )
