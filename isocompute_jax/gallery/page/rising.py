"""Findings 1, 2 and 8: n* rises with compute, whether it saturates, and at how many epochs it switches."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.figure import Figure

from isocompute_jax.fit import SweepResult
from isocompute_jax.fit.report.figures.by_configuration import size_axis
from isocompute_jax.fit.report.figures.style import INK, QUIET, in_style, legend, log_axis, panels, shades
from isocompute_jax.gallery.curves import common_budgets, estimate, profile_sizes
from isocompute_jax.gallery.findings import Course, analysed, course, seeds_of
from isocompute_jax.gallery.page.chapter import Chapter, Gallery, not_run, octaves, table
from isocompute_jax.gallery.page.figures import overlaid, save
from isocompute_jax.gallery.tables import Sweep

RISE, LATE = "problems_64", "late"
"""The sweep of `make study`, with one seed more, and one with larger groups and twice its budget."""
SIZES = {16: "problems_16", 64: "problems_64", 256: "problems_256"}
"""Sweeps that differ in the number of training problems, D."""
LEAST = 2.0
"""Octaves by which n* must rise for the first finding."""


def chapters(gallery: Gallery, docs: pathlib.Path) -> list[Chapter]:
    """Of this module."""
    return [rising(gallery, docs), saturating(gallery, docs), at_epochs(gallery, docs)]


def rising(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 1."""
    sweep = gallery.sweep(RISE)
    pooled, result = course(sweep, bootstrap=True), analysed(sweep)
    alone = [course(sweep, [seed]) for seed in seeds_of(sweep)]
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
        f"{pooled.octaves:.0f} octaves; {least:.0f} or more in each seed",
        len(alone),
        f"64 Hard problems, {sweep.facts.shared['problems_per_batch']} per batch, {len(alone)} seeds: n\\* goes from "
        f"{first} at {start:,.0f} rollouts to {last} at {end:,.0f}, **{pooled.octaves:.0f} octaves in "
        f"{np.log2(end / start):.0f} of compute**.\n\n"
        f"![Held-out reward of each group size, and the group size that leads]({picture})\n\n"
        f"{switches}\n\n"
        f"Each seed by itself: {each}.",
        "64 problems are seen again and again, C / (64 n) times. A small group takes more steps at the same compute, "
        "leads at first, learns the problems by heart, and its held-out reward turns; a larger one does all of it "
        "later, and gets further, for its gradient is straighter ([theory](theory.md#nc-before-any-run)). "
        f"{_turns(sweep)}.",
        "Problems that are always new: the more there are, the later n\\* rises. With 256 of them, at the same "
        "settings, n = 4 leads up to the end.",
        "It sees the rise with 5,000 and 6,000 problems, n up to 2,048 and models of 4 to 8 billion parameters, and "
        "finds, as here, that fewer problems are over-fitted sooner.",
    )


def saturating(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 2: n* at the end is below the largest n, and has not risen over the last two octaves of C."""
    if LATE not in gallery:
        return not_run(2, "n\\* saturates", [LATE])
    curves = gallery.curves(LATE)
    end = common_budgets(curves)[-1]
    ends = np.array([end / 4, end])
    below = estimate(lambda mean: float(np.log2(max(mean)) - profile_sizes(mean, ends)[-1]), curves)
    still = estimate(lambda mean: float(np.diff(profile_sizes(mean, ends))[0]), curves)
    largest = max(curves)
    saturates = below.low > 0 and still.high <= 0
    rises = still.low > 0
    picture = overlaid({"n up to 128, 2¹⁷ rollouts": gallery.curves(RISE), "n from 32 to 256, 2¹⁸": curves}, docs, LATE)
    return Chapter(
        2,
        "n\\* saturates",
        "shown" if saturates else "refuted" if rises and below.value == 0 else "not settled",
        f"{octaves(below)} below the largest n, {octaves(still)} in the last two of C",
        below.seeds,
        f"The same 64 problems with n up to {largest} and {end:,.0f} rollouts: at the end n\\* lies {octaves(below)} "
        f"below the largest group; over the last two octaves of compute it rose by {octaves(still)}.\n\n"
        f"![n* of the sweep of finding 1 and of one with larger groups and twice the budget]({picture})",
        "A larger group gains from a straighter gradient, and that gain is bounded: once the noise of n rollouts is "
        "small beside the differences between problems, doubling n buys nothing, and costs half of the steps.",
        "Groups beyond those that were run, at budgets at which they can lead.",
        "n\\* = 1,024 on Easy and 512 on Hard at its largest budgets.",
    )


def at_epochs(gallery: Gallery, docs: pathlib.Path) -> Chapter:
    """Finding 8."""
    there = {size: name for size, name in SIZES.items() if name in gallery}
    rows, epochs, seeds = [], [], 0
    for size, name in there.items():
        sweep = gallery.sweep(name)
        seeds = len(seeds_of(sweep))
        for one in course(sweep, bootstrap=True).switches:
            if one.interval95 is None or not one.interval95[0] <= one.compute <= one.interval95[1]:
                continue  # few replicates have it
            low, high = (end / one.compute * one.epochs for end in one.interval95)
            passes = f"{one.from_size} to {one.to_size}"
            rows.append((f"D = {size}, {passes}", _short(one.compute), f"{one.epochs:.0f}", f"{low:.0f} to {high:.0f}"))
            epochs.append((one.epochs, low))
    values = np.array([value for value, _ in epochs])
    middle, spread = np.exp(np.log(values).mean()), np.exp(np.log(values).std(ddof=1))
    beyond = min(low for _, low in epochs)
    picture = overlaid({f"D = {size}": gallery.curves(name) for size, name in there.items()}, docs, "data")
    return Chapter(
        8,
        "Switches fall at about one epoch",
        "refuted" if beyond > 1 else "not settled",
        f"{middle:.0f} epochs, within a factor of {spread:.1f} (one standard deviation)",
        seeds,
        "Where one group size passes the lead to the next, in epochs of the smaller one; switches that few replicates "
        "have are left out:\n\n"
        f"{table(('switch', 'at C', 'epochs', '95% interval'), rows)}\n\n"
        f"Their geometric mean is {middle:.0f}; the lowest end of an interval is {beyond:.0f}.\n\n"
        f"![Reward and n* for each number of problems]({picture})",
        "What counts is when the smaller group has learned its problems by heart, and a model of 0.1 million "
        "parameters at this rate needs tens of passes for that, where one of billions needs few. Within one number of "
        "problems the count of epochs is the same from switch to switch, while compute grows more than tenfold: "
        "that part of the finding holds.",
        "A rate or a model at which one pass is enough to learn a problem by heart.",
        "About one epoch, at 5,000 and 6,000 problems.",
    )


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
