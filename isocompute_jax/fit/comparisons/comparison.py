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
    """A number and its 95% interval, whose ends are NaN where it has none.

    Attributes:
      value: the number.
      low: lower end.
      high: upper end.
      stderr: standard error, of a number that has that in place of an interval.
      text: what a page shows; empty for `0.412 (0.396 to 0.431)`.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    stderr: float | None = dataclasses.field(default=None, metadata=OPTIONAL)
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
    half = float(scipy.special.stdtrit(count - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(count))
    return Value(mean, mean - half, mean + half)


Cell = Value | float | int | str | bool | None


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnSeries:
    """Numbers of a picture: a line, steps, or marks.

    Attributes:
      name: what they are.
      x: [P] place.
      y: [P] height.
      panel: title of the panel that they are in; empty for the only one.
      low: [P] ends of the intervals of `y`; None without.
      high: [P].
      shade: [P, ...] a share for each mark: how much of a disc is filled, or how bright a cell is; None without.
      look: how they are drawn.
      tone: in which colour.
      hover: what a reader sees who points at the line, or at each mark.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    panel: str = ""
    low: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)
    high: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)
    shade: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)
    look: Literal["line", "dashed", "dotted", "steps", "wide steps", "dots", "rings", "bars", "discs", "cells"] = (
        dataclasses.field(default="line", metadata=INTERNAL)
    )
    tone: Tone = dataclasses.field(default="ink", metadata=INTERNAL)
    hover: tuple[str, ...] = dataclasses.field(default=(), metadata=INTERNAL)


class Panel(NamedTuple):
    """The axes of a panel.

    Attributes:
      y: what is counted upwards.
      sizes: what was run, where `y` is an n or a B_problem: a logarithmic axis of these.
      x: what is counted to the right; empty for compute.
      x_sizes: what was run, where that is `x`.
      linear: whether `x` is not logarithmic.
      zero: whether there is a line at 0.
    """

    y: str
    sizes: Sequence[int] = ()
    x: str = ""
    x_sizes: Sequence[int] = ()
    linear: bool = False
    zero: bool = False


@dataclasses.dataclass(frozen=True)
class Picture:
    """How the numbers are laid out.

    Attributes:
      alt: what the picture shows, for those who cannot see it.
      how_to_read: its caption.
      panel: the axes of every panel, one for each `DrawnSeries.panel`; None where they are `stacked`.
      stacked: panels one below the other, each with axes of its own.
      most: panels at most, spread evenly.
      columns: of panels.
      height: inches of a panel.
      shade: what `DrawnSeries.shade` counts, where it is brightness.
      held_out_from: compute from which the ground is shaded.
    """

    alt: str
    how_to_read: str
    panel: Panel | None = None
    stacked: Mapping[str, Panel] = dataclasses.field(default_factory=dict)
    most: int = 12
    columns: int = 2
    height: float = 1.9
    shade: str = ""
    held_out_from: float | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ComparisonResult:
    """The answer to one question, of the whole sweep or of one part of it.

    Attributes:
      question: its key, the name of the function that answers it.
      part: what tells this part of the sweep from its others; empty for the only one.
      verdict: the answer in a word; None where the data have none.
      findings: the answer in sentences.
      numbers: key -> `Cell`: what the sentences say of the whole.
      columns: key -> heading of the columns that a page shows.
      rows: key -> `Cell`; with more keys than a page shows.
      series: what is drawn.
      title: heading of the section.
      about: what was done, for the page.
      picture: how `series` are laid out; None without a picture.
    """

    question: str
    part: str = ""
    verdict: str | None
    findings: tuple[str, ...]
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, str]
    rows: tuple[Mapping[str, Any], ...]
    series: tuple[DrawnSeries, ...] = ()
    title: str = dataclasses.field(metadata=INTERNAL)
    about: str = dataclasses.field(metadata=INTERNAL)
    picture: Picture | None = dataclasses.field(default=None, metadata=INTERNAL)


def common_verdict(verdicts: Iterable[str]) -> str | None:
    """The one that all have, `mixed` where they differ, None of none."""
    found = set(verdicts)
    return None if not found else found.pop() if len(found) == 1 else "mixed"
