"""Pictures of docs/one_run.md: what schedules are above or below the frontier, and the n that auto took."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from isocompute_jax.fit.report.figures.style import (
    INK,
    PALETTE,
    QUIET,
    in_style,
    labels,
    legend,
    log_axis,
    multiples,
    save_figure,
    size_axis,
)
from research.one_run.comparison import SETTINGS, Setting

AUTO = "auto"
OCTAVES = 7
"""Sizes that pictures have, from 4 on."""
ALL = 0
"""Part of the rewards that pictures show: of all held-out problems, whose noise is smaller."""


def draw(settings: Sequence[Setting], folder: pathlib.Path) -> None:
    """Writes reward.png and sizes.png."""
    for name, drawn in (("reward", _rewards), ("sizes", _sizes)):
        with in_style():
            figure, axes = multiples(len(settings))
            handles = {}
            for axis, setting in zip(axes, settings, strict=True):
                handles |= drawn(axis, setting)
                axis.set_title(SETTINGS[setting.name])
                log_axis(axis)
            labels(figure, axes, "compute C, rollouts", {"reward": "avg@8, held out", "sizes": "n of auto"}[name])
            legend(figure, list(handles.values()), columns=4)
            picture = save_figure(figure, folder / f"{name}.svg", png=True)
            picture.unlink()  # pages show the .png alone


def _rewards(axis, setting: Setting) -> dict:
    """Best mean so far of every fixed n, thin, and of schedules."""
    found = {}
    for runs in setting.fixed.values():
        found["fixed n"] = axis.plot(runs.compute, runs.best(ALL), color=QUIET, linewidth=0.8, label="fixed n")[0]
    colours = dict(zip(setting.scheduled, PALETTE(np.linspace(0, 0.8, max(2, len(setting.scheduled)))), strict=False))
    for name, runs in setting.scheduled.items():
        colour, width = (INK, 2.0) if name == AUTO else (colours[name], 1.2)
        found[name] = axis.plot(setting.compute, runs.best(ALL), color=colour, linewidth=width, label=name)[0]
    return found


def _sizes(axis, setting: Setting) -> dict:
    """n of each seed, between evaluations."""
    runs = setting.scheduled[AUTO]
    for row in np.log2(runs.group_size):
        line = axis.step(runs.compute, row, where="pre", color=INK, linewidth=0.8, label="one seed")[0]
    size_axis(axis, [2**power for power in range(2, 2 + OCTAVES)])
    return {"one seed": line}
