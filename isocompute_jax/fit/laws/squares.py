"""Least squares for E + A / N^alpha + B / D^beta with E, A, B >= 0: variable projection over (alpha, beta).

Given the exponents the law is linear, and non-negative least squares give E, A and B. A grid of exponents yields the
starts; a trust region then moves the two exponents, with the exact gradient of the projected sum of squares.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import scipy.optimize

LOWEST_EXPONENT, HIGHEST_EXPONENT = 0.01, 4.0
CELLS = 20
STARTS = 4
TIGHT: dict[str, Any] = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 300}


class Found(NamedTuple):
    """`parameters` [5] (E, A, B, alpha, beta), the minimum, and whether the search converged."""

    parameters: np.ndarray
    objective: float
    converged: bool


class _LogPoints(NamedTuple):
    """Logarithms about their means (A and B are then of the size of the loss), and square roots of the weights."""

    log_n: np.ndarray
    log_d: np.ndarray
    loss: np.ndarray
    root: np.ndarray


def fit(n: np.ndarray, d: np.ndarray, loss: np.ndarray, *, weight: np.ndarray, start: Found | None) -> Found:
    """The best of several searches, or one search from `start`.

    Args:
      n: [P] parameters.
      d: [P] tokens.
      loss: [P].
      weight: [P]; 0 leaves a point out.
      start: where to begin; None for the grid.
    """
    log_n, log_d = np.log(n), np.log(d)
    centre = log_n.mean(), log_d.mean()
    points = _LogPoints(log_n - centre[0], log_d - centre[1], loss, np.sqrt(weight))
    starts = grid_starts(points) if start is None else [np.log(start.parameters[3:])]
    limits = np.log(LOWEST_EXPONENT), np.log(HIGHEST_EXPONENT)
    searches = [
        scipy.optimize.least_squares(
            lambda t: _residuals(points, t),
            np.clip(start, limits[0] + 1e-9, limits[1] - 1e-9),
            jac=cast(Any, lambda t: _jacobian(points, t)),
            bounds=limits,
            **TIGHT,
        )
        for start in starts
    ]
    best = min(searches, key=lambda s: s.cost)
    exponents = np.exp(best.x)
    levels = project(points, exponents)[0]
    scaled = levels * np.exp([0.0, exponents[0] * centre[0], exponents[1] * centre[1]])
    return Found(np.concatenate([scaled, exponents]), float(2 * best.cost), bool(best.status > 0))


def grid_starts(points: _LogPoints) -> list[np.ndarray]:
    """The lowest local minima of the projected sum of squares over a grid of ln exponents."""
    axis = np.linspace(np.log(LOWEST_EXPONENT), np.log(HIGHEST_EXPONENT), CELLS)
    errors = np.array([[np.sum(_residuals(points, np.array([s, t])) ** 2) for t in axis] for s in axis])
    padded = np.pad(errors, 1, constant_values=np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).min(axis=(2, 3))
    rows = np.argwhere(errors <= windows)
    rows = rows[np.argsort(errors[tuple(rows.T)])][:STARTS]
    return [axis[row] for row in rows]


def _columns(points: _LogPoints, exponents: np.ndarray) -> np.ndarray:
    """[P, 3] weighted columns of E, A and B."""
    powers = np.exp(-np.outer(points.log_n, [0.0, exponents[0], 0.0]) - np.outer(points.log_d, [0, 0, exponents[1]]))
    return points.root[:, None] * powers


def project(points: _LogPoints, exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Non-negative (E, A, B) [3] for given exponents, and the columns [P, 3]."""
    columns = _columns(points, exponents)
    return scipy.optimize.nnls(columns, points.root * points.loss)[0], columns


def _residuals(points: _LogPoints, log_exponents: np.ndarray) -> np.ndarray:
    levels, columns = project(points, np.exp(log_exponents))
    return columns @ levels - points.root * points.loss


def _jacobian(points: _LogPoints, log_exponents: np.ndarray) -> np.ndarray:
    """[P, 2] Kaufman's Jacobian: its product with the residuals is the exact gradient."""
    exponents = np.exp(log_exponents)
    levels, columns = project(points, exponents)
    slopes = np.stack(
        [
            -levels[1] * columns[:, 1] * points.log_n * exponents[0],
            -levels[2] * columns[:, 2] * points.log_d * exponents[1],
        ],
        axis=1,
    )
    basis = np.linalg.qr(columns[:, levels > 0])[0]
    return slopes - basis @ (basis.T @ slopes)
