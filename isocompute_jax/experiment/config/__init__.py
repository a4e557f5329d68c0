"""The configuration of one run: a small config per room, composed, overridden by flags and validated here.

`configs/*.py` return `RunConfig(...).editable()`; `--config.optimizer.base_lr=3e-6` overrides a field.
"""

from isocompute_jax.experiment.config.alarms import AlarmsConfig
from isocompute_jax.experiment.config.checkpoints import CheckpointsConfig
from isocompute_jax.experiment.config.checks import HEALTHY_COEFFICIENT, how_to_hold_out
from isocompute_jax.experiment.config.compute import ComputeConfig, MeshConfig
from isocompute_jax.experiment.config.curriculum import CurriculumConfig
from isocompute_jax.experiment.config.editing import override
from isocompute_jax.experiment.config.evaluation import AgreementConfig, EvaluationConfig
from isocompute_jax.experiment.config.length import LengthConfig
from isocompute_jax.experiment.config.page import config_page
from isocompute_jax.experiment.config.plan import PlanConfig
from isocompute_jax.experiment.config.recipe import PackingConfig, RecipeConfig
from isocompute_jax.experiment.config.resolved import check_trusted, read_resolved
from isocompute_jax.experiment.config.run import RunConfig, from_dict
from isocompute_jax.experiment.config.sampling import SamplingConfig
from isocompute_jax.experiment.config.track import TrackConfig
from isocompute_jax.experiment.config.turns import ThinkingConfig, ToolConfig
from isocompute_jax.tasks import PromptConfig

__all__ = [
    "HEALTHY_COEFFICIENT",
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
