"""What a measurement looks like: the histogram of solve rates, and pass@k."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.records import metrics

INK = "#4c6a92"


def draw(histogram: Sequence[int], out: pathlib.Path, config: CurationConfig) -> None:
    """Writes `histogram` and `pass_at_k`, each as .png and .svg.

    Args:
      histogram: [samples + 1] problems by how many of their samples were solved.
      out: the directory.
      config: the sets, which the histogram shades.
    """
    from matplotlib.figure import Figure

    for name, fill in (
        ("histogram", lambda axes: _histogram(axes, histogram, config)),
        ("pass_at_k", lambda axes: _pass_at_k(axes, curves(histogram))),
    ):
        figure = Figure(figsize=(7, 3.4), layout="constrained")
        axes = figure.subplots()
        fill(axes)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:  # a call that only measures cuts no sets
            axes.legend(frameon=False)
        for suffix in ("png", "svg"):
            temporary = out / f".{name}.{suffix}"
            figure.savefig(temporary, format=suffix, dpi=150)
            temporary.replace(out / f"{name}.{suffix}")


def curves(histogram: Sequence[int]) -> dict[str, dict[int, float]]:
    """best@k (pass@k) and worst@k over all problems, at k = 1, 2, 4, ... and all samples; unbiased.

    Args:
      histogram: [samples + 1] problems by how many of their samples were solved.
    """
    samples, weights = len(histogram) - 1, np.asarray(histogram) / sum(histogram)
    ks = sorted({samples, *(2**i for i in range(samples.bit_length()) if 2**i <= samples)})

    def mean(estimate: Any, k: int) -> float:
        each = [estimate(np.array([solved]), samples, k) for solved in range(samples + 1)]
        return float(weights @ np.array(each))

    estimates = (("best", metrics.best_at_k), ("worst", metrics.worst_at_k))
    return {name: {k: mean(estimate, k) for k in ks} for name, estimate in estimates}


def _histogram(axes: Any, histogram: Sequence[int], config: CurationConfig) -> None:
    """How many problems the base model solves how often, with the ranges of the cut sets shaded."""
    axes.bar(np.arange(len(histogram)) / config.samples, histogram, width=0.9 / config.samples, color=INK)
    for index, (name, (low, high)) in enumerate(config.wanted.items()):
        half = 0.5 / config.samples
        axes.axvspan(low - half, high + half, alpha=0.18, color=f"C{index + 1}", lw=0, label=name.replace("_", " "))
    axes.set_xlabel(f"solve rate of the base model (avg@{config.samples})")
    axes.set_ylabel("problems")


def _pass_at_k(axes: Any, found: Mapping[str, Mapping[int, float]]) -> None:
    """Share of problems that k samples solve at least once, and all k times."""
    labels = {"best": "at least one of k (pass@k)", "worst": "all k"}
    for (name, curve), colour in zip(found.items(), (INK, "C1"), strict=True):
        axes.plot(list(curve), list(curve.values()), marker="o", color=colour, label=labels[name])
    ks = list(found["best"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_xlabel("samples per problem, k")
    axes.set_ylabel("share of problems solved")
