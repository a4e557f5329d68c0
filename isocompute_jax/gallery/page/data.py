"""Findings 12 and 13: the size of the data set, and another base model."""

from __future__ import annotations

import itertools
import pathlib

from isocompute_jax.gallery.curves import estimate
from isocompute_jax.gallery.findings import level, level_gain, size_shift
from isocompute_jax.gallery.page.chapter import Chapter, Gallery, not_run, octaves, points, table
from isocompute_jax.gallery.page.figures import overlaid
from isocompute_jax.gallery.page.rising import SIZES

BASES = {"1,200 steps": "problems_64", "600 steps": "base_600"}
"""Sweeps that differ in how long the base model was taught."""


def chapters(gallery: Gallery, docs: pathlib.Path) -> list[Chapter]:
    """Of this module."""
    return [data_size(gallery), base_models(gallery, docs)]


def data_size(gallery: Gallery) -> Chapter:
    """Finding 12."""
    claim = "A smaller data set lowers the level at which reward saturates"
    sweeps = {size: gallery.curves(name) for size, name in SIZES.items() if name in gallery}
    if len(sweeps) < len(SIZES):
        return not_run(12, claim, list(SIZES.values()))
    sizes = sorted(sweeps)
    gains = {(small, large): level_gain(sweeps[large], sweeps[small]) for small, large in itertools.pairwise(sizes)}
    levels = {size: estimate(level, sweeps[size]) for size in sizes}
    rows = [
        (f"D = {size}", f"{one.value:.2f}", f"{one.low:.2f} to {one.high:.2f}") for size, one in levels.items()
    ]  # fmt: skip
    signs = [found.sign for found in gains.values()]
    return Chapter(
        12,
        claim,
        "shown" if min(signs) > 0 else "refuted" if min(signs) < 0 else "not settled",
        "; ".join(f"{small} to {large} problems: {points(found)}" for (small, large), found in gains.items()),
        min(found.seeds for found in gains.values()),
        f"Highest mean avg@4 on held-out problems within the budget, over n:\n\n"
        f"{table(('', 'highest avg@4', '95% interval'), rows)}\n\n(Curves: the picture of finding 8.)",
        "Few problems do not hold every fact that the held-out ones need, and what they do hold is learned by heart "
        "before it is learned.",
        "Problems of which each needs every fact.",
        "The same: over-fitting sets in earlier with fewer problems, and lowers the saturation point.",
    )


def base_models(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 13."""
    claim = "Base models differ"
    if needed := [name for name in BASES.values() if name not in gallery]:
        return not_run(13, claim, needed)
    sweeps = {label: gallery.curves(name) for label, name in BASES.items()}
    more, less = sweeps.values()
    gain, shift = level_gain(more, less), size_shift(more, less)
    picture = overlaid({f"taught for {label}": curves for label, curves in sweeps.items()}, docs, "base_models")
    differs = bool(gain.sign or shift.sign)
    return Chapter(
        13,
        claim,
        "shown" if differs else "not settled",
        f"{points(gain)} of reward, {octaves(shift)} of n\\*",
        gain.seeds,
        f"A base model taught for 1,200 steps beside one for 600, each with 64 problems that are Hard for it: highest "
        f"avg@4 {points(gain)}; n\\* {octaves(shift)} at equal compute.\n\n"
        f"![Reward and n* for two base models]({picture})",
        "",
        "Base models from other data or of another size: these two differ in how long they were taught alone.",
        "Qwen2.5-7B, Qwen3-4B and Llama 3.1-8B have the same shape of n\\*(C), with other levels and switch points.",
    )
