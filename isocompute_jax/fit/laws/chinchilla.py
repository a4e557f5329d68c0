"""The pre-training law L(N, D) = E + A / N^alpha + B / D^beta, and its sections of one variable, E + A / x^alpha.

Sources: Hoffmann et al. 2022 (arXiv 2203.15556, the third approach: a Huber loss of the error of ln L, with the law as
a log-sum-exp); Kaplan et al. 2020 (arXiv 2001.08361) fitted the sections, to which Henighan et al. 2020 (arXiv
2010.14701) added E. Both are one search, by SciPy's least squares from the best cells of a grid. Intervals are 95%
percentiles of fits to the law with its own residuals drawn anew around it, as uncertain as their number leaves them;
every point counts as independent, which those of the lowest losses, picked because they are low, are not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize

from isocompute_jax.fit.laws.model_size import PERCENTILES, Estimate, estimate

FLOPS_PER_PARAMETER_TOKEN = 6.0
"""C = 6 N D: forward and backward pass of training."""
LEVELS, POWERS = ("A", "B"), ("alpha", "beta")
DELTA = 1e-3
"""Errors of ln L beyond this count linearly (arXiv 2203.15556, section D.2)."""
LOWEST_EXPONENT, HIGHEST_EXPONENT, FLAT = 0.01, 4.0, 30.0
"""Bounds of the search, in which E and each term may fall to exp(-30) of the losses."""
STARTS, SHARES, EXPONENTS = 10, (0.02, 0.3, 0.6, 0.85, 0.97), np.geomspace(0.05, 2.0, 6)
"""Starts: E as a share of the lowest loss; the terms share the rest at the mean of ln N and ln D."""
VANISHING, SAME, FEWEST_LEVELS = 1e-4, 0.02, 3
"""A term below this share of the smallest loss counts as absent; values that differ by less than that share are one
(steps round tokens differently); so many values determine a term."""


@dataclasses.dataclass(frozen=True, eq=False)
class PowerLaw:
    """L = E + the sum over T terms of A_t / x_t^alpha_t, as fitted to P points."""

    x: np.ndarray  # [T, P]
    loss: np.ndarray  # [P]
    parameters: np.ndarray  # [1 + 2 T] E, the levels A, the exponents alpha
    draws: np.ndarray  # [R, 1 + 2 T]
    notes: dict[str, str]  # parameter -> why it is not identified

    def estimates(self) -> dict[str, Estimate]:
        """Returns each parameter by its symbol, and of two terms the `exponent` of the optimal N in C."""
        names = ("E", *LEVELS[: len(self.x)], *POWERS[: len(self.x)])
        columns = zip(names, self.parameters, self.draws.T, strict=True)
        found = {name: estimate(value, drawn, self.notes.get(name, "")) for name, value, drawn in columns}
        if len(self.x) == 2:
            value, drawn = (rows[..., 4] / rows[..., 3:].sum(axis=-1) for rows in (self.parameters, self.draws))
            found["exponent"] = estimate(value, drawn, found["alpha"].note or found["beta"].note)
        return found


def predict(parameters: np.ndarray, *x: np.ndarray | float) -> np.ndarray:
    """Returns L by parameters [..., 1 + 2 T] at T values x, broadcast against the leading dimensions."""
    columns = np.moveaxis(np.asarray(parameters, np.float64), -1, 0)
    terms = zip(columns[1 : 1 + len(x)], columns[1 + len(x) :], x, strict=True)
    return columns[0] + sum(level / np.asarray(at, np.float64) ** power for level, power, at in terms)


def fit_power_law(*x: np.ndarray, loss: np.ndarray, resamples: int, seed: int) -> PowerLaw:
    """Fits one term for each x [P] to losses [P], all above 0; there are as many as parameters, or more for intervals.

    Intervals come from so many `resamples`, drawn by `seed`; there are none without.
    """
    columns, rng, terms = np.array(x, np.float64), np.random.default_rng(seed), len(x)
    centre = np.log(columns).mean(axis=1)
    log_x = np.log(columns) - centre[:, None]  # the levels are then of the size of the loss

    def levels(theta: np.ndarray) -> np.ndarray:  # [..., 1 + 2 T] their logarithms become levels of x itself
        raised = theta[..., 1 : 1 + terms] + theta[..., 1 + terms :] * centre
        return np.concatenate([np.exp(theta[..., :1]), np.exp(raised), theta[..., 1 + terms :]], axis=-1)

    theta = _search(log_x, np.log(loss), None)
    parameters, freedom = levels(theta), len(loss) - len(theta)
    fitted, count = np.log(predict(parameters, *columns)), resamples if freedom > 0 else 0
    scale = np.sqrt(len(loss) / rng.chisquare(max(freedom, 1), (count, 1)))
    drawn = fitted + scale * rng.choice(np.log(loss) - fitted, (count, len(loss)))
    draws = levels(np.array([_search(log_x, row, theta) for row in drawn]).reshape(-1, len(theta)))
    notes = _vanished(columns, draws if count else parameters[None], float(np.min(loss)))
    notes |= _design(columns) if terms == 2 else {}
    return PowerLaw(columns, loss, parameters, draws, notes)


def _search(log_x: np.ndarray, log_loss: np.ndarray, start: np.ndarray | None) -> np.ndarray:
    """Returns [1 + 2 T] ln E, ln A and exponents of least Huber loss, by a grid of starts or, roughly, by one."""
    terms, padded = len(log_x), np.vstack([np.zeros_like(log_loss), log_x])

    def parts(theta: np.ndarray) -> np.ndarray:  # [1 + T, P] logarithms of E and of the terms
        return theta[: 1 + terms, None] - np.append(0.0, theta[1 + terms :])[:, None] * padded

    def residuals(theta: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(parts(theta)) - log_loss

    def jacobian(theta: np.ndarray) -> np.ndarray:
        share = np.exp(parts(theta) - np.logaddexp.reduce(parts(theta)))
        return np.vstack([share, -share[1:] * log_x]).T

    low = np.array([log_loss.min() - FLAT] * (1 + terms) + [LOWEST_EXPONENT] * terms)
    high = np.array([log_loss.max()] + [log_loss.max() + FLAT] * terms + [HIGHEST_EXPONENT] * terms)
    least, middle = np.exp(log_loss.min()), np.exp(np.median(log_loss))
    starts, digits = [start] if start is not None else [], 1e-9
    if not starts:
        grid = [
            np.array([np.log(share * least), *[np.log((middle - share * least) / terms)] * terms, *powers])
            for share, *powers in itertools.product(SHARES, *[EXPONENTS] * terms)
        ]
        starts, digits = sorted(grid, key=lambda theta: np.abs(residuals(theta)).sum())[:STARTS], 1e-15
    huber: Any = {"jac": jacobian, "bounds": (low, high), "x_scale": "jac", "loss": "huber", "f_scale": DELTA}
    tight: Any = dict.fromkeys(("xtol", "ftol", "gtol"), digits) | {"max_nfev": 1000 if start is None else 100}
    inside = [np.clip(theta, low + 1e-9, high - 1e-9) for theta in starts]
    found = [scipy.optimize.least_squares(residuals, theta, **huber, **tight) for theta in inside]
    return min(found, key=lambda search: search.cost).x


def _design(x: np.ndarray) -> dict[str, str]:
    """Returns parameter -> why no losses at these values [T, P] could identify it."""
    notes = {}
    for what, values, level, power in zip(("model sizes", "token counts"), x, LEVELS, POWERS, strict=True):
        if (count := distinct(values)) < FEWEST_LEVELS:
            notes |= dict.fromkeys((level, power, "E"), f"too few {what} ({count}; {FEWEST_LEVELS} are needed)")
    if not notes and np.ptp(np.log(x[1] / x[0])) < 0.05:
        why = "N and D are collinear: with one ratio of tokens to parameters their terms cannot be told apart"
        notes |= dict.fromkeys((*LEVELS, *POWERS), why)
    return notes


def _vanished(x: np.ndarray, draws: np.ndarray, lowest: float) -> dict[str, str]:
    """Returns parameter -> why the losses do not identify it; a term that vanishes takes its exponent with it."""
    notes = {"E": "E is not told from 0"} if np.percentile(draws[:, 0], 2.5) <= VANISHING * lowest else {}
    for term, (values, level, name) in enumerate(zip(x, LEVELS, POWERS, strict=False)):
        power = draws[:, 1 + len(x) + term]
        largest = np.percentile(draws[:, 1 + term] / values.min() ** power, 2.5)
        low, high = np.percentile(power, PERCENTILES)
        if largest <= VANISHING * lowest:
            notes |= dict.fromkeys((level, name), f"the term of {level} is not told from 0")
        elif low <= LOWEST_EXPONENT * 1.01 or high >= HIGHEST_EXPONENT * 0.99:
            notes |= dict.fromkeys((level, name), f"{name} reaches the end of its range")
    return notes


def distinct(x: np.ndarray) -> int:
    """Counts the values that differ by more than `SAME`."""
    return int(len(x) > 0) + int(np.count_nonzero(np.diff(np.log(np.sort(x))) > SAME))


def compute_optimal(parameters: np.ndarray, flops: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Returns N*(C) and D*(C) of least loss at C = 6 N D (arXiv 2203.15556, equation 4), by parameters [..., 5].

    N* = G (C/6)^a and D* = (C/6)^(1-a) / G, with G = (alpha A / (beta B))^(1/(alpha+beta)) and a = beta/(alpha+beta).
    """
    _, a, b, alpha, beta = np.moveaxis(np.asarray(parameters, np.float64), -1, 0)
    product = np.asarray(flops, np.float64) / FLOPS_PER_PARAMETER_TOKEN
    optimal = (alpha * a / (beta * b)) ** (1.0 / (alpha + beta)) * product ** (beta / (alpha + beta))
    return optimal, product / optimal


