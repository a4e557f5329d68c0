"""Curves of any lengths as one padded batch for the solver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.fit_options import FitOptions
from isocompute_jax.fit.curves.forms import FORMS, Form
from isocompute_jax.fit.curves.levels import CurveBatch


class Prepared(NamedTuple):
    """K curves ready for the solver.

    Attributes:
      problem: padded arrays.
      reference: [K] C_ref, the first compute of each window.
      windows: per curve, compute of its first and last usable evaluation.
      first: [K, Q] where the grid of starts begins.
      last: [K, Q] where it ends.
    """

    problem: CurveBatch
    reference: np.ndarray
    windows: list[tuple[float, float]]
    first: np.ndarray
    last: np.ndarray


def prepare(
    compute: Sequence[np.ndarray], reward: Sequence[np.ndarray], weight: Sequence[np.ndarray], *, options: FitOptions
) -> Prepared:
    """Pads curves to one shape and sets their bounds.

    Args:
      compute: per curve [P_i], with at least one value above 0 inside the window.
      reward: per curve [P_i].
      weight: per curve [P_i], 0 for points that are not fitted; scaled here to a mean of 1.
      options: form, bounds and window.
    """
    form, count = FORMS[options.form], len(compute)
    width = padded_points(max(len(c) for c in compute))
    x, y, root_weight = np.zeros((3, count, width))
    windows = [_window(c, options) for c in compute]
    levels = np.tile(np.repeat(np.array([options.reward_range]), 2, axis=0).ravel(), (count, 1))
    boxes = np.zeros((4, count, len(form.shape)))
    for k, (c, r, w) in enumerate(zip(compute, reward, weight, strict=True)):
        start, end = windows[k]
        inside = w * (((c >= start) & (c <= end)) | ((c == 0) & form.at_zero))
        keep = inside > 0  # points that do not count are dropped, so that neighbours in the arrays are neighbours
        size = np.count_nonzero(keep)
        with np.errstate(divide="ignore"):  # ln 0 = -inf marks the base model
            x[k, :size] = np.log(c[keep] / start)
        y[k, :size] = r[keep]
        root_weight[k, :size] = np.sqrt(inside[keep] / inside[keep].mean()) if size else 0.0
        span = math.log(end / start)
        boxes[:, k] = (*form.box(span), *form.grid(span))
        if options.r0 == "first":
            levels[k, :2] = np.clip(r[0], *options.reward_range)
    reference = np.array([window[0] for window in windows])
    _hold(options, form, levels, boxes[0], boxes[1], reference)
    problem = CurveBatch(x, y, root_weight, np.zeros(count), levels, boxes[0], boxes[1])
    return Prepared(problem, reference, windows, boxes[2], boxes[3])


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
