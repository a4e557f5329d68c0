"""What is to be fitted, and how: the options of a fit, and curves of any lengths as one padded problem."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.curves.forms import FORMS, SYMBOLS, Form, FormName, parameter
from isocompute_jax.fit.curves.solver import CurveBatch
from isocompute_jax.options import check
from isocompute_jax.records.errors import InputError

Loss = Literal["squares", "huber"]


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """How curves are fitted. Parameters are named by symbol or name: `{"A": 0.61}` or `{"asymptote": 0.61}`."""

    form: FormName = "hill"  # of all curves
    loss: Loss = "squares"  # least squares, or Huber's loss against outliers
    # Residual from which Huber's loss is linear, as a share of the width of `reward_range` (of weighted residuals, with
    # weights)
    huber_delta: float = 0.01
    fix: Mapping[str, float] = dataclasses.field(default_factory=dict)  # parameters held at a value
    bounds: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # held between two values
    r0: float | Literal["free", "first"] = "free"  # the floor: free, each curve's first reward, or a value
    reward_range: tuple[float, float] = (0.0, 1.0)  # floor and asymptote stay in it
    window: tuple[float, float] | None = None  # least and largest compute that is fitted
    # A counts as identified when its 95% interval is no wider than +- this share of the width of `reward_range`
    tolerance: float = 0.02
    intervals: bool = True  # compute intervals too, which makes a fit about ten times dearer

    def __post_init__(self) -> None:
        check(self, "--")
        if not (math.isfinite(self.huber_delta) and self.huber_delta > 0):
            raise InputError(f"--huber_delta={self.huber_delta} must be above 0, a share of the reward range")
        if not self.tolerance > 0:
            raise InputError(f"--tolerance={self.tolerance} must be above 0, a share of the reward range")
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise InputError(f"--window={self.window[0]:g},{self.window[1]:g} must be two computes, the smaller first")
        if not self.reward_range[0] < self.reward_range[1]:
            raise InputError(f"--reward_range={self.reward_range[0]:g},{self.reward_range[1]:g} must be two numbers")
        if self.r0 != "free" and not FORMS[self.form].at_zero:
            raise InputError(f"--r0={self.r0}: the power law has no floor; leave --r0=free")
        self.limits()

    @property
    def width(self) -> float:
        """Of the range of rewards: the unit of every tolerance on rewards; 1 where the range has no end."""
        low, high = self.reward_range
        return high - low if math.isfinite(high - low) else 1.0

    def limits(self) -> dict[str, tuple[float, float]]:
        """Parameter name -> (least, most) of everything that is fixed or bounded; a fixed one has equal ends."""
        found: dict[str, tuple[float, float]] = {}
        ranges = [("bounds", name, ends) for name, ends in self.bounds.items()]
        ranges += [("fix", name, (value, value)) for name, value in self.fix.items()]
        if not isinstance(self.r0, str):
            ranges.append(("r0", "floor", (self.r0, self.r0)))
        for flag, name, (least, most) in ranges:
            own = self._own(flag, name)
            level = own in ("floor", "asymptote")
            low, high = self.reward_range if level else (np.nextafter(0.0, 1.0), math.inf)
            if not low <= least <= most <= high or most == math.inf:
                where = f"in {low:g}..{high:g}" if level else "above 0, the smaller first, both finite"
                raise InputError(f"--{flag}: {name}={least:g}{'' if least == most else f':{most:g}'} must lie {where}")
            found[own] = (float(least), float(most))
        return found

    def _own(self, flag: str, name: str) -> str:
        form = FORMS[self.form]
        try:
            own = parameter(form, name)
        except KeyError:
            symbols = [symbol for symbol, of in SYMBOLS.items() if of in form.params]
            symbols += ["exponent"] if "exponent" in form.params else []
            raise InputError(f"--{flag}: the {form.name} form has no {name}; it has {', '.join(symbols)}") from None
        if own == "scale":
            raise InputError(f"--{flag}: {name} follows from the fit; only A and B of the power law can be held")
        return own


def prepare(
    compute: Sequence[np.ndarray],
    reward: Sequence[np.ndarray],
    weight: Sequence[np.ndarray],
    *,
    options: FitOptions,
    seeds: Sequence[np.ndarray] | None = None,
) -> tuple[CurveBatch, np.ndarray, list[list[Any]]]:
    """Pads curves to one shape and sets their bounds.

    Args:
      compute: per curve [P_i], with at least one value above 0 inside the window.
      reward: per curve [P_i].
      weight: per curve [P_i], 0 for points that are not fitted; scaled here to a mean of 1.
      options: form, bounds and window.
      seeds: per curve [P_i] labels of the runs, each of which gets a level; None for one run each.

    Returns:
      The K curves, of several runs one after the other; [K, 2] compute of each one's first and last usable evaluation,
      of which the first is C_ref, the unit of its x; and per curve the labels of its runs in order.
    """
    form, count = FORMS[options.form], len(compute)
    width = padded_points(max(len(c) for c in compute))
    x, y, root_weight = np.zeros((3, count, width))
    link = np.ones((count, width))
    windows = np.array([_window(c, options) for c in compute])
    levels = np.tile(np.repeat(np.array([options.reward_range]), 2, axis=0).ravel(), (count, 1))
    boxes = np.zeros((4, count, len(form.shape)))
    labels, names = [], []
    for k, (c, r, w) in enumerate(zip(compute, reward, weight, strict=True)):
        start, end = windows[k]
        inside = w * (((c >= start) & (c <= end)) | ((c == 0) & form.at_zero))
        keep = np.flatnonzero(inside > 0)  # what does not count is dropped, so that neighbours stand side by side
        named = np.zeros(len(c), int) if seeds is None else np.asarray(seeds[k])
        name, label = np.unique(named[keep], return_inverse=True)
        order = np.argsort(label, kind="stable")
        keep, label = keep[order], label[order]
        names.append(name.tolist())
        size = len(keep)
        with np.errstate(divide="ignore"):  # ln 0 = -inf marks the base model
            x[k, :size] = np.log(c[keep] / start)
        y[k, :size] = r[keep]
        root_weight[k, :size] = np.sqrt(inside[keep] / inside[keep].mean()) if size else 0.0
        link[k, :size] = np.diff(label, prepend=-1) == 0
        labels.append(label)
        span = math.log(end / start)
        boxes[:, k] = (*form.box(span), *form.grid(span))
        if options.r0 == "first":
            levels[k, :2] = np.clip(r[0], *options.reward_range)
    _hold(options, form, levels, boxes[0], boxes[1], windows[:, 0])
    runs = _run_columns(labels, width)
    return CurveBatch(x, y, root_weight, np.zeros(count), link, runs, levels, *boxes), windows, names


def _run_columns(labels: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Returns [K, width, L]: for each run but the last of a curve 1 at its points and -1 at the last run's."""
    most = max((int(label.max(initial=0)) for label in labels), default=0)
    columns = np.zeros((len(labels), width, 1 << (most - 1).bit_length() if most else 0))
    for found, label in zip(columns, labels, strict=True):
        last = int(label.max(initial=0))
        for run in range(last):
            found[: len(label), run] = (label == run) * 1.0 - (label == last)
    return columns


def padded_points(size: int) -> int:
    """A power of two from 32 on: few widths, so few compiled programs."""
    return 1 << max(5, (size - 1).bit_length())


def _hold(
    options: FitOptions, form: Form, levels: np.ndarray, lower: np.ndarray, upper: np.ndarray, reference: np.ndarray
) -> None:
    """Writes what is fixed or bounded into the arrays of bounds."""
    for name, ends in options.limits().items():
        if name in ("floor", "asymptote"):
            place = 0 if name == "floor" else 2
            levels[:, place : place + 2] = ends
            continue
        column = [own for own, _ in form.shape].index(name)
        unit = form.shape[column][1] * np.log(reference)
        lower[:, column], upper[:, column] = (np.log(end) - unit for end in ends)


def _window(compute: np.ndarray, options: FitOptions) -> tuple[float, float]:
    """First and last compute that count."""
    low, high = options.window or (0.0, math.inf)
    usable = compute[(compute > 0) & (compute >= low) & (compute <= high)]
    return float(usable.min()), float(usable.max())