def optima(law: PowerLaw, budgets: Sequence[float]) -> list[dict[str, Any]]:
    """Returns the allocation of each C: `flops`, `model_params`, `tokens`, `loss`; none if it is not identified."""
    rows = []
    for flops in budgets if law.estimates()["exponent"].identified else ():
        best, drawn = (compute_optimal(parameters, flops) for parameters in (law.parameters, law.draws))
        n, d = (estimate(float(value), draws) for value, draws in zip(best, drawn, strict=True))
        loss = estimate(float(predict(law.parameters, *best)), predict(law.draws, *drawn))
        rows.append({"flops": flops, "model_params": n, "tokens": d, "loss": loss})
    return rows


def section(law: PowerLaw, variable: str, resamples: int, seed: int) -> dict[str, Any] | None:
    """Fits the law of one variable, beside the exponent that the law of two terms expects; None below four values.

    `N` is fitted at the largest D of each N, `D` at the largest N, `C` to the losses that no lower C undercuts.
    """
    (n, d), loss = law.x, law.loss
    x = {"N": n, "D": d, "C": FLOPS_PER_PARAMETER_TOKEN * n * d}[variable]
    rows = np.flatnonzero(n == n.max())
    if variable == "N":
        rows = np.flatnonzero(d >= np.array([d[n == size].max() for size in n]) * (1 - SAME))
    elif variable == "C":
        order = np.argsort(x, kind="stable")
        budget = np.append(0, np.cumsum(np.diff(np.log(x[order])) > SAME))
        order = order[np.lexsort((loss[order], budget))]
        rows = order[loss[order] < np.minimum.accumulate(np.append(np.inf, loss[order]))[:-1]]
    if distinct(x[rows]) < 4:
        return None
    fit = fit_power_law(x[rows], loss=loss[rows], resamples=resamples, seed=seed).estimates()
    alpha, beta = (math.nan if name in law.notes else law.parameters[3 + i] for i, name in enumerate(POWERS))
    expected = {"N": alpha, "D": beta, "C": alpha * beta / (alpha + beta)}[variable]
    return {
        "variable": variable,
        "points": len(rows),
        "alpha": fit["alpha"],
        "E": fit["E"],
        "expected": float(expected),
    }
