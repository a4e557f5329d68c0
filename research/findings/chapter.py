"""What a chapter of docs/findings.md is made of: one finding of the paper, what was seen of it, and how sure.

Numbers are put into words here, and two kinds of pictures are drawn that several chapters have.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from isocompute_jax.fit.report.figures.style import (
    PALETTE,
    QUIET,
    in_style,
    legend,
    log_axis,
    panels,
    save_figure,
    size_axis,
)
from research.findings.statistics import Curves, Estimate, means, profile_sizes, records_at, with_seeds
from research.record import SUFFIX, Sweep, curves_of, read_sweep

NOISE = "[most of how high reward gets is one number](#most-of-how-high-reward-gets-is-one-number)"
"""Where chapters point to."""
RISE, AGAIN = "problems_64", "again_64"
"""The sweep of `make study`, with one seed more, and the same with four others."""
FOLDER = "findings"
"""Where pictures are, below docs/."""
POINTS = 60
"""Budgets of a drawn n*(C)."""

Verdict = Literal["shown", "shown in part", "refuted", "not settled"]


@dataclasses.dataclass(frozen=True)
class Gallery:
    """The recorded sweeps in a directory, each read once."""

    path: pathlib.Path

    def sweep(self, name: str) -> Sweep:
        """The recorded sweep of this name."""
        return _read(self.path / f"{name}{SUFFIX}")

    def curves(self, name: str, *columns: str, eval_set: str = "validation") -> Curves:
        """The curves of a sweep; avg@4 if no column is named."""
        return curves_of(self.sweep(name), *(columns or ("avg@4",)), eval_set=eval_set)

    def base(self, name: str, eval_set: str = "validation") -> float:
        """Mean avg@4 of a sweep's base model: before any step."""
        sweep = self.sweep(name)
        at_start = (sweep.column("compute") == 0) & (sweep.column("eval_set") == eval_set)
        return float(sweep.column("avg@4")[at_start].mean())

    def hard(self) -> Curves:
        """64 Hard problems, the study of finding 1, with the seeds of both of its sweeps."""
        return with_seeds(self.curves(RISE), self.curves(AGAIN))


@functools.cache
def _read(path: pathlib.Path) -> Sweep:
    return read_sweep(path)


@dataclasses.dataclass(frozen=True)
class Chapter:
    """One finding."""

    number: int  # in the list of the page
    claim: str  # what the paper says, in a few words
    verdict: Verdict  # what became of it here
    effect: str  # its size, with the interval
    seeds: int  # of each configuration
    seen: str  # paragraphs: what was measured, with tables and pictures
    why: str  # the reason, as far as it is known
    overturn: str  # what would overturn it
    paper: str  # beside the paper's figures

    @property
    def text(self) -> str:
        """Markdown."""
        remarks = [("Why", self.why), ("What would overturn it", self.overturn), ("Beside the paper", self.paper)]
        parts = [f"## {self.number}. {self.claim}: {self.verdict}", self.seen]
        return "\n\n".join([*parts, *(f"**{head}.** {text}" for head, text in remarks)]) + "\n"

    @property
    def row(self) -> str:
        """Its row of the table at the top."""
        return f"| {self.number} | {self.claim} | **{self.verdict}** | {self.effect} | {self.seeds} |"


def verdict(one: Estimate, expected: int = 1) -> Verdict:
    """Shown where the whole interval has the expected sign, refuted where it has the other."""
    return {expected: "shown", -expected: "refuted"}.get(one.sign, "not settled")  # pyright: ignore


def verdict_of_all(signs: Sequence[int]) -> Verdict:
    """Of a claim that holds if the signs of all of its differences are positive."""
    if min(signs) > 0:
        return "shown"
    if max(signs) > 0 > min(signs):
        return "shown in part"
    return "refuted" if min(signs) < 0 else "not settled"


def octaves(one: Estimate) -> str:
    """A distance between two n*, with its interval."""
    return f"{one.value:.1f} octaves ({one.low:.1f} to {one.high:.1f})"


