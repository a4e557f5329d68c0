"""Sweeps of several base models, or sizes of one, laid over each other: reward at the best n, gain, and n*(C).

Base models begin at different rewards, so curves are compared by their gain too: reward minus that of the own base
model, which is the evaluation at compute 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from isocompute_jax.fit.analysis import analyse_curves
from isocompute_jax.fit.comparisons.comparison import (
    ComparisonResult,
    DrawnSeries,
    Panel,
    Picture,
    Value,
    n_star_series,
    over_seeds,
)
from isocompute_jax.fit.comparisons.sets import short_names
from isocompute_jax.fit.curves.seeds import average_seeds, group_runs
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.templating import answer
from isocompute_jax.fit.report.wording import reached, scale
from isocompute_jax.fit.sweep_results import FrontierBudget, SweepResult
from isocompute_jax.records.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class ModelCourse:
    """What a sweep made of its base model."""

    model: str  # what it is called
    model_params: int  # its size; 0 where unknown
    base: float  # reward of the base model, a mean over all runs; NaN where it was not evaluated
    budgets: tuple[FrontierBudget, ...]  # [P] the frontier: compute, n* and its interval, and the fitted reward there
    final: Value  # last evaluation of the configuration that leads at the last budget
    gain: Value | None  # from each seed's own base model to that; None where the base model was not evaluated

    @property
    def compute(self) -> np.ndarray:
        """[P]."""
        return np.array([row.compute for row in self.budgets])

    @property
    def reward(self) -> np.ndarray:
        """[P] fitted, at the best n."""
        return np.array([row.reward for row in self.budgets])

    def near(self, compute: float) -> FrontierBudget:
        """The budget nearest to a compute."""
        return min(self.budgets, key=lambda row: abs(math.log(row.compute / compute)))


def base_models(sweeps: Mapping[str, SweepResult]) -> tuple[ModelCourse, ...]:
    """Lays sweeps over each other; those without a frontier are left out.

    Args:
      sweeps: name of the base model -> its sweep, all in one metric, evaluation set and unit of compute.

    Raises:
      InputError: they differ in one of these.
    """
    asked = {(s.metric, s.options.read.eval_set, s.options.read.compute) for s in sweeps.values()}
    if len(asked) > 1:
        each_one = "; ".join(" on ".join(each[:2]) + f" over {each[2]}" for each in sorted(asked))
        raise InputError(f"sweeps: {each_one}: analyse all of them with one --metric, --eval_set and --compute")
    return tuple(_course(name, sweep) for name, sweep in sweeps.items() if sweep.frontier.budgets)


def by_model(runs: Sequence[RunCurve]) -> dict[str, list[RunCurve]]:
    """Runs by base model: by the field `model` of config.json (the column of a table) and `model_params`."""
    found: dict[tuple[str, int], list[RunCurve]] = {}
    for run in runs:
        found.setdefault((str(run.identity.get("model") or ""), run.facts.model_params), []).append(run)
    short = short_names(sorted({model for model, _ in found}))
    sizes = len({params for _, params in found}) > 1
    names = {key: short[key[0]] or f"{scale(key[1])} parameters" for key in found}
    if sizes:
        names |= {key: f"{short[key[0]]} ({scale(key[1])} parameters)" for key in found if short[key[0]]}
    return {names[key]: found[key] for key in sorted(found, key=lambda key: (key[1], key[0]))}


def _course(name: str, sweep: SweepResult) -> ModelCourse:
    budgets = sweep.frontier.budgets
    leader = budgets[-1].configuration
    group = next(group for group in group_runs(sweep.runs)[0] if group.configuration == leader)
    curve = average_seeds(group, sweep.metric)
    assert curve is not None  # it leads
    seeds = [curve.of_seed(i) for i in range(len(curve.seeds))]
    last = np.array([reward[-1] for _, reward in seeds])
    first = np.array([reward[0] for compute, reward in seeds if compute[0] == 0])
    gain = over_seeds(last - first) if len(first) == len(last) else None
    base = sweep.base_model.get(sweep.metric, math.nan)
    return ModelCourse(name, sweep.runs[0].facts.model_params, base, budgets, over_seeds(last), gain)


def compare_base_models(result: SweepResult) -> Iterator[ComparisonResult]:
    """One where the runs differ in their base model; each model's runs are analysed alone for it."""
    by_name = by_model(result.runs)
    if len(by_name) < 2:
        return
    options = dataclasses.replace(result.options, budgets=(), next=0, holdout=0.0, grid=None)
    sweeps, left_out = {}, []
    for name, runs in by_name.items():
        try:
            sweeps[name] = analyse_curves(runs, options)
        except InputError as error:
            left_out.append(f"{name} is left out: {error}")
    found = base_models(sweeps)
    if len(found) < 2:
        return
    end = min(each.compute[-1] for each in found)
    at_end = [each.near(end) for each in found]
    known = [row.interval95 for row in at_end if result.known_sizes and row.interval95]
    apart = max(low for low, _ in known) > min(high for _, high in known) if len(known) == len(found) else None
    panels = {"reward": Panel(f"{result.metric} at best n"), "gain": Panel("gain")}
    if result.known_sizes:
        panels["n*"] = Panel("n*", result.group_sizes)
    drawn = [each for i, one in enumerate(found) for each in _series(one, i / (len(found) - 1))]
    yield answer(
        result,
        "base_models",
        verdict=None if apart is None else "apart" if apart else "overlap",
        numbers={"compute": float(end)},
        columns={
            "model": "base model", "base": "its reward", "run": "best at the end", "final": "reward", "gain": "gain"
        },
        rows=[
            {
                "model": each.model,
                "base": each.base,
                "run": each.budgets[-1].run,
                "final": each.final,
                "gain": each.gain,
                "best_n": Value.within(row.group_size, row.interval95),
            }
            for each, row in zip(found, at_end, strict=True)
        ],
        series=[each for each in drawn if each.panel in panels],
        picture=Picture(stacked=panels),
        remarks=left_out,
        models=found,
        at_end=list(zip(found, at_end, strict=True)) if result.known_sizes else [],
        apart=apart,
    )  # fmt: skip


def _series(found: ModelCourse, tone: float) -> list[DrawnSeries]:
    hover = (reached(found.model, found.reward[-1], found.compute[-1]),)
    return [
        DrawnSeries(found.model, found.compute, found.reward, "reward", tone=tone, hover=hover),
        DrawnSeries(found.model, found.compute, found.reward - found.base, "gain", tone=tone),
        n_star_series(found.model, found.budgets, tone),
    ]
