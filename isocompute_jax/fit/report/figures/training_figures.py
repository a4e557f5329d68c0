"""What went on in training: entropy, and which problems improve."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isocompute_jax.fit.read import SOLVE_SHARES
from isocompute_jax.fit.report.figures import by_configuration
from isocompute_jax.fit.report.figures.style import PALETTE, hover, legend, log_axis, multiples, panels, picked
from isocompute_jax.fit.report.wording import shortened

Summary = dict[str, Any]
MOST_PANELS = 6


def entropy(summary: Summary) -> Figure | None:
    """Entropy of the policy over training."""
    rows = [row for row in summary["training"] if "entropy" in row["series"]]
    if not rows:
        return None
    figure, (axes,) = panels()
    colours = by_configuration.colours(summary)
    for row in rows:
        compute, mean = _trained(row["series"]["entropy"])
        (line,) = axes.plot(compute, mean, "o-", color=colours[row["run"]], markersize=3.5, linewidth=1.5)
        hover(line, [row["run"]])
    axes.set(xlabel=by_configuration.compute_label(summary), ylabel="entropy (nats per token)", ylim=(0, None))
    log_axis(axes)
    legend(figure, by_configuration.handles(summary))
    return figure


def solve_rates(summary: Summary) -> Figure | None:
    """How the evaluation problems divide by solve rate over training, one panel for each of a few configurations."""
    rows = [row for row in summary["training"] if all(name in row["series"] for name in SOLVE_SHARES)]
    rows = [row for row in rows if len(_trained(row["series"][SOLVE_SHARES[0]])[0]) > 1]  # one point spans no area
    if not rows:
        return None
    rows = picked(rows, MOST_PANELS)
    figure, axes = multiples(len(rows))
    shades = [PALETTE(x) for x in (0.02, 0.35, 0.68, 1.0)]
    for panel, row in zip(axes, rows, strict=True):
        compute, _ = _trained(row["series"][SOLVE_SHARES[0]])
        shares = [_trained(row["series"][name])[1] for name in SOLVE_SHARES]
        panel.stackplot(compute, shares, colors=shades, linewidth=0)
        panel.set_title(shortened(row["run"], 22), loc="left", fontweight="bold")
        panel.set(ylim=(0, 1), xlim=(compute[0], compute[-1]))
        log_axis(panel)
        panel.grid(False)
    figure.supxlabel(by_configuration.compute_label(summary), fontsize=11)
    figure.supylabel("share of evaluation problems", fontsize=11)
    labels = ("never solved", "less than half", "half or more", "always solved")
    handles = [
        Line2D([], [], color=shade, linewidth=7, label=label) for shade, label in zip(shades, labels, strict=True)
    ]
    legend(figure, handles, columns=4)
    return figure


def _trained(series: dict[str, list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Compute and mean without the base model's evaluation, which a log axis cannot show."""
    compute, mean = np.array(series["compute"]), np.array(series["mean"])
    return compute[compute > 0], mean[compute > 0]
