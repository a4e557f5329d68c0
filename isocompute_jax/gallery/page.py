"""docs/findings.md and its pictures, from the files of the gallery: every number on the page is computed here."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.figure import Figure

from isocompute_jax.fit import SweepResult
from isocompute_jax.fit.report.figures.by_configuration import size_axis
from isocompute_jax.fit.report.figures.style import INK, QUIET, in_style, legend, log_axis, panels, save_figure, shades
from isocompute_jax.gallery.findings import Course, analysed, course, seeds_of
from isocompute_jax.gallery.tables import SUFFIX, Sweep, read_sweep
from isocompute_jax.records.run_files import write_atomic

PAGE, FOLDER = "findings.md", "findings"
RISE = "problems_64"
"""The sweep that the first finding rests on, which is that of `make study` with one seed more."""

INTRODUCTION = """# Findings

What the embedded study shows of the IsoCompute Playbook (arXiv 2603.12151), and what it does not: a Qwen2 of 0.1
million parameters on chained sums, whose base model solves {base:.1%} of samples on Hard problems. Every number and
picture on this page is computed from the learning curves in `gallery/` by `make gallery`, without training; n\\* is
read off the fitter's frontier over record-breaking evaluations, as in the paper.
"""

RISING = """## n\\* rises with compute: shown, where problems are few

64 Hard problems, {batch} per batch, {seeds} seeds: n\\* goes from {first} at {start:,.0f} rollouts to {last} at
{end:,.0f}, **{octaves:.0f} octaves in {span:.0f} of compute**.

![Held-out reward of each group size, and the group size that leads]({folder}/rise.png)

{switches}

Each seed by itself: {alone}. Every one has two octaves or more. The pooled switches are about an octave of n for each
octave of C, as they must be where what counts is how often each problem was seen.

**Why.** 64 problems are seen again and again, C / (64 n) times. A small group takes more steps at the same compute,
leads at first, learns the problems by heart, and its held-out reward turns; a larger one does all of it later, and
gets further, for its gradient is straighter ([theory](theory.md#nc-before-any-run)). {turns}.

**What would overturn it.** Problems that are always new: the more there are, the later n\\* rises. A rate at which
small groups do not take more useful steps: theory expects n\\* to stay at 8 or below where the rate grows as sqrt(B).

**Beside the paper.** It sees the rise with 5,000 and 6,000 problems, n up to 2,048 and models of 4 to 8 billion
parameters, and finds, as here, that fewer problems are over-fitted sooner.
"""

EPOCHS = """## Switches fall at one number of epochs: shown, at about {middle:.0f} of them

The {count} switches above fall at {epochs} epochs of the smaller group: within {spread:.0%} of {middle:.0f}, while C
grows {growth:.0f} times. In the paper it is about one epoch. That the number is constant carries over; its value is
that of this model and rate, which need more passes to learn a problem by heart.
"""


def build(gallery: str | pathlib.Path, docs: str | pathlib.Path) -> pathlib.Path:
    """Writes the page and its pictures below `docs`; returns the page.

    Raises:
      InputError: a sweep that it rests on is not in the gallery.
    """
    gallery, docs = pathlib.Path(gallery), pathlib.Path(docs)
    sweep = read_sweep(gallery / f"{RISE}{SUFFIX}")
    (docs / FOLDER).mkdir(parents=True, exist_ok=True)
    pooled, result = course(sweep, bootstrap=True), analysed(sweep)
    alone = [course(sweep, [seed]) for seed in seeds_of(sweep)]
    with in_style():
        picture = docs / FOLDER / "rise.svg"
        save_figure(_rise(result, pooled, alone), picture, png=True)
        picture.unlink()  # pages show the .png
    write_atomic(
        docs / PAGE, "\n".join([INTRODUCTION.format(base=_base(sweep)), _rising(sweep, pooled, alone), _epochs(pooled)])
    )
    return docs / PAGE


def _rising(sweep: Sweep, pooled: Course, alone: list[Course]) -> str:
    """The first finding."""
    (start, first), (end, last) = pooled.budgets[0], pooled.budgets[-1]
    rows = ["| n\\* passes | at C | 95% interval | epochs |", "| :-- | --: | --: | --: |"]
    for switch in pooled.switches:
        interval = " to ".join(_short(end) for end in switch.interval95 or ())
        passes = f"{switch.from_size} to {switch.to_size}"
        rows.append(f"| {passes} | {_short(switch.compute)} | {interval} | {switch.epochs:.0f} |")
    each = [f"{one.budgets[0][1]} to {one.budgets[-1][1]}" for one in alone]
    return RISING.format(
        batch=sweep.facts.shared["problems_per_batch"],
        seeds=len(alone),
        first=first,
        last=last,
        start=start,
        end=end,
        octaves=pooled.octaves,
        span=np.log2(end / start),
        folder=FOLDER,
        switches="\n".join(rows),
        alone=", ".join(each),
        turns=_turns(sweep),
    )


def _base(sweep: Sweep) -> float:
    """Mean reward before any step."""
    return float(sweep.column("avg@4")[sweep.column("compute") == 0].mean())


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


def _epochs(pooled: Course) -> str:
    """The finding about epochs."""
    epochs = [switch.epochs for switch in pooled.switches]
    middle = float(np.median(epochs))
    return EPOCHS.format(
        count=len(epochs),
        epochs=", ".join(f"{one:.0f}" for one in epochs),
        middle=middle,
        spread=max(abs(one / middle - 1) for one in epochs),
        growth=pooled.switches[-1].compute / pooled.switches[0].compute,
    )


def _rise(result: SweepResult, pooled: Course, alone: list[Course]) -> Figure:
    """Mean held-out reward of each n, and n*(C) of all seeds together and of each."""
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