def above(one: Estimate) -> str:
    """How far one n* lies above or below another."""
    if one.value >= 0:
        return f"{octaves(one)} above"
    return f"{octaves(Estimate(-one.value, -one.high, -one.low, one.seeds))} below"


def points(one: Estimate) -> str:
    """A difference of rewards in percentage points, with its interval."""
    return f"{100 * one.value:+.1f} points ({100 * one.low:+.1f} to {100 * one.high:+.1f})"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def save(figure: Figure, docs: pathlib.Path, name: str) -> str:
    """Writes docs/findings/NAME.png; returns its path from docs. Pages show the .png alone."""
    picture = docs / FOLDER / f"{name}.svg"
    save_figure(figure, picture, png=True)
    picture.unlink()
    return f"{FOLDER}/{name}.png"


def overlaid(sweeps: Mapping[str, Curves], docs: pathlib.Path, name: str, *, reward: str = "avg@4") -> str:
    """The frontier of each sweep (label -> curves), and its n*(C); returns the picture's path from `docs`."""
    with in_style():
        figure, (top, bottom) = panels(2, height=5.6, share=False)
        shift = np.linspace(-0.08, 0.08, len(sweeps))  # so that lines at one n do not cover each other
        colours = [PALETTE(place) for place in np.linspace(0, 1, max(2, len(sweeps)))]
        lines = []
        for (label, curves), colour, up in zip(sweeps.items(), colours, shift, strict=False):
            start = min(one.compute[0] for one in curves.values())
            end = max(one.compute[-1] for one in curves.values())
            budgets, mean = np.geomspace(start, end, POINTS), means(curves)
            best = np.nanmax(records_at(mean, budgets), axis=0)
            lines += top.plot(budgets, best, color=colour, linewidth=1.8, label=label)
            bottom.plot(budgets, profile_sizes(mean, budgets) + up, color=colour, linewidth=1.8)
        top.set(ylabel=f"{reward} of the best n")
        bottom.set(xlabel="compute C, rollouts", ylabel="optimal group size n*")
        size_axis(bottom, sorted({n for curves in sweeps.values() for n in curves}))
        for axes in (top, bottom):
            log_axis(axes)
        legend(figure, lines)
        return save(figure, docs, name)


def side_by_side(
    sweeps: Mapping[str, Curves],
    docs: pathlib.Path,
    name: str,
    *,
    label: Callable[[int], str] = "n = {}".format,
    reward: str = "avg@4",
    base: float | None = None,
) -> str:
    """Mean curves of every configuration, a panel for each sweep (head -> curves); returns the picture's path.

    `label` names a curve by its key; `base` is the base model's reward, a dotted line.
    """
    with in_style():
        columns = min(2, len(sweeps))
        rows = -(-len(sweeps) // columns)
        figure, axes = panels(rows, columns, height=1.2 + 2.5 * rows)
        keys = sorted({key for curves in sweeps.values() for key in curves})
        colours = dict(zip(keys, PALETTE(np.linspace(0, 1, max(2, len(keys)))), strict=False))
        handles = {}
        for place, (axis, (head, curves)) in enumerate(zip(axes, sweeps.items(), strict=False)):
            for key, (compute, mean) in means(curves).items():
                handles[key] = axis.plot(compute, mean[:, 0], color=colours[key], linewidth=1.8, label=label(key))[0]
            if base is not None:
                axis.axhline(base, color=QUIET, linestyle=":", linewidth=1)
            axis.set(title=head, ylabel="" if place % columns else reward)
            if place + columns >= len(sweeps):  # the lowest of its column
                axis.set(xlabel="compute C, rollouts")
                axis.tick_params(labelbottom=True)
            log_axis(axis)
        for axis in axes[len(sweeps) :]:
            axis.set_visible(False)
        legend(figure, [handles[key] for key in keys], columns=4)
        return save(figure, docs, name)
