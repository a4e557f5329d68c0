"""The configuration of one run: a small config per room, composed, overridden by flags and validated here.

`configs/*.py` return `RunConfig(...).editable()`; `--config.optimizer.base_lr=3e-6` overrides a field.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ml_collections import config_dict

from isocompute_jax.experiment.plan_config import PlanConfig
from isocompute_jax.learner import CreditConfig, LossConfig, OptimizerConfig, pack_shape
from isocompute_jax.model import ATTENTION_HELP, HEAD_HELP, REMAT_HELP, AttentionKernel, HeadPrecision, Remat
from isocompute_jax.options import check, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client.service_config import ServiceConfig

HEALTHY_COEFFICIENT = 1e-3
"""KL and entropy coefficients of the `easy` preset; the paper prints none, this is the usual start."""


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How completions are sampled, in training and in evaluation."""

    temperature: float = option(1.0, "Sampling temperature, above 0.")
    top_p: float = option(1.0, "Nucleus size; training requires 1, because the learner scores the whole distribution.")
    max_prompt_tokens: int = option(9, "Longest prompt, in tokens; a longer one is an error.", low=1)
    max_tokens: int = option(9, "Longest completion, in tokens.", low=1)
    max_rollouts_per_dispatch: int = option(512, "Completions decoded at once (memory budget).", low=1)

    def __post_init__(self) -> None:
        check(self)
        if not self.temperature > 0:
            raise InputError(f"SamplingConfig.temperature = {self.temperature} must be above 0")


@dataclasses.dataclass(frozen=True)
class RecipeConfig(CreditConfig):
    """How rewards become a batch of weighted tokens; `CreditConfig` says what they are worth."""

    healthy: Literal["none", "easy", "hard", "mixture"] = option(
        "none",
        "Regularisation preset of the IsoCompute Playbook: easy turns KL and entropy terms on, hard and mixture "
        "require both off, none leaves them to `loss` (ablations).",
    )
    microbatch_tokens: int = option(
        2048,
        "Completion tokens computed at once, forward and backward, over all devices; of packed rows all tokens, and at "
        "least a row for each part of the batch.",
        low=1,
    )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """When and how a run is evaluated."""

    sets: dict[str, str] = option(
        default_factory=dict,
        help="Name -> problem set file; evaluated before the first step, at log-spaced compute and at the end.",
    )
    samples: int = option(8, "Completions per problem.", low=1)
    k: int = option(4, "k of avg@k, best@k and worst@k; at most `samples`.", low=1)
    points: int = option(15, "Evaluations between `first_compute` and the end, both included.", low=1)
    first_compute: int = option(2048, "Rollouts at the first evaluation after training began.", low=1)
    max_problems: int = option(0, "Evaluate at most so many problems of each set, the first ones; 0 for all.", low=0)

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis (see `sharding`)."""

    data: int = option(1, "Devices over which the rollouts of a batch are divided.", low=1)
    fsdp: int = option(1, "Devices over which weights and moments are divided, and the rollouts too.", low=1)
    context: int = option(
        1,
        "Devices over which weights and moments are divided, and each packed row along its tokens, for rows that are "
        "longer than one device has room for.",
        low=1,
        later=True,
    )
    tensor: int = option(1, "Devices over which heads and hidden units are divided.", low=1)
    expert: int = option(
        1, "Devices over which experts are divided, and the rollouts too; 1 for dense models.", low=1, later=True
    )

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How the model is computed: what is kept, by which kernel, and how exactly (see `ModelConfig`)."""

    remat: Remat = option("none", REMAT_HELP, identity=False)
    attention: AttentionKernel = option("auto", ATTENTION_HELP, identity=False)
    head: HeadPrecision = option("auto", HEAD_HELP)

    def __post_init__(self) -> None:
        check(self)


Trees = Literal["auto", "on", "off"]


