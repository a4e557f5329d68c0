"""How does each evaluation problem go, and do the seeds agree about which ones are solved?

Measured rates of m samples spread more than the solve rates behind them: by p (1 - p) / m, of which
rate (1 - rate) / (m - 1) is an unbiased estimate. Variances between problems are without it.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.comparisons.solve_counts import SolveTrajectories, alike, solve_trajectories
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import EN_DASH, listed, shortened, spent
from isocompute_jax.fit.sweep_results import SweepResult

FIGURE = "comparison_trajectories.svg"
MOST_ROWS = 60
"""Rows of a heat map; of more problems neighbours are averaged."""
ONE_PERCENT = 2.3263
"""Quantile of the normal distribution at 99%."""


@dataclasses.dataclass(frozen=True)
class ProblemSpread:
    """What the trajectories of one configuration say at their last evaluation.

    Attributes:
      run: name of the configuration.
      compute: of the last evaluation.
      first_rate: mean solve rate over problems and seeds at the first evaluation.
      last_rate: likewise at the last.
      first_spread: standard deviation of solve rates between problems at the first, without sampling noise.
      last_spread: likewise at the last; mean over seeds.
      in_common: share of the last variance between problems that all seeds have in common: 1 if the problem decides,
        0 if chance does; NaN with one seed, or without variance.
      in_common_error: its standard error, a jackknife over seeds; NaN with fewer than three.
      fallen: share of problems solved less often at the last than at the first (all seeds pooled, one-sided test of
        two proportions at 1%: chance alone shows about 0.01).
    """

    run: str
    compute: float
    first_rate: float
    last_rate: float
    first_spread: float
    last_spread: float
    in_common: float
    in_common_error: float
    fallen: float


def problem_spread(found: SolveTrajectories) -> ProblemSpread:
    """The numbers of one configuration; its `samples` must be 2 or more."""
    first, last = (_variances(found, at) for at in (0, -1))
    rates, seeds = found.rates[:, -1], range(len(found.seeds))
    without = [_in_common(np.delete(rates, seed, axis=0), np.delete(last, seed)) for seed in seeds]
    pooled = found.counts[:, [0, -1]].sum(axis=0)  # [2, P]
    drawn = found.samples[:, [0, -1]].sum(axis=0)[:, None]
    overall = pooled.sum(axis=0) / drawn.sum()
    error = np.sqrt(np.maximum(overall * (1 - overall), 0.0) * (1 / drawn).sum())
    fall = (pooled / drawn)[0] - (pooled / drawn)[1]
    return ProblemSpread(
        run=found.configuration.name,
        compute=float(found.compute[-1]),
        first_rate=float(found.rates[:, 0].mean()),
        last_rate=float(found.rates[:, -1].mean()),
        first_spread=math.sqrt(max(first.mean(), 0.0)),
        last_spread=math.sqrt(max(last.mean(), 0.0)),
        in_common=_in_common(rates, last),
        in_common_error=float(np.std(without) * math.sqrt(len(seeds) - 1)),
        fallen=float(np.mean(fall > ONE_PERCENT * error)),
    )


def _variances(found: SolveTrajectories, at: int) -> np.ndarray:
    """[S] variance between problems of the solve rates at an evaluation, unbiased."""
    rates, samples = found.rates[:, at], found.samples[:, at, None]
    noise = rates * (1 - rates) / np.maximum(samples - 1, 1)
    return rates.var(axis=1, ddof=1) - noise.mean(axis=1)


def _in_common(rates: np.ndarray, variances: np.ndarray) -> float:
    """Mean covariance of two seeds over problems, as a share of the variance of one; rates [S, P], variances [S]."""
    seeds = len(rates)
    if seeds < 2 or variances.mean() <= 0:
        return math.nan
    products = np.cov(rates)
    return float((products.sum() - np.trace(products)) / (seeds * (seeds - 1)) / variances.mean())


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """Heat maps of solve rates, where the runs have counts of each problem."""
    found = alike(solve_trajectories(result.runs, eval_set=result.options.read.eval_set))
    found = [each for each in found if each.samples.min() > 1]
    if not found:
        return []
    rows = [problem_spread(each) for each in found]
    problems = found[0].counts.shape[-1]
    return [
        Section(
            title="How does each problem go?",
            paragraphs=(
                f"Each of the {problems} evaluation problems was sampled at every evaluation. Spreads are standard "
                "deviations between problems, without the noise of sampling.",
            ),
            figure=_draw(result, found, figures / FIGURE),
            alt="Solve rate of each evaluation problem over compute, one panel for each configuration",
            how_to_read="Each row is a problem (or a few neighbouring ones), dark if never solved, bright if always; "
            "the order of rows is the same in all panels: easiest above.",
            findings=tuple(_findings(result, rows)),
            table=_table(rows),
        )
    ]


def _table(rows: Sequence[ProblemSpread]) -> ReportTable:
    return ReportTable(
        ("configuration", "last compute", "first mean rate", "last", "first spread", "last", "in common", "fallen"),
        tuple(
            (
                *(row.run, f"{row.compute:,.0f}", row.first_rate, row.last_rate, row.first_spread, row.last_spread),
                *(_with_error(row), f"{row.fallen:.1%}"),
            )
            for row in rows
        ),
    )


def _findings(result: SweepResult, rows: Sequence[ProblemSpread]) -> list[str]:
    told = [row for row in rows if math.isfinite(row.in_common)]
    said = []
    if told:
        parts = listed(f"{_with_error(row)} ({row.run})" for row in told)
        said.append(
            f"Of the variance between problems at the last evaluation, seeds have in common: {parts} (± standard "
            "error over seeds). The rest is what each seed happened to learn."
        )
    worst = max(rows, key=lambda row: row.fallen)
    if worst.fallen <= 0.01:
        said.append("With no configuration are more problems solved less often than at first than the 1% of chance.")
    else:
        said.append(
            f"Most problems fell with {worst.run}: {worst.fallen:.1%} are solved less often at "
            f"{spent(result, worst.compute)} than at first; chance alone would show about 1%."
        )
    return said


def _with_error(row: ProblemSpread) -> str:
    """`61% ± 4%`, or a dash."""
    if not math.isfinite(row.in_common):
        return EN_DASH
    return f"{row.in_common:.0%}" + (f" ± {row.in_common_error:.0%}" if math.isfinite(row.in_common_error) else "")


def _draw(result: SweepResult, found: Sequence[SolveTrajectories], path: pathlib.Path) -> pathlib.Path:
    """Rows in the order of their mean rate over everything drawn."""
    # matplotlib takes a second to import, which a library call need not wait for
    from isocompute_jax.fit.report.figures import by_configuration
    from isocompute_jax.fit.report.figures.style import (
        PALETTE,
        in_style,
        labels,
        log_axis,
        multiples,
        picked,
        save_figure,
    )

    found = picked(found, by_configuration.MOST_PANELS)
    order = np.argsort(np.mean([each.mean_rates.mean(axis=0) for each in found], axis=0), kind="stable")
    bands = np.array_split(order, min(MOST_ROWS, len(order)))
    with in_style():
        figure, axes = multiples(len(found))
        for panel, each in zip(axes, found, strict=True):
            trained = each.compute > 0
            compute, rates = each.compute[trained], each.mean_rates[trained]
            rows = np.stack([rates[:, band].mean(axis=1) for band in bands])
            edges = np.linspace(0, len(order), len(bands) + 1)
            panel.pcolormesh(_edges(compute), edges, rows, cmap=PALETTE, vmin=0, vmax=1, rasterized=True)
            panel.set_title(shortened(each.configuration.name, 22), loc="left", fontweight="bold")
            panel.grid(False)
            log_axis(panel)
        labels(figure, axes, by_configuration.compute_label(result), "problems")
        figure.colorbar(axes[0].collections[0], ax=axes, label="solve rate", location="top", shrink=0.5, aspect=40)
        return save_figure(figure, path)


def _edges(compute: np.ndarray) -> np.ndarray:
    """[E + 1] borders halfway between evaluations, in log compute."""
    log = np.log(compute)
    if len(log) < 2:
        return compute[0] * np.array([0.9, 1.1])
    middle = (log[1:] + log[:-1]) / 2
    return np.exp(np.concatenate([[2 * log[0] - middle[0]], middle, [2 * log[-1] - middle[-1]]]))
