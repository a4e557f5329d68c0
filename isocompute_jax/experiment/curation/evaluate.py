"""Evaluation of a model on problems: avg@k and pass@k with intervals, and two models on the same problems.

What is drawn is recorded as curation records it: rollout by rollout, so that a killed evaluation goes on, and more
samples are added to what is there. Problems are what is random: intervals are percentiles of 10,000 sets of problems
drawn from these with replacement (Efron 1979), which hold the noise of the samples too. A comparison draws the same
problems for both models: what makes a problem hard for both cancels.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
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
DRAWS, COVERED = 10_000, (2.5, 97.5)
"""Sets of problems that are drawn, and the percentiles that make an interval of 95%."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A mean over problems, and where it would lie on other problems of their kind."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def estimate(values: Float[np.ndarray, "P"], seed: int = 0) -> Score:
    """The mean of a number of each problem, with its interval."""
    draws = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), COVERED)
    return Score(float(values.mean()), float(low), float(high))


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
        facts = {"model": source.model, "samples": config.samples, "solved_at": config.solved_at, "solved": found}
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
    counts = np.array(list(solved.values()))
    if above := [k for k in ks if not 1 <= k <= samples]:
        raise InputError(f"--k={above[0]}: pass@k of {samples} samples needs a k of 1 to {samples}: raise --samples")
    found = {f"avg@{samples}": estimate(counts / samples)}
    return found | {f"pass@{k}": estimate(pass_rates(counts, samples, k)) for k in ks}


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
    """Rates of two evaluations on the problems that both have. Raises InputError where there are none."""
    shared = [name for name in ours["solved"] if name in theirs["solved"]]
    if not shared:
        raise InputError("--compare: the two evaluations have no problem in common, by their ids")
    rates = [np.array([one["solved"][name] for name in shared]) / one["samples"] for one in (ours, theirs)]
    return PairedScores(len(shared), estimate(rates[0]), estimate(rates[1]), estimate(rates[0] - rates[1]))
