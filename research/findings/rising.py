"""Findings 1 and 8: n* rises with compute, and at how many epochs it switches.

n*(C) is the fitter's, as a study's: at each budget the n of the least expected regret over the draws of its model of
the sweep, where a run may stop earlier.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
import scipy.stats

from isocompute_jax.fit import AnalysisOptions, SweepResult, analyze
from isocompute_jax.fit.report.figures.style import (
    INK,
    QUIET,
    in_style,
    legend,
    log_axis,
    panels,
    shades,
    size_axis,
)
from isocompute_jax.fit.results import SwitchPoint
from research.findings.chapter import AGAIN, RISE, Chapter, Gallery, overlaid, save, table
from research.findings.statistics import Curves, best_sizes, common_budgets, means
from research.record import Sweep

ALL = "hard_b2"
"""All Hard problems, 2 per batch, one seed."""
SIZES = {16: "problems_16", 64: "problems_64", 256: "problems_256"}
"""Sweeps that differ in the number of training problems, D."""
LEAST = 2.0
"""Octaves by which n* must rise for the first finding."""
OFTEN = 0.5
"""Share of the draws that a switch is told of."""


def seeds_of(sweep: Sweep) -> list[int]:
    """The seeds of a sweep, rising."""
    return sorted(set(sweep.table["seed"].to_pylist()))


def analysed(sweep: Sweep, seeds: Sequence[int] = ()) -> SweepResult:
    """The fitter's analysis of avg@4 of some seeds of a sweep; all of them if none is named."""
    table = sweep.table.filter(pc.field("seed").isin(list(seeds or seeds_of(sweep))))
    others = [name for name in table.column_names if name.startswith(("best@", "worst@"))]
    return analyze(table.drop_columns(others), AnalysisOptions(), questions=False)


def course(result: SweepResult) -> list[tuple[float, int]]:
    """(C, n*) at every budget inside the data."""
    assert result.optimal is not None  # several n were run
    return [
        (float(compute), int(size))
        for compute, size in zip(result.optimal.budgets, result.optimal.group_size, strict=True)
    ]


def octaves_of(result: SweepResult) -> float:
    """How far n* rises from its first value to its last."""
    sizes = [size for _, size in course(result)]
    return float(np.log2(sizes[-1] / sizes[0]))


def common(result: SweepResult) -> list[SwitchPoint]:
    """The switches that half of the draws or more have, in order of C."""
    return [one for one in result.switches if one.share >= OFTEN]


