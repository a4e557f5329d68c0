"""The pre-training law L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv 2203.15556).

Two ways to fit it: `squares` minimises the squared error of the loss; `huber` minimises what the paper's third approach
does, a Huber loss (delta 1e-3) of the error of ln L with the law as a log-sum-exp, from many starts. The paper searches
by L-BFGS, which stalls in the law's long valley (A and alpha trade against each other); here damped Newton steps with
exact second derivatives go to the minimum.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from isocompute_jax.fit.intervals import PERCENTILES, holding
from isocompute_jax.fit.laws import huber, squares
from isocompute_jax.fit.laws.chinchilla_results import ChinchillaFit
from isocompute_jax.fit.laws.results import Estimate

Method = Literal["squares", "huber"]

FLOPS_PER_PARAMETER_TOKEN = 6.0
"""C = 6 N D: forward and backward pass of training."""
SAME_RATIO = 0.05
"""Tokens per parameter that differ by less than this share are one ratio."""
FEWEST_LEVELS = 3
NUM_PARAMETERS = 5
FIELDS = ("e", "a", "b", "alpha", "beta", "exponent")
NAMES = ("E", "A", "B", "alpha", "beta", "exponent")
VANISHING = 1e-4
"""A term below this share of the smallest loss counts as 0."""


def fit_chinchilla(
    model_params: np.ndarray,
    tokens: np.ndarray,
    loss: np.ndarray,
    *,
    method: Method,
    group: np.ndarray | None,
    resamples: int,
    seed: int,
) -> ChinchillaFit:
    """Fits the five parameters; intervals are 95% percentiles of a bootstrap.

    Args:
      model_params: [P] parameters N.
      tokens: [P] training tokens D; points with D = 0 are left out.
      loss: [P]; points with a loss of 0 or less are left out.
      method: what is minimised.
      group: [P] what the bootstrap draws together (runs), in any numbers; None to draw points.
      resamples: bootstrap repetitions; 0 for no intervals.
      seed: of the bootstrap.
    """
    n, d, y = (np.asarray(a, np.float64) for a in (model_params, tokens, loss))
    finite = np.isfinite(n) & np.isfinite(d) & np.isfinite(y)
    keep = finite & (n > 0) & (d > 0) & (y > 0)
    left_out = _left_out(finite, keep)
    n, d, y = n[keep], d[keep], y[keep]
    group = np.arange(len(n)) if group is None else np.asarray(group)[keep]
    if len(n) < NUM_PARAMETERS:
        return _failed(method, len(n), left_out, f"{len(n)} usable points for {NUM_PARAMETERS} parameters")
    solver = squares if method == "squares" else huber
    found = solver.fit(n, d, y, weight=np.ones_like(y), start=None)
    replicates = _bootstrap(solver, (n, d, y), group, found, resamples, seed)
    doubts = design_doubts(n, d)
    estimates = _estimates(found, replicates, y, doubts, (n, d), resamples=resamples)
    messages = list(dict.fromkeys([*doubts.values(), *(e.note for e in estimates.values() if e.note)]))
    if not found.converged:
        messages.append("the search did not converge")
    if len(n) == NUM_PARAMETERS:
        messages.append("as many parameters as points")
    e, a, b, alpha, beta = found.parameters
    predicted = e + a / n**alpha + b / d**beta
    return ChinchillaFit(
        method=method,
        **estimates,
        num_points=len(n),
        objective=found.objective,
        r2=_r2(predicted, y, method),
        status="warning" if messages else "ok",
        message="; ".join(messages),
        predicted=predicted,
        replicates=replicates,
        left_out=left_out,
    )


def compute_optimal(parameters: np.ndarray, flops: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """N*(C) and D*(C) that minimise the loss at C = 6 N D (arXiv 2203.15556, equation 4).

    N* = G (C/6)^a and D* = (C/6)^(1-a) / G, with G = (alpha A / (beta B))^(1/(alpha+beta)) and a = beta/(alpha+beta).

    Args:
      parameters: [..., 5] (E, A, B, alpha, beta).
      flops: [...] C, broadcast against the leading dimensions.
    """
    _, a, b, alpha, beta = np.moveaxis(np.asarray(parameters, np.float64), -1, 0)
    product = np.asarray(flops, np.float64) / FLOPS_PER_PARAMETER_TOKEN
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = (alpha * a / (beta * b)) ** (1.0 / (alpha + beta))
        optimal = scale * product ** (beta / (alpha + beta))
        return optimal, product / optimal


def parameters_of(fit: ChinchillaFit) -> np.ndarray:
    """[5] (E, A, B, alpha, beta)."""
    return np.array([fit.e.value, fit.a.value, fit.b.value, fit.alpha.value, fit.beta.value])


def _left_out(finite: np.ndarray, keep: np.ndarray) -> tuple[str, ...]:
    reasons = {"no finite N, D and loss": ~finite, "N, D or loss is not above 0": finite & ~keep}
    return tuple(f"{np.count_nonzero(m)} points left out: {why}" for why, m in reasons.items() if m.any())


def design_doubts(n: np.ndarray, d: np.ndarray) -> dict[str, str]:
    """Parameter -> why the design of the experiment cannot identify it, whatever the losses."""
    doubts: dict[str, str] = {}
    for what, values, affected in (("model sizes", n, ("A", "alpha")), ("token counts", d, ("B", "beta"))):
        count = len(np.unique(values))
        if count < FEWEST_LEVELS:
            why = f"too few {what} ({count}; {FEWEST_LEVELS} are needed)"
            doubts |= dict.fromkeys((*affected, "E", "exponent"), why)
    if not doubts and np.ptp(np.log(d / n)) < SAME_RATIO:
        why = "N and D are collinear: only one ratio of tokens to parameters, so their terms cannot be told apart"
        doubts |= dict.fromkeys(("A", "B", "alpha", "beta", "exponent"), why)
    return doubts


def _bootstrap(solver, data, group: np.ndarray, found, resamples: int, seed: int) -> np.ndarray:
    """[R, 5] fits to resampled groups, each started at the fit; draws without three levels of N and D are left out."""
    rng = np.random.default_rng(seed)
    names, member = np.unique(group, return_inverse=True)
    rows = []
    for _ in range(resamples):
        weight = rng.multinomial(len(names), np.full(len(names), 1 / len(names)))[member].astype(float)
        drawn = weight > 0
        if min(len(np.unique(a[drawn])) for a in data[:2]) < FEWEST_LEVELS or drawn.sum() < NUM_PARAMETERS:
            continue
        rows.append(solver.fit(*data, weight=weight, start=found).parameters)
    return np.array(rows).reshape(-1, NUM_PARAMETERS)


def _estimates(found, replicates: np.ndarray, loss: np.ndarray, doubts, data, *, resamples: int) -> dict[str, Estimate]:
    """The fields e, a, b, alpha, beta and exponent."""
    why, known = "", len(replicates) > 0
    if resamples and len(replicates) < resamples / 2:
        why, known = "no interval: most resamples lack three model sizes or three token counts", False
    values = _with_exponent(found.parameters[None])[0]
    draws = _with_exponent(replicates if known else found.parameters[None])
    bounds = np.percentile(draws, PERCENTILES, axis=0).T
    notes = dict.fromkeys(NAMES, why) | _limits(draws, bounds, loss.min(), data) | doubts
    if not known:
        bounds = np.full_like(bounds, np.nan)
    return {
        field: Estimate(float(value), *holding(low, high, value), not notes[name], notes[name])
        for field, name, value, (low, high) in zip(FIELDS, NAMES, values, bounds, strict=True)
    }


def _with_exponent(parameters: np.ndarray) -> np.ndarray:
    """[R, 6] the five parameters and a = beta / (alpha + beta)."""
    alpha, beta = parameters[:, 3], parameters[:, 4]
    return np.column_stack([parameters, beta / (alpha + beta)])


def _limits(draws: np.ndarray, bounds: np.ndarray, lowest_loss: float, data) -> dict[str, str]:
    """Parameter -> the limit that its interval reaches. A term that vanishes takes its exponent with it."""
    notes: dict[str, str] = {}
    if bounds[0, 0] <= VANISHING * lowest_loss:
        notes["E"] = "E is not told from 0"
    for number, values in ((1, data[0]), (2, data[1])):
        name, exponent = NAMES[number], NAMES[number + 2]
        largest = np.percentile(draws[:, number] / values.min() ** draws[:, number + 2], PERCENTILES[0])
        low, high = bounds[number + 2]
        if largest <= VANISHING * lowest_loss:
            notes |= dict.fromkeys((name, exponent, "exponent"), f"the term of {name} is not told from 0")
        elif low <= squares.LOWEST_EXPONENT * 1.01 or high >= squares.HIGHEST_EXPONENT * 0.99:
            notes |= dict.fromkeys((name, exponent, "exponent"), f"{exponent} reaches the end of its range")
    return notes


def _r2(fitted: np.ndarray, loss: np.ndarray, method: Method) -> float:
    y, fitted = (loss, fitted) if method == "squares" else (np.log(loss), np.log(fitted))
    total = float(np.sum((y - y.mean()) ** 2))
    return 1.0 - float(np.sum((y - fitted) ** 2)) / total if total > 0 else float("nan")


def _failed(method: Method, count: int, left_out: tuple[str, ...], message: str) -> ChinchillaFit:
    none = Estimate(np.nan, np.nan, np.nan, False, message)
    fields = dict.fromkeys(FIELDS, none)
    return ChinchillaFit(
        method=method, **fields, num_points=count, objective=np.nan, r2=np.nan, status="failed", message=message,
        predicted=np.full(count, np.nan), replicates=np.empty((0, NUM_PARAMETERS)), left_out=left_out,
    )  # fmt: skip
