"""How completions are sampled."""

from __future__ import annotations

import dataclasses

from isocompute_jax.experiment.config.turns import ThinkingConfig, ToolConfig
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError


@described
@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How completions are sampled, in training and in evaluation."""

    temperature: float = option(1.0, "Sampling temperature, above 0.")
    top_p: float = option(1.0, "Nucleus size; training requires 1, because the learner scores the whole distribution.")
    max_prompt_tokens: int = option(
        9, "Longest prompt, in tokens; a longer one is an error. The default is the embedded task's.", low=1
    )
    max_tokens: int = option(
        9,
        "Longest completion, in tokens, what is put into it included. The default is the embedded task's.",
        low=1,
    )
    max_rollouts_per_dispatch: int = option(
        0,
        "Completions decoded at once in the learner's process; 0: as many as an accelerator has room for beside the "
        "learner's state, and 512 elsewhere.",
        low=0,
        identity=False,
    )
    thinking: ThinkingConfig = option(default_factory=ThinkingConfig, later=True)
    tool: ToolConfig = option(default_factory=ToolConfig, later=True)

    def __post_init__(self) -> None:
        check(self)
        if not self.temperature > 0:
            raise InputError(f"SamplingConfig.temperature = {self.temperature} must be above 0")
