"""What went on in training: entropy, and which problems improve."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import PALETTE, hover, labels, legend, log_axis, multiples, panels, picked
from isocompute_jax.fit.report.wording import shortened
from isocompute_jax.fit.sweep_results import SweepResult

MOST_PANELS = 6


def entropy(result: SweepResult) -> Figure | None:
    """Entropy of the policy over training."""
    rows = [row for row in result.training if "entropy" in row.series]
    if not rows:
        return None
    figure, (axes,) = panels()
    colours = by_configuration.colours(result)
    for row in rows:
        series = row.series["entropy"].trained
        (line,) = axes.plot(series.compute, series.mean, "o-", color=colours[row.run], markersize=3.5, linewidth=1.5)
        hover(line, [row.run])
    axes.set(xlabel=by_configuration.compute_label(result), ylabel="entropy (nats per token)", ylim=(0, None))
    log_axis(axes)
    legend(figure, by_configuration.handles(result))
    return figure


def solve_rates(result: SweepResult) -> Figure | None:
    """How the evaluation problems divide by solve rate over training, one panel for each of a few configurations."""
    rows = [row for row in result.training if all(name in row.series for name in SOLVE_SHARES)]
    rows = [row for row in rows if len(row.series[SOLVE_SHARES[0]].trained.compute) > 1]  # one point spans no area
    if not rows:
        return None
    rows = picked(rows, MOST_PANELS)
    figure, axes = multiples(len(rows))
    shades = [PALETTE(x) for x in (0.02, 0.35, 0.68, 1.0)]
    for panel, row in zip(axes, rows, strict=True):
        compute = row.series[SOLVE_SHARES[0]].trained.compute
        shares = [row.series[name].trained.mean for name in SOLVE_SHARES]
        panel.stackplot(compute, shares, colors=shades, linewidth=0)
        panel.set_title(shortened(row.run, 22), loc="left", fontweight="bold")
        panel.set(ylim=(0, 1), xlim=(compute[0], compute[-1]))
        log_axis(panel)
        panel.grid(False)
    labels(figure, axes, by_configuration.compute_label(result), "share of evaluation problems")
    names = ("never solved", "less than half", "half or more", "always solved")
    handles = [
        Line2D([], [], color=shade, linewidth=7, label=label) for shade, label in zip(shades, names, strict=True)
    ]
    legend(figure, handles, columns=4)
    return figure
