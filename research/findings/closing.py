"""The last sections of docs/findings.md: what decides how high reward gets, what theory expected, and the sweeps."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from isocompute_jax.fit.report.figures.style import PALETTE, in_style, legend, log_axis, panels
from isocompute_jax.records.errors import InputError
from isocompute_jax.theory.forecast import Filed, read_forecast
from research.calibrate import question_of
from research.findings import statistics
from research.findings.chapter import RISE, Gallery, octaves, points, save, table
from research.record import SUFFIX, Sweep, curves_of

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

NOISE_TEXT = """## Most of how high reward gets is one number

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


def noise(gallery: Gallery, docs: pathlib.Path) -> str:
    """Learning rate over rollouts per step decides how high reward gets."""
    configurations = {name: statistics.points_of(gallery.sweep(name)) for name in (*CONSTANT, *GROWING)}
    constant = [point for name in CONSTANT for point in configurations[name]]
    explained = statistics.noise_explains([gallery.sweep(name) for name in CONSTANT])
    by_batch = {name: {point.rollouts_per_step: point.level for point in configurations[name]} for name in BATCHES}
    rows = [
        (f"B = {rollouts:,}", *(f"{row[rollouts]:.3f}" if rollouts in row else "" for row in by_batch.values()))
        for rollouts in sorted(set().union(*by_batch.values()))
    ]
    return NOISE_TEXT.format(
        rows=table(("", *(f"{configurations[name][0].problems_per_batch} problems" for name in BATCHES)), rows),
        share=explained.value,
        low=explained.low,
        high=explained.high,
        count=len(constant),
        rate=f"{max(point.rate for point in constant):.1e}".replace("e-0", "e-"),
        kept=points(statistics.level_gain(gallery.curves("keep_64"), gallery.curves("problems_64"))),
        moved=octaves(statistics.size_shift(gallery.curves("keep_64"), gallery.curves("problems_64"))),
        picture=_draw_noise(configurations, docs),
    )


def _draw_noise(configurations: dict[str, list[statistics.Point]], docs: pathlib.Path) -> str:
    """Levels over noise, a colour for each sweep."""
    with in_style():
        figure, [axis] = panels(1, height=4.2)
        handles = []
        for name, colour in zip(configurations, PALETTE(np.linspace(0, 1, len(configurations))), strict=True):
            x, y = ([getattr(point, field) for point in configurations[name]] for field in ("noise", "level"))
            growing = name in GROWING
            handles += axis.plot(
                x, y, marker="x" if growing else "o", linestyle="none", color=colour, label=(CONSTANT | GROWING)[name]
            )
        axis.set(xlabel="learning rate / rollouts per step", ylabel="highest mean avg@4")
        log_axis(axis)
        legend(figure, handles, columns=2)
        return save(figure, docs, "noise")


PREDICTED = "predicted"
CALIBRATED = ("problems_64", "problems_256")
"""Sweeps that the constants were calibrated on."""
SEEN = (*CALIBRATED, "hard_b2", "late")
"""Those, one that was recorded before it was forecast, and one whose first half is half of `problems_64`."""

EXPECTED_TEXT = """## What theory expected

`python -m isocompute_jax.theory` forecasts n\\*(C) from pass@1, the number of problems, n, B_problem and the rate
([docs/theory.md](theory.md)). Its constants were calibrated on {calibrated}. The forecasts of those that are marked
unseen stood in `gallery/predicted/` before their runs began; they are the second ones: a first calibration, on
`problems_64` alone, was replaced when `problems_256` had been recorded and before any of the unseen was. `hard_b2` was
recorded before it was forecast, and `late` repeats half of `problems_64` up to its budget. Sweeps without a row have
none: theory was not asked. Measured n\\* is here the n of the highest mean reward so far, not the fitter's as in
finding 1. Shares are of the {budgets} budgets of a sweep; an interval is that of the measured n\\* over seeds.

{rows}

Over the sweeps that were forecast unseen, {share:.0%} of budgets are within one octave, and {inside:.0%} within one
octave of the interval. For comparison: n\\*(C) of `problems_64`, taken for each of them, is within one octave at
{same:.0%}. Theory errs most where the rate grows with B, whose harm at large n it sees too late, and for the wider
model, whose constants are not its own. (`hard_b2` has one seed, so its interval is a point; its measured n\\* falls.)
"""


