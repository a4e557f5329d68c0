"""Findings 1 and 8: n* rises with compute, and at how many epochs it switches."""

from __future__ import annotations

import pathlib

import numpy as np
import scipy.stats
from matplotlib.figure import Figure

from isocompute_jax.fit import SweepResult
from isocompute_jax.fit.report.figures.by_configuration import size_axis
from isocompute_jax.fit.report.figures.style import INK, QUIET, in_style, legend, log_axis, panels, shades
from isocompute_jax.gallery.curves import best_sizes, common_budgets, means
from isocompute_jax.gallery.findings import Course, analysed, course, seeds_of
from isocompute_jax.gallery.page.chapter import AGAIN, RISE, Chapter, Gallery, table
from isocompute_jax.gallery.page.figures import overlaid, save
from isocompute_jax.gallery.tables import Sweep

ALL = "hard_b2"
"""All Hard problems, 2 per batch, one seed."""
SIZES = {16: "problems_16", 64: "problems_64", 256: "problems_256"}
"""Sweeps that differ in the number of training problems, D."""
LEAST = 2.0
"""Octaves by which n* must rise for the first finding."""


def chapters(gallery: Gallery, docs: pathlib.Path) -> list[Chapter]:
    """Of this module."""
    return [rising(gallery, docs), at_epochs(gallery, docs)]


