"""Findings 2, 3, 12 and 13: how high reward gets.

At which n it saturates, whether at a larger one on Easy problems, and what the number of problems and the base model
change of it.
"""

from __future__ import annotations

import itertools
import pathlib

import numpy as np

from isocompute_jax.fit.report.figures.style import PALETTE, QUIET, in_style, legend, panels
from isocompute_jax.theory.forecast import read_forecast
from research.findings import statistics
from research.findings.chapter import (
    NOISE,
    RISE,
    Chapter,
    Gallery,
    above,
    octaves,
    overlaid,
    points,
    save,
    table,
    verdict_of_all,
)
from research.findings.rising import SIZES

LATE, EASY = "late", "easy_64"
"""A sweep of the problems of `RISE` with larger groups and twice its budget, and one of Easy problems."""

REACHED = 64
"""n up to which 2^17 rollouts are enough to get as high as it gets; `RISE` has more seeds of them than `LATE`."""
BASES = {"taught for 1,200 steps": "problems_64", "taught for 600 steps": "base_600", "twice as wide": "wide_64"}
"""Sweeps that differ in their base model; the first is beside each of the others."""


def saturating(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 2: what larger groups gain beyond an n, beside what was gained up to it."""
    late = gallery.curves(LATE)
    curves: statistics.Curves = {n: one for n, one in gallery.hard().items() if n <= REACHED} | {
        n: one for n, one in late.items() if n > REACHED
    }
    hard = statistics.saturation(curves)
    rows = [
        (f"n = {n}", f"{one.value:.3f}", f"{one.low:.3f} to {one.high:.3f}", f"{_at(curves, n):,.0f}")
        for n, one in hard.levels.items()
    ]
    smallest, largest = min(curves), max(curves)
    theory = _expected(gallery)
    picture = _draw({"Hard": hard, "Easy": statistics.saturation(gallery.curves(EASY))}, theory, docs)
    return Chapter(
        2,
        "n\\* saturates",
        "shown in part" if hard.sure else "refuted" if hard.rising else "not settled",
        f"reward at n = {_range(hard)}: {points(hard.gained)} up to it, {points(hard.left)} beyond; n\\* itself is "
        "a tie",
        hard.gained.seeds,
        f"The same 64 problems with n up to {largest}, those above {REACHED} with "
        f"{max(one.compute[-1] for one in late.values()):,} rollouts. The highest mean avg@4 of each n, and when it "
        "is reached:\n\n"
        f"{table(('', 'highest avg@4', '95% interval', 'at C'), rows)}\n\n"
        f"From n = {smallest} to {hard.size} it rises by {points(hard.gained)}; larger groups have "
        f"{points(hard.left)} more, a mean over them. Reward counts as saturated where that is less than "
        f"{statistics.LITTLE:.0%} of the gain before it: at n = {_range(hard)}. From there on n\\*(C) is a tie "
        "between all larger n that have had the budget to get as high, and what is read off may be any of them, up to "
        "the edge of the grid: that part of the claim stays open. By the same rule theory's runs saturate at n = "
        f"{2 ** statistics.saturation_size(theory):.0f}: what they get from n above {hard.size} is not seen here.\n\n"
        f"![Highest reward against n, on Hard and Easy problems and in theory's runs on Hard ones]({picture})",
        f"A larger group, like a smaller rate or more problems per batch, leaves less noise in the weights ({NOISE}). "
        "Once that noise is no longer what limits held-out reward, but the few problems are, doubling n buys nothing, "
        "and costs half of the steps.",
        "More problems, which move the limit (finding 12). A larger rate, which may need larger groups; not tried.",
        "n\\* = 1,024 on Easy and 512 on Hard at its largest budgets.",
    )


def _range(one: statistics.Saturation) -> str:
    """n at which a sweep saturates, with its interval."""
    low, high = (round(2**end) for end in (one.log2_size.low, one.log2_size.high))
    return f"{one.size} ({low} to {high})"


def _at(curves: statistics.Curves, n: int) -> int:
    """C of the highest mean."""
    return int(curves[n].compute[np.argmax(curves[n].values.mean(axis=0)[:, 0])])


def _expected(gallery: Gallery) -> dict[int, float]:
    """n -> the level of theory's runs, over the n of both sweeps."""
    levels: dict[int, float] = {}
    for name in (RISE, LATE):
        runs = read_forecast(gallery.path / "predicted" / f"{name}.json").forecast
        levels |= {int(n): float(np.nanmax(row)) for n, row in zip(runs.group_sizes, runs.reward, strict=True)}
    return levels


def _draw(sweeps: dict[str, statistics.Saturation], expected: dict[int, float], docs: pathlib.Path) -> str:
    """Levels with their intervals, and theory's."""
    with in_style():
        figure, [axis] = panels(1, height=4.0)
        handles = []
        for (name, found), colour in zip(sweeps.items(), PALETTE([0.0, 0.6]), strict=True):
            sizes, each = list(found.levels), list(found.levels.values())
            value, low, high = (np.array([getattr(one, end) for one in each]) for end in ("value", "low", "high"))
            axis.fill_between(np.log2(sizes), low, high, color=colour, alpha=0.2, linewidth=0)
            handles += axis.plot(np.log2(sizes), value, color=colour, marker="o", label=f"{name}, 95% interval")
        sizes = sorted(expected)
        line = [expected[n] for n in sizes]
        handles += axis.plot(np.log2(sizes), line, color=QUIET, linestyle="--", label="Hard, theory")
        axis.set(xlabel="rollouts per problem n", ylabel="highest mean avg@4")
        axis.set_xticks(np.log2(sizes), [str(n) for n in sizes])
        legend(figure, handles)
        return save(figure, docs, "levels")


def easy_and_hard(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 3."""
    easy, hard = gallery.curves(EASY), gallery.hard()
    ends, course = statistics.saturation_shift(easy, hard), statistics.size_shift(easy, hard)
    sizes = {name: statistics.saturation(curves) for name, curves in (("Easy", easy), ("Hard", hard))}
    rows = [
        (name, _range(one), points(one.gained), points(one.left)) for name, one in sizes.items()
    ]  # fmt: skip
    picture = overlaid({"64 Easy problems": easy, "64 Hard problems": hard}, docs, "easy_and_hard")
    others = (gallery.curves("schedules/easy_64"), gallery.curves("schedules/hard_64"))
    ends_again, course_again = statistics.saturation_shift(*others), statistics.size_shift(*others)
    return Chapter(
        3,
        "Easy problems saturate at a larger n than Hard ones",
        verdict_of_all([ends.sign, ends_again.sign]),
        f"saturation {above(ends)} that of Hard, and {above(ends_again)} it on another base model; n\\* at equal "
        f"compute {above(course)} and {above(course_again)}",
        ends.seeds,
        "64 Easy and 64 Hard problems, all else equal, n up to 128. Where the highest mean avg@4 saturates, as in "
        f"finding 2:\n\n{table(('', 'n', 'gained up to it', 'beyond it'), rows)}\n\n"
        f"That of Easy lies {above(ends)} that of Hard (picture of finding 2). At equal compute its n\\* lies "
        f"{above(course)} that of Hard, a mean over budgets, late ones included, at which Easy is nearly a tie. On "
        f"another base model and other problems of its own ({ends_again.seeds} seeds) it saturates "
        f"{above(ends_again)} Hard, and at equal compute its n\\* lies {above(course_again)}.\n\n"
        f"![Reward and n* on Easy and on Hard problems]({picture})",
        "What is solved more often gives a signal in nearly every group, and is learned sooner: Easy goes through the "
        "same course at a smaller compute. It has less to gain by it: small groups come nearly as high.",
        "A base model for which Easy leaves more to be gained; more seeds.",
        "n\\* saturates at 1,024 on Easy and at 512 on Hard.",
    )


def data_size(gallery: Gallery) -> Chapter:
    """Finding 12."""
    sweeps = {size: gallery.curves(name) for size, name in SIZES.items()}
    sizes = sorted(sweeps)
    gains = {
        (small, large): statistics.level_gain(sweeps[large], sweeps[small])
        for small, large in itertools.pairwise(sizes)
    }
    levels = {size: statistics.estimate(statistics.level, sweeps[size]) for size in sizes}
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


def _trained(curves: statistics.Curves) -> float:
    """Mean reward in training at the highest mean held-out reward."""
    each = [one.values.mean(axis=0) for one in curves.values()]
    best = max(each, key=lambda mean: mean[:, 0].max())
    return float(best[np.argmax(best[:, 0]), 1])


def base_models(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 13."""
    sweeps = {label: gallery.curves(name) for label, name in BASES.items()}
    first, *others = sweeps
    gains = {label: statistics.level_gain(sweeps[label], sweeps[first]) for label in others}
    shifts = {label: statistics.size_shift(sweeps[label], sweeps[first]) for label in others}
    rows = [
        (
            label,
            f"{gallery.base(BASES[label]):.3f}",
            f"{statistics.estimate(statistics.level, curves).value:.2f}",
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