def expected(gallery: Gallery) -> str:
    """n*(C) that theory expected of each sweep, beside what was measured."""
    agreements = {
        path.stem: agreement(gallery.sweep(path.stem), read_forecast(path))
        for path in sorted((gallery.path / PREDICTED).glob("*.json"))
    }
    rows = [
        (
            f"{name}{'' if name in SEEN else ' (unseen)'}",
            f"{2 ** one.expected[0]:.0f} to {2 ** one.expected[-1]:.0f}",
            f"{2 ** one.measured[0]:.0f} to {2 ** one.measured[-1]:.0f}",
            f"{np.mean(one.apart <= 1):.0%}",
            f"{np.mean(one.beyond <= 1):.0%}",
            f"{one.apart.mean():.1f}",
        )
        for name, one in agreements.items()
    ]
    unseen = [one for name, one in agreements.items() if name not in SEEN]
    apart, beyond = (np.concatenate([getattr(one, name) for one in unseen]) for name in ("apart", "beyond"))
    heads = ("sweep", "expected n\\*", "measured n\\*", "within an octave", "of the interval", "mean octaves apart")
    return EXPECTED_TEXT.format(
        calibrated=" and ".join(f"`{name}`" for name in CALIBRATED),
        budgets=len(next(iter(agreements.values())).compute),
        rows=table(heads, rows),
        share=float(np.mean(apart <= 1)),
        inside=float(np.mean(beyond <= 1)),
        same=float(np.mean(np.concatenate([_as_first(agreements, one) for one in unseen]) <= 1)),
    )


def _as_first(agreements: Mapping[str, Agreement], one: Agreement) -> np.ndarray:
    """[T] octaves between the measured n* of a sweep and that of the first calibrated one at the same compute."""
    first = agreements[CALIBRATED[0]]
    return np.abs(np.interp(np.log(one.compute), np.log(first.compute), first.measured) - one.measured)


class Agreement(NamedTuple):
    """n*(C) expected and measured, as log2 at each budget [T], and the 95% interval of the measured one over seeds."""

    compute: np.ndarray
    expected: np.ndarray
    measured: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def apart(self) -> np.ndarray:
        """Octaves between the two."""
        return np.abs(self.expected - self.measured)

    @property
    def beyond(self) -> np.ndarray:
        """Octaves by which the expected one lies outside the interval of the measured one."""
        return np.maximum(np.maximum(self.low - self.expected, self.expected - self.high), 0.0)


def agreement(sweep: Sweep, filed: Filed) -> Agreement:
    """A forecast beside the sweep that it is of, over the n that were run.

    Raises:
      InputError: the forecast is of another sweep.
    """
    asked = question_of(sweep, points=filed.question.points, runs=filed.question.runs)
    changed = [name for name, value in vars(asked).items() if value != getattr(filed.question, name)]
    changed = [name for name in changed if name != "group_sizes"]
    if changed or not set(asked.group_sizes) <= set(filed.question.group_sizes):
        name = (*changed, "group_sizes")[0]
        raise InputError(f"{sweep.name}: the forecast is of another sweep: {name} is {getattr(filed.question, name)!r}")
    compute = filed.forecast.compute
    measured = statistics.estimates(
        lambda mean: statistics.best_sizes(mean, compute).tolist(), curves_of(sweep, f"avg@{asked.k}")
    )
    columns = (np.array([getattr(one, name) for one in measured]) for name in ("value", "low", "high"))
    return Agreement(compute, np.log2(filed.forecast.of(asked.group_sizes).best), *columns)


