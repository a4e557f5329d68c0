"""What a fit says of a curve: parameters with errors, which of them the data identify, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves import uncertainty
from isocompute_jax.fit.curves.fit_options import FitOptions, Prepared
from isocompute_jax.fit.curves.forms import FORMS, Form
from isocompute_jax.fit.curves.solver import CurveBatch, RisingFit
from isocompute_jax.fit.results import CurveFit, Search, Status

FLAT = 1e-12
"""A curve that rises by less than this share of the width of the range of rewards is flat."""

REACH = 2.0
"""Data that end before so many midpoints do not show the asymptote."""


def describe(
    prepared: Prepared,
    problem: CurveBatch,
    found: RisingFit,
    options: FitOptions,
    *,
    noise: uncertainty.Noise | None,
    interval: uncertainty.Interval | None,
) -> list[CurveFit]:
    """The records of a batch of K curves; without `noise` nothing is said about uncertainty."""
    at, (lower, upper) = uncertainty.coordinates(found), uncertainty.box(problem)
    rows = range(len(at))
    return [
        Description(prepared, problem, found, options, k, at[k], lower[k], upper[k]).fit(noise, interval) for k in rows
    ]


class Description(NamedTuple):
    """Turns one row of a batch into a `CurveFit`; `at`, `lower` and `upper` are that row's coordinates and bounds."""

    prepared: Prepared
    problem: CurveBatch
    found: RisingFit
    options: FitOptions
    row: int
    at: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @property
    def _flat(self) -> float:
        """Rise of a flat curve."""
        return FLAT * self.options.width

    @property
    def form(self) -> Form:
        """The form of every curve."""
        return FORMS[self.options.form]

    def fit(self, noise: uncertainty.Noise | None, interval: uncertainty.Interval | None) -> CurveFit:
        """The record."""
        k, found = self.row, self.found
        at, lower, upper = self.at, self.lower, self.upper
        params = self.form.values(at[0], at[1], at[2:], self.prepared.reference[k])
        free = lower < upper
        hit = tuple(n for n, bad in zip(self.form.params, free & ((at <= lower) | (at >= upper)), strict=True) if bad)
        weight = np.asarray(self.problem.root_weight)[k] ** 2
        y = np.asarray(self.problem.y)[k]
        points, sse = int(np.count_nonzero(weight)), float(found.sse[k])
        total = float(np.sum(weight * (y - np.sum(weight * y) / np.sum(weight)) ** 2))
        freedom = points - int(np.count_nonzero(free))
        aicc, bic = _criteria(points, sse / self.options.width**2, points - freedom + 1)
        stderr, ends, covariance = self._uncertainty(params, noise, interval)
        reasons, identified = self._identified(params, ends, freedom) if interval else ([], {})
        reasons = self._doubts(params, hit, points, bool(found.converged[k])) + reasons
        status: Status = "warning" if reasons else "ok"
        return CurveFit(
            form=self.form.name,
            params=params,
            stderr=stderr,
            interval95=ends,
            identified=identified,
            at_bound=hit,
            window=self.prepared.windows[k],
            num_points=points,
            sse=sse,
            r2=1.0 - sse / total if total > 0 else float("nan"),
            aicc=aicc,
            bic=bic,
            condition=float(noise.condition[k]) if noise else float("nan"),
            noise=math.sqrt(sse / freedom) if freedom > 0 else float("nan"),
            correlation=float(noise.correlation[k]) if noise else float("nan"),
            status=status,
            message="; ".join(reasons),
            search=Search(
                at, covariance, float(self.prepared.reference[k]), noise=noise.of_curve(k) if noise else None
            ),
        )

    def _uncertainty(
        self, params: Mapping[str, float], noise: uncertainty.Noise | None, interval: uncertainty.Interval | None
    ) -> tuple[dict[str, float], dict[str, tuple[float, float]], np.ndarray]:
        """Standard errors and intervals in the parameters' own units, and the covariance of the coordinates."""
        k, size = self.row, len(params)
        if noise is None or interval is None:
            return {}, {}, np.full((size, size), np.nan)
        reference = float(self.prepared.reference[k])
        covariance = noise.covariance[k] if noise.freedom[k] >= 1 else np.full((size, size), np.nan)
        stderr, ends = {}, {}
        for i, name in enumerate(self.form.params):
            error = math.sqrt(max(float(covariance[i, i]), 0.0)) if not np.isnan(covariance[i, i]) else float("nan")
            low, high = float(interval.lower[k, i]), float(interval.upper[k, i])
            if i >= 2:
                unit = reference ** self.form.shape[i - 2][1]
                error, low, high = error * params[name], math.exp(low) * unit, math.exp(high) * unit
            elif name == "scale":
                error, low, high = self._scale(params, covariance, int(noise.freedom[k]))
            stderr[name], ends[name] = error, (low, high)
        return stderr, ends, covariance

    def _scale(self, params: Mapping[str, float], covariance: np.ndarray, freedom: int) -> tuple[float, float, float]:
        """D = (high - low) C_ref^B mixes coordinates: standard error and interval of ln D by the delta method."""
        k = self.row
        gain = float(self.found.high[k] - self.found.low[k])
        if gain <= self._flat or freedom < 1:
            return float("nan"), float("nan"), float("nan")
        slope = np.array([-1 / gain, 1 / gain, params["exponent"] * math.log(self.prepared.reference[k])])
        error = math.sqrt(max(float(slope @ covariance @ slope), 0.0))
        reach = uncertainty.critical(freedom) * error
        with np.errstate(over="ignore"):  # next to nothing is known of an exponent that hardly matters
            factor = float(np.exp(reach))
        return params["scale"] * error, params["scale"] / factor, params["scale"] * factor

    def _identified(
        self, params: Mapping[str, float], ends: Mapping[str, tuple[float, float]], freedom: int
    ) -> tuple[list[str], dict[str, bool]]:
        """Which parameters the data pin down, and why A is not identified."""
        held = {name for name, (least, most) in self.options.limits().items() if least == most}
        held |= {"floor"} if self.options.r0 == "first" else set()
        unit = self.prepared.reference[self.row]
        identified = {}
        for i, name in enumerate(self.form.params):
            low, high = ends[name]
            least, most = self.lower[i], self.upper[i]
            if i >= 2:
                least, most = (math.exp(end) * unit ** self.form.shape[i - 2][1] for end in (least, most))
            inside = name == "scale" or (low > least + 1e-9 * abs(least) and high < most - 1e-9 * abs(most))
            zero_floor = name == "floor" and low == least  # a floor of 0 is what a base model without skill has
            identified[name] = name in held or bool(freedom >= 1 and low <= high and (inside or zero_floor))
        if params["asymptote"] - params.get("floor", 0.0) <= self._flat and self.form.at_zero:
            identified |= {name: name in held for name, _ in self.form.shape}
        if "asymptote" in held:
            return [], identified
        reasons = self._asymptote(params, *ends["asymptote"], (self.lower[1], self.upper[1]), freedom)
        identified["asymptote"] = not reasons
        return ([f"A is not identified: {' and '.join(reasons)}"] if reasons else []), identified

    def _asymptote(
        self, params: Mapping[str, float], low: float, high: float, bounds: tuple[float, float], freedom: int
    ) -> list[str]:
        """Why the data do not say where the curve levels off; empty when they do."""
        reasons = []
        if freedom < 1:
            return ["there are no more points than parameters"]
        midpoint, end = self.form.midpoint(params), self._last_compute()
        tolerance = self.options.tolerance * self.options.width
        if end < REACH * midpoint:
            reasons.append(f"the data end at {end:.3g}, before twice C_mid")
        if low <= bounds[0] or high >= bounds[1]:
            reasons.append(f"its 95% interval, {low:.3g} to {high:.3g}, reaches a bound")
        elif high - low > 2 * tolerance:
            reasons.append(f"its 95% interval, {low:.3g} to {high:.3g}, is wider than ±{tolerance:g}")
        return reasons

    def _last_compute(self) -> float:
        """Compute of the last point that was fitted; the window may extend beyond it."""
        fitted = np.asarray(self.problem.root_weight[self.row]) > 0
        return float(self.prepared.reference[self.row] * np.exp(np.max(np.asarray(self.problem.x[self.row])[fitted])))

    def _doubts(self, params: Mapping[str, float], hit: tuple[str, ...], points: int, converged: bool) -> list[str]:
        """What is wrong with the fit itself."""
        reasons = []
        count = len(params)
        if points <= count:
            reasons.append(f"{points} points for {count} parameters: an interpolation, not a measurement")
        if self.found.high[self.row] - self.found.low[self.row] <= self._flat:
            names = " and ".join(name for name, _ in self.form.shape)
            reasons.append(f"the curve is flat: {names} mean{'s' if ' and ' not in names else ''} nothing")
        else:
            reasons += [f"{name} is at its bound" for name in hit if name not in ("floor", "asymptote", "scale")]
        if not converged:
            reasons.append("the search stopped before it converged")
        return reasons


def _criteria(points: int, sse: float, parameters: int) -> tuple[float, float]:
    """AICc (Hurvich and Tsai 1989) and BIC of Gaussian residuals; `parameters` includes the noise. NaN when too few.

    `sse` is in squared widths of the range of rewards, so that the criteria do not depend on the unit of the rewards.
    """
    if points <= parameters + 1:
        return float("nan"), float("nan")
    fit = points * math.log(max(sse / points, uncertainty.NO_NOISE**2))
    correction = 2.0 * parameters * (parameters + 1) / (points - parameters - 1)
    return fit + 2.0 * parameters + correction, fit + parameters * math.log(points)
