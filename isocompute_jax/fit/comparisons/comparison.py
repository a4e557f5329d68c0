"""What a question beside the frontier is answered with: a verdict, sentences, a table, and the numbers to draw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.special

from isocompute_jax.fit.curves.uncertainty import CONFIDENCE
from isocompute_jax.fit.plain_data import INTERNAL, OPTIONAL

Tone = Literal["ink", "quiet"] | str | int | float
"""A colour: black, grey, that of a configuration by its name, that of an n, or a share of the palette."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A number and its 95% interval, or its standard error."""

    value: float
    low: float = math.nan  # ends of the interval; NaN where there is none
    high: float = math.nan
    stderr: float | None = dataclasses.field(default=None, metadata=OPTIONAL)
    # what a page shows; empty for `0.412 (0.396 to 0.431)`
    text: str = dataclasses.field(default="", metadata=INTERNAL)

    def __str__(self) -> str:
        return self.text or f"{self.value:z.3f}" + (f" ({self.ends()})" if math.isfinite(self.low) else "")

    def ends(self) -> str:
        """`0.396 to 0.431`."""
        return f"{self.low:z.3f} to {self.high:z.3f}"

    @classmethod
    def within(cls, value: float, ends: tuple[float, float] | None, text: str = "") -> Value:
        """A number with its interval, or without one."""
        low, high = ends or (math.nan, math.nan)
        return cls(value, low, high, text=text)

    @classmethod
    def whole(cls, value: int, ends: tuple[int, int] | None) -> Value:
        """`16 (8 to 32)`, `16 (16)` where the ends are alike, `16` without an interval."""
        return cls.within(
            value, ends, f"{value} ({' to '.join(map(str, dict.fromkeys(ends)))})" if ends else f"{value}"
        )

    @classmethod
    def with_error(cls, value: float, stderr: float) -> Value:
        """`0.412 ± 0.010`, or without the error where that is not known."""
        return cls(value, stderr=stderr, text=f"{value:z.3f}" + (f" ± {stderr:.3f}" if math.isfinite(stderr) else ""))

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below 0; 0 where it does not, or there is none."""
        return int(self.low > 0) - int(self.high < 0)


def over_seeds(values: np.ndarray) -> Value:
    """The mean of one number of each seed, `values` [S], and its interval by Student's t."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return Value(mean)
    half = float(student(count - 1) * np.std(values, ddof=1) / np.sqrt(count))
    return Value(mean, mean - half, mean + half)


def student(freedom: int) -> float:
    """Standard errors from an estimate to the ends of its 95% interval, by Student's t."""
    return float(scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2))


def standard_error(values: np.ndarray) -> np.ndarray:
    """[...] of the mean of seeds [S, ...]; NaN with fewer than two."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


Look = Literal["line", "dashed", "dotted", "steps", "wide steps", "spans", "dots", "rings", "bars", "discs", "cells"]
"""How numbers are drawn: strokes, vertical bars from `low` to `high`, marks, marks with error bars, a heat map."""
Cell = Value | float | int | str | bool | None


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnSeries:
    """Numbers of a picture, [P] of them: a line, steps, or marks."""

    name: str
    x: np.ndarray
    y: np.ndarray
    panel: str = ""  # title of the panel that they are in; empty for the only one
    low: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)  # ends of the intervals of `y`
    high: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)
    # [P, ...] a share for each mark: how much of a disc is filled, or how bright a cell is
    shade: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)
    look: Look = dataclasses.field(default="line", metadata=INTERNAL)
    tone: Tone = dataclasses.field(default="ink", metadata=INTERNAL)
    # what a reader sees who points at the line, or at each mark
    hover: tuple[str, ...] = dataclasses.field(default=(), metadata=INTERNAL)


def n_star_series(name: str, budgets: Sequence[Any], tone: Tone) -> DrawnSeries:
    """n* by budgets (`compute`, `group_size`, `interval95`), in a panel `n*`; with intervals where all have one."""
    x, sizes = np.array([row.compute for row in budgets]), np.array([row.group_size for row in budgets])
    ends = [row.interval95 for row in budgets if row.interval95]
    low, high = np.array(ends, float).T if ends and len(ends) == len(budgets) else (None, None)
    return DrawnSeries(name, x, sizes, "n*", low, high, look="steps", tone=tone)


class Panel(NamedTuple):
    """The axes of a panel."""

    y: str  # what is counted upwards
    sizes: Sequence[int] = ()  # what was run, where `y` is an n or a B_problem: a logarithmic axis of these
    x: str = ""  # what is counted to the right; empty for compute
    x_sizes: Sequence[int] = ()  # what was run, where that is `x`
    linear: bool = False  # whether `x` is not logarithmic
    zero: bool = False  # whether there is a line at 0
    band: tuple[float, float] | None = None  # heights between which the ground is shaded


@dataclasses.dataclass(frozen=True)
class Picture:
    """How the numbers are laid out."""

    panel: Panel | None = None  # the axes of every panel, one for each `DrawnSeries.panel`; None where `stacked`
    stacked: Mapping[str, Panel] = dataclasses.field(default_factory=dict)  # one below the other, with their own axes
    most: int = 12  # panels at most, spread evenly
    columns: int = 2
    height: float = 1.9  # inches of a panel
    shade: str = ""  # what `DrawnSeries.shade` counts, where it is brightness
    held_out_from: float | None = None  # compute from which the ground is shaded


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonResult:
    """The answer to one question, of the whole sweep or of one part of it."""

    question: str  # its key, and the name of the template that says it
    part: str = ""  # what tells this part of the sweep from its others; empty for the only one
    verdict: str | None  # the answer in a word; None where the data have none
    findings: tuple[str, ...]  # the answer in sentences
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what the sentences say of the whole
    columns: Mapping[str, str]  # key -> heading, of the columns that a page shows
    rows: tuple[Mapping[str, Any], ...]  # with more keys than a page shows
    series: tuple[DrawnSeries, ...] = ()
    picture: Picture | None = dataclasses.field(default=None, metadata=INTERNAL)
    # the words of the section: heading, what was done, what the picture shows, and its caption
    title: str = dataclasses.field(metadata=INTERNAL)
    about: str = dataclasses.field(metadata=INTERNAL)
    alt: str = dataclasses.field(default="", metadata=INTERNAL)
    how_to_read: str = dataclasses.field(default="", metadata=INTERNAL)


def common_verdict(verdicts: Iterable[str]) -> str | None:
    """The one that all have, `mixed` where they differ, None of none."""
    every = set(verdicts)
    return None if not every else every.pop() if len(every) == 1 else "mixed"
