"""What a plan assumes of a run that has not happened: where it runs, and how long its rollouts get."""

from __future__ import annotations

import dataclasses

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """Assumptions of `--dry_run`; training does not read them."""

    topology: str = option("", "Accelerators that the layout is meant for, as in --topology; empty for this machine's.")
    median_tokens: int = option(0, "Median length of a completion; 0 for a quarter of sampling.max_tokens.", low=0)
    sigma: float = option(
        1.0, "Standard deviation of the logarithm of that length (log-normal, cut off at sampling.max_tokens).", low=0
    )
    prompt_tokens: int = option(0, "Mean length of a prompt; 0 for half of sampling.max_prompt_tokens.", low=0)
    sampler_devices: int = option(
        0, "Devices of the servers, of the learner's kind; 0: the learner's sample in its process, in turns.", low=0
    )
    sampler_tensor: int = option(1, "Devices that hold one copy of the sampler's model.", low=1)
    rollouts_in_flight: int = option(
        0, "Rollouts decoded at once, over all copies; 0 for as many as there are and memory holds.", low=0
    )

    evaluation_problems: int = option(300, "Problems of each set of `evaluation.sets`.", low=1)
    curation_rollouts: int = option(
        0, "Rollouts of the curation that is paid for with the run; 0 for none, or where another run pays.", low=0
    )

    def __post_init__(self) -> None:
        check(self)
