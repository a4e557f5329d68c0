"""Pictures of docs/findings.md that several chapters share."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isocompute_jax.fit.report.figures.by_configuration import size_axis
from isocompute_jax.fit.report.figures.style import PALETTE, QUIET, in_style, legend, log_axis, panels, save_figure
from isocompute_jax.gallery.curves import Curves, means, profile_sizes, records_at

FOLDER = "findings"
POINTS = 60


def save(figure: Figure, docs: pathlib.Path, name: str) -> str:
    """Writes docs/findings/NAME.png; returns its path from docs. Pages show the .png alone."""
    picture = docs / FOLDER / f"{name}.svg"
    save_figure(figure, picture, png=True)
    picture.unlink()
    return f"{FOLDER}/{name}.png"


def overlaid(sweeps: Mapping[str, Curves], docs: pathlib.Path, name: str, *, reward: str = "avg@4") -> str:
    """The frontier of each sweep, and its n*(C); returns the picture's path from `docs`.

    Args:
      sweeps: label -> curves.
      docs: directory of the page.
      name: of the picture.
      reward: what is on the upper axis.
    """
    with in_style():
        figure, (top, bottom) = panels(2, height=5.6, share=False)
        shift = np.linspace(-0.08, 0.08, len(sweeps))  # so that lines at one n do not cover each other
        colours = [PALETTE(place) for place in np.linspace(0, 1, max(2, len(sweeps)))]
        lines = []
        for (label, curves), colour, up in zip(sweeps.items(), colours, shift, strict=False):
            lines += _course(curves, top, bottom, label=label, colour=colour, up=float(up))
        top.set(ylabel=f"{reward} of the best n")
        bottom.set(xlabel="compute C, rollouts", ylabel="optimal group size n*")
        size_axis(bottom, sorted({n for curves in sweeps.values() for n in curves}))
        for axes in (top, bottom):
            log_axis(axes)
        legend(figure, lines)
        return save(figure, docs, name)


def _course(curves: Curves, top: Axes, bottom: Axes, *, label: str, colour: object, up: float) -> list:
    """One sweep in both panels."""
    start = min(one.compute[0] for one in curves.values())
    end = max(one.compute[-1] for one in curves.values())
    budgets = np.geomspace(start, end, POINTS)
    mean = means(curves)
    bottom.plot(budgets, profile_sizes(mean, budgets) + up, color=colour, linewidth=1.8)
    return top.plot(budgets, np.nanmax(records_at(mean, budgets), axis=0), color=colour, linewidth=1.8, label=label)


def side_by_side(
    sweeps: Mapping[str, Curves],
    docs: pathlib.Path,
    name: str,
    *,
    label: Callable[[int], str] = "n = {}".format,
    reward: str = "avg@4",
    base: float | None = None,
) -> str:
    """Mean curves of every configuration, a panel for each sweep; returns the picture's path from `docs`.

    Args:
      sweeps: head of a panel -> its curves.
      docs: directory of the page.
      name: of the picture.
      label: of a curve, from its key.
      reward: what is on the vertical axis.
      base: the base model's, as a dotted line.
    """
    with in_style():
        columns = min(2, len(sweeps))
        rows = -(-len(sweeps) // columns)
        figure, axes = panels(rows, columns, height=1.2 + 2.5 * rows)
        keys = sorted({key for curves in sweeps.values() for key in curves})
        colours = dict(zip(keys, PALETTE(np.linspace(0, 1, max(2, len(keys)))), strict=False))
        handles = {}
        for place, (axis, (head, curves)) in enumerate(zip(axes, sweeps.items(), strict=False)):
            for key, (compute, mean) in means(curves).items():
                handles[key] = axis.plot(compute, mean[:, 0], color=colours[key], linewidth=1.8, label=label(key))[0]
            if base is not None:
                axis.axhline(base, color=QUIET, linestyle=":", linewidth=1)
            axis.set(title=head, ylabel="" if place % columns else reward)
            if place + columns >= len(sweeps):  # the lowest of its column
                axis.set(xlabel="compute C, rollouts")
                axis.tick_params(labelbottom=True)
            log_axis(axis)
        for axis in axes[len(sweeps) :]:
            axis.set_visible(False)
        legend(figure, [handles[key] for key in keys], columns=4)
        return save(figure, docs, name)
