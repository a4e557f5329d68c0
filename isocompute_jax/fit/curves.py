"""From evaluations to monotone curves: record-breaking points, and Hill curves fitted to all configurations at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax.fit.results import CurveFit, Status
from isocompute_jax.fit.solver import fit_rising

Records = Literal["strict", "bucketed", "off"]

EDGE_TOLERANCE = 1e-9
"""A reward this close below a bin's edge belongs above it: 0.3 / 0.1 floors to 2 in binary."""

STEEPNESS_RANGE = (0.1, 10.0)
MIDPOINT_MARGIN = 100.0
"""The midpoint is searched from the first evaluation / margin to the last evaluation x margin."""

NUM_PARAMETERS = 4
_SHAPE_BLOCK = 16  # points and curves are padded to multiples of this, so that one compiled program serves many fits
_START_MIDPOINTS = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.25])  # in units of the observed range of ln C
_START_STEEPNESS = np.array([0.4, 1.0, 2.5])


def record_breaking(reward: np.ndarray, *, records: Records, bin_width: float) -> np.ndarray:
    """[P] bool: the points of a run that count (REFERENCE section 4, stage 1).

    A point counts when its reward exceeds every earlier one (`strict`), or when its bin of width `bin_width` lies above
    every earlier bin (`bucketed`; width 0 is `strict`); `off` keeps all points.

    Args:
      reward: [P] in order of compute.
      records: which rule.
      bin_width: width of a bin, in units of reward.
    """
    reward = np.asarray(reward, dtype=np.float64)
    if records == "off" or reward.size == 0:
        return np.ones(reward.shape, dtype=bool)
    level = reward
    if records == "bucketed" and bin_width > 0:
        level = np.floor((reward + EDGE_TOLERANCE) / bin_width)
    highest_before = np.concatenate([[-np.inf], np.maximum.accumulate(level)[:-1]])
    return level > highest_before


def hill_share(theta: jax.Array, log_compute: jax.Array) -> jax.Array:
    """1 / (1 + (C_mid / C)^B) with theta = (ln C_mid, ln B) and log_compute [P] = ln C; 0 where C = 0 (ln C = -inf)."""
    trained = jnp.isfinite(log_compute)
    distance = jnp.where(trained, log_compute, 0.0) - theta[0]
    return jnp.where(trained, jax.nn.sigmoid(jnp.exp(theta[1]) * distance), 0.0)


def fit_curves(
    compute: Sequence[np.ndarray], reward: Sequence[np.ndarray], *, use: Sequence[np.ndarray] | None = None
) -> list[CurveFit]:
    """Fits the Hill curve R_C = R0 + (A - R0) / (1 + (C_mid / C)^B) to every configuration, all in one batch.

    Least squares with 0 <= R0 <= A <= 1, B in `STEEPNESS_RANGE`, and C_mid within `MIDPOINT_MARGIN` of the data. A
    point at compute 0 (the base model) is a measurement of R0, which is what the law gives there. Fewer points than
    parameters still give a curve to interpolate with, and a warning.

    Args:
      compute: per curve [P_i] rollouts, >= 0.
      reward: per curve [P_i] in [0, 1].
      use: per curve [P_i] bool, the points to fit (e.g. record-breaking ones); the window spans all points. None: all.
    """
    computes = [np.asarray(c, np.float64) for c in compute]
    rewards = [np.asarray(r, np.float64) for r in reward]
    masks = [np.ones(len(c), bool) for c in computes] if use is None else [np.asarray(u, bool) for u in use]
    fits = [_failed("no evaluation after the base model's")] * len(computes)
    usable = [i for i, c in enumerate(computes) if np.any(masks[i] & (c > 0))]
    if not usable:
        return fits
    windows = [_window(computes[i]) for i in usable]
    x, y, weight = _pad(*([values[i] for i in usable] for values in (computes, rewards, masks)))
    starts, lower, upper = _search_box(windows, rows=len(x))
    found = fit_rising(x, y, weight, share=hill_share, starts=starts, lower=lower, upper=upper, limits=(0.0, 1.0))
    at_bound = (found.theta <= lower) | (found.theta >= upper)
    for row, i in enumerate(usable):
        fits[i] = _describe(
            rewards[i][masks[i]],
            window=windows[row],
            levels=(float(found.low[row]), float(found.high[row])),
            shape=np.exp(found.theta[row]),
            sse=float(found.sse[row]),
            at_bound=at_bound[row],
            converged=bool(found.converged[row]),
        )
    return fits


