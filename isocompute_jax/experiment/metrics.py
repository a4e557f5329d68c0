"""What a run logs of a step: columns of metrics.jsonl, lines of rollouts.jsonl, and alarms.

Kept rollouts are the first groups of a step in the order of drawing, which no reward has a say in, and the first
rollouts of each. Steps, groups, rollouts and tokens are all bounded, and so the file is: with the defaults to about
60 MB. An alarm is on while a number lies above its bound, and stays on until it is clearly below (`CLEAR`), so that a
number that hovers about its bound is logged once.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from isocompute_jax import learner
from isocompute_jax.accelerators import known_device
from isocompute_jax.compiling import compiled_s
from isocompute_jax.experiment.config import AlarmsConfig, CurriculumConfig, RunConfig
from isocompute_jax.experiment.pipeline import Sampled, groups_with_signal
from isocompute_jax.experiment.problem_history import History
from isocompute_jax.experiment.problem_stream import ProblemStream
from isocompute_jax.learner import PackedBatch, rewards_of
from isocompute_jax.model import ModelConfig
from isocompute_jax.model.flops import Work, step_flops
from isocompute_jax.records import run_files
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.tasks import Tokenizer, token_texts

if TYPE_CHECKING:
    from isocompute_jax.experiment.build import Parts
    from isocompute_jax.experiment.loop_state import ReadyBatch

PHASES = ("weights", "sampling", "waiting", "grading", "logprobs", "packing", "noise", "update", "checkpoint")
"""What a step's time goes to.

    weights     new weights on their way to the sampler
    sampling    drawing, in this process; what servers draw costs the learner nothing but waiting
    waiting     for rollouts of servers
    grading     in this process, or waiting for the last graders
    logprobs    scores before the updates (old policy, reference in the reward)
    packing     laying tokens out and what they are worth
    noise       measuring the gradient's, where schedule.noise_every asks for it
    update      the updates; scores of a reference in the loss are part of them
    checkpoint  the one written after the step before
"""


class Phases:
    """Seconds spent in each phase of a step.

    Args:
      before: seconds that were spent on phases since the last step was logged.
    """

    def __init__(self, before: Mapping[str, float]) -> None:
        self.seconds: dict[str, float] = {**dict.fromkeys(PHASES, 0.0), **before}
        self._last = time.perf_counter()

    def end(self, name: str, **within: float) -> None:
        """The phase `name` ends now; `within` are seconds of it that were spent on something else."""
        now = time.perf_counter()
        for phase, seconds in {name: now - self._last - sum(within.values()), **within}.items():
            self.seconds[phase] = round(self.seconds[phase] + seconds, 6)
        self._last = now


def rollout_metrics(groups: Sequence[RolloutGroup], credited_turns: int = 0) -> dict[str, float]:
    """What the sampled rollouts say before any update: reward, lengths, truncation, groups without signal.

    Rewards are those of the groups that were not dropped, if there are any. Where groups are of unequal size, `reward`
    is the mean over problems of their mean rewards; everything else counts rollouts or tokens alike.
    """
    counted = [group for group in groups if not group.dropped] or groups
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(completion.drawn_tokens for completion in completions)
    return {
        "reward": learner.mean_reward(counted),
        "zero_variance_share": float(np.mean(~learner.signal_of(counted, credited_turns))),
        "reward_failures": sum(group.reward_failures for group in groups),
        "completion_length": tokens / len(completions),
        "truncation_rate": truncation_rate(completions),
        "interruption_rate": interruption_rate(completions),
        "sampler_entropy": -float(sum(completion.logprobs.sum() for completion in completions)) / tokens,
    }


def size_columns(config: RunConfig, sampled: Sampled) -> dict[str, int]:
    """The size of a step's batch, of runs in which it may change; and of its groups, where a policy deals."""
    if not config.schedule.text:
        return {}
    columns = {"group_size": sampled.size.group_size, "problems_per_batch": sampled.size.problems}
    if config.block:
        sizes = [len(group.completions) for group in sampled.groups]
        columns |= {"group_size_min": min(sizes), "group_size_max": max(sizes)}
    return columns


