"""How the laws' numbers are quoted: with their intervals, and never where the data do not pin them down."""

from __future__ import annotations

import math
from collections.abc import Callable

from isocompute_jax.fit.laws.chinchilla_results import ChinchillaFit
from isocompute_jax.fit.laws.model_size_results import Crossover
from isocompute_jax.fit.laws.results import Estimate
from isocompute_jax.fit.report.wording import figures

NOT_IDENTIFIED = "not identified"
METHODS = {"squares": "least squares", "huber": "Huber on ln L"}
SYMBOLS = {"e": "E", "a": "A", "b": "B", "alpha": "alpha", "beta": "beta", "exponent": "exponent of N*(C)"}
"""Estimates of a pre-training fit, in the order that tables have them."""
CONVERGENCE = {"N": "at the largest D of each N", "D": "at the largest N", "C": "on the lower envelope"}
"""Variable of a convergence law -> which points it is fitted to."""


def estimates(fit: ChinchillaFit) -> list[tuple[str, Estimate]]:
    """(symbol, estimate) of a pre-training fit."""
    return [(symbol, getattr(fit, name)) for name, symbol in SYMBOLS.items()]


def value_of(estimate: Estimate, text: Callable[[float], str] = figures) -> str:
    """The value where it is identified."""
    return text(estimate.value) if estimate.identified else NOT_IDENTIFIED


def reach(found: Estimate | Crossover, text: Callable[[float], str] = figures) -> str:
    """The interval in words: `0.12 to 0.13`, `above 0.1`, `below 2`, `no bounds`."""
    low, high = math.isfinite(found.low), math.isfinite(found.high)
    if not high:
        return f"above {text(found.low)}" if low and found.low != 0 else "no bounds"
    return f"{text(found.low)} to {text(found.high)}" if low and found.low != 0 else f"below {text(found.high)}"


def stated(estimate: Estimate, text: Callable[[float], str] = figures) -> str:
    """`0.126 (95% interval: 0.12 to 0.13)`, or `not identified (95% interval: above 0.1)`."""
    if not (math.isfinite(estimate.low) or math.isfinite(estimate.high)):
        return f"{value_of(estimate, text)} (no interval)"
    return f"{value_of(estimate, text)} (95% interval: {reach(estimate, text)})"