def _window(compute: np.ndarray) -> tuple[float, float]:
    trained = compute[compute > 0]
    return float(trained.min()), float(trained.max())


def _pad(
    compute: Sequence[np.ndarray], reward: Sequence[np.ndarray], use: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[K', P'] ln C, reward and weight, with K' and P' rounded up to whole blocks and weight 0 on the padding."""
    rows = _round_up(len(compute))
    columns = _round_up(max(len(c) for c in compute))
    x, y, weight = np.zeros((3, rows, columns))
    for row, (c, r, u) in enumerate(zip(compute, reward, use, strict=True)):
        with np.errstate(divide="ignore"):  # ln 0 = -inf marks the base model
            x[row, : len(c)] = np.log(c)
        y[row, : len(c)] = r
        weight[row, : len(c)] = u
    return x, y, weight


def _round_up(size: int) -> int:
    return -(-size // _SHAPE_BLOCK) * _SHAPE_BLOCK


def _search_box(windows: Sequence[tuple[float, float]], *, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts [rows, S, 2] and bounds [rows, 2] for (ln C_mid, ln B); padded rows repeat the first curve's."""
    padded = list(windows) + [windows[0]] * (rows - len(windows))
    low, high = np.log(np.asarray(padded)).T
    margin = np.log(MIDPOINT_MARGIN)
    midpoints = low[:, None] + np.maximum(high - low, 1.0)[:, None] * _START_MIDPOINTS
    steepness = np.log(_START_STEEPNESS)
    starts = np.stack(np.broadcast_arrays(midpoints[:, :, None], steepness), axis=-1).reshape(rows, -1, 2)
    lower = np.stack([low - margin, np.full(rows, np.log(STEEPNESS_RANGE[0]))], axis=-1)
    upper = np.stack([high + margin, np.full(rows, np.log(STEEPNESS_RANGE[1]))], axis=-1)
    return starts, lower, upper


def _failed(message: str) -> CurveFit:
    nan = float("nan")
    return CurveFit(nan, nan, nan, nan, (nan, nan), 0, nan, nan, "failed", message)


def _describe(
    values: np.ndarray,
    *,
    window: tuple[float, float],
    levels: tuple[float, float],
    shape: np.ndarray,
    sse: float,
    at_bound: np.ndarray,
    converged: bool,
) -> CurveFit:
    """The record of one fit, with what a reader must know before believing its parameters."""
    floor, asymptote = levels
    midpoint, steepness = float(shape[0]), float(shape[1])
    reasons = []
    if len(values) <= NUM_PARAMETERS:
        reasons.append(f"{len(values)} points for {NUM_PARAMETERS} parameters: an interpolation, not a measurement")
    if asymptote - floor <= 1e-12:
        reasons.append("the curve is flat: midpoint and steepness mean nothing")
    else:
        reasons += [
            f"{name} is at its bound" for name, hit in zip(("midpoint", "steepness"), at_bound, strict=True) if hit
        ]
        if window[1] < 2 * midpoint:
            reasons.append("the data end before twice the midpoint: the asymptote is an extrapolation")
    if not converged:
        reasons.append("the search stopped before it converged")
    about_mean = float(np.sum((values - values.mean()) ** 2))
    status: Status = "warning" if reasons else "ok"
    return CurveFit(
        floor=floor,
        asymptote=asymptote,
        midpoint=midpoint,
        steepness=steepness,
        window=window,
        num_points=len(values),
        sse=sse,
        r2=1.0 - sse / about_mean if about_mean > 0 else float("nan"),
        status=status,
        message="; ".join(reasons),
    )
