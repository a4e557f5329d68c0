"""A section of docs/findings.md: learning rate over rollouts per step decides how high reward gets."""

from __future__ import annotations

import pathlib

import numpy as np

from isocompute_jax.fit.report.figures.style import PALETTE, in_style, legend, log_axis, panels
from isocompute_jax.gallery.findings import Point, level_gain, noise_explains, points_of, size_shift
from isocompute_jax.gallery.page.chapter import Gallery, octaves, points, table
from isocompute_jax.gallery.page.figures import save

CONSTANT = {
    "problems_64": "8 problems per batch",
    "batch_2": "2 per batch",
    "batch_32": "32 per batch",
    "steps_64": "128 rollouts per step",
    "late": "8 per batch, twice the budget",
    "rate_half": "8 per batch, half the rate",
    "keep_64": "8 per batch, groups without signal kept",
}
GROWING = {"rate_sqrt": "8 per batch, rate as √B", "rate_linear": "8 per batch, rate as B"}
"""Sweeps of the same 64 Hard problems; rates of the second kind grow to many times that of the first."""
BATCHES = ("batch_2", "problems_64", "batch_32")

TEXT = """## Most of how high reward gets is one number

The sweeps of 64 Hard problems differ in n, in problems per batch and in the rate. The highest mean avg@4 by rollouts
per step, B = n x B_problem, at one rate:

{rows}

What counts is the product. With the rate of each sweep it is one number, **learning rate over rollouts per step**, the
share of a step's noise that stays in the weights ([Smith et al. 2018](https://arxiv.org/abs/1711.00489) have it for
supervised training): a parabola in its logarithm explains {share:.0%} of the variance of the {count} configurations
({low:.0%} to {high:.0%} over seeds) whose rate is {rate} or less. It
does not matter whether groups without signal are dropped: where they are kept in the denominator (`keep_64`), the
highest mean over all n is {kept} away, and n\\* {moved}. Rates that grow with B end below: their
steps are too large to learn by, whatever their noise.

![Highest reward against learning rate over rollouts per step]({picture})

So a larger group is here one of three ways to less noise, beside more problems per batch and a smaller rate. It would
explain why n\\* rises (finding 1: less noise is worth its steps only after the first passes), why it saturates (2), why
B_problem matters as much as n (6), why a rate that grows with B takes back what the batch gives (7), and why n hardly
matters where B is fixed (9).
"""


def section(gallery: Gallery, docs: pathlib.Path) -> str:
    """Markdown; draws its picture."""
    sweeps = [gallery.sweep(name) for name in CONSTANT]
    found = {name: points_of(gallery.sweep(name)) for name in (*CONSTANT, *GROWING)}
    constant = [point for name in CONSTANT for point in found[name]]
    explained = noise_explains(sweeps)
    by_batch = {name: {point.rollouts_per_step: point.level for point in found[name]} for name in BATCHES}
    rows = [
        (f"B = {rollouts:,}", *(f"{row[rollouts]:.3f}" if rollouts in row else "" for row in by_batch.values()))
        for rollouts in sorted(set().union(*by_batch.values()))
    ]
    return TEXT.format(
        rows=table(("", *(f"{found[name][0].problems_per_batch} problems" for name in BATCHES)), rows),
        share=explained.value,
        low=explained.low,
        high=explained.high,
        count=len(constant),
        rate=f"{max(point.rate for point in constant):.1e}".replace("e-0", "e-"),
        kept=points(level_gain(gallery.curves("keep_64"), gallery.curves("problems_64"))),
        moved=octaves(size_shift(gallery.curves("keep_64"), gallery.curves("problems_64"))),
        picture=_draw(found, docs),
    )


def _draw(found: dict[str, list[Point]], docs: pathlib.Path) -> str:
    with in_style():
        figure, [axis] = panels(1, height=4.2)
        handles = []
        for name, colour in zip(found, PALETTE(np.linspace(0, 1, len(found))), strict=True):
            x, y = ([getattr(point, field) for point in found[name]] for field in ("noise", "level"))
            growing = name in GROWING
            handles += axis.plot(
                x, y, marker="x" if growing else "o", linestyle="none", color=colour, label=(CONSTANT | GROWING)[name]
            )
        axis.set(xlabel="learning rate / rollouts per step", ylabel="highest mean avg@4")
        log_axis(axis)
        legend(figure, handles, columns=2)
        return save(figure, docs, "noise")