def rising(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 1."""
    sweep = gallery.sweep(RISE)
    pooled, result = course(sweep, bootstrap=True), analysed(sweep)
    again = gallery.sweep(AGAIN)
    others = course(again)
    alone = [course(each, [seed]) for each in (sweep, again) for seed in seeds_of(each)]
    picture = save(_draw(result, pooled, alone), docs, "rise")
    (start, first), (end, last) = pooled.budgets[0], pooled.budgets[-1]
    rows = [
        (f"{one.from_size} to {one.to_size}", _short(one.compute), _range(one.interval95), f"{one.epochs:.0f}")
        for one in pooled.switches
    ]
    switches = table(("n\\* passes", "at C", "95% interval", "epochs"), rows)
    each = ", ".join(f"{one.budgets[0][1]} to {one.budgets[-1][1]}" for one in alone)
    least = min(one.octaves for one in alone)
    return Chapter(
        1,
        "n\\* rises with compute",
        "shown" if least >= LEAST else "not settled",
        f"{pooled.octaves:.0f} octaves, the whole grid of n; {least:.0f} or more in each seed",
        len(alone),
        f"64 Hard problems, {sweep.facts.shared['problems_per_batch']} per batch, {len(seeds_of(sweep))} seeds: n\\* "
        f"goes from {first} at {start:,.0f} rollouts to {last} at {end:,.0f}, **{pooled.octaves:.0f} octaves in "
        f"{np.log2(end / start):.0f} of compute**.\n\n"
        f"![Held-out reward of each group size, and the group size that leads]({picture})\n\n"
        f"Switches, of the {len(seeds_of(sweep))} seeds:\n\n{switches}\n\n"
        f"`make study` with {len(seeds_of(again))} other seeds: {others.budgets[0][1]} to {others.budgets[-1][1]}, "
        f"{others.octaves:.0f} octaves. Each of the {len(alone)} seeds by itself: {each}.",
        "64 problems are seen again and again, C / (64 n) times. A small group takes more steps at the same compute, "
        "leads at first, learns the problems by heart, and its held-out reward turns; a larger one does all of it "
        "later, and gets further, for its gradient is straighter ([theory](theory.md#nc-before-any-run)). "
        f"{_turns(sweep)}.",
        f"Problems that are always new: the more there are, the later n\\* rises. {_leaders(gallery)}.",
        "It sees the rise with 5,000 and 6,000 problems, n up to 2,048 and models of 4 to 8 billion parameters, and "
        "finds, as here, that fewer problems are over-fitted sooner.",
    )


def at_epochs(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 8."""
    there = {size: name for size, name in SIZES.items() if name in gallery}
    rows, logs, lows, seeds = [], {}, [], 0
    for size, name in there.items():
        sweep = gallery.sweep(name)
        seeds = len(seeds_of(sweep))
        for one in course(sweep, bootstrap=True).switches:
            if one.interval95 is None or not one.interval95[0] <= one.compute <= one.interval95[1]:
                continue  # few replicates have it, or nearly all to one side
            low, high = (end / one.compute * one.epochs for end in one.interval95)
            passes = f"{one.from_size} to {one.to_size}"
            rows.append((f"D = {size}, {passes}", _short(one.compute), f"{one.epochs:.0f}", f"{low:.0f} to {high:.0f}"))
            logs.setdefault(size, []).append(np.log(one.epochs))
            lows.append(low)
    every = np.concatenate([np.array(each) for each in logs.values()])
    error = scipy.stats.t.ppf(0.975, len(every) - 1) * every.std(ddof=1) / np.sqrt(len(every))
    middle, least, most = np.exp(every.mean() + np.array([0, -error, error]))
    by_size = "; ".join(
        f"{np.exp(np.mean(each)):.0f} with {size} problems ({len(each)} switch{'es' if len(each) > 1 else ''})"
        for size, each in logs.items()
    )
    picture = overlaid({f"D = {size}": gallery.curves(name) for size, name in there.items()}, docs, "data")
    return Chapter(
        8,
        "Switches fall at about one epoch",
        "refuted" if min(lows) > 1 else "not settled",
        f"{middle:.0f} epochs ({least:.0f} to {most:.0f}, over {len(every)} switches)",
        seeds,
        "Where one group size passes the lead to the next, in epochs of the smaller one; switches that few replicates "
        "have, or that most have elsewhere, are left out:\n\n"
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
    said = []
    for name in (SIZES[max(SIZES)], ALL):
        curves = gallery.curves(name)
        problems, batch, seeds = (
            f"{gallery.sweep(name).facts.shared['problem_set_size'] or 'all'}",
            gallery.sweep(name).facts.shared["problems_per_batch"],
            min(len(one.values) for one in curves.values()),
        )
        end = common_budgets(curves)[-1:]
        leader = round(2 ** best_sizes(means(curves), end)[0])
        said.append(
            f"{problems} of them, {batch} per batch ({seeds} seed{'s' if seeds > 1 else ''}), n = {leader} has the "
            f"highest mean so far at {end[0]:,.0f} rollouts"
        )
    return "With " + "; with ".join(said)


def _turns(sweep: Sweep) -> str:
    """Mean held-out reward of the smallest and largest n: its peak, and its end."""
    size, compute, reward = (sweep.column(name) for name in ("group_size", "compute", "avg@4"))
    said = []
    for n in (size.min(), size.max()):
        budgets = np.unique(compute[size == n])
        means = [reward[(size == n) & (compute == budget)].mean() for budget in budgets]
        top = int(np.argmax(means))
        said.append(
            f"n = {n} peaks at {budgets[top]:,.0f} rollouts with {means[top]:.2f} and ends with {means[-1]:.2f}"
        )
    return ", ".join(said)


def _short(value: float) -> str:
    """Two digits, which is more than is known."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _range(ends: tuple[float, float] | None) -> str:
    return " to ".join(_short(end) for end in ends or ())


def _draw(result: SweepResult, pooled: Course, alone: list[Course]) -> Figure:
    """Mean held-out reward of each n, and n*(C) of all seeds together and of each."""
    with in_style():
        figure, (top, bottom) = panels(2, height=6.4, share=False)
        colours = shades(result.group_sizes)
        lines = []
        for size in result.group_sizes:
            runs = [run for run in result.runs if run.facts.group_size == size]
            compute = runs[0].compute
            mean = np.mean([np.interp(compute, run.compute, run.columns[result.metric]) for run in runs], axis=0)
            lines += top.plot(compute[1:], mean[1:], color=colours[size], marker="o", markersize=3, label=f"n = {size}")
        for one in alone:
            seed = bottom.step(*_steps(one), where="post", color=QUIET, linewidth=0.8, label="a seed alone")
        all_seeds = bottom.step(*_steps(pooled), where="post", color=INK, linewidth=2, label="all seeds")
        top.set(ylabel=f"{result.metric}, held out")
        bottom.set(xlabel="compute C, rollouts", ylabel="optimal group size n*")
        size_axis(bottom, result.group_sizes)
        for axes in (top, bottom):
            log_axis(axes)
        legend(figure, [*lines, *all_seeds, *seed], columns=4)
        return figure


def _steps(one: Course) -> tuple[list[float], list[float]]:
    """C, and log2 n* from there on."""
    return [compute for compute, _ in one.budgets], [float(np.log2(size)) for _, size in one.budgets]
