"""What the report says about the uniformity of improvement (`uniformity`)."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.comparisons.solve_counts import alike, solve_trajectories
from isocompute_jax.fit.comparisons.uniformity import (
    UniformityCurve,
    UniformityTrend,
    uniformity_curve,
    uniformity_trend,
)
from isocompute_jax.fit.report.sections import ReportTable, Section
from isocompute_jax.fit.report.wording import EN_DASH, spent
from isocompute_jax.fit.sweep_results import SweepResult

FIGURE = "comparison_uniformity.svg"
VERDICTS = {
    "more": "a larger n improves more uniformly, as IsoCompute argues",
    "less": "a larger n improves less uniformly, against what IsoCompute argues",
    "open": "the interval holds 0, so the data do not show that n matters",
}


def section(result: SweepResult, figures: pathlib.Path) -> list[Section]:
    """U over compute and over the mean gain, where runs have counts of each problem and of the base model."""
    trajectories = alike(solve_trajectories(result.runs, eval_set=result.options.read.eval_set))
    found = [curve for each in trajectories if (curve := uniformity_curve(each)) is not None]
    found = [curve for curve in found if np.isfinite(curve.value).any()]
    if not found:
        return []
    problems = trajectories[0].counts.shape[-1]
    trends = [trend for at in ("compute", "gain") if (trend := uniformity_trend(found, at=at)) is not None]
    return [
        Section(
            title="Is improvement spread over the problems?",
            paragraphs=(
                "Uniformity U = (mean gain)² / mean of gain², over the problems' gains in solve rate from the base "
                f"model: 1 where all {problems} gain alike, 1/{problems} where one has all. The noise of sampling is "
                "subtracted, without bias, from both moments. U tends to rise with the mean gain, so n are compared at "
                "equal compute and at equal mean gain.",
            ),
            figure=_draw(result, found, figures / FIGURE),
            alt="Uniformity of gains over compute, and over the mean gain",
            how_to_read="Lines are means over seeds; bars, two standard errors. Begins where gains stand out of noise.",
            findings=tuple(_finding(result, trend) for trend in trends),
            table=_table(result, found, trends),
        )
    ]


def _finding(result: SweepResult, trend: UniformityTrend) -> str:
    runs, (low, high) = sum(map(len, trend.values)), trend.interval95
    where = spent(result, trend.level) if trend.at == "compute" else f"an equal mean gain of {trend.level:.3f}"
    return (
        f"At {where} U changes by {trend.slope:+.3f} for each doubling of n (95% interval over {runs} runs: {low:+.3f} "
        f"to {high:+.3f}): {VERDICTS[trend.verdict]}."
    )


def _table(result: SweepResult, found: Sequence[UniformityCurve], trends: Sequence[UniformityTrend]) -> ReportTable:
    """Mean gain and U at the last evaluation, and U where runs are compared."""
    heads = [f"U at {spent(result, t.level)}" if t.at == "compute" else f"U at gain {t.level:.3f}" for t in trends]
    return ReportTable(
        ("configuration", "largest mean gain", *heads),
        tuple(
            (
                curve.run,
                f"{np.nanmax(curve.gain.mean(axis=0)):.3f}",
                *(_with_error(trend.values[number]) for trend in trends),
            )
            for number, curve in enumerate(found)
        ),
    )


def _with_error(values: np.ndarray) -> str:
    """Mean and standard error over seeds."""
    if not len(values):
        return EN_DASH
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{values.mean():.3f}" + (f" ± {error:.3f}" if math.isfinite(error) else "")


def _draw(result: SweepResult, found: Sequence[UniformityCurve], path: pathlib.Path) -> pathlib.Path:
    """Where every seed can be told."""
    # matplotlib takes a second to import, which a library call need not wait for
    from isocompute_jax.fit.report.figures import by_configuration
    from isocompute_jax.fit.report.figures.style import in_style, legend, log_axis, panels, save_figure

    colours = by_configuration.colours(result)
    with in_style():
        figure, axes = panels(2, height=6.4, share=False)
        for curve in found:
            told = np.isfinite(curve.value).all(axis=0)
            mean, seeds = curve.value[:, told].mean(axis=0), len(curve.value)
            error = curve.value[:, told].std(axis=0, ddof=1) / math.sqrt(seeds) if seeds > 1 else None
            style = {"color": colours[curve.run], "marker": "o", "markersize": 3.5, "linewidth": 1.5, "capsize": 0}
            for panel, x in zip(axes, (curve.compute[told], curve.gain[:, told].mean(axis=0)), strict=True):
                panel.errorbar(x, mean, yerr=None if error is None else 2 * error, elinewidth=0.8, **style)
        axes[0].set(xlabel=by_configuration.compute_label(result), ylabel="uniformity U")
        axes[1].set(xlabel="mean gain in solve rate", ylabel="uniformity U")
        log_axis(axes[0])
        legend(figure, by_configuration.handles(result))
        return save_figure(figure, path)