SWEEPS_TEXT = """## The sweeps

{count} sweeps, {runs} runs, {rollouts:.0f} million rollouts. All of them: chained sums such as `7+5-3=`, answers of
at most {tokens} tokens, reward 1 or 0, temperature {temperature:g}; clipped loss with advantages over the group's
standard deviation, one update on each batch, Adam ({rate} at {batch} rollouts per step, constant in B unless the table
says otherwise, {warmup} warm-up steps, gradients clipped to a norm of {clip:g}), no KL or entropy term unless it says
so. Held out are {held_out} problems, {samples} samples each, so the standard error of an evaluation is at most
{error:.3f}. Easy problems are solved in 0.3 to 0.6 of samples by the base model, Hard ones in at most 1 of 16.

{rows}

`python -m isocompute_jax.study --preset=full --only=NAME` runs one of them (`other_base` and `other_size` have
`base_600` and `wide_64`; `again_64` is `problems_64` with `--preset=quick --first_seed=5`), and `make gallery-record`
keeps it.
"""
OF_ANOTHER_MODEL = "llm"
"""The sweep that has a page of its own."""
HEADS = ("sweep", "problems", "D", "B_problem", "n", "seeds", "rollouts of a run", "what differs")
SETS = {"easy_64": "Easy", "terms_easy": "Easy", "strong_easy": "Easy", "crossed_mixture": "half Easy, half Hard"}
"""Sweeps whose training problems are not Hard ones."""
OTHER = {
    "again_64": "other seeds",
    "base_600": "base model taught for half as long",
    "crossed_hard": "evaluated on Easy too",
    "crossed_mixture": "evaluated on Easy and on Hard too",
    "wide_64": "base model twice as wide",
}
DIFFERS = {
    "optimizer.base_lr": "rate {:g}",
    "optimizer.lr_scaling_exponent": "rate as B^{:g}",
    "recipe.zero_variance_groups": "groups without signal: {}",
    "loss.kl_coef": "KL and entropy terms, {:g} each",
}
"""Field of a config -> what to say where it is not that of the first sweep."""


def recorded(gallery: Gallery) -> str:
    """Which sweeps the page rests on, and what all of their runs have in common."""
    names = sorted({path.stem for path in gallery.path.glob(f"*{SUFFIX}")} - {OF_ANOTHER_MODEL})
    sweeps = {name: gallery.sweep(name) for name in names}
    first = sweeps[RISE].facts.shared
    evaluated = sweeps[RISE].table["solve_counts"][0].as_py()
    return SWEEPS_TEXT.format(
        count=len(sweeps),
        runs=sum(len(sweep.facts.runs) for sweep in sweeps.values()),
        rollouts=sum(len(each.facts.runs) * each.facts.shared["max_compute"] for each in sweeps.values()) / 1e6,
        tokens=first["sampling.max_tokens"],
        temperature=first["sampling.temperature"],
        rate=f"{first['optimizer.base_lr']:.1e}".replace("e-0", "e-"),
        batch=first["optimizer.base_batch"],
        warmup=first["optimizer.warmup_steps"],
        clip=first["optimizer.clip_norm"],
        held_out=len(evaluated),
        samples=first["evaluation.samples"],
        error=0.5 / (len(evaluated) * first["evaluation.samples"]) ** 0.5,
        rows=table(HEADS, [_row(name, sweep, first) for name, sweep in sweeps.items()]),
    )


def _row(name: str, sweep: Sweep, first: Mapping[str, Any]) -> tuple[object, ...]:
    """A sweep in the table; `first` is what the others are compared with."""
    shared = sweep.facts.shared
    sizes, batches = (sorted(set(sweep.column(each).tolist())) for each in ("group_size", "problems_per_batch"))
    differs = [
        text.format(shared[field]) for field, text in DIFFERS.items() if shared.get(field, first[field]) != first[field]
    ]
    return (
        f"`{name}`",
        SETS.get(name, "Hard"),
        f"{shared['problem_set_size']:,}",
        _range(batches),
        _range(sizes),
        len(set(sweep.column("seed").tolist())),
        f"{shared['max_compute']:,}",
        "; ".join([*differs, *([OTHER[name]] if name in OTHER else [])]),
    )


def _range(values: list[int]) -> str:
    """`4 to 128`, or the only one."""
    return f"{values[0]} to {values[-1]}" if len(values) > 1 else f"{values[0]}"
