"""The analysis of a sweep, in order: read, group, fit one model, draw, and reduce the draws to answers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.configurations import ConfigurationRuns, ended_early, group_runs, group_schedules, rollouts_at
from isocompute_jax.fit.data_facts import data_facts, seeds_agree
from isocompute_jax.fit.engine import SweepDraws, SweepModel, end_point_draws, fit_sweep
from isocompute_jax.fit.frontier.answers import DrawnSweep, answer, answer_ranges
from isocompute_jax.fit.frontier.beside import beside_fixed
from isocompute_jax.fit.frontier.next_runs import next_runs
from isocompute_jax.fit.frontier.optimal import optimal_sizes, switch_points
from isocompute_jax.fit.frontier.paper import paper_frontier
from isocompute_jax.fit.options import AnalysisOptions
from isocompute_jax.fit.questions import ask, of_one_model
from isocompute_jax.fit.read import WITH_REPLACEMENT, MemoryTable, Notes, RunCurve, memory_table, read_curves
from isocompute_jax.fit.results import BudgetAnswer, CurveBand, SweepResult
from isocompute_jax.records.errors import InputError

GRID = 41
"""Computes of the grid inside the data, even in log C."""
BEYOND, BEYOND_GRID = 8.0, 8
"""How far the grid goes beyond the data, and in how many steps."""
BEFORE = 1e-3
"""Share of the first compute at which nothing is trained yet."""


def analyze(data: Any, options: AnalysisOptions | None = None, *, questions: bool = True) -> SweepResult:
    """From learning curves to how to spend a budget; writes nothing.

    Args:
      data: a pandas data frame, an Arrow table, a mapping of columns, a `MemoryTable`, or a path or list of paths: run
        directories, folders of them, tables (.csv, .jsonl, .parquet) or globs.
      options: what is read, and which budgets are asked for; None for the defaults.
      questions: whether the questions beside the answer are asked too.

    Raises:
      InputError: there is nothing that could be analysed; it names the flag, file or column.
    """
    options = options or AnalysisOptions()
    if isinstance(data, str | os.PathLike):
        data = [data]
    sources = data if isinstance(data, MemoryTable) or _are_paths(data) else memory_table(data)
    runs, notes = read_curves(sources, options.read)
    options = dataclasses.replace(options, read=notes.read or options.read)
    return analyse_curves(runs, options, notes=notes, questions=questions)


def _are_paths(data: Any) -> bool:
    return isinstance(data, list | tuple) and all(isinstance(each, str | os.PathLike) for each in data)


def analyse_curves(
    runs: Sequence[RunCurve], options: AnalysisOptions, *, notes: Notes | None = None, questions: bool = True
) -> SweepResult:
    """Analyses runs that have been read.

    Raises:
      InputError: no run was evaluated after training began.
    """
    notes, every = notes or Notes(), [run for run in runs if not run.schedule]
    runs, others = of_one_model(runs)
    fixed = [run for run in runs if not run.schedule]
    groups, remarks = group_runs(fixed)
    scheduled, more = group_schedules(runs)
    only_scheduled = not groups
    if only_scheduled:
        groups = scheduled
    repeated = sum(len(group.runs) for group in (*groups, *(() if only_scheduled else scheduled)))
    notes = dataclasses.replace(
        notes,
        runs=notes.runs + len(runs) - repeated,
        texts=(*others, *ended_early(groups), *remarks, *more, *notes.texts),
    )
    result, model = _analysed(groups, options.metric, options, notes, only_scheduled=only_scheduled)
    targets = {
        name: _analysed(groups, name, options, notes, only_scheduled=only_scheduled)[0]
        for name in _targets(options.metric)
        if _has(groups, name)
    }
    asked = ()
    if questions and not only_scheduled and model is not None:
        models = {} if others else {options.metric: model}
        asked = ask(group_runs(every)[0] if others else groups, options, models=models)
    beside = () if only_scheduled or model is None else beside_fixed(scheduled, model, options.metric)
    return dataclasses.replace(result, targets=targets, questions=asked, scheduled=beside)


def _targets(metric: str) -> list[str]:
    kind, _, k = metric.partition("@")
    names = [f"{name}@{k}{how}" for how in ("", WITH_REPLACEMENT) for name in ("best", "worst")]
    return names if kind == "avg" else []


def _has(groups: Sequence[ConfigurationRuns], metric: str) -> bool:
    return all(
        any(metric in run.columns and np.isfinite(run.columns[metric]).any() for run in group.runs) for group in groups
    )


def _analysed(
    groups: Sequence[ConfigurationRuns],
    metric: str,
    options: AnalysisOptions,
    notes: Notes,
    *,
    only_scheduled: bool,
) -> tuple[SweepResult, SweepModel | None]:
    """The analysis of one metric, without targets and questions."""
    model = fit_sweep(groups, metric, reward_range=options.read.reward_range)
    if model is None:
        names = ", ".join(group.configuration.name for group in groups[:5])
        raise InputError(
            f"--runs: no run of {names} has an evaluation of {metric} after training began: give longer runs, or "
            "another --metric"
        )
    curves = _longest(groups, metric) >= 3
    end = float(np.nanmax(model.observations.ends))
    compute = _grid(model, end, options.budgets)
    draws = model.curves(compute) if curves else end_point_draws(model, compute)
    sweep = _sweep(groups, metric, options, model, draws)
    budgets = options.budgets or (end,)
    grid = _answers(sweep, compute[1:])
    asked = _answers(sweep, np.array(budgets))
    if not asked:
        least = np.nanmin(sweep.steps_at)
        raise InputError(
            f"--budget={budgets[0]:g} pays no step of any configuration, of which the smallest takes {least:g}"
        )
    wanted = options.next and curves and metric == options.metric
    inside = [each for each in grid if each.budget <= end * 1.001]
    rollouts = None if options.read.compute == "rollouts" else _rollouts(groups, [each.budget for each in inside])
    bands = tuple(_band(group, metric, k, sweep) for k, group in enumerate(groups))
    facts = data_facts(groups, metric, options, sweep, notes, curves=curves, only_scheduled=only_scheduled)
    result = SweepResult(
        options=options,
        runs=tuple(run for group in groups for run in group.runs),
        metric=metric,
        data=facts,
        asked=asked,
        grid=grid,
        ranges=answer_ranges(inside),
        curves=bands,
        optimal=optimal_sizes(sweep, grid, end, rises=facts.trend == "rise"),
        switches=switch_points(sweep, grid, end, rollouts),
        next_runs=next_runs(model, sweep, max(budgets), options.next) if wanted else (),
        targets={},
        paper=paper_frontier(groups, metric, options) if curves and metric == options.metric else None,
        questions=(),
        scheduled=(),
    )
    return result, model


def _longest(groups: Sequence[ConfigurationRuns], metric: str) -> int:
    """Most evaluations after the base model's that a run has."""
    return max(
        int(np.isfinite(run.columns[metric][run.compute > 0]).sum())
        for group in groups
        for run in group.runs
        if metric in run.columns
    )