@dataclasses.dataclass(frozen=True)
class PackingConfig:
    """How rollouts become rows of tokens."""

    row_tokens: int = option(
        0,
        "Tokens of a row, into which whole rollouts, prompts included, are packed; 0 reads each prompt once for its "
        "group and pads completions to sampling.max_tokens, which is quicker where they are short.",
        low=0,
    )
    trees: Trees = option(
        "auto",
        "Whether what rollouts of a prompt have in common, equal beginnings of their completions included, is computed "
        "once: auto, where sequences are short (64 tokens) and batches have 32 rollouts, row_tokens is not set and the "
        "model is no mixture of experts; on, in rows of row_tokens, whose attention holds all pairs of a row; off. "
        "Gradients differ by rounding alone.",
        later=True,
    )

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class AgreementConfig:
    """When the sampler's log-probabilities are compared with the learner's, and what they may differ by.

    A run that samples from a service checks at every start and after every `every` updates, on the same prompts each
    time: a prefix cache that outlived its weights shows only on a prompt that was there before. In one process sampler
    and learner share their arrays, and `logprob_difference` stands in every line of metrics.jsonl; there is no check.
    """

    every: int = option(50, "Updates between two checks; 0 for none at all.", low=0)
    warn: float = option(0.02, "Mean absolute difference, in nats per token, above which the run warns.")
    stop: float = option(0.2, "The same, above which the run ends.")
    problems: int = option(16, "Training problems that are sampled (the first ones).", low=1)
    samples: int = option(4, "Completions of each.", low=1)

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One training run."""

    model: str = option("", "Hugging Face directory of the base model, tokenizer included.")
    train_set: str = option("", "Problem set file (JSONL or Parquet).")
    group_size: int = option(8, "n, rollouts per problem and step; at least 2.", low=2)
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
    sampling: SamplingConfig = option(default_factory=SamplingConfig)
    recipe: RecipeConfig = option(default_factory=RecipeConfig)
    loss: LossConfig = option(default_factory=LossConfig)
    optimizer: OptimizerConfig = option(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = option(default_factory=EvaluationConfig)
    mesh: MeshConfig = option(default_factory=MeshConfig)
    compute: ComputeConfig = option(default_factory=ComputeConfig, later=True)
    packing: PackingConfig = option(default_factory=PackingConfig, later=True)
    service: ServiceConfig = option(default_factory=ServiceConfig)
    agreement: AgreementConfig = option(default_factory=AgreementConfig, replicate=True)
    plan: PlanConfig = option(default_factory=PlanConfig, identity=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def rollouts_per_step(self) -> int:
        """B = B_problem x n."""
        return self.problems_per_batch * self.group_size

    @property
    def num_steps(self) -> int:
        """M = C / B."""
        return self.max_compute // self.rollouts_per_step

    @property
    def updates_per_phase(self) -> int:
        """Updates between two sampling phases: one, or k of `phases`."""
        return max(self.max_staleness, 1) if self.asynchrony == "phases" else 1

    @property
    def window(self) -> int:
        """Batches that are sampled or ready at once, the next update's included; the oldest is window - 1 behind."""
        return self.updates_per_phase if self.asynchrony == "phases" else self.max_staleness + 1

    @property
    def check_every(self) -> int:
        """Updates between two agreement checks; 0 for none: in one process sampler and learner share their arrays."""
        return self.agreement.every if self.service.endpoints else 0

    def editable(self) -> config_dict.ConfigDict:
        """The config as a locked ConfigDict, which `--config.FIELD=VALUE` flags override."""
        return config_dict.ConfigDict(dataclasses.asdict(self)).lock()

    def resolved(self) -> RunConfig:
        """Applies the `healthy` preset and validates everything; what a run starts from.

        Raises:
          InputError: names the field at fault and what to do.
        """
        config = _apply_preset(self)
        _validate(config)
        return config


def from_dict(values: Any, cls: type = RunConfig, path: str = "config") -> Any:
    """Builds `cls` from nested mappings; an unknown field is an error that names the nearest known one."""
    if not isinstance(values, Mapping):
        raise InputError(f"{path} = {values!r}: is a group of fields; set {path}.FIELD")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    built = {}
    for name, value in dict(values).items():
        if name not in fields:
            raise InputError(unknown_field(f"{path}.{name}", name, list(fields)))
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = from_dict(value, typing.cast(type, hint), f"{path}.{name}")
        else:
            built[name] = _checked(value, hint, f"{path}.{name}")
    return _made(lambda: cls(**built), cls, path)


def override(config: Any, dotted: str, value: Any, path: str = "config") -> Any:
    """A copy of `config` with the field `dotted` (such as `optimizer.base_lr`) replaced by `value`."""
    name, _, rest = dotted.partition(".")
    names = [field.name for field in dataclasses.fields(config)]
    if name not in names:
        raise InputError(unknown_field(f"{path}.{name}", name, names))
    old = getattr(config, name)
    if rest and isinstance(old, dict):
        return dataclasses.replace(config, **{name: {**old, rest: value}})
    if rest:
        return dataclasses.replace(config, **{name: override(old, rest, value, f"{path}.{name}")})
    checked = _checked(value, typing.get_type_hints(type(config))[name], f"{path}.{name}")
    return _made(lambda: dataclasses.replace(config, **{name: checked}), type(config), path)


