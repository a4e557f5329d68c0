"""Findings 12 and 13: the size of the data set, and another base model."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np

from research.findings.chapter import Chapter, Gallery, octaves, overlaid, points, table, verdict_of_all
from research.findings.rising import SIZES
from research.findings.statistics import Curves, estimate, level, level_gain, size_shift

BASES = {"taught for 1,200 steps": "problems_64", "taught for 600 steps": "base_600", "twice as wide": "wide_64"}
"""Sweeps that differ in their base model; the first is beside each of the others."""


def data_size(gallery: Gallery) -> Chapter:
    """Finding 12."""
    sweeps = {size: gallery.curves(name) for size, name in SIZES.items()}
    sizes = sorted(sweeps)
    gains = {(small, large): level_gain(sweeps[large], sweeps[small]) for small, large in itertools.pairwise(sizes)}
    levels = {size: estimate(level, sweeps[size]) for size in sizes}
    rows = [
        (f"D = {size}", f"{one.value:.2f}", f"{one.low:.2f} to {one.high:.2f}") for size, one in levels.items()
    ]  # fmt: skip
    signs = [gain.sign for gain in gains.values()]
    heart = ", ".join(
        f"{_trained(gallery.curves(sweep, 'avg@4', 'train/reward')):.0%} of {size}"
        for size, sweep in sorted(SIZES.items())
    )
    return Chapter(
        12,
        "A smaller data set lowers the level at which reward saturates",
        verdict_of_all(signs),
        "; ".join(f"{small} to {large} problems: {points(gain)}" for (small, large), gain in gains.items()),
        min(gain.seeds for gain in gains.values()),
        f"Highest mean avg@4 on held-out problems within the budget, over n; that of 256 still rises at its end:\n\n"
        f"{table(('', 'highest avg@4', '95% interval'), rows)}\n\n(Curves: the picture of finding 8.)",
        "Few problems are learned by heart before what they have in common with others is: where held-out reward is "
        f"highest, rollouts in training solve {heart} problems.",
        "Problems of which a few hold all that the others need.",
        "The same: over-fitting sets in earlier with fewer problems, and lowers the saturation point.",
    )


def _trained(curves: Curves) -> float:
    """Mean reward in training at the highest mean held-out reward."""
    each = [one.values.mean(axis=0) for one in curves.values()]
    best = max(each, key=lambda mean: mean[:, 0].max())
    return float(best[np.argmax(best[:, 0]), 1])


def base_models(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 13."""
    sweeps = {label: gallery.curves(name) for label, name in BASES.items()}
    first, *others = sweeps
    gains = {label: level_gain(sweeps[label], sweeps[first]) for label in others}
    shifts = {label: size_shift(sweeps[label], sweeps[first]) for label in others}
    rows = [
        (
            label,
            f"{gallery.base(BASES[label]):.3f}",
            f"{estimate(level, curves).value:.2f}",
            points(gains[label]) if label in gains else "",
            octaves(shifts[label]) if label in shifts else "",
        )
        for label, curves in sweeps.items()
    ]
    heads = ("base model", "its avg@4", "highest avg@4", "more than the first", "n\\* above the first's")
    picture = overlaid(sweeps, docs, "base_models")
    differs = all(gains[label].sign or shifts[label].sign for label in gains)
    return Chapter(
        13,
        "Base models differ",
        "shown" if differs else "not settled",
        "; ".join(f"{label}: {points(gains[label])} of reward, {octaves(shifts[label])} of n\\*" for label in gains),
        min(gain.seeds for gain in gains.values()),
        "Base models beside the one of finding 1, each on 64 problems that are Hard for itself: the problems differ "
        f"too, and the differences have that in them. n\\* is over the n that both have:\n\n{table(heads, rows)}\n\n"
        f"![Reward and n* for each base model]({picture})",
        "What a base model nearly knows carries over to other problems when a few make it sure. One that was taught "
        "for half as long nearly knows less, and learns its problems by heart instead. The wider one was given the "
        "same rate, at which it may learn them by heart sooner.",
        "Base models from other data: these differ in time and width alone, and were taught by the same teacher.",
        "Qwen2.5-7B, Qwen3-4B and Llama 3.1-8B have the same shape of n\\*(C), with other levels and switch points.",
    )
