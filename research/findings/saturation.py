"""Findings 2 and 3: at which n reward saturates, and whether at a larger one on Easy problems."""

from __future__ import annotations

import pathlib

import numpy as np

from isocompute_jax.fit.report.figures.style import PALETTE, QUIET, in_style, legend, panels
from isocompute_jax.theory.forecast_files import read_forecast
from research.findings.chapter import NOISE, RISE, Chapter, Gallery, above, overlaid, points, save, table, verdict
from research.findings.statistics import (
    LITTLE,
    Curves,
    Saturation,
    saturation,
    saturation_shift,
    saturation_size,
    size_shift,
)

LATE, EASY = "late", "easy_64"
"""A sweep of the problems of `RISE` with larger groups and twice its budget, and one of Easy problems."""

REACHED = 64
"""n up to which 2^17 rollouts are enough to get as high as it gets; `RISE` has more seeds of them than `LATE`."""


def saturating(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 2: what larger groups gain beyond an n, beside what was gained up to it."""
    late = gallery.curves(LATE)
    curves: Curves = {n: one for n, one in gallery.hard().items() if n <= REACHED} | {
        n: one for n, one in late.items() if n > REACHED
    }
    found = saturation(curves)
    rows = [
        (f"n = {n}", f"{one.value:.3f}", f"{one.low:.3f} to {one.high:.3f}", f"{_at(curves, n):,.0f}")
        for n, one in found.levels.items()
    ]
    smallest, largest = min(curves), max(curves)
    level = _expected(gallery)
    picture = _draw({"Hard": found, "Easy": saturation(gallery.curves(EASY))}, level, docs)
    return Chapter(
        2,
        "n\\* saturates",
        "shown in part" if found.sure else "refuted" if found.rising else "not settled",
        f"reward at n = {_range(found)}: {points(found.gained)} up to it, {points(found.left)} beyond; n\\* itself is "
        "a tie",
        found.gained.seeds,
        f"The same 64 problems with n up to {largest}, those above {REACHED} with "
        f"{max(one.compute[-1] for one in late.values()):,} rollouts. The highest mean avg@4 of each n, and when it "
        "is reached:\n\n"
        f"{table(('', 'highest avg@4', '95% interval', 'at C'), rows)}\n\n"
        f"From n = {smallest} to {found.size} it rises by {points(found.gained)}; larger groups have "
        f"{points(found.left)} more, a mean over them. Reward counts as saturated where that is less than "
        f"{LITTLE:.0%} of the gain before it: at n = {_range(found)}. From there on n\\*(C) is a tie between all "
        "larger n that have had the budget to get as high, and what is read off may be any of them, up to the edge of "
        "the grid: that part of the claim stays open. By the same rule theory's runs saturate at n = "
        f"{2 ** saturation_size(level):.0f}: what they get from n above {found.size} is not seen here.\n\n"
        f"![Highest reward against n, on Hard and Easy problems and in theory's runs on Hard ones]({picture})",
        f"A larger group, like a smaller rate or more problems per batch, leaves less noise in the weights ({NOISE}). "
        "Once that noise is no longer what limits held-out reward, but the few problems are, doubling n buys nothing, "
        "and costs half of the steps.",
        "More problems, which move the limit (finding 12). A larger rate, which may need larger groups; not tried.",
        "n\\* = 1,024 on Easy and 512 on Hard at its largest budgets.",
    )


def _range(found: Saturation) -> str:
    """n at which a sweep saturates, with its interval."""
    low, high = (round(2**end) for end in (found.log2_size.low, found.log2_size.high))
    return f"{found.size} ({low} to {high})"


def _at(curves: Curves, n: int) -> int:
    """C of the highest mean."""
    return int(curves[n].compute[np.argmax(curves[n].values.mean(axis=0)[:, 0])])


def _expected(gallery: Gallery) -> dict[int, float]:
    """n -> the level of theory's runs, over the n of both sweeps."""
    level: dict[int, float] = {}
    for name in (RISE, LATE):
        found = read_forecast(gallery.path / "predicted" / f"{name}.json").forecast
        level |= {
            int(n): float(np.nanmax(row)) for n, row in zip(found.group_sizes, found.reward, strict=True)
        }  # fmt: skip
    return level


def _draw(sweeps: dict[str, Saturation], expected: dict[int, float], docs: pathlib.Path) -> str:
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
    ends, course = saturation_shift(easy, hard), size_shift(easy, hard)
    sizes = {name: saturation(curves) for name, curves in (("Easy", easy), ("Hard", hard))}
    rows = [
        (name, _range(one), points(one.gained), points(one.left)) for name, one in sizes.items()
    ]  # fmt: skip
    picture = overlaid({"64 Easy problems": easy, "64 Hard problems": hard}, docs, "easy_and_hard")
    return Chapter(
        3,
        "Easy problems saturate at a larger n than Hard ones",
        verdict(ends),
        f"saturation {above(ends)} that of Hard; n\\* at equal compute {above(course)}",
        ends.seeds,
        "64 Easy and 64 Hard problems, all else equal, n up to 128. Where the highest mean avg@4 saturates, as in "
        f"finding 2:\n\n{table(('', 'n', 'gained up to it', 'beyond it'), rows)}\n\n"
        f"That of Easy lies {above(ends)} that of Hard (picture of finding 2). At equal compute its n\\* lies "
        f"{above(course)} that of Hard, a mean over budgets, late ones included, at which Easy is nearly a tie.\n\n"
        f"![Reward and n* on Easy and on Hard problems]({picture})",
        "What is solved more often gives a signal in nearly every group, and is learned sooner: Easy goes through the "
        "same course at a smaller compute. It has less to gain by it: small groups come nearly as high.",
        "A base model for which Easy leaves more to be gained; more seeds.",
        "n\\* saturates at 1,024 on Easy and at 512 on Hard.",
    )