def truncation_rate(completions: Sequence[Completion]) -> float:
    """Share of rollouts whose last segment was cut."""
    return sum(completion.finish_reason == "length" for completion in completions) / len(completions)


def interruption_rate(completions: Sequence[Completion]) -> float:
    """Share of rollouts that something was put into: the end of their thinking, or the answer of a tool."""
    return sum(completion.drawn_tokens < len(completion.tokens) for completion in completions) / len(completions)


def reward_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What graders say beside one reward.

    Returns:
      `reward/TASK`, the mean reward of each task where there are several; and `metric/NAME`, the mean of each number
      that graders measured, over the completions that have one of this name.
    """
    counted = [group for group in groups if not group.dropped] or groups
    tasks = sorted({group.task for group in counted})
    columns = {}
    if len(tasks) > 1:
        for task in tasks:
            columns[f"reward/{task}"] = learner.mean_reward([group for group in counted if group.task == task])
    for name in sorted({name for group in counted for name in group.reward_metrics}):
        values = np.concatenate([group.reward_metrics[name] for group in counted if name in group.reward_metrics])
        if not np.isnan(values).all():
            columns[f"metric/{name}"] = float(np.nanmean(values))
    return columns


def staleness_metrics(groups: Sequence[RolloutGroup], *, step: int, window: int) -> dict[str, Any]:
    """How many updates old the weights behind a batch were, when update `step` used it.

    Args:
      groups: the batch, groups without signal included.
      step: updates made before this one.
      window: ages lie in [0, window).

    Returns:
      `staleness`, the age of the oldest token; `staleness_mean`, of trained tokens; and `staleness_histogram`: how many
      trained tokens are 0, 1, ... window - 1 updates old.
    """
    completions = [completion for group in groups for completion in group.completions]
    oldest = min(int(completion.policy_versions.min()) for completion in completions)
    ages = step - np.concatenate([completion.policy_versions[completion.mask] for completion in completions])
    return {
        "staleness": step - oldest,
        "staleness_mean": float(ages.mean()),
        "staleness_histogram": np.bincount(ages, minlength=window).tolist(),
    }


def what_was_not_measured(config: RunConfig) -> dict[str, None]:
    """Columns that say nothing under this config, as null.

    Without a KL term no reference policy is scored. Of texts no sampler says anything. At two temperatures it and the
    learner report different distributions: how far they differ is no fault (agreement checks use the sampler's).
    """
    columns = () if config.loss.kl_coef else ("kl",)
    if config.temperature != config.sampling.temperature or config.supervised:
        columns += ("logprob_difference", "logprob_difference_max")
    columns += ("sampler_entropy",) if config.supervised else ()
    return dict.fromkeys(columns)


def curriculum_metrics(
    config: CurriculumConfig, sampled: Sampled, history: History, stream: ProblemStream, credited_turns: int
) -> dict[str, Any]:
    """Columns of one step about its problems, given their history after it; nothing of what is off.

    Returns:
      With dynamic sampling `sampled_groups`, `kept_groups` and `refill_rounds`; with retirement `retired_problems`;
      with an order `measured_rate`, the mean rate of the step's problems; with a mixture `train_sets`: by name the
      `share` of the step's groups, and their mean `reward` as graded (None without groups).
    """
    places = [stream.places[group.problem_id] for group in sampled.groups]
    columns: dict[str, Any] = {}
    if config.dynamic_sampling:
        columns["sampled_groups"] = len(sampled.groups)
        columns["kept_groups"] = len(groups_with_signal(sampled.groups, credited_turns))
        columns["refill_rounds"] = sampled.rounds
    if config.retire_rate:
        columns["retired_problems"] = int(np.count_nonzero(stream.retired(history)))
    if config.order != "shuffled":
        rates = [stream.sets.problems[place].measured[config.rate_column] for place in places]
        columns["measured_rate"] = float(np.mean(rates))
    if config.train_sets:
        rewards = np.array([rewards_of(group).mean() for group in sampled.groups])
        columns["train_sets"] = {}
        for name, members in stream.sets.members.items():
            of_set = np.isin(places, members)
            reward = float(rewards[of_set].mean()) if of_set.any() else None
            columns["train_sets"][name] = {"share": float(of_set.mean()), "reward": reward}
    return columns


def step_speed(parts: Parts, batch: ReadyBatch, phase_s: Mapping[str, float]) -> dict[str, float | None]:
    """The column `speed` of metrics.jsonl.

    Returns:
      `step_s`, the sum of the phases; `sampled_tokens_per_s` and `trained_tokens_per_s`, drawn tokens of all groups and
      trained tokens of those that took part, each once, over it; `mfu`, of the updates alone: what the model needs for
      them over what the mesh could have computed meanwhile, null where the device's peak is not known; `compiled_s`,
      for how long this process has compiled; and the peaks of memory so far, in bytes: `device_memory` of the fullest
      device of this process, null where it does not say, `host_memory` of this process.
    """
    step_s = sum(phase_s.values())
    sampled = sum(group.num_tokens for group in batch.sampled.groups)
    trained = sum(int(completion.mask.sum()) for group in batch.trained for completion in group.completions)
    config = parts.inputs.model_config
    repeated = isinstance(batch.updates[0][0], PackedBatch)
    adapters = parts.config.adapters is not None
    flops = (
        model_flops(config, batch.trained, prompts_repeated=repeated, adapters=adapters) * parts.config.recipe.epochs
    )
    devices = jax.devices()[:1] if parts.inputs.mesh is None else list(parts.inputs.mesh.devices.flat)
    peak = peak_flops([device.device_kind for device in devices], config.dtype)
    return {
        "step_s": round(step_s, 6),
        "sampled_tokens_per_s": round(sampled / step_s, 3),
        "trained_tokens_per_s": round(trained / step_s, 3),
        "mfu": None if peak is None else flops / (peak * phase_s["update"]),
        "compiled_s": round(compiled_s(), 6),
        "device_memory": device_memory(),
        "host_memory": host_memory(),
    }


def model_flops(
    config: ModelConfig, groups: Sequence[RolloutGroup], *, prompts_repeated: bool, adapters: bool = False
) -> float:
    """What one update on all of these groups needs, each product once.

    Prompts are read once a group, or, where `prompts_repeated` (packed rows), once a rollout. What trees share beyond
    prompts is counted as if it were not shared.
    """
    tokens = pairs = 0.0
    for group in groups:
        prompt = len(group.prompt_tokens)
        own = [len(completion.tokens) for completion in group.completions]
        before = _seen_pairs(config, prompt)
        tokens += sum(own) + prompt * (len(own) if prompts_repeated else 1)
        pairs += sum(_seen_pairs(config, prompt + length) - before for length in own)
        pairs += before * (len(own) if prompts_repeated else 1)
    return step_flops(config, Work(0, tokens, tokens, pairs, pairs, 1), adapters=adapters).model


def _seen_pairs(config: ModelConfig, length: int) -> float:
    """Pairs of query and key that see each other in a sequence, in the mean of the layers (see `model.flops`)."""
    whole = length**2 / 2
    if config.local_layers is None:
        return whole
    chunk, local = config.attention_chunk, sum(config.local_layers) / config.num_layers
    within = (length // chunk) * chunk**2 / 2 + (length % chunk) ** 2 / 2
    return local * within + (1 - local) * whole


def peak_flops(kinds: Sequence[str], dtype: str) -> float | None:
    """Operations per second of devices of these kinds together, in a model's dtype; None where one is not known."""
    known = [known_device(kind) for kind in kinds]
    found = [device for device in known if device is not None]
    if len(found) < len(known):
        return None
    return sum(device.flops if dtype == "bfloat16" else device.flops_float32 for device in found)


def device_memory() -> int | None:
    """Peak bytes in use of this process's fullest device; None where devices do not say, as CPUs do not."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max((stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat), default=None)


def host_memory() -> int:
    """Peak bytes of memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # elsewhere it is in KiB


KEPT_STEPS = 200
"""About so many steps of a run keep rollouts, unless the config says how often."""
KEPT_ROLLOUTS = 8
"""Of a group."""
KEPT_TOKENS = 2048
"""Of a completion; a longer one keeps half as many from its beginning and from its end."""


def is_kept(config: RunConfig, step: int) -> bool:
    """Whether step `step` (the first is 1) keeps rollouts."""
    every = config.track.rollouts_every or -(-config.num_steps // KEPT_STEPS)
    return config.track.rollouts > 0 and (step - 1) % every == 0


def kept_columns(config: RunConfig, groups: Sequence[RolloutGroup], tokenizer: Tokenizer) -> dict[str, Any]:
    """What a line of rollouts.jsonl says of a step beside the ledger; `groups` are all of its groups, graded."""
    return {"groups": [_kept_group(group, tokenizer) for group in groups[: config.track.rollouts]]}


def _kept_group(group: RolloutGroup, tokenizer: Tokenizer) -> dict[str, Any]:
    assert group.rewards is not None
    return {
        "problem_id": group.problem_id,
        "task": group.task,
        "prompt": "".join(token_texts(tokenizer, group.prompt_tokens.tolist())),
        "rewards": [round(float(reward), 6) for reward in group.rewards],
        "failures": {str(index): why for index, why in group.failures.items()},
        "completions": [_kept_completion(completion, tokenizer) for completion in group.completions[:KEPT_ROLLOUTS]],
    }


def _kept_completion(completion: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    """Token by token; of a long one without those in the middle."""
    size, half = len(completion.tokens), KEPT_TOKENS // 2
    places = np.arange(size) if size <= KEPT_TOKENS else np.r_[:half, size - half : size]
    tokens = completion.tokens[places].tolist()
    parts = [tokens] if size <= KEPT_TOKENS else [tokens[:half], tokens[half:]]
    pieces = [piece for part in parts for piece in token_texts(tokenizer, part)]
    return {
        "text": "".join(pieces),
        "finish_reason": completion.finish_reason,
        "num_tokens": size,
        "omitted": None if size <= KEPT_TOKENS else {"at": half, "tokens": size - KEPT_TOKENS},
        "tokens": tokens,
        "pieces": pieces,
        "logprobs": [round(float(value), 4) for value in completion.logprobs[places]],
        "policy_versions": completion.policy_versions[places].tolist(),
        "drawn": completion.mask[places].astype(int).tolist(),
    }


CLEAR = 0.9
"""Share of its bound below which an alarm goes off."""

ALARM_COLUMNS = {"kl": "kl", "ratio": "ratio_max", "correction": "correction_cut", "truncation": "truncation_rate"}
"""Alarms that bound the mean of a column of metrics.jsonl; each is called as its bound in `AlarmsConfig` is."""

ADVICE = {
    "entropy_collapse": "entropy is {value:.3g} times smaller than at first: exploration ends. Clip higher, lower the "
    "learning rate, or add KL and entropy terms (loss.entropy_target)",
    "entropy_explosion": "entropy is {value:.3g} times what it was at first: take the entropy bonus away, or lower the "
    "learning rate",
    "kl": "{value:.3g} nats per token from the reference policy: raise loss.kl_coef, or lower the learning rate",
    "ratio": "the largest ratio of an update is {value:.3g}: fewer epochs or mini-batches, less staleness, or a lower "
    "learning rate",
    "correction": "the sampler correction is cut at {value:.1%} of tokens: sampler and learner are far apart",
    "truncation": "{value:.1%} of completions are cut off: raise {limit}, or shorten answers",
    "evaluation": "avg@k of an evaluation set fell by {value:.3g} from its best",
}


@dataclasses.dataclass(frozen=True)
class AlarmState:
    """What alarms look back on; a run that resumes makes it from its logs, and is warned as the undisturbed run is."""

    entropies: tuple[float, ...] = ()  # of the first steps with tokens to train on, as many as the window has.
    recent: tuple[Mapping[str, Any], ...] = ()  # lines of the last steps, as many.
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)  # avg@k of each evaluation set, at its best.
    last: Mapping[str, float] = dataclasses.field(default_factory=dict)  # the same, last.
    active: tuple[str, ...] = ()  # alarms that are on.


def next_watch(
    watch: AlarmState, config: AlarmsConfig, log: str, line: Mapping[str, Any], *, limit: str = "sampling.max_tokens"
) -> tuple[AlarmState, dict[str, str]]:
    """What a line of the log of that name changes, and the advice of alarms that it turned on.

    `limit` is what cuts completions off (see `cutting_field`).
    """
    if log == run_files.EVAL:
        name = line["eval_set"]
        [score] = [value for column, value in line.items() if column.startswith("avg@") and "/" not in column]
        best = max(score, watch.best.get(name, score))
        return dataclasses.replace(watch, best={**watch.best, name: best}, last={**watch.last, name: score}), {}
    if log != run_files.METRICS:
        return watch, {}
    entropies = watch.entropies
    if line["trained_tokens"] and len(entropies) < config.window:
        entropies += (line["entropy"],)
    watch = dataclasses.replace(watch, entropies=entropies, recent=(*watch.recent, line)[-config.window :])
    values = {name: value for name, value in _readings(watch, config).items() if getattr(config, name)}
    share = {name: CLEAR if name in watch.active else 1.0 for name in values}
    on = {name: value > share[name] * getattr(config, name) for name, value in values.items()}
    active = tuple(name for name in ADVICE if on.get(name, name in watch.active))
    new = {name: ADVICE[name].format(value=values[name], limit=limit) for name in active if name not in watch.active}
    return dataclasses.replace(watch, active=active), new


def cutting_field(config: RunConfig) -> str:
    """The fields that cut completions off: where rollouts have several turns each has a budget below `max_tokens`."""
    sampling = config.sampling
    if config.environment.name:
        return "environment.turns or sampling.max_tokens"
    if sampling.thinking.high:
        return "sampling.thinking.answer_tokens (and sampling.max_tokens with it)"
    if sampling.tool.name != "none":
        return "sampling.tool.call_tokens (and sampling.max_tokens with it)"
    return "sampling.max_tokens"


def _readings(watch: AlarmState, config: AlarmsConfig) -> dict[str, float]:
    """The number that each alarm bounds; those are left out that the lines so far do not tell."""
    found = {}
    if len(watch.recent) == config.window:
        # What an update without tokens says is 0, and nothing.
        trained = [line for line in watch.recent if line["trained_tokens"]]
        for name, column in ALARM_COLUMNS.items():
            lines = watch.recent if name == "truncation" else trained
            values = [line[column] for line in lines if line[column] is not None]
            if values:
                found[name] = float(np.mean(values))
        if trained and len(watch.entropies) == config.window:
            first, now = float(np.mean(watch.entropies)), float(np.mean([line["entropy"] for line in trained]))
            found["entropy_collapse"] = first / now if now > 0 else np.inf
            found["entropy_explosion"] = now / first if first > 0 else 0.0
    if watch.best:
        found["evaluation"] = max(best - watch.last[name] for name, best in watch.best.items())
    return found


def replay(
    config: AlarmsConfig, metrics: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> AlarmState:
    """The watch after the lines of a run's logs; an evaluation comes after the step whose weights it measures."""
    lines = [(line["step"], 0, run_files.METRICS, line) for line in metrics]
    lines += [(line["step"], 1, run_files.EVAL, line) for line in evaluations]
    watch = AlarmState()
    for _, _, log, line in sorted(lines, key=lambda item: item[:2]):
        watch, _ = next_watch(watch, config, log, line)
    return watch
