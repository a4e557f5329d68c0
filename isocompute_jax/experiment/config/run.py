"""The fields of one run: a small group per subject, composed in `RunConfig`; what a step does is in `steps`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.allocation.schedule import BatchSize, ScheduleConfig, Sizes
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.experiment.config.checks import apply_preset, validate
from isocompute_jax.experiment.config.steps import (
    ComputeConfig,
    CurriculumConfig,
    Group,
    MeshConfig,
    PackingConfig,
    RecipeConfig,
    SamplingConfig,
)
from isocompute_jax.learner import LossConfig, OptimizerConfig
from isocompute_jax.model import LoraConfig
from isocompute_jax.options import described, field_of, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import PromptConfig, RewardConfig


@described
@dataclasses.dataclass(frozen=True)
class LengthConfig(Group):
    """Length control by rewards and masks; see `learner.credit` for the equations."""

    overlong: Literal["off", "all", "correct"] = option(
        "off",
        "Whose reward falls linearly by up to `overlong_penalty` over the last `overlong_tokens` before the limit: "
        "all, every completion (DAPO, arXiv 2503.14476); correct, those that solve their problem (ScaleRL's length "
        "penalty, arXiv 2510.13786).",
    )
    overlong_tokens: int = option(
        0, "L_cache, tokens over which the penalty grows; 0 for a fifth of the limit (DAPO: 4,096 of 20,480).", low=0
    )
    overlong_limit: int = option(0, "L_max, tokens at which it is complete; 0 for sampling.max_tokens.", low=0)
    overlong_penalty: float = option(1.0, "The penalty at the limit.", low=0)
    truncated: Literal["keep", "mask"] = option(
        "keep",
        "Completions that were cut off: keep, trained on like others; mask, they leave the loss and its denominators, "
        "and their reward still counts in the mean of their group (DAPO's overlong filtering).",
    )


SAMPLES, POINTS, FIRST_COMPUTE = 8, 15, 2048
"""What is left open comes to, in runs that are long enough."""
FEW_EVALUATIONS = 6
"""Where `share` allows fewer with `SAMPLES`, problems are sampled k times each."""
LEAST_EVALUATIONS = 4
"""Where it allows fewer even so, fewer problems are evaluated."""


@described
@dataclasses.dataclass(frozen=True)
class EvaluationConfig(Group):
    """When and how a run is evaluated; what is left open is settled once the sets are read, and by `config.json`."""

    sets: dict[str, str] = option(
        default_factory=dict,
        help="Name -> problem set file; evaluated before the first step, at log-spaced compute and at the end.",
    )
    samples: int = option(0, "Completions per problem; 0: 8, or k where `share` is little.", low=0)
    k: int = option(4, "k of avg@k, best@k and worst@k; at most `samples`.", low=1)
    points: int = option(
        0,
        "Evaluations between `first_compute` and the end, both included; 0: 15, or as many as `share` allows, 3 at "
        "least.",
        low=0,
    )
    first_compute: int = option(
        0,
        "Rollouts at the first evaluation after training began; 0: 2048, or, where `points` is 0, a sixteenth of "
        "max_compute if that is less.",
        low=0,
    )
    max_problems: int = option(
        0,
        "Evaluate at most so many problems of each set, the first ones; 0 for all, or for as many as `share` allows "
        "where `samples` or `points` is 0.",
        low=0,
    )
    solved_at: float = option(
        1.0, "A completion solves its problem if its reward is at least this; avg@k counts those that do.", later=True
    )
    share: float = option(
        0.25,
        "Rollouts of all evaluations over max_compute, at most, where `samples` or `points` is 0; 0 for no bound.",
        low=0,
        identity=False,
        later=True,
    )

    @property
    def is_open(self) -> bool:
        """Whether how often, or of how many samples, is left to `settled`."""
        return not (self.samples and self.points)

    def first(self, max_compute: int) -> int:
        """Rollouts at the first evaluation after training began."""
        latest = FIRST_COMPUTE if self.points else max(max_compute // 16, 1)
        return self.first_compute or min(FIRST_COMPUTE, latest)

    def as_recorded(self, recorded: Mapping[str, Any]) -> EvaluationConfig:
        """With what is left open as the config.json of a run has it, settled or by the defaults of its release."""
        names = ("samples", "points", "first_compute", *(("max_problems",) if self.is_open else ()))
        return dataclasses.replace(self, **{name: recorded.get(name, 0) for name in names if not getattr(self, name)})

    def compute_points(self, *, num_steps: int, rollouts_per_step: int) -> tuple[int, ...]:
        """C at which to evaluate, ascending: 0, `points` log-spaced ones from `first_compute`, and the last.

        They lie where whole steps of `rollouts_per_step` end; steps that cost more are evaluated after the one that
        passes.
        """
        total = num_steps * rollouts_per_step
        compute = np.geomspace(min(self.first_compute, total), total, self.points)
        steps = np.clip(np.round(compute / rollouts_per_step), 1, num_steps).astype(int)
        return tuple(step * rollouts_per_step for step in sorted({0, num_steps, *steps.tolist()}))

    def settled(self, set_sizes: Sequence[int], max_compute: int) -> EvaluationConfig:
        """With numbers for all that is left open, so that evaluations draw at most `share` of `max_compute` rollouts.

        First there are fewer evaluations, then fewer samples of each problem, then fewer problems, of which one of each
        set is left. What is given stays as it is.

        Args:
          set_sizes: problems of each set.
          max_compute: C.
        """
        given = dataclasses.replace(self, first_compute=self.first(max_compute))
        if not self.is_open:
            return given
        budget = self.share * max_compute if self.share else math.inf

        def drawn(samples: int, most: int) -> int:
            """Rollouts of one evaluation, of up to `most` problems of each set."""
            return samples * sum(min(size, most or size) for size in set_sizes)

        def times(samples: int) -> float:
            """How many of them the budget allows."""
            return budget / max(drawn(samples, self.max_problems), 1)

        wanted = max(self.points, 2) + 1 if self.points else FEW_EVALUATIONS
        samples = self.samples or max(SAMPLES, self.k)
        if not self.samples and times(samples) < wanted:
            samples = self.k
        points = self.points or int(min(max(times(samples), LEAST_EVALUATIONS), POINTS + 1)) - 1
        evaluations, most = max(points, 2) + 1, self.max_problems
        if set_sizes and not most and times(samples) < evaluations:
            fitting = (m for m in range(max(set_sizes), 0, -1) if drawn(samples, m) * evaluations <= budget)
            most = next(fitting, 1)
        return dataclasses.replace(given, samples=samples, points=points, max_problems=most)


@described
@dataclasses.dataclass(frozen=True)
class AgreementConfig(Group):
    """When the sampler's log-probabilities are compared with the learner's, and what they may differ by.

    A run that samples from a service checks at every start and after every `every` updates, on the same prompts each
    time: a prefix cache that outlived its weights shows only on a prompt that was there before. In one process sampler
    and learner share their arrays, and `logprob_difference` stands in every line of metrics.jsonl; there is no check.
    """

    every: int = option(50, "Updates between two checks; 0 for none at all.", low=0)
    warn: float = option(0.02, "Mean absolute difference, in nats per token, above which the run warns.", low=0)
    stop: float = option(0.2, "The same, above which the run ends.", low=0)
    problems: int = option(16, "Training problems that are sampled (the first ones).", low=1)
    samples: int = option(4, "Completions of each.", low=1)


@described
@dataclasses.dataclass(frozen=True)
class AlarmsConfig(Group):
    """Bounds beyond which a run says so: a line in the log when one is crossed, and `alarms` in metrics.jsonl.

    They look at means over `window` steps. 0 turns an alarm off. No result depends on them.
    """

    window: int = option(5, "Steps over which numbers are averaged.", low=1)
    entropy_collapse: float = option(5.0, "Times that entropy may fall below that of the first `window` steps.", low=0)
    entropy_explosion: float = option(3.0, "Times that entropy may rise above that of the first `window` steps.", low=0)
    kl: float = option(0.5, "Distance from the reference policy (column `kl`); 0 where there is a teacher.", low=0)
    ratio: float = option(20.0, "Largest ratio of an update (column `ratio_max`).", low=0)
    correction: float = option(
        0.1, "Share of tokens whose sampler correction is cut (column `correction_cut`).", low=0, high=1
    )
    truncation: float = option(
        0.1,
        "Share of completions that are cut off (column `truncation_rate`); above 0.1 ScaleRL saw training go unstable.",
        low=0,
        high=1,
    )
    evaluation: float = option(
        0.1, "What avg@k of an evaluation set may lie below the best of the run, as a share of problems.", low=0, high=1
    )


@described
@dataclasses.dataclass(frozen=True)
class CheckpointsConfig(Group):
    """Which checkpoints are kept; all others are deleted when the next one is whole. No result depends on it."""

    keep_last: int = option(
        2, "The last so many. Of two, one may be damaged, and the run goes on from the one before.", low=1
    )
    keep_best: int = option(
        0, "The best so many by `best_metric`; every evaluation is then followed by a checkpoint.", low=0
    )
    best_metric: str = option(
        "", "What is best: SET/COLUMN of eval.jsonl, such as hard/avg@4, the higher the better; needed by `keep_best`."
    )
    keep_every: int = option(0, "Those after every so many steps, for good; 0 for none.", low=0)


@described
@dataclasses.dataclass(frozen=True)
class TrackConfig(Group):
    """Where a run's numbers go beside metrics.jsonl and eval.jsonl, which are always written.

    No result depends on it, and what fails to be tracked never ends a run.
    """

    tensorboard: bool = option(
        False, "Write what is logged for TensorBoard too, in the run's folder tensorboard/ (extra `track`)."
    )
    wandb: str = option(
        "",
        "Project of Weights & Biases that gets what is logged; empty for none (extra `wandb`). WANDB_MODE=offline in "
        "the environment keeps it in the run's folder wandb/, for `wandb sync`.",
    )
    rollouts: int = option(1, "Groups of a step that are kept in rollouts.jsonl, to be read; 0 for none.", low=0)
    rollouts_every: int = option(
        0,
        "Steps from one that keeps rollouts to the next; 0 spreads about 200 over the run, which bounds the file.",
        low=0,
    )


@described
@dataclasses.dataclass(frozen=True)
class PlanConfig(Group):
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


@described
@dataclasses.dataclass(frozen=True)
class RunConfig(Group):
    """One training run."""

    model: str = option("", "Hugging Face directory of the base model, tokenizer included.")
    train_set: str = option("", "Problem set file (JSONL or Parquet).")
    teacher: str = option(
        "",
        "Model that the KL term keeps the policy near: a Hugging Face directory with the same tokens, or the address "
        "of a plain vLLM server, http://HOST:PORT; empty for the run's own first weights.",
        later=True,
    )
    supervised: str = option(
        "",
        "Column of `train_set` (or `answer`) whose text is learned in place of rollouts, as supervised fine-tuning; "
        "empty for none. Goes with configs/sft_embedded.py's loss and recipe.",
        later=True,
    )
    group_size: int = option(8, "n, rollouts per problem and step, whose mean reward is their baseline.", low=1)
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
    fork: str = option(
        "",
        "Run directory, or DIR@STEP for one of its checkpoints, that this run begins from: weights, moments, position "
        "in the data and logs; C goes on from there. Fields may differ (docs/allocation.md).",
        later=True,
    )
    prompts: PromptConfig = option(default_factory=PromptConfig, later=True)
    sampling: SamplingConfig = option(default_factory=SamplingConfig)
    reward: RewardConfig = option(default_factory=RewardConfig, later=True)
    environment: EnvironmentConfig = option(default_factory=EnvironmentConfig, later=True)
    recipe: RecipeConfig = option(default_factory=RecipeConfig)
    loss: LossConfig = option(default_factory=LossConfig)
    optimizer: OptimizerConfig = option(default_factory=OptimizerConfig)
    lora: LoraConfig = option(default_factory=LoraConfig, later=True)
    schedule: ScheduleConfig = option(default_factory=ScheduleConfig, later=True)
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
        if self.group_size == 1 and not self.supervised:
            raise InputError(
                field_of(self, "group_size"),
                " = 1 must be at least 2: a rollout is compared with the mean reward of its group, and alone it is "
                "that mean, which leaves nothing to learn from",
            )
        super().__post_init__()

    @property
    def adapters(self) -> LoraConfig | None:
        """What is trained in place of the weights; None where they are."""
        return self.lora if self.lora.rank else None

    @property
    def several_turns(self) -> bool:
        """Whether rollouts are continued: after their thinking, or by a tool or an environment."""
        sampling = self.sampling
        return bool(sampling.thinking.high or sampling.tool.name != "none" or self.environment.name)

    @property
    def rollouts_per_step(self) -> int:
        """B = B_problem x n; of a run with a schedule, that of its first step."""
        return self.problems_per_batch * self.group_size

    @property
    def sizes(self) -> Sizes:
        """n and B_problem as functions of C; those that the run begins with where it chooses n itself."""
        return self.schedule.sizes(self.group_size, self.problems_per_batch)

    @property
    def num_steps(self) -> int:
        """M = C / B: all steps of a run, unless a step may cost more or less than B (see `CurriculumConfig`).

        Of a run that chooses n itself, as many as it would make if it never did.
        """
        return sum(steps for _, steps in self.sizes.segments(self.max_compute))

    @property
    def planned_compute(self) -> int:
        """C of those steps."""
        return sum(size.rollouts * steps for size, steps in self.sizes.segments(self.max_compute))

    @property
    def batch_sizes(self) -> list[BatchSize]:
        """The sizes that batches are known to have, in the order in which they come."""
        return self.sizes.distinct(self.max_compute)

    @property
    def evaluation_points(self) -> tuple[int, ...]:
        """C at which to evaluate, ascending."""
        if self.schedule.text:  # steps that differ: after the one that passes a point
            return self.evaluation.compute_points(num_steps=self.planned_compute, rollouts_per_step=1)
        return self.evaluation.compute_points(num_steps=self.num_steps, rollouts_per_step=self.rollouts_per_step)

    @property
    def updates_per_step(self) -> int:
        """Updates that are made on one sampled batch."""
        return self.recipe.epochs * self.recipe.minibatches

    @property
    def problems_per_update(self) -> int:
        """Problems of a mini-batch."""
        return self.problems_per_batch // self.recipe.minibatches

    @property
    def block(self) -> int | None:
        """What the size of each group is a multiple of where a policy deals rollouts; None where all get the same."""
        return None if self.schedule.per_problem == "uniform" else self.schedule.block

    @property
    def problems_laid_out(self) -> int:
        """Problems that an update's batch has room for: where a policy deals, a mini-batch may get most of the step."""
        return self.problems_per_batch if self.block else self.problems_per_update

    def of_size(self, size: BatchSize) -> RunConfig:
        """The run whose batches all have this size."""
        fixed = {"group_size": "", "problems_per_batch": "", "source": ""}
        schedule = dataclasses.replace(self.schedule, **fixed)
        return dataclasses.replace(
            self, group_size=size.group_size, problems_per_batch=size.problems, schedule=schedule
        )

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
    def asks_teacher(self) -> bool:
        """Whether the teacher is a server, and not a directory."""
        return self.teacher.startswith(("http://", "https://"))

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

    def as_recorded(self, recorded: Mapping[str, Any]) -> RunConfig:
        """With what is left open as the config of a run that began has it; `recorded` is empty where none did."""
        evaluation = self.evaluation.as_recorded(recorded.get("evaluation", {}))
        schedule = self.schedule.as_recorded(recorded.get("schedule", {}))
        return dataclasses.replace(self, evaluation=evaluation, schedule=schedule).begun()

    def begun(self) -> RunConfig:
        """With the group size and the number of problems that its schedules begin with."""
        size = self.sizes.at(0)
        return dataclasses.replace(self, group_size=size.group_size, problems_per_batch=size.problems)

    def resolved(self) -> RunConfig:
        """Applies the `healthy` preset and validates everything; what a run starts from.

        Raises:
          InputError: names the field at fault and what to do.
        """
        config = apply_preset(self.begun())
        if self.teacher:  # it may be far away
            config = dataclasses.replace(config, alarms=dataclasses.replace(config.alarms, kl=0.0))
        validate(config)
        return config
