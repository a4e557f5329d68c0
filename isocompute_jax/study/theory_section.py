"""What theory expects of a slice, beside what its runs measured: n*(C) from pass@1 alone, and from the fitted curves.

Only the embedded study has it: the model's constants were calibrated there (`theory.world.Constants`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.fit.report.figures.style import (
    INK,
    QUIET,
    in_style,
    legend,
    log_axis,
    panels,
    save_figure,
    size_axis,
)
from isocompute_jax.fit.report.templating import ReportTable, Section
from isocompute_jax.fit.sweep_results import SweepResult
from isocompute_jax.sweeps.grid import PlannedRun
from isocompute_jax.theory import Forecast, Question, forecast, read_pass_rates
from isocompute_jax.theory.exchange import RULES

FIGURE = "theory.svg"


def question_of(planned: list[PlannedRun]) -> Question | None:
    """The sweep as theory asks about it; None where it has nothing to say.

    It knows runs that differ in n and the seed alone, at two budgets or more, without KL and entropy terms.
    """
    first = planned[0].config.resolved()
    sizes = tuple(sorted({run.config.group_size for run in planned}))
    alike = {_without_size(run.config) for run in planned}
    rule = RULES.get(first.optimizer.lr_scaling_exponent)
    few = len(sizes) < 2 or first.evaluation.first(first.max_compute) >= first.max_compute
    if len(alike) > 1 or few or rule is None or first.loss.kl_coef or first.loss.entropy_coef:
        return None
    if first.recipe.advantage_scale not in ("group_std", "none"):
        return None
    return Question(
        budget=first.max_compute,
        first_budget=first.evaluation.first(first.max_compute),
        group_sizes=sizes,
        problems_per_batch=first.problems_per_batch,
        problem_set_size=first.problem_set_size,
        base_lr=first.optimizer.base_lr,
        base_batch=first.optimizer.base_batch,
        rate_rule=rule,
        warmup_steps=first.optimizer.warmup_steps,
        advantage_scale=first.recipe.advantage_scale,
        baseline=first.recipe.baseline,
        zero_variance_groups="drop" if first.recipe.zero_variance_groups == "drop" else "keep",
        clip_norm=first.optimizer.clip_norm,
        k=first.evaluation.k,
    )


def theory_section(planned: list[PlannedRun], result: SweepResult, out: pathlib.Path) -> list[Section]:
    """One section, with its figure in `out`; none where theory has nothing to say of the slice.

    Args:
      planned: the runs of the slice.
      result: what its curves say.
      out: directory of the report.
    """
    question = question_of(planned)
    budgets = [row for row in result.frontier.budgets if question and row.compute >= question.first_budget]
    if question is None or not budgets:
        return []
    found = forecast(read_pass_rates(planned[0].config.train_set), question)
    compute = np.array([row.compute for row in budgets])
    measured = np.array([row.group_size for row in budgets])
    at = np.abs(np.log(found.compute[:, None] / compute)).argmin(axis=0)  # the nearest budget
    expected = found.best[at]
    near = np.abs(np.log2(expected / measured)) <= 1
    rewards = [
        np.interp(np.log(row.compute), np.log(found.compute), np.nan_to_num(found.records[_row(found, row.group_size)]))
        for row in budgets
    ]
    out.mkdir(parents=True, exist_ok=True)
    figure = _draw(found, compute, measured, result.group_sizes, out / FIGURE)
    rows = tuple(
        (f"{row.compute:,.0f}", row.group_size, int(n), f"{row.point.reward:.3f}", f"{reward:.3f}")
        for row, n, reward in zip(budgets, expected, rewards, strict=True)
    )
    return [
        Section(
            title="What theory expects",
            paragraphs=(
                "A stochastic model of GRPO on problems that share skills (docs/theory.md) was given the pass@1 of the "
                "training problems, their number, n, B_problem and the learning rate. Its constants were calibrated on "
                "earlier sweeps of the embedded study.",
            ),
            figure=figure,
            alt="Optimal group size over compute, expected and measured",
            how_to_read="Dots: n* of the fitted curves. Line: n* that theory expects; shaded, what it cannot tell "
            "from the best.",
            findings=(
                f"Theory expects n* to go from {expected[0]} to {expected[-1]}; the runs say {measured[0]} to "
                f"{measured[-1]}. At {near.sum()} of {len(near)} budgets the two are within one octave.",
            ),
            table=ReportTable(("rollouts", "n* measured", "n* expected", "reward at it", "expected there"), rows),
        )
    ]


def _row(found: Forecast, group_size: int) -> int:
    """Of a group size."""
    return int(np.flatnonzero(found.group_sizes == group_size)[0])


def _without_size(config: RunConfig) -> str:
    """All of a config but what seeds and sizes differ in, as text."""
    return repr([(name, value) for name, value in vars(config).items() if name not in ("group_size", "seed")])


def _draw(
    found: Forecast, compute: np.ndarray, measured: np.ndarray, sizes: Sequence[int], path: pathlib.Path
) -> pathlib.Path:
    """n*(C), expected and measured."""
    with in_style():
        figure, (axes,) = panels()
        low, high = np.log2(found.tied.T)
        band = axes.fill_between(found.compute, low, high, step="mid", color=QUIET, alpha=0.25, label="tied with it")
        line = axes.step(found.compute, np.log2(found.best), where="mid", color=QUIET, label="expected")[0]
        dots = axes.plot(compute, np.log2(measured), "o", color=INK, label="measured")[0]
        axes.set(xlabel="compute C, rollouts", ylabel="optimal group size n*")
        size_axis(axes, sizes)
        log_axis(axes)
        legend(figure, [dots, line, band])
        return save_figure(figure, path)
