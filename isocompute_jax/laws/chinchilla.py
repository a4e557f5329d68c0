"""The pre-training law L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv 2203.15556).

Two ways to fit it: `squares` minimises the squared error of the loss; `huber` minimises what the paper's third approach
does, a Huber loss (delta 1e-3) of the error of ln L with the law as a log-sum-exp. The paper searches by L-BFGS, which
stalls in the law's long valley (A and alpha trade against each other); here damped Newton steps with exact second
derivatives go to the minimum, from many starts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.fit.frontier.bootstrap import PERCENTILES, holding, percentile_interval
from isocompute_jax.fit.plain_data import INTERNAL
from isocompute_jax.fit.results import Estimate, Status
from isocompute_jax.laws.solver import HIGHEST_EXPONENT, LOWEST_EXPONENT, Method, Minimum, fit_two

METHODS: dict[Method, str] = {"squares": "least squares", "huber": "Huber on ln L"}

FLOPS_PER_PARAMETER_TOKEN = 6.0
"""C = 6 N D: forward and backward pass of training."""
SAME_RATIO = 0.05
"""Tokens per parameter that differ by less than this share are one ratio."""
FEWEST_LEVELS = 3
NUM_PARAMETERS = 5
SYMBOLS = {"e": "E", "a": "A", "b": "B", "alpha": "alpha", "beta": "beta", "exponent": "exponent of N*(C)"}
"""Field of a fit -> how it is written; in this order."""
VANISHING = 1e-4
"""A term below this share of the smallest loss counts as 0."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ChinchillaFit:
    """L(N, D) = E + A / N^alpha + B / D^beta."""

    method: Method  # `squares` (of the loss) or `huber` (of its logarithm)
    e: Estimate  # irreducible loss E
    a: Estimate
    b: Estimate
    alpha: Estimate  # exponent of N
    beta: Estimate  # exponent of D
    exponent: Estimate  # a = beta / (alpha + beta): compute-optimal N grows as C^a
    num_points: int  # points fitted
    objective: float = math.nan  # minimum of what was minimised
    r2: float = math.nan  # share of the variation of the loss that is explained; for `huber` of its logarithm
    status: Status  # `failed`: the numbers are NaN
    message: str  # empty, or what is wrong
    predicted: np.ndarray  # [num_points] the law's loss at the points that were fitted
    replicates: np.ndarray = dataclasses.field(metadata=INTERNAL)  # [R, 5] (E, A, B, alpha, beta) of the bootstrap
    left_out: tuple[str, ...] = dataclasses.field(metadata=INTERNAL)  # what was not fitted, and why

    @property
    def name(self) -> str:
        """The method in words."""
        return METHODS[self.method]

    @property
    def parameters(self) -> np.ndarray:
        """[5] (E, A, B, alpha, beta)."""
        return np.array([self.e.value, self.a.value, self.b.value, self.alpha.value, self.beta.value])

    def estimates(self) -> list[tuple[str, Estimate]]:
        """(symbol, estimate) of each parameter and of the exponent of N*(C)."""
        return [(symbol, getattr(self, name)) for name, symbol in SYMBOLS.items()]

    def loss(self, model_params: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """L at N parameters and D tokens."""
        n, d = np.asarray(model_params, np.float64), np.asarray(tokens, np.float64)
        return self.e.value + self.a.value / n**self.alpha.value + self.b.value / d**self.beta.value


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
        message = f"{len(n)} usable points for {NUM_PARAMETERS} parameters"
        nothing = np.full(len(n), np.nan), np.empty((0, NUM_PARAMETERS))
        return ChinchillaFit(
            method=method, **dict.fromkeys(SYMBOLS, unknown(message)), num_points=len(n), status="failed",
            message=message, predicted=nothing[0], replicates=nothing[1], left_out=left_out,
            objective=math.nan, r2=math.nan,
        )  # fmt: skip
    search = functools.partial(fit_two, method=method)
    best = search(n, d, y, weight=np.ones_like(y), start=None)
    replicates = _bootstrap(search, (n, d, y), group, best, resamples, seed)
    doubts = design_doubts(n, d)
    known = len(replicates) >= max(resamples / 2, 1)
    why = "" if known or not resamples else "no interval: most resamples lack three model sizes or three token counts"
    estimates = law_estimates(
        list(SYMBOLS),
        _with_exponent(best.parameters[None])[0],
        _with_exponent(replicates if known else replicates[:0]),
        terms={"a": ("alpha", n.min()), "b": ("beta", d.min())},
        lowest_loss=y.min(),
        notes=dict.fromkeys(SYMBOLS, why),
        doubts=doubts,
    )
    messages = list(dict.fromkeys([*doubts.values(), *(e.note for e in estimates.values() if e.note)]))
    if not best.converged:
        messages.append("the search did not converge")
    if len(n) == NUM_PARAMETERS:
        messages.append("as many parameters as points")
    e, a, b, alpha, beta = best.parameters
    predicted = e + a / n**alpha + b / d**beta
    return ChinchillaFit(
        method=method,
        **estimates,
        num_points=len(n),
        objective=best.objective,
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


def optimum(fit: ChinchillaFit, flops: float) -> dict[str, Any]:
    """The compute-optimal allocation of C = 6 N D by one fit, with 95% bootstrap intervals, as a row of a table.

    Its numbers are NaN, and `note` says why, where the allocation is not identified.
    """
    known = fit.exponent.identified
    best = [float(value) for value in compute_optimal(fit.parameters, flops)] if known else [math.nan] * 2
    draws = compute_optimal(fit.replicates if known else np.empty((0, NUM_PARAMETERS)), flops)
    (n_low, n_high), (d_low, d_high) = map(percentile_interval, draws, best)
    return {
        "method": fit.method,
        "flops": flops,
        "identified": known,
        "model_params": best[0],
        "model_params_low": n_low,
        "model_params_high": n_high,
        "tokens": best[1],
        "tokens_low": d_low,
        "tokens_high": d_high,
        "loss": float(fit.loss(*best)) if known else math.nan,
        "note": "" if known else fit.exponent.note,
    }


def _left_out(finite: np.ndarray, keep: np.ndarray) -> tuple[str, ...]:
    reasons = {"no finite N, D and loss": ~finite, "N, D or loss is not above 0": finite & ~keep}
    return tuple(f"{np.count_nonzero(m)} points left out: {why}" for why, m in reasons.items() if m.any())


def design_doubts(n: np.ndarray, d: np.ndarray) -> dict[str, str]:
    """Field of a fit -> why the design of the experiment cannot identify it, whatever the losses."""
    doubts: dict[str, str] = {}
    for what, values, affected in (("model sizes", n, ("a", "alpha")), ("token counts", d, ("b", "beta"))):
        count = len(np.unique(values))
        if count < FEWEST_LEVELS:
            why = f"too few {what} ({count}; {FEWEST_LEVELS} are needed)"
            doubts |= dict.fromkeys((*affected, "e", "exponent"), why)
    if not doubts and np.ptp(np.log(d / n)) < SAME_RATIO:
        why = "N and D are collinear: only one ratio of tokens to parameters, so their terms cannot be told apart"
        doubts |= dict.fromkeys(("a", "b", "alpha", "beta", "exponent"), why)
    return doubts


def _bootstrap(
    search: Callable[..., Minimum],
    data: tuple[np.ndarray, np.ndarray, np.ndarray],
    group: np.ndarray,
    best: Minimum,
    resamples: int,
    seed: int,
) -> np.ndarray:
    """[R, 5] fits to resampled groups, each started at the fit; draws without three levels of N and D are left out."""
    rng = np.random.default_rng(seed)
    names, member = np.unique(group, return_inverse=True)
    rows = []
    for _ in range(resamples):
        weight = rng.multinomial(len(names), np.full(len(names), 1 / len(names)))[member].astype(float)
        drawn = weight > 0
        if min(len(np.unique(a[drawn])) for a in data[:2]) < FEWEST_LEVELS or drawn.sum() < NUM_PARAMETERS:
            continue
        rows.append(search(*data, weight=weight, start=best.parameters).parameters)
    return np.array(rows).reshape(-1, NUM_PARAMETERS)


def _with_exponent(parameters: np.ndarray) -> np.ndarray:
    """[R, 6] the five parameters and a = beta / (alpha + beta)."""
    alpha, beta = parameters[:, 3], parameters[:, 4]
    return np.column_stack([parameters, beta / (alpha + beta)])


def law_estimates(
    names: Sequence[str],
    values: np.ndarray,
    replicates: np.ndarray,
    *,
    terms: Mapping[str, tuple[str, float]],
    lowest_loss: float,
    notes: Mapping[str, str],
    doubts: Mapping[str, str],
) -> dict[str, Estimate]:
    """Estimates of a law's parameters, each with what keeps it from being identified.

    A term that vanishes takes its exponent with it.

    Args:
      names: [Q] of the parameters, `e` among them.
      values: [Q].
      replicates: [R, Q] of the bootstrap; R = 0 for no intervals.
      terms: level of a term -> its exponent, and the smallest x of the data.
      lowest_loss: of the data.
      notes: parameter -> why it is not identified, unless an interval says more.
      doubts: the same, whatever an interval says.
    """
    draws = dict(zip(names, (replicates if len(replicates) else values[None]).T, strict=True))
    ends = {name: np.percentile(drawn, PERCENTILES) for name, drawn in draws.items()}
    least, found = VANISHING * lowest_loss, {}
    if ends["e"][0] <= least:
        found["e"] = "E is not told from 0"
    for level, (exponent, smallest) in terms.items():
        largest = np.percentile(draws[level] / smallest ** draws[exponent], PERCENTILES[0])
        low, high = ends[exponent]
        affected = [name for name in names if name in (level, exponent, "exponent")]
        if largest <= least:
            found |= dict.fromkeys(affected, f"the term of {SYMBOLS[level]} is not told from 0")
        elif low <= LOWEST_EXPONENT * 1.01 or high >= HIGHEST_EXPONENT * 0.99:
            found |= dict.fromkeys(affected, f"{exponent} reaches the end of its range")
    found = dict.fromkeys(names, "") | dict(notes) | found | dict(doubts)
    if not len(replicates):
        ends = dict.fromkeys(names, (math.nan, math.nan))
    return {
        name: Estimate(float(value), *holding(ends[name][0], ends[name][1], value), not found[name], found[name])
        for name, value in zip(names, values, strict=True)
    }


def unknown(why: str) -> Estimate:
    """An estimate of what could not be fitted."""
    return Estimate(math.nan, math.nan, math.nan, False, why)


def _r2(fitted: np.ndarray, loss: np.ndarray, method: Method) -> float:
    y, fitted = (loss, fitted) if method == "squares" else (np.log(loss), np.log(fitted))
    total = float(np.sum((y - y.mean()) ** 2))
    return 1.0 - float(np.sum((y - fitted) ** 2)) / total if total > 0 else float("nan")
