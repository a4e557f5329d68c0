"""The configuration of one run: a small config per room, composed."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ml_collections import config_dict

from isocompute_jax.experiment.config.alarms import AlarmsConfig
from isocompute_jax.experiment.config.checkpoints import CheckpointsConfig
from isocompute_jax.experiment.config.checks import apply_preset, validate
from isocompute_jax.experiment.config.compute import ComputeConfig, MeshConfig
from isocompute_jax.experiment.config.curriculum import CurriculumConfig
from isocompute_jax.experiment.config.editing import build
from isocompute_jax.experiment.config.evaluation import AgreementConfig, EvaluationConfig
from isocompute_jax.experiment.config.length import LengthConfig
from isocompute_jax.experiment.config.plan import PlanConfig
from isocompute_jax.experiment.config.recipe import PackingConfig, RecipeConfig
from isocompute_jax.experiment.config.sampling import SamplingConfig
from isocompute_jax.experiment.config.track import TrackConfig
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import PromptConfig, RewardConfig


@described
@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One training run."""

    model: str = option("", "Hugging Face directory of the base model, tokenizer included.")
    train_set: str = option("", "Problem set file (JSONL or Parquet).")
    group_size: int = option(8, "n, rollouts per problem and step, whose mean reward is their baseline.", low=2)
    problems_per_batch: int = option(8, "B_problem, unique problems per step.", low=1)
    max_compute: int = option(
        2**16, "C, rollouts to spend; the number of steps is C / (n x B_problem), rounded down.", low=1
    )
    problem_set_size: int = option(0, "D, train on the first so many problems of `train_set`; 0 for all.", low=0)
    seed: int = option(0, "Seed of the data order and of every rollout.", low=0, high=2**32 - 1, replicate=True)
    checkpoint_every_s: float = option(
        60.0,
        "Seconds between checkpoints (0: after every step). Runs are exactly repeatable whatever it is.",
        low=0,
        identity=False,
    )
    export_every: int = option(
        0,
        "Steps between Hugging Face directories of the weights so far, exports/step-N; all are kept. 0 for none.",
        low=0,
        identity=False,
        later=True,
    )
    dtype: Literal["float32", "bfloat16"] = option(
        "float32", "Dtype the model computes in; master weights and moments are float32."
    )
    max_staleness: int = option(
        0,
        "k, how many updates behind the oldest token of a rollout may be when it is used; 0 is on-policy.",
        low=0,
    )
    asynchrony: Literal["in_flight", "boundary", "phases"] = option(
        "in_flight",
        "What k >= 1 means. in_flight (PipelineRL, arXiv 2509.19128): k batches are sampled ahead of the one that is "
        "waited for, and new weights reach rollouts while they are being drawn, so that a rollout may mix versions; "
        "boundary: the same window, but new weights wait until what is being drawn is done: no rollout mixes "
        "versions; phases (PPO-off-policy-k): k batches are sampled under the same weights, then k updates are made, "
        "one on each, the last of them k - 1 updates behind. The only one that needs no service.",
    )
    learner_temperature: float = option(
        0.0,
        "Temperature of the policy that is trained, where rollouts are sampled at another one: the sampler correction "
        "accounts for the difference. 0 is sampling.temperature.",
        low=0,
        later=True,
    )
    prompts: PromptConfig = option(default_factory=PromptConfig, later=True)
    sampling: SamplingConfig = option(default_factory=SamplingConfig)
    reward: RewardConfig = option(default_factory=RewardConfig, later=True)
    recipe: RecipeConfig = option(default_factory=RecipeConfig)
    loss: LossConfig = option(default_factory=LossConfig)
    optimizer: OptimizerConfig = option(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = option(default_factory=EvaluationConfig)
    mesh: MeshConfig = option(default_factory=MeshConfig, identity=False)
    compute: ComputeConfig = option(default_factory=ComputeConfig, later=True)
    packing: PackingConfig = option(default_factory=PackingConfig, later=True)
    curriculum: CurriculumConfig = option(default_factory=CurriculumConfig, later=True)
    length: LengthConfig = option(default_factory=LengthConfig, later=True)
    service: ServiceConfig = option(default_factory=ServiceConfig)
    agreement: AgreementConfig = option(default_factory=AgreementConfig, replicate=True)
    alarms: AlarmsConfig = option(default_factory=AlarmsConfig, later=True, identity=False)
    checkpoints: CheckpointsConfig = option(default_factory=CheckpointsConfig, later=True, identity=False)
    track: TrackConfig = option(default_factory=TrackConfig, later=True, identity=False)
    plan: PlanConfig = option(default_factory=PlanConfig, identity=False)

    def __post_init__(self) -> None:
        if self.group_size == 1:
            raise InputError(
                "RunConfig.group_size = 1 must be at least 2: a rollout is compared with the mean reward of its group, "
                "and alone it is that mean, which leaves nothing to learn from"
            )
        check(self)

    @property
    def rollouts_per_step(self) -> int:
        """B = B_problem x n."""
        return self.problems_per_batch * self.group_size

    @property
    def num_steps(self) -> int:
        """M = C / B: all steps of a run, unless a step may cost more or less than B (see `CurriculumConfig`)."""
        return self.max_compute // self.rollouts_per_step

    @property
    def updates_per_step(self) -> int:
        """Updates that are made on one sampled batch."""
        return self.recipe.epochs * self.recipe.minibatches

    @property
    def problems_per_update(self) -> int:
        """Problems of a mini-batch."""
        return self.problems_per_batch // self.recipe.minibatches

    @property
    def keeps_old_logprobs(self) -> bool:
        """Whether batches are scored before their updates, for the ratio's denominator."""
        return self.updates_per_phase * self.updates_per_step > 1 and self.loss.ratio_from == "old"

    @property
    def scores_first(self) -> bool:
        """Whether a batch is scored before the updates on it, whatever for."""
        return self.keeps_old_logprobs or self.loss.in_reward

    @property
    def temperature(self) -> float:
        """Of the policy that is trained."""
        return self.learner_temperature or self.sampling.temperature

    @property
    def overlapped(self) -> bool:
        """Whether rollouts are sampled while the learner updates."""
        return self.max_staleness > 0 and self.asynchrony != "phases"

    @property
    def updates_per_phase(self) -> int:
        """Batches between two sampling phases: one, or k of `phases`."""
        return max(self.max_staleness, 1) if self.asynchrony == "phases" else 1

    @property
    def window(self) -> int:
        """Batches that are sampled or ready at once, the next update's included; the oldest is window - 1 behind."""
        return self.updates_per_phase if self.asynchrony == "phases" else self.max_staleness + 1

    @property
    def check_every(self) -> int:
        """Updates between two agreement checks; 0 for none: in one process sampler and learner share their arrays."""
        return self.agreement.every if self.service.remote else 0

    def editable(self) -> config_dict.ConfigDict:
        """The config as a locked ConfigDict, which `--config.FIELD=VALUE` flags override."""
        return config_dict.ConfigDict(dataclasses.asdict(self)).lock()

    def resolved(self) -> RunConfig:
        """Applies the `healthy` preset and validates everything; what a run starts from.

        Raises:
          InputError: names the field at fault and what to do.
        """
        config = apply_preset(self)
        validate(config)
        return config


def from_dict(values: Any) -> RunConfig:
    """The config that nested mappings spell; an unknown field is an error that names the nearest known one."""
    return build(RunConfig, values, "config")
