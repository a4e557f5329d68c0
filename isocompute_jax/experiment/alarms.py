"""What a practitioner wants to hear of at once, from the lines of the logs and nothing else.

An alarm is on while a number lies above its bound, and stays on until it is clearly below (`CLEAR`), so that a number
that hovers about its bound is said once. `Watch` is what the next line is judged by; a run that resumes makes it from
its logs again, and so is warned as the undisturbed run would have been.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from isocompute_jax.experiment.config import AlarmsConfig, SamplingConfig
from isocompute_jax.records import run_files

LOG = logging.getLogger(__name__)

CLEAR = 0.9
"""Share of its bound below which an alarm goes off."""

COLUMNS = {"kl": "kl", "ratio": "ratio_max", "correction": "correction_cut", "truncation": "truncation_rate"}
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
class Watch:
    """What alarms look back on.

    Attributes:
      entropies: of the first steps with tokens to train on, as many as the window has.
      recent: lines of the last steps, as many.
      best: avg@k of each evaluation set, at its best.
      last: the same, last.
      active: alarms that are on.
    """

    entropies: tuple[float, ...] = ()
    recent: tuple[Mapping[str, Any], ...] = ()
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    last: Mapping[str, float] = dataclasses.field(default_factory=dict)
    active: tuple[str, ...] = ()


def after(
    watch: Watch, config: AlarmsConfig, log: str, line: Mapping[str, Any], *, limit: str = "sampling.max_tokens"
) -> tuple[Watch, dict[str, str]]:
    """What a line of the log of that name changes, and what is to be said of alarms that it turned on.

    `limit` is what cuts completions off (see `limit_of`).
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
    values = {name: value for name, value in readings(watch, config).items() if getattr(config, name)}
    share = {name: CLEAR if name in watch.active else 1.0 for name in values}
    on = {name: value > share[name] * getattr(config, name) for name, value in values.items()}
    active = tuple(name for name in ADVICE if on.get(name, name in watch.active))
    new = {name: ADVICE[name].format(value=values[name], limit=limit) for name in active if name not in watch.active}
    return dataclasses.replace(watch, active=active), new


def limit_of(sampling: SamplingConfig) -> str:
    """The fields that cut completions off: where rollouts have several turns each has a budget below `max_tokens`."""
    if sampling.thinking.high:
        return "sampling.thinking.answer_tokens (and sampling.max_tokens with it)"
    if sampling.tool.name != "none":
        return "sampling.tool.call_tokens (and sampling.max_tokens with it)"
    return "sampling.max_tokens"


def readings(watch: Watch, config: AlarmsConfig) -> dict[str, float]:
    """The number that each alarm bounds; those are left out that the lines so far do not tell."""
    found = {}
    if len(watch.recent) == config.window:
        # What an update without tokens says is 0, and nothing.
        trained = [line for line in watch.recent if line["trained_tokens"]]
        for name, column in COLUMNS.items():
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


def replayed(
    config: AlarmsConfig, metrics: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> Watch:
    """The watch after the lines of a run's logs; an evaluation comes after the step whose weights it measures."""
    lines = [(line["step"], 0, run_files.METRICS, line) for line in metrics]
    lines += [(line["step"], 1, run_files.EVAL, line) for line in evaluations]
    watch = Watch()
    for _, _, log, line in sorted(lines, key=lambda item: item[:2]):
        watch, _ = after(watch, config, log, line)
    return watch
