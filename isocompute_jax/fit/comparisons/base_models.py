"""Sweeps of several base models, or sizes of one, laid over each other: reward at the best n, gain, and n*(C).

Base models begin at different rewards, so curves are compared by their gain too: reward minus that of the own base
model, which is the evaluation at compute 0.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from isocompute_jax.fit.analysis import analyse_curves
from isocompute_jax.fit.comparisons.over_seeds import Estimate, over_seeds
from isocompute_jax.fit.comparisons.short_names import short_names
from isocompute_jax.fit.conclusions import conclude
from isocompute_jax.fit.curves.seeds import average_seeds, group_runs
from isocompute_jax.fit.frontier_results import FrontierBudget
from isocompute_jax.fit.read import RunCurve
from isocompute_jax.fit.report.figures.by_configuration import compute_label, size_axis
from isocompute_jax.fit.report.figures.style import PALETTE, hover, in_style, legend, log_axis, panels, save_figure
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import amount, between, listed, scale, unit
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.records.errors import InputError

FIGURE = "comparison_base_models.svg"


@dataclasses.dataclass(frozen=True, eq=False)
class ModelCourse:
    """What a sweep made of its base model.

    Attributes:
      model: what it is called.
      model_params: its size; 0 where unknown.
      base: reward of the base model, a mean over all runs; NaN where it was not evaluated.
      budgets: [P] the frontier: compute, n* and its interval, and the fitted reward there.
      final: last evaluation of the configuration that leads at the last budget.
      gain: from each seed's own base model to that; None where the base model was not evaluated.
    """

    model: str
    model_params: int
    base: float
    budgets: tuple[FrontierBudget, ...]
    final: Estimate
    gain: Estimate | None

    @property
    def compute(self) -> np.ndarray:
        """[P]."""
        return np.array([row.compute for row in self.budgets])

    @property
    def reward(self) -> np.ndarray:
        """[P] fitted, at the best n."""
        return np.array([row.point.reward for row in self.budgets])

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
        told = "; ".join(" on ".join(each[:2]) + f" over {each[2]}" for each in sorted(asked))
        raise InputError(f"sweeps: {told}: analyse all of them with one --metric, --eval_set and --compute")
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


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """One section where the runs differ in their base model; each model's runs are analysed alone for it."""
    parts = by_model(result.runs)
    if len(parts) < 2:
        return []
    options = dataclasses.replace(result.options, budgets=(), next=0, holdout=0.0, grid=None)
    sweeps, left_out = {}, []
    for name, runs in parts.items():
        try:
            sweeps[name] = conclude(analyse_curves(runs, options))
        except InputError as error:
            left_out.append(f"{name} is left out: {error}")
    found = base_models(sweeps)
    if len(found) < 2:
        return []
    return [
        Section(
            title="Base models beside each other",
            paragraphs=(
                "Each base model's runs analysed alone. The gain is reward minus that of the own base model, so that "
                "models which begin higher are not thereby ahead.",
            ),
            figure=_draw(found, result, figures / FIGURE),
            alt="Reward at the best n, gain over the base model, and n* over compute, for each base model",
            how_to_read="From above: fitted reward at the best n, its gain over the base model, and n* with its 95% "
            "interval, each over compute.",
            findings=(*_findings(found, result), *left_out),
            table=_table(found),
        )
    ]


def _table(found: Sequence[ModelCourse]) -> ReportTable:
    rows = tuple(
        (each.model, each.base, each.budgets[-1].run, str(each.final), None if each.gain is None else str(each.gain))
        for each in found
    )
    return ReportTable(("base model", "its reward", "best at the end", "reward", "gain"), rows)


def _findings(found: Sequence[ModelCourse], result: SweepResult) -> list[str]:
    """n* at the largest compute that all models have, and what each gained."""
    end = min(each.compute[-1] for each in found)
    rows = [(each, each.near(end)) for each in found]
    told = listed(
        f"{row.group_size}{f' ({ends})' if (ends := between(row.interval95)) else ''} for {each.model}"
        for each, row in rows
    )
    texts = [f"At {amount(end)} {unit(result)}, n* is {told}."] if result.known_sizes else []
    intervals = [row.interval95 for _, row in rows]
    known = [ends for ends in intervals if ends is not None]
    if texts and len(known) == len(rows):
        apart = max(low for low, _ in known) > min(high for _, high in known)
        texts.append("The 95% intervals of some exclude each other." if apart else "Their 95% intervals overlap.")
    gains = [(each, each.gain) for each in found if each.gain is not None]
    if gains:
        told = listed(f"{gain} for {each.model}" for each, gain in gains)
        texts.append(f"The gain over the own base model at the end, with the n that is best there, is {told}.")
    return texts


def _draw(found: Sequence[ModelCourse], result: SweepResult, path: pathlib.Path) -> pathlib.Path:
    """Reward, gain, and n* where every n is known."""
    colours = PALETTE(np.linspace(0.0, 1.0, len(found)))
    count = 2 + result.known_sizes
    with in_style():
        figure, axes = panels(count, height=1.0 + 2.5 * count, share=False)
        lines = []
        for each, colour in zip(found, colours, strict=True):
            lines += axes[0].plot(each.compute, each.reward, color=colour, label=each.model)
            hover(lines[-1], [f"{each.model}: {each.reward[-1]:z.3f} at {amount(each.compute[-1])}"])
            axes[1].plot(each.compute, each.reward - each.base, color=colour)
            if result.known_sizes:
                axes[2].step(each.compute, np.log2([r.group_size for r in each.budgets]), where="mid", color=colour)
                ends = [row.interval95 for row in each.budgets if row.interval95]
                if len(ends) == len(each.budgets):
                    low, high = np.log2(ends).T
                    axes[2].fill_between(each.compute, low, high, step="mid", color=colour, alpha=0.15, linewidth=0)
        axes[0].set(ylabel=f"{result.metric} at best n")
        axes[1].set(ylabel="gain")
        if result.known_sizes:
            axes[2].set(ylabel="n*")
            size_axis(axes[2], result.group_sizes)
        axes[-1].set(xlabel=compute_label(result))
        for panel in axes[1:]:
            panel.sharex(axes[0])
        for panel in axes:
            log_axis(panel)
        legend(figure, lines)
        return save_figure(figure, path)