def _grid(model: SweepModel, end: float, budgets: Sequence[float]) -> np.ndarray:
    """Computes of the draws: one before training, a grid over the data and beyond, the runs' ends and the budgets."""
    unit = model.observations.unit
    inside = np.geomspace(unit, end, GRID) if end > unit else np.array([end])
    beyond = end * BEYOND ** (np.arange(1, BEYOND_GRID + 1) / BEYOND_GRID)
    ends = model.observations.ends[model.observations.ends > 0]  # not those of runs with the base model alone
    own = [budget for budget in budgets if budget > 0]
    far = max(own, default=0.0)
    if far > beyond[-1]:
        beyond = np.concatenate([beyond, np.geomspace(beyond[-1], far, 6)[1:]])
    every = np.unique(np.concatenate([inside, beyond, ends, own]))
    close = np.concatenate([[False], np.diff(np.log(every)) < 1e-4])
    return np.concatenate([[BEFORE * unit], every[~close]])


def _sweep(
    groups: Sequence[ConfigurationRuns], metric: str, options: AnalysisOptions, model: SweepModel, draws: SweepDraws
) -> DrawnSweep:
    steps = [_step(group, options) for group in groups]
    return DrawnSweep(
        configurations=model.configurations,
        draws=draws,
        ends=model.observations.ends,
        steps_at=np.array(steps, float),
        width=options.width,
        seeds=model.observations.seeds,
        agree=seeds_agree(groups, metric, options.width),
    )


def _step(group: ConfigurationRuns, options: AnalysisOptions) -> float:
    """Compute of one step in the unit of the analysis; NaN where unknown."""
    per_step = group.configuration.rollouts_per_step
    if options.read.compute == "steps":
        return 1.0
    if options.read.compute == "rollouts":
        return float(per_step) if per_step else np.nan
    end = max(float(run.compute[-1]) for run in group.runs)
    spent = rollouts_at(group, end)
    return end / spent * per_step if per_step and np.isfinite(spent) and spent > 0 else np.nan


def _rollouts(groups: Sequence[ConfigurationRuns], compute: Sequence[float]) -> list[float]:
    """Rollouts at each compute, the mean over configurations that know them."""
    found = np.array([[rollouts_at(group, float(c)) for c in compute] for group in groups])
    return [float(np.nanmean(column)) if np.isfinite(column).any() else np.nan for column in found.T]


def _answers(sweep: DrawnSweep, budgets: np.ndarray) -> tuple[BudgetAnswer, ...]:
    found = (answer(sweep, float(budget)) for budget in budgets)
    return tuple(each for each in found if each is not None)


def _band(group: ConfigurationRuns, metric: str, k: int, sweep: DrawnSweep) -> CurveBand:
    mean, run, compute = sweep.draws.mean[k], sweep.draws.run[k], sweep.draws.compute
    low, high = np.quantile(mean, [0.025, 0.975], axis=0)
    run_low, run_high = np.quantile(run, [0.025, 0.975], axis=0)
    points, seeds = [], []
    for run_curve in group.runs:
        if metric in run_curve.columns:
            known = np.isfinite(run_curve.columns[metric])
            points.append((run_curve.compute[known], run_curve.columns[metric][known]))
            seeds.append(run_curve.facts.seed)
    return CurveBand(
        configuration=group.configuration,
        seeds=tuple(seeds),
        points=tuple(points),
        data_end=float(sweep.ends[k]),
        compute=compute[1:],
        mean=mean.mean(axis=0)[1:],
        low=low[1:],
        high=high[1:],
        run_low=run_low[1:],
        run_high=run_high[1:],
    )