def unknown_field(where: str, name: str, known: list[str]) -> str:
    """The message for an unknown field, with the nearest known one."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known fields: {', '.join(known)}"
    return f"unknown config field {where}: {hint}"


def _made(make: Callable[[], Any], cls: type, path: str) -> Any:
    """What `make` makes; an error of `cls` names the field by its path, as it is set on the command line."""
    try:
        return make()
    except InputError as error:
        raise InputError(str(error).replace(f"{cls.__name__}.", f"{path}.")) from None


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value`, checked against a field's type; integers are taken for floats, and the class checks closed choices."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in (*value, *value.values())):
            raise InputError(f"{where} = {value!r}: must map names to files, such as {{'validation': 'v.jsonl'}}")
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise InputError(f"{where} = {value!r}: must be of type {hint.__name__}")
    return value


def _apply_preset(config: RunConfig) -> RunConfig:
    """Healthy recipes of the IsoCompute Playbook (arXiv 2603.12151)."""
    healthy, loss = config.recipe.healthy, config.loss
    if healthy == "none":
        return config
    if healthy == "easy":
        if not loss.kl_coef and not loss.entropy_coef:
            loss = dataclasses.replace(loss, kl_coef=HEALTHY_COEFFICIENT, entropy_coef=HEALTHY_COEFFICIENT)
        if loss.entropy_coef and not loss.kl_coef:
            raise InputError(
                "config.loss.entropy_coef is on without config.loss.kl_coef: under recipe.healthy=easy an entropy "
                "bonus needs the KL term, or entropy explodes. Set loss.kl_coef too, or recipe.healthy=none to ablate"
            )
        return dataclasses.replace(config, loss=loss)
    if loss.kl_coef or loss.entropy_coef:
        raise InputError(
            f"config.loss.kl_coef = {loss.kl_coef} and config.loss.entropy_coef = {loss.entropy_coef}: under "
            f"recipe.healthy={healthy} both are off, because they make entropy explode on problems that are rarely "
            "solved. Set both to 0, or recipe.healthy=none to ablate"
        )
    return config


def _validate(config: RunConfig) -> None:
    """Raises InputError for the first fields that cannot work together; single fields are checked by their classes."""
    sampling, evaluation, loss = config.sampling, config.evaluation, config.loss
    checks = (
        (bool(config.model), "model is empty: give a Hugging Face directory"),
        (bool(config.train_set), "train_set is empty: give a problem set file (.jsonl or .parquet)"),
        (
            config.num_steps >= 1,
            f"max_compute = {config.max_compute} is less than one step of {config.problems_per_batch} x "
            f"{config.group_size} rollouts",
        ),
        (
            sampling.top_p == 1,
            f"sampling.top_p = {sampling.top_p}: training requires 1, because truncated sampling has another "
            "distribution than the learner scores",
        ),
        (
            evaluation.k <= evaluation.samples,
            f"evaluation.k = {evaluation.k} must be at most config.evaluation.samples = {evaluation.samples}",
        ),
        (
            loss.policy_loss != "gspo" or config.recipe.aggregation == "sequence_mean",
            "loss.policy_loss = 'gspo' needs recipe.aggregation = 'sequence_mean'",
        ),
        (
            config.mesh.context == 1 or config.packing.row_tokens > 0,
            f"mesh.context = {config.mesh.context} cuts packed rows, and there are none: set "
            "config.packing.row_tokens, or give its devices to config.mesh.fsdp",
        ),
        (
            config.mesh.context == 1 or config.packing.trees != "on",
            f"mesh.context = {config.mesh.context} cuts packed rows, and config.packing.trees = 'on' makes none: leave "
            "it at auto, or give its devices to config.mesh.fsdp",
        ),
        (
            config.packing.row_tokens % config.mesh.context == 0,
            f"packing.row_tokens = {config.packing.row_tokens} is no multiple of config.mesh.context = "
            f"{config.mesh.context}, the parts that rows are cut into: change one of them",
        ),
    )
    for passed, message in (*checks, *_asynchrony_checks(config)):
        if not passed:
            raise InputError(f"config.{message}")
    if config.packing.row_tokens and config.packing.trees != "on":
        pack_shape(
            problems_per_batch=config.problems_per_batch,
            group_size=config.group_size,
            max_prompt_tokens=sampling.max_prompt_tokens,
            max_tokens=sampling.max_tokens,
            row_tokens=config.packing.row_tokens,
            microbatch_tokens=config.recipe.microbatch_tokens,
        )
    if config.service.endpoints:
        config.service.validate()


def _asynchrony_checks(config: RunConfig) -> tuple[tuple[bool, str], ...]:
    """(passed, message) for the asynchronous loop and the agreement check."""
    agreement, loss = config.agreement, config.loss
    return (
        (
            not config.max_staleness or config.asynchrony == "phases" or bool(config.service.endpoints),
            f"max_staleness = {config.max_staleness} with asynchrony = {config.asynchrony!r} needs service.endpoints: "
            "a sampler in the learner's process shares its devices, so the two cannot work at once. Give endpoints, "
            "or set asynchrony='phases', or max_staleness=0",
        ),
        (
            loss.ratio_from == "old" or loss.correction_mode == "off",
            f"loss.ratio_from = 'sampler' with loss.correction_mode = {loss.correction_mode!r} would correct twice: "
            "set loss.correction_mode='off', or loss.ratio_from='old'",
        ),
        (
            0 < agreement.warn <= agreement.stop,
            f"agreement.warn = {agreement.warn} and config.agreement.stop = {agreement.stop}: 0 < warn <= stop",
        ),
    )
