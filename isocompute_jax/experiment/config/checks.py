"""What fields of a run's config cannot be together, and what a config from a file may not say by itself.

Single fields are checked by their classes.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isocompute_jax.allocation.policies import LOOKS, check_deal
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.learner import LossConfig, pack_shape
from isocompute_jax.records.errors import InputError, fields_called
from isocompute_jax.tasks.graders.registry import check_named_by_file

if TYPE_CHECKING:
    from isocompute_jax.experiment.config.run import RunConfig

HEALTHY_COEFFICIENT = 1e-3
"""KL and entropy coefficients of the `easy` preset; the paper prints none, this is the usual start."""


ROWS: Mapping[str, str] = {name: "config.packing.row_tokens" for name in ("row_tokens", "row_nodes")}
"""What layouts call the length of a row -> its field."""


def apply_preset(config: RunConfig) -> RunConfig:
    """Healthy recipes of the IsoCompute Playbook (arXiv 2603.12151)."""
    healthy, loss = config.recipe.healthy, config.loss
    if healthy == "none":
        return config
    if healthy == "easy":
        if not loss.kl_coef and not has_bonus(loss):
            loss = dataclasses.replace(loss, kl_coef=HEALTHY_COEFFICIENT, entropy_coef=HEALTHY_COEFFICIENT)
        if has_bonus(loss) and not loss.kl_coef:
            bonus = "entropy_coef" if loss.entropy_coef else "entropy_target"
            raise InputError(
                f"config.loss.{bonus} is on without config.loss.kl_coef: under recipe.healthy=easy an entropy bonus "
                "needs the KL term, or entropy explodes. Set loss.kl_coef too, or recipe.healthy=none to ablate"
            )
        return dataclasses.replace(config, loss=loss)
    if loss.kl_coef or has_bonus(loss):
        bonus = "entropy_target" if loss.entropy_target else "entropy_coef"
        raise InputError(
            f"config.loss.kl_coef = {loss.kl_coef} and config.loss.{bonus} = {getattr(loss, bonus)}: under "
            f"recipe.healthy={healthy} both are off, because they make entropy explode on problems that are rarely "
            "solved. Set both to 0, or recipe.healthy=none to ablate"
        )
    return config


def has_bonus(loss: LossConfig) -> bool:
    """Whether entropy is rewarded, by a fixed weight or by one that adapts."""
    return bool(loss.entropy_coef or loss.entropy_target)


def how_to_hold_out(config: RunConfig, problems: int = 1500) -> str:
    """Advice for a run without held-out problems; `problems` are those that it trains on."""
    task = f" --task={config.reward.function}" if config.reward.function else ""
    return (
        "config.evaluation.sets is empty: no problems are held out, and there are no curves for `fit` to read. `python "
        f"-m isocompute_jax.split --source={config.train_set or 'PROBLEMS.jsonl'} --out=sets "
        f"--validation={min(300, max(1, problems // 5))}{task}` holds some out; then give "
        "--config.train_set=sets/train.jsonl --config.evaluation.sets.validation=sets/validation.jsonl"
    )


def validate(config: RunConfig) -> None:
    """Raises InputError for the first fields that cannot work together; single fields are checked by their classes."""
    fault = next(_faults(config), None)
    if fault is not None:
        raise InputError(f"config.{fault}")
    if config.packing.row_tokens and config.packing.trees != "on":
        largest = max(config.batch_sizes, key=lambda size: size.rollouts)
        with fields_called("config.sampling.", ROWS):
            pack_shape(
                problems_per_batch=largest.problems,
                group_size=largest.group_size,
                max_prompt_tokens=config.sampling.max_prompt_tokens,
                max_tokens=config.sampling.max_tokens,
                row_tokens=config.packing.row_tokens,
                microbatch_tokens=config.recipe.microbatch_tokens,
            )
    if config.service.remote:
        config.service.validate()


def _faults(config: RunConfig) -> Iterator[str]:
    """What is wrong, beginning with a field."""
    sampling, evaluation, loss, packing = config.sampling, config.evaluation, config.loss, config.packing
    if not config.model:
        yield "model is empty: give a Hugging Face directory, --config.model=DIRECTORY"
    if not (config.train_set or config.curriculum.train_sets):
        yield "train_set is empty: give a problem set, --config.train_set=FILE.jsonl (or .parquet)"
    if config.num_steps < 1:
        yield (
            f"max_compute = {config.max_compute} is less than one step of {config.problems_per_batch} x "
            f"{config.group_size} rollouts: raise it, or lower problems_per_batch or group_size"
        )
    unpaid = next(iter(config.sizes.unpaid(config.max_compute)), None)
    if unpaid is not None and config.num_steps:
        yield (
            f"schedule comes to steps of {unpaid.problems} x {unpaid.group_size} rollouts when less than one of them "
            f"is left of config.max_compute = {config.max_compute}: end it before, or raise max_compute"
        )
    if sampling.top_p != 1 and not sampling.top_k:
        yield (
            f"sampling.top_p = {sampling.top_p}: truncated sampling has another distribution than the learner scores: "
            "set it to 1, or set config.sampling.top_k (64, say), and the learner is told which tokens could be drawn"
        )
    if sampling.top_k and packing.trees == "on":
        yield "sampling.top_k is not for config.packing.trees = 'on': leave that at auto"
    if config.lora.rank and config.lora.served and config.service.push == "nccl":
        yield "lora.served = true: adapters travel by file or stream; set config.service.push to auto, shared or stream"
    if evaluation.samples and evaluation.k > evaluation.samples:
        yield f"evaluation.k = {evaluation.k} must be at most config.evaluation.samples = {evaluation.samples}"
    if loss.policy_loss == "gspo" and config.recipe.aggregation != "sequence_mean":
        yield (
            f"loss.policy_loss = 'gspo' needs config.recipe.aggregation = 'sequence_mean', and it is "
            f"{config.recipe.aggregation!r}: its ratio is one number for a whole completion, so that each completion "
            "has to weigh the same, whatever its length. Set that, or loss.policy_loss='clipped'"
        )
    if config.mesh.context > 1 and not packing.row_tokens:
        yield (
            f"mesh.context = {config.mesh.context} cuts packed rows, and there are none: set "
            "config.packing.row_tokens, or give its devices to config.mesh.fsdp"
        )
    if config.mesh.context > 1 and packing.trees == "on":
        yield (
            f"mesh.context = {config.mesh.context} cuts packed rows, and config.packing.trees = 'on' makes none: leave "
            "it at auto, or give its devices to config.mesh.fsdp"
        )
    if packing.row_tokens % config.mesh.context:
        yield (
            f"packing.row_tokens = {packing.row_tokens} is no multiple of config.mesh.context = "
            f"{config.mesh.context}, the parts that rows are cut into: change one of them"
        )
    yield from _update_faults(config)
    yield from _deal_faults(config)
    yield from _auto_faults(config)
    yield from _asynchrony_faults(config)
    yield from _curriculum_faults(config)
    yield from _checkpoint_faults(config)
    yield from _environment_faults(config)


def _environment_faults(config: RunConfig) -> Iterator[str]:
    """Of rollouts that an environment answers."""
    environment, sampling = config.environment, config.sampling
    if not environment.name:
        changed = [
            field.name
            for field in dataclasses.fields(environment)
            if getattr(environment, field.name) != getattr(EnvironmentConfig(), field.name)
        ]
        if changed:
            yield f"environment.{changed[0]} means nothing without config.environment.name: name one, or leave it out"
        return
    if config.reward.function or config.reward.tasks:
        yield (
            f"reward.{'function' if config.reward.function else 'tasks'} and config.environment.name are both given: "
            "an environment says what its rollouts are worth; leave one of them out"
        )
    if sampling.thinking.high or sampling.tool.name != "none":
        which = "thinking.high" if sampling.thinking.high else "tool.name"
        yield f"sampling.{which} and config.environment.name are both given: rollouts are continued by one of them"
    if environment.turn_credit == "turn":
        yield from _turn_credit_faults(config)


def _turn_credit_faults(config: RunConfig) -> Iterator[str]:
    """Of turns that are credited each by itself."""
    if config.block:
        yield (
            f"environment.turn_credit = 'turn' with config.schedule.per_problem = {config.schedule.per_problem!r}: "
            "turns are compared within groups of one size; take uniform, or turn_credit='rollout'"
        )
    if config.loss.policy_loss == "gspo":
        yield (
            "environment.turn_credit = 'turn' with config.loss.policy_loss = 'gspo', whose ratio is one number for a "
            "whole completion: take another loss, or turn_credit='rollout'"
        )
    if config.recipe.advantage_scale in ("batch_std", "group_mean") or config.recipe.baseline == "none":
        yield (
            f"environment.turn_credit = 'turn' with config.recipe.advantage_scale = {config.recipe.advantage_scale!r} "
            f"and recipe.baseline = {config.recipe.baseline!r}: turns are compared, and scaled, within their group; "
            "take group_std or none, and a baseline, or turn_credit='rollout'"
        )


def _auto_faults(config: RunConfig) -> Iterator[str]:
    """Of a run that chooses n itself."""
    if config.schedule.kind != "auto":
        return
    if not config.evaluation.sets:
        yield (
            "schedule.group_size = 'auto' decides on one half of the held-out problems, and config.evaluation.sets is "
            "empty: name a set (python -m isocompute_jax.split makes one), or give breakpoints"
        )
    if config.curriculum.order != "shuffled":
        yield (
            "schedule.group_size = 'auto' holds training reward to that of the first steps, and config.curriculum.order"
            f" = {config.curriculum.order!r} has other problems there: leave it shuffled, or give breakpoints"
        )
    if config.group_size > config.schedule.largest:
        yield (
            f"schedule.largest = {config.schedule.largest} is below config.group_size = {config.group_size}, which "
            "auto begins with: raise it"
        )


def _deal_faults(config: RunConfig) -> Iterator[str]:
    """Of counts that differ from problem to problem."""
    policy, block, most = config.schedule.per_problem, config.schedule.block, config.schedule.most
    if policy == "uniform":
        return
    with fields_called("config.schedule."):
        for size in config.batch_sizes:
            check_deal(policy, group_size=size.group_size, block=block, most=most)
    if config.curriculum.dynamic_sampling:
        yield (
            f"schedule.per_problem = {policy!r} with config.curriculum.dynamic_sampling: a step that draws further "
            "problems has no fixed number of rollouts to deal; choose one of them"
        )
    if policy in LOOKS:
        yield from _look_faults(config)


def _look_faults(config: RunConfig) -> Iterator[str]:
    """Of counts that depend on the rewards that they are to weigh (`allocation.estimator`)."""
    policy, recipe = config.schedule.per_problem, config.recipe
    named = f"schedule.per_problem = {policy!r} decides counts by the rewards of the same step"
    if recipe.advantage_scale != "none":
        yield (
            f"{named}, and no weights make advantages over a deviation right then: set "
            f"config.recipe.advantage_scale='none' (it is {recipe.advantage_scale!r}), or take variance or knapsack"
        )
    if recipe.baseline != "leave_one_out":
        yield (
            f"{named}, and the mean of the whole group is a biased baseline: set "
            "config.recipe.baseline='leave_one_out', which then is that of the rollouts up to the end of its own round"
        )
    if recipe.aggregation not in ("constant", "sequence_mean"):
        yield (
            f"{named}, and config.recipe.aggregation = {recipe.aggregation!r} divides by all tokens that were drawn: "
            "set it to 'constant' or 'sequence_mean', which weigh a rollout by what is known before its round"
        )
    if recipe.minibatches > 1:
        yield (
            f"{named}, so that how much of a mini-batch each problem has depends on them too: set "
            f"config.recipe.minibatches=1 (it is {recipe.minibatches}), or take variance or knapsack"
        )


def _update_faults(config: RunConfig) -> Iterator[str]:
    """Of what an update minimises, and how many there are in a step."""
    loss, minibatches = config.loss, config.recipe.minibatches
    for problems in [size.problems for size in config.batch_sizes if size.problems % minibatches]:
        equal = ", ".join(str(n) for n in range(1, problems + 1) if problems % n == 0)
        yield (
            f"recipe.minibatches = {minibatches} does not divide config.problems_per_batch = {problems} into equal "
            f"parts; possible: {equal}"
        )
    if loss.dual_clip and loss.policy_loss not in ("clipped", "gspo"):
        yield (
            f"loss.dual_clip = {loss.dual_clip} with config.loss.policy_loss = {loss.policy_loss!r}, which has no clip "
            "that it could add to: set it to 0, or loss.policy_loss='clipped'"
        )
    if config.teacher and not loss.kl_coef:
        yield f"teacher = {config.teacher!r} is learned from through the KL term alone: set config.loss.kl_coef=1"
    if config.asks_teacher and (config.temperature != 1 or config.sampling.top_k):
        yield (
            f"teacher = {config.teacher!r}: servers say log-probabilities at temperature 1 and of all tokens, and the "
            f"policy's temperature is {config.temperature}, its top_k {config.sampling.top_k}: set "
            "config.sampling.temperature=1 and top_k=0, or name a directory"
        )
    if loss.policy_loss == "none" and not (config.teacher and loss.kl_coef and loss.kl_in == "loss"):
        yield (
            "loss.policy_loss = 'none' learns from a teacher alone: set config.teacher, config.loss.kl_coef=1 and "
            "loss.kl_in='loss', or another policy_loss"
        )
    if config.recipe.advantage_scale == "group_mean" and config.recipe.reward_values == "plus_minus_one":
        yield (
            "recipe.advantage_scale = 'group_mean' with config.recipe.reward_values = 'plus_minus_one', whose means "
            "are not rates: set reward_values='as_graded'"
        )
    if config.supervised:
        yield from _supervised_faults(config)
    if loss.kl_ratio and not loss.reads_reference:
        yield (
            "loss.kl_ratio weighs the KL terms of the loss, and there are none: set config.loss.kl_coef (with "
            "loss.kl_in='loss'), or loss.kl_ratio=False"
        )
    if loss.entropy_target and loss.entropy_in != "loss":
        yield (
            f"loss.entropy_target = {loss.entropy_target} with config.loss.entropy_in = 'reward': the weight adapts in "
            "the loss alone. Set loss.entropy_in='loss', or loss.entropy_target=0"
        )
    differs = config.temperature != config.sampling.temperature
    if differs and loss.ratio_from != "sampler" and loss.correction_mode == "off":
        yield (
            f"learner_temperature = {config.learner_temperature} differs from config.sampling.temperature = "
            f"{config.sampling.temperature}, and nothing corrects for it: set config.loss.correction_mode='truncate', "
            "or loss.ratio_from='sampler'"
        )


def _supervised_faults(config: RunConfig) -> Iterator[str]:
    """Of a run that learns texts."""
    wanted = {
        "group_size": 1,
        "max_staleness": 0,
        "loss.policy_loss": "reinforce",
        "loss.correction_mode": "off",
        "loss.entropy_target": 0.0,
        "recipe.baseline": "none",
        "recipe.advantage_scale": "none",
        "recipe.zero_variance_groups": "keep",
        "sampling.top_k": 0,
        "curriculum.dynamic_sampling": False,
        "curriculum.retire_rate": 0.0,
        "length.overlong": "off",
        "schedule.group_size": "",
        "environment.name": "",
    }
    for field, value in wanted.items():
        if (found := operator.attrgetter(field)(config)) != value:
            yield (
                f"{field} = {found!r} with config.supervised = {config.supervised!r}: texts are learned as they are, "
                f"not drawn, compared or graded: set it to {value!r}"
            )


def _curriculum_faults(config: RunConfig) -> Iterator[str]:
    """Of what is drawn, and what becomes of long completions."""
    curriculum, length = config.curriculum, config.length
    if config.train_set and curriculum.train_sets:
        yield "train_set and config.curriculum.train_sets are both given: a mixture takes the place of the one set"
    if config.problem_set_size and curriculum.train_sets:
        yield (
            f"problem_set_size = {config.problem_set_size} cuts config.train_set, and this run has a mixture: cut its "
            "files, or set problem_set_size=0"
        )
    if curriculum.dynamic_sampling and config.recipe.zero_variance_groups != "drop":
        yield (
            f"recipe.zero_variance_groups = {config.recipe.zero_variance_groups!r} with "
            "curriculum.dynamic_sampling: groups without signal are replaced, so that there are none to keep; set it "
            "to 'drop', or dynamic_sampling=False"
        )
    limit = length.overlong_limit or config.sampling.max_tokens
    if length.overlong != "off" and length.overlong_tokens > limit:
        yield (
            f"length.overlong_tokens = {length.overlong_tokens} is more than the limit of {limit} tokens before which "
            "it lies: lower it, or raise config.length.overlong_limit"
        )
    if length.overlong != "off" and limit > config.sampling.max_tokens:
        yield (
            f"length.overlong_limit = {length.overlong_limit}, but completions end at config.sampling.max_tokens = "
            f"{config.sampling.max_tokens}: lower it, or raise that"
        )


def _asynchrony_faults(config: RunConfig) -> Iterator[str]:
    """Of the asynchronous loop and the agreement check."""
    agreement, loss = config.agreement, config.loss
    if config.several_turns and config.max_staleness and config.asynchrony == "boundary":
        yield (
            "asynchrony = 'boundary' promises rollouts of one version, and with config.sampling.thinking, "
            "config.sampling.tool or config.environment a rollout's next turn is drawn after weights that came "
            "meanwhile: take in_flight, or "
            "phases"
        )
    if config.overlapped and not config.service.remote:
        yield (
            f"max_staleness = {config.max_staleness} with asynchrony = {config.asynchrony!r} needs service.endpoints: "
            "a sampler in the learner's process shares its devices, so the two cannot work at once. Give endpoints, "
            "or set asynchrony='phases', or max_staleness=0"
        )
    if loss.ratio_from != "old" and loss.correction_mode != "off":
        yield (
            f"loss.ratio_from = 'sampler' with loss.correction_mode = {loss.correction_mode!r} would correct twice: "
            "set loss.correction_mode='off', or loss.ratio_from='old'"
        )
    if not 0 < agreement.warn <= agreement.stop:
        yield f"agreement.warn = {agreement.warn} and config.agreement.stop = {agreement.stop}: 0 < warn <= stop"


def _checkpoint_faults(config: RunConfig) -> Iterator[str]:
    """Of which checkpoints are kept, and when weights are exported."""
    phase, metric, k = config.updates_per_phase, config.checkpoints.best_metric, config.evaluation.k
    columns = (f"avg@{k}", f"best@{k}", f"worst@{k}", "mean_reward")
    known = [f"{name}/{column}" for name in config.evaluation.sets for column in columns]
    of_some = tuple(f"{name}/{kind}/" for name in config.evaluation.sets for kind in (columns[0], "reward", "metric"))
    if config.checkpoints.keep_best and metric not in known and not metric.startswith(of_some):
        yield (
            f"checkpoints.best_metric = {metric!r} is measured nowhere, and checkpoints.keep_best asks for it: "
            + (f"known are {', '.join(known)}" if known else "give config.evaluation.sets, or set keep_best to 0")
        )
    if config.checkpoints.keep_every % phase:
        yield (
            f"checkpoints.keep_every = {config.checkpoints.keep_every} is no multiple of config.max_staleness = {phase}"
            ", the steps of a phase, and checkpoints fall between phases: change one of them"
        )
    if config.export_every % phase:
        yield (
            f"export_every = {config.export_every} is no multiple of config.max_staleness = {phase}, the steps of a "
            "phase, and weights are exported between phases: change one of them"
        )


SERVICE = ("endpoints", "endpoints_file", "token_file", "ca_file", "cert_file", "key_file", "shared_dir")


def check_trusted(config: RunConfig, path: str | os.PathLike[str], *, given: Collection[str] = ()) -> None:
    """Holds a config from a file to what a file may say.

    Args:
      config: as the file has it, and the command line.
      path: the file, for the message.
      given: fields that the command line sets.

    Raises:
      InputError: another field commands; says which.
    """
    found = [f"{field} = {value!r:.200}" for field, value in _commands(config) if field not in given]
    if found:
        raise InputError(
            f"{path} names what a file may not by itself: {'; '.join(found)}. It would run code, reach an address, or "
            f"use a secret: if you know the file and mean it, add --trust_config"
        )


def _commands(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Fields that run code, reach an address, or read or pass on a secret."""
    tasks = {f"tasks.{task}": name for task, name in config.reward.tasks.items()}
    for field, name in {"function": config.reward.function, **tasks}.items():
        try:
            check_named_by_file(name)
        except InputError:
            yield f"reward.{field}", name
    if ":" in config.environment.name:
        yield "environment.name", config.environment.name
    if config.asks_teacher:
        yield "teacher", config.teacher
    for field in ("allow", "environment"):
        if value := getattr(config.reward, field):
            yield f"reward.{field}", value
    for field in SERVICE:
        if (value := getattr(config.service, field)) != getattr(type(config.service), field):
            yield f"service.{field}", value
    if config.track.wandb:
        yield "track.wandb", config.track.wandb