def rising(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 1."""
    sweep = gallery.sweep(RISE)
    pooled = analysed(sweep)
    again = gallery.sweep(AGAIN)
    others = analysed(again)
    alone = [analysed(each, [seed]) for each in (sweep, again) for seed in seeds_of(each)]
    picture = _draw(gallery.curves(RISE), pooled, alone, docs)
    (start, first), *_, (end, last) = course(pooled)
    rows = [
        (
            f"{one.before.group_size} to {one.after.group_size}",
            _short(one.compute),
            " to ".join(map(_short, one.interval95)),
            f"{one.epochs:.0f}",
            f"{one.share:.0%}",
        )
        for one in common(pooled)
    ]
    heads = ("n\\* passes", "at C", "95% interval", "epochs", "draws that have it")
    least = min(octaves_of(one) for one in alone)
    sizes = gallery.curves(RISE)
    whole = ", the whole grid of n" if (first, last) == (min(sizes), max(sizes)) else ""
    return Chapter(
        1,
        "n\\* rises with compute",
        "shown" if least >= LEAST else "not settled",
        f"{octaves_of(pooled):.0f} octaves{whole}; {least:.0f} or more in each seed",
        len(alone),
        f"64 Hard problems, {sweep.facts.shared['problems_per_batch']} per batch, {len(seeds_of(sweep))} seeds: n\\* "
        f"goes from {first} at {start:,.0f} rollouts to {last} at {end:,.0f}, **{octaves_of(pooled):.0f} octaves in "
        f"{np.log2(end / start):.0f} of compute**.\n\n"
        f"![Held-out reward of each group size, and the group size that leads]({picture})\n\n"
        f"Switches, of the {len(seeds_of(sweep))} seeds, that half of the draws or more have:\n\n"
        f"{table(heads, rows)}\n\n"
        f"The same sweep with {len(seeds_of(again))} other seeds: {_ends(others)}, {octaves_of(others):.0f} octaves. "
        f"Each of the {len(alone)} seeds by itself: {', '.join(map(_ends, alone))}.",
        "64 problems are seen again and again, C / (64 n) times. A small group takes more steps at the same compute, "
        "leads at first, learns the problems by heart, and its held-out reward turns; a larger one does all of it "
        "later, and gets further, for its gradient is straighter ([theory](theory.md#nc-before-any-run)). "
        f"{_turns(gallery.curves(RISE))}.",
        f"Problems that are always new: the more there are, the later n\\* rises. {_leaders(gallery)}.",
        "It sees the rise with 5,000 and 6,000 problems, n up to 2,048 and models of 4 to 8 billion parameters, and "
        "finds, as here, that fewer problems are over-fitted sooner.",
    )


def at_epochs(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 8."""
    rows, logs, lows = [], {}, []
    for size, name in SIZES.items():
        for one in common(analysed(gallery.sweep(name))):
            low, high = one.epoch_interval95
            passes = f"D = {size}, {one.before.group_size} to {one.after.group_size}"
            rows.append((passes, _short(one.compute), f"{one.epochs:.0f}", f"{low:.0f} to {high:.0f}"))
            logs.setdefault(size, []).append(np.log(one.epochs))
            lows.append(low)
    every = np.concatenate([np.array(each) for each in logs.values()])
    error = scipy.stats.t.ppf(0.975, len(every) - 1) * every.std(ddof=1) / np.sqrt(len(every))
    middle, least, most = np.exp(every.mean() + np.array([0, -error, error]))
    by_size = "; ".join(
        f"{np.exp(np.mean(each)):.0f} with {size} problems ({len(each)} switch{'es' if len(each) > 1 else ''})"
        for size, each in logs.items()
    )
    picture = overlaid({f"D = {size}": gallery.curves(name) for size, name in SIZES.items()}, docs, "data")
    return Chapter(
        8,
        "Switches fall at about one epoch",
        "refuted" if min(lows) > 1 else "not settled",
        f"{middle:.0f} epochs ({least:.0f} to {most:.0f}, over {len(every)} switches)",
        len(seeds_of(gallery.sweep(SIZES[max(SIZES)]))),
        "Where one group size passes the lead to the next, in epochs of the smaller one; of the switches that half of "
        "the draws or more have:\n\n"
        f"{table(('switch', 'at C', 'epochs', '95% interval'), rows)}\n\n"
        f"Their geometric mean is {middle:.0f} ({least:.0f} to {most:.0f}): {by_size}. The lowest end of an interval "
        f"is {min(lows):.0f}.\n\n"
        f"![Reward and n* for each number of problems]({picture})",
        "What counts is when the smaller group has learned its problems by heart, and a model of 0.1 million "
        "parameters at this rate needs tens of passes for that; we suppose that one of billions needs few. From "
        "switch to switch of one data set the count of epochs is much the same while compute grows more than tenfold; "
        "from one size of the data set to another it is not.",
        "A rate or a model at which one pass is enough to learn a problem by heart.",
        "About one epoch, at 5,000 and 6,000 problems.",
    )


def _leaders(gallery: Gallery) -> str:
    """Who leads at the end of the sweeps with more problems."""
    parts = []
    for name in (SIZES[max(SIZES)], ALL):
        curves, shared = gallery.curves(name), gallery.sweep(name).facts.shared
        seeds = min(len(one.values) for one in curves.values())
        end = common_budgets(curves)[-1:]
        leader = round(2 ** best_sizes(means(curves), end)[0])
        parts.append(
            f"{shared['problem_set_size'] or 'all'} of them, {shared['problems_per_batch']} per batch "
            f"({seeds} seed{'s' if seeds > 1 else ''}), n = {leader} has the highest mean so far at {end[0]:,.0f} "
            "rollouts"
        )
    return "With " + "; with ".join(parts)


def _turns(curves: Curves) -> str:
    """Mean held-out reward of the smallest and largest n: its peak, and its end."""
    parts = []
    for n in (min(curves), max(curves)):
        compute, mean = means(curves)[n]
        top = int(np.argmax(mean[:, 0]))
        parts.append(
            f"n = {n} peaks at {compute[top]:,.0f} rollouts with {mean[top, 0]:.2f} and ends with {mean[-1, 0]:.2f}"
        )
    return ", ".join(parts)


def _ends(result: SweepResult) -> str:
    """n* at the first and at the last budget."""
    (_, first), *_, (_, last) = course(result)
    return f"{first} to {last}"


def _short(value: float) -> str:
    """Two digits, which is more than is known."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _draw(curves: Curves, pooled: SweepResult, alone: Sequence[SweepResult], docs: pathlib.Path) -> str:
    """Mean held-out reward of each n, and n*(C) of all seeds together and of each."""
    with in_style():
        figure, (top, bottom) = panels(2, height=6.4, share=False)
        colours = shades(curves)
        lines = []
        for n, (compute, mean) in means(curves).items():
            lines += top.plot(compute, mean[:, 0], color=colours[n], marker="o", markersize=3, label=f"n = {n}")
        for one in alone:
            seed = bottom.step(*_steps(one), where="post", color=QUIET, linewidth=0.8, label="a seed alone")
        all_seeds = bottom.step(*_steps(pooled), where="post", color=INK, linewidth=2, label="all seeds")
        top.set(ylabel="avg@4, held out")
        bottom.set(xlabel="compute C, rollouts", ylabel="optimal group size n*")
        size_axis(bottom, list(curves))
        for axes in (top, bottom):
            log_axis(axes)
        legend(figure, [*lines, *all_seeds, *seed], columns=4)
        return save(figure, docs, "rise")


def _steps(result: SweepResult) -> tuple[list[float], list[float]]:
    """C, and log2 n* from there on."""
    return [compute for compute, _ in course(result)], [float(np.log2(size)) for _, size in course(result)]
