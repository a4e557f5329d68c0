"""Evaluation of a model on problems: avg@k and pass@k with intervals, and two models on the same problems.

What is drawn is recorded as curation records it: rollout by rollout, so that a killed evaluation goes on, and more
samples are added to what is there. Problems are what is random: an interval is Wilson's (1927) for as many independent
draws as have the variance that the mean over problems has, with Student's quantile where few problems are solved, or
fail, at all: it holds 94 to 98% in simulations down to rates of 0.003, and has a width at 0 and 1. That of a
difference joins the intervals of both models by how alike their rates are over problems (Newcombe 1998, method 10):
what makes a problem hard for both cancels.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Float, Int

from isocompute_jax.experiment.build import MakeSampler
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import measured
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.records import metrics
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.records.run_files import write_atomic

EVALUATION = "evaluation.json"
NORMAL_95 = 1.959964


@dataclasses.dataclass(frozen=True)
class Score:
    """A mean over problems, and where it would lie on other problems of their kind."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def estimate(values: Float[np.ndarray, "P"], samples: int) -> Score:
    """The mean over problems of a share of `samples` rollouts of each, with its interval."""
    count, mean, variance = len(values), float(values.mean()), float(values.var(ddof=1)) if len(values) > 1 else 0.0
    most = count * samples  # independent draws there were; alike, the samples of one problem say less
    draws = min(count * mean * (1 - mean) / variance, most) if variance else count if mean in (0.0, 1.0) else most
    told = int(min((values > 0).sum(), (values < 1).sum()))  # problems that say what the variance is
    wide = scipy.special.stdtrit(2 * told + 1, 0.975) if told else NORMAL_95
    share = wide**2 / draws
    centre = (mean + share / 2) / (1 + share)
    half = math.sqrt(share * mean * (1 - mean) + share**2 / 4) / (1 + share)
    return Score(mean, min(max(centre - half, 0.0), mean), max(min(centre + half, 1.0), mean))


def difference(
    ours: Float[np.ndarray, "P"], theirs: Float[np.ndarray, "P"], samples: tuple[int, int]
) -> tuple[Score, Score, Score]:
    """The means of two models on the same problems, and that of the first less that of the second."""
    first, second = (estimate(values, count) for values, count in zip((ours, theirs), samples, strict=True))
    alike = float(np.corrcoef(ours, theirs)[0, 1]) if min(ours.std(), theirs.std()) > 0 else 0.0

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * alike * one * other + other**2, 0.0))

    value = first.value - second.value
    low = value - joined(first.value - first.low, second.high - second.value)
    return first, second, Score(value, low, value + joined(first.high - first.value, second.value - second.low))


def evaluate(
    problems: Iterable[Problem],
    out: str | os.PathLike[str],
    *,
    source: RunConfig,
    config: CurationConfig,
    make_sampler: MakeSampler = make_sampler,
) -> dict[str, int]:
    """Draws what the record in `out` lacks, writes `evaluation.json`, and returns problem -> completions that solve it.

    Arguments and errors are those of `curate`, which cuts sets of the same record.
    """
    path = pathlib.Path(out)
    with measured(problems, path, source=source, config=config, make_sampler=make_sampler) as store:
        store.check_failures()
        solved, known = store.solved(config.solved_at).tolist(), store.measured.tolist()
        found = {
            problem.id: count for problem, count, is_known in zip(problems, solved, known, strict=True) if is_known
        }
        facts = {
            "model": source.model,
            "samples": config.samples,
            "solved_at": config.solved_at,
            "reward": source.reward.function,
            "marked": source.reward.marked,
            "solved": found,
            "contents": {problem.id: problem.digest.hex() for problem in problems if problem.id in found},
        }
        write_atomic(path / EVALUATION, json.dumps(facts, indent=1) + "\n")
    return found


def read_evaluation(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """What `evaluate` wrote. Raises InputError where it wrote nothing there."""
    path = pathlib.Path(directory) / EVALUATION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found, "solved": {str(name): int(count) for name, count in found["solved"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no evaluation ({error}); give the --out of one that has ended") from error


def scores(solved: Mapping[str, int], samples: int, ks: Sequence[int]) -> dict[str, Score]:
    """avg@samples, and pass@k (the chance that one of k solves a problem) for every k, unbiased (Chen et al. 2021).

    Raises:
      InputError: a k is above the number of samples.
    """
    check_ks(ks, samples)
    counts = np.array(list(solved.values()))
    found = {f"avg@{samples}": estimate(counts / samples, samples)}
    return found | {f"pass@{k}": estimate(pass_rates(counts, samples, k), samples // k) for k in ks}


def check_ks(ks: Sequence[int], samples: int) -> None:
    """Raises InputError where a k of pass@k is 0 or above the number of samples."""
    if above := [k for k in ks if not 1 <= k <= samples]:
        raise InputError(f"--k={above[0]}: pass@k of {samples} samples needs a k of 1 to {samples}: raise --samples")


def pass_rates(counts: Int[np.ndarray, "P"], samples: int, k: int) -> Float[np.ndarray, "P"]:
    """The chance of each problem that one of k of its samples, drawn without replacement, solves it."""
    return np.array([metrics.best_at_k(np.array([count]), samples, k) for count in counts.tolist()])


@dataclasses.dataclass(frozen=True)
class PairedScores:
    """Two models on the same problems."""

    problems: int
    ours: Score
    theirs: Score
    difference: Score  # ours less theirs


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> PairedScores:
    """Rates of two evaluations on the problems that both have.

    Raises:
      InputError: they have no problem in common, or they differ in what an id asks, or in what counts as solved.
    """
    for name, flag in (("solved_at", "--solved_at"), ("reward", "--reward"), ("marked", "--reward_marked")):
        if ours.get(name, False) != theirs.get(name, False):
            raise InputError(
                f"--compare: {flag} is {ours.get(name)!r} here and {theirs.get(name)!r} there: evaluate both alike"
            )
    shared = [name for name in ours["solved"] if name in theirs["solved"]]
    if not shared:
        raise InputError("--compare: the two evaluations have no problem in common, by their ids")
    contents = [one.get("contents", {}) for one in (ours, theirs)]
    if other := [name for name in shared if contents[0].get(name) != contents[1].get(name)]:
        raise InputError(
            f"--compare: {len(other)} of {len(shared)} problems with the same id differ in prompt, answer, task or "
            f"another column, such as {other[0]!r}: evaluate both on the same file (an evaluation of an earlier "
            "version says nothing of its problems: call its command again, which draws nothing anew)"
        )
    rates = [np.array([one["solved"][name] for name in shared]) / one["samples"] for one in (ours, theirs)]
    return PairedScores(len(shared), *difference(rates[0], rates[1], (ours["samples"], theirs["samples"])))
