"""The configuration of one run: a small config per room, composed, overridden by flags and validated here.

`configs/*.py` return `RunConfig(...)`; `--config.optimizer.base_lr=3e-6` overrides a field.
"""

from isocompute_jax.experiment.config.checks import HEALTHY_COEFFICIENT, ROWS, check_trusted, how_to_hold_out
from isocompute_jax.experiment.config.editing import config_page, from_dict, override, read_resolved
from isocompute_jax.experiment.config.run import (
    AgreementConfig,
    AlarmsConfig,
    CheckpointsConfig,
    EvaluationConfig,
    LengthConfig,
    PlanConfig,
    RunConfig,
    TrackConfig,
)
from isocompute_jax.experiment.config.steps import (
    ComputeConfig,
    CurriculumConfig,
    MeshConfig,
    PackingConfig,
    RecipeConfig,
    SamplingConfig,
    ThinkingConfig,
    ToolConfig,
)
from isocompute_jax.tasks import PromptConfig

__all__ = [
    "HEALTHY_COEFFICIENT",
    "ROWS",
    "AgreementConfig",
    "AlarmsConfig",
    "CheckpointsConfig",
    "ComputeConfig",
    "CurriculumConfig",
    "EvaluationConfig",
    "LengthConfig",
    "MeshConfig",
    "PackingConfig",
    "PlanConfig",
    "PromptConfig",
    "RecipeConfig",
    "RunConfig",
    "SamplingConfig",
    "ThinkingConfig",
    "ToolConfig",
    "TrackConfig",
    "check_trusted",
    "config_page",
    "from_dict",
    "how_to_hold_out",
    "override",
    "read_resolved",
]
