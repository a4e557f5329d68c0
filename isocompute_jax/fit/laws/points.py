"""From runs to the points that a law is fitted to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isocompute_jax.fit.laws.chinchilla import FLOPS_PER_PARAMETER_TOKEN
from isocompute_jax.fit.laws.law_options import LawOptions
from isocompute_jax.records.errors import InputError

if TYPE_CHECKING:
    from isocompute_jax.fit.read import RunCurve

NEEDS_PARAMS = "a column model_params (parameters N), e.g. --columns=THEIRS:model_params, or give it as a constant"
NEEDS_TOKENS = "a column tokens, e.g. --columns=THEIRS:tokens"


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """Evaluations of all runs, one after the other.

    Attributes:
      model_params: [P] parameters N.
      x: [P] compute or data; training tokens for the pre-training law.
      loss: [P] L.
      tau: [P] epochs C / (n D); NaN where unknown.
      problem_set_size: [P] D; 0 where unknown.
      run: [P] number of the run.
      unit: what x counts, in words.
    """

    model_params: np.ndarray
    x: np.ndarray
    loss: np.ndarray
    tau: np.ndarray
    problem_set_size: np.ndarray
    run: np.ndarray
    unit: str


def model_size_points(runs: Sequence[RunCurve], options: LawOptions) -> tuple[Points, list[str]]:
    """Every evaluation of every run whose N and X are known, and a warning for each run that is left out.

    Raises:
      InputError: no run can be used; the message names the column that is missing.
    """
    sized, warnings = _with(
        runs, lambda run: run.facts.model_params > 0, "its model_params are not known", NEEDS_PARAMS
    )
    if options.x == "data" and all(_known(run, "compute") for run in sized):
        return _points(sized, options, lambda run: run.columns["compute"], "rollouts"), warnings
    remedy = NEEDS_TOKENS if options.x == "data" else f"{NEEDS_TOKENS}, or use --x=data"
    used, more = _with(sized, lambda run: _known(run, "tokens"), "it has no tokens", remedy)
    if options.x == "data":
        return _points(used, options, lambda run: run.columns["tokens"], "tokens"), warnings + more
    unit = "FLOPs (6 N tokens)"
    flops = _points(
        used, options, lambda r: FLOPS_PER_PARAMETER_TOKEN * r.facts.model_params * r.columns["tokens"], unit
    )
    return flops, warnings + more + _mixtures(used)


def chinchilla_points(runs: Sequence[RunCurve], options: LawOptions) -> tuple[Points, list[str]]:
    """The last row of each run, or all of its rows, with N, tokens D and the loss.

    Raises:
      InputError: no run can be used; the message names the column that is missing.
    """
    sized, warnings = _with(
        runs, lambda run: run.facts.model_params > 0, "its model_params are not known", NEEDS_PARAMS
    )
    used, more = _with(sized, lambda run: _known(run, "tokens"), "it has no tokens", NEEDS_TOKENS)
    points = _points(used, options, lambda run: run.columns["tokens"], "tokens")
    if options.points == "last":
        known = np.isfinite(points.x) & np.isfinite(points.loss)
        last = [np.flatnonzero(known & (points.run == run))[-1:] for run in np.unique(points.run)]
        points = _select(points, np.concatenate(last))
    return points, warnings + more


def _with(runs, usable, why: str, remedy: str) -> tuple[list[RunCurve], list[str]]:
    kept = [run for run in runs if usable(run)]
    if not kept:
        raise InputError(f"--runs: no run can be used for this law, because of each {why}; it needs {remedy}")
    return kept, [f"{run.source}: run {run.run} left out: {why}" for run in runs if not usable(run)]


def _known(run: RunCurve, column: str) -> bool:
    return column in run.columns and bool(np.any(run.columns[column] > 0))


def _points(runs: Sequence[RunCurve], options: LawOptions, resource, unit: str) -> Points:
    rows = []
    for number, run in enumerate(runs):
        metric = run.columns.get(options.metric, np.full_like(run.compute, np.nan))
        facts, rollouts = run.facts, run.columns.get("compute", np.full_like(run.compute, np.nan))
        per_epoch = facts.group_size * facts.problem_set_size
        one = np.ones_like(run.compute)
        rows.append((
            facts.model_params * one,
            np.asarray(resource(run), np.float64),
            options.loss_of(metric),
            rollouts / per_epoch if per_epoch else np.nan * one,
            facts.problem_set_size * one,
            number * one,
        ))  # fmt: skip
    return Points(*(np.concatenate(column) for column in zip(*rows, strict=True)), unit=unit)


def _select(points: Points, rows: np.ndarray) -> Points:
    arrays = ("model_params", "x", "loss", "tau", "problem_set_size", "run")
    return dataclasses.replace(points, **{name: getattr(points, name)[rows] for name in arrays})


def _mixtures(runs: Sequence[RunCurve]) -> list[str]:
    """Model sizes whose runs differ in group size or batch: one line goes through all of them."""
    found: dict[int, set[tuple[int, int]]] = {}
    for run in runs:
        found.setdefault(run.facts.model_params, set()).add((run.facts.group_size, run.facts.problems_per_batch))
    mixed = [f"{size:g}" for size, kinds in sorted(found.items()) if len(kinds) > 1]
    return [f"one line is fitted to runs of several configurations (model_params {', '.join(mixed)})"] if mixed else []
