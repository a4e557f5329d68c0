"""The picture of docs/llm.md: held-out reward of every configuration over compute."""

from __future__ import annotations

import pathlib

import numpy as np

from isocompute_jax.fit.report.figures.style import INK, PALETTE, QUIET, in_style, legend, log_axis, panels
from research.findings.chapter import save
from research.llm.runs import AUTO, AVERAGE, LlmRuns

NAME = "llm"


def draw(runs: LlmRuns, docs: pathlib.Path) -> str:
    """Writes it below `docs`; returns its path from there."""
    with in_style():
        figure, [axis] = panels(height=3.4)
        colours = PALETTE(np.linspace(0, 1, len(runs.fixed)))
        looks: dict[int | str, tuple] = {
            n: (f"n = {n}", colour, 1.8) for n, colour in zip(runs.fixed, colours, strict=True)
        }
        looks[AUTO] = ("n set by the run", INK, 2.4)
        lines = []
        for label, seeds in runs.configurations.items():
            name, colour, width = looks[label]
            for run in seeds.values:
                axis.plot(seeds.compute, run[:, AVERAGE], color=colour, linewidth=0.6, alpha=0.4)
            mean = seeds.values[:, :, AVERAGE].mean(axis=0)
            lines += axis.plot(seeds.compute, mean, color=colour, linewidth=width, label=name)
        axis.axhline(runs.base[AVERAGE], color=QUIET, linestyle=":", linewidth=1)
        axis.set(xlabel="compute C, rollouts", ylabel="avg@4, held out")
        log_axis(axis)
        legend(figure, lines, columns=3)
        return save(figure, docs, NAME)
