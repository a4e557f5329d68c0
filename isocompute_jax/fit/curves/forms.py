"""The forms of a learning curve: each rises from a low level to a high one along a share that only ever climbs.

    hill      R = R0 + (A - R0) / (1 + (C_mid / C)^B)             ScaleRL, arXiv 2510.13786
    logistic  R = R0 + (A - R0) / (1 + exp(-k (C - C_mid)))
    expsat    R = A - (A - R0) exp(-k C)
    power     R = A - D C^-B

A = `asymptote`, R0 = `floor`, C_mid = `midpoint`, B = `steepness` (hill) or `exponent` (power), k = `rate` per
rollout, D = `scale`. For the search every form is y = low + (high - low) share(theta, x) in x = ln(C / C_ref), where
C_ref is the curve's first compute: `low` and `high` enter linearly, and theta holds the logarithms of the shape
parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

MARGIN = np.log(100.0)
"""A midpoint is searched from the first compute / 100 to the last x 100."""
_STEEPNESS = (np.log(0.1), np.log(10.0))
_EXPONENT = (np.log(0.01), np.log(10.0))

SYMBOLS = {
    "A": "asymptote", "R0": "floor", "C_mid": "midpoint", "B": "steepness", "k": "rate", "D": "scale",
}  # fmt: skip
"""What the papers call the parameters; B of a power law is its `exponent`."""

FormName = Literal["hill", "logistic", "expsat", "power"]
Bounds = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Form:
    """One form of curve. Its share climbs as 1 / (1 + exp(-z)), or 1 - exp(-z) if it `saturates`; z = rate (u - place).

    `theta` holds (place, ln rate), the logarithm of the place where u is compute; without a `place`, (ln rate,) alone.
    """

    name: FormName  # what flags and summaries call it
    equation: str  # for people
    curve: Callable[..., np.ndarray]  # (compute, **params) -> reward, in the parameters' own units
    # (name, power of C_ref) of each shape parameter: its value is exp(theta) C_ref^power
    shape: tuple[tuple[str, int], ...]
    box: Callable[[float], Bounds]  # span = ln(last / first compute) -> bounds of theta ([Q], [Q])
    grid: Callable[[float], Bounds]  # span -> where the search starts ([Q], [Q]): inside the box, around the data
    at_zero: bool = True  # whether the curve has a value at C = 0 (the base model)
    of_compute: bool = False  # u = exp(x), compute in units of C_ref, rather than x
    saturates: bool = False  # which of the two shares
    has_place: bool = True  # whether theta has a place; z = rate u otherwise

    @property
    def params(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the coordinates (low, high, *theta)."""
        levels = ("floor", "asymptote") if self.at_zero else ("scale", "asymptote")
        return (*levels, *(name for name, _ in self.shape))

    def share(self, theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., P] share and [..., P, Q] its derivative in theta [..., Q], at x [..., P], in NumPy."""
        theta, x = np.asarray(theta, np.float64)[..., None, :], np.asarray(x, np.float64)
        u = np.exp(x) if self.of_compute else x
        reached = np.isfinite(u)  # x = ln 0 = -inf stands for the base model
        rate, place = np.exp(theta[..., -1]), 0.0
        if self.has_place:
            place = np.exp(theta[..., 0]) if self.of_compute else theta[..., 0]
        z = rate * (np.where(reached, u, 0.0) - place)
        with np.errstate(under="ignore"):
            tail = np.exp(-z if self.saturates else -np.abs(z))
            share = 1.0 - tail if self.saturates else np.where(z < 0, tail, 1.0) / (1.0 + tail)
            slope = tail if self.saturates else tail / (1.0 + tail) ** 2
            slopes = [z * slope]
            if self.has_place:
                slopes.insert(0, -rate * (place if self.of_compute else 1.0) * slope)
        reached = reached & np.ones_like(z, bool)
        return np.where(reached, share, 0.0), np.where(reached[..., None], np.stack(slopes, axis=-1), 0.0)

    def values(self, at: np.ndarray, reference: float) -> dict[str, float]:
        """The parameters in their own units from the coordinates of the search, `at` [Q + 2] (low, high, *theta)."""
        low, high, *theta = map(float, at)
        shape = {name: float(np.exp(t)) * reference**p for (name, p), t in zip(self.shape, theta, strict=True)}
        if self.at_zero:
            return {"floor": low, "asymptote": high, **shape}
        return {"scale": (high - low) * reference ** shape["exponent"], "asymptote": high, **shape}

    def midpoint(self, params: Mapping[str, float]) -> float:
        """Compute at half the gain; NaN where the gain has no beginning."""
        if "midpoint" in params:
            return params["midpoint"]
        return float(np.log(2.0) / params["rate"]) if self.at_zero and params["rate"] > 0 else float("nan")


def hill(compute: np.ndarray | float, floor: float, asymptote: float, midpoint: float, steepness: float) -> np.ndarray:
    """R_C = R0 + (A - R0) / (1 + (C_mid / C)^B), the compute-performance law of ScaleRL (arXiv 2510.13786)."""
    with np.errstate(divide="ignore", over="ignore"):
        return floor + (asymptote - floor) / (1.0 + (midpoint / np.asarray(compute, np.float64)) ** steepness)


def logistic(compute: np.ndarray | float, floor: float, asymptote: float, midpoint: float, rate: float) -> np.ndarray:
    """R = R0 + (A - R0) / (1 + exp(-k (C - C_mid))); R0 is the level far below C_mid, not the value at C = 0."""
    with np.errstate(over="ignore"):
        return floor + (asymptote - floor) / (1.0 + np.exp(-rate * (np.asarray(compute, np.float64) - midpoint)))


def expsat(compute: np.ndarray | float, floor: float, asymptote: float, rate: float) -> np.ndarray:
    """R = A - (A - R0) exp(-k C)."""
    return asymptote - (asymptote - floor) * np.exp(-rate * np.asarray(compute, np.float64))


def power(compute: np.ndarray | float, scale: float, asymptote: float, exponent: float) -> np.ndarray:
    """R = A - D C^-B, for C > 0."""
    with np.errstate(divide="ignore"):
        return asymptote - scale * np.asarray(compute, np.float64) ** -exponent


def _box(*ranges: tuple[float, float]) -> Bounds:
    lower, upper = zip(*ranges, strict=True)
    return np.array(lower), np.array(upper)


HILL = Form(
    "hill", "R = R0 + (A - R0) / (1 + (C_mid / C)^B)", hill, (("midpoint", 1), ("steepness", 0)),
    box=lambda span: _box((-MARGIN, span + MARGIN), _STEEPNESS),
    grid=lambda span: _box((-1.0, span + 2.5), (np.log(0.25), np.log(6.0))),
)  # fmt: skip
LOGISTIC = Form(
    "logistic", "R = R0 + (A - R0) / (1 + exp(-k (C - C_mid)))", logistic, (("midpoint", 1), ("rate", -1)),
    box=lambda span: _box((-MARGIN, span + MARGIN), (-span - MARGIN, MARGIN)),
    grid=lambda span: _box((-1.0, span + 1.0), (-span - 1.0, 2.0)),
    of_compute=True,
)  # fmt: skip
EXPSAT = Form(
    "expsat", "R = A - (A - R0) exp(-k C)", expsat, (("rate", -1),),
    box=lambda span: _box((-span - MARGIN, MARGIN)),
    grid=lambda span: _box((-span - 2.0, 1.0)),
    of_compute=True, saturates=True, has_place=False,
)  # fmt: skip
POWER = Form(
    "power", "R = A - D C^-B", power, (("exponent", 0),),
    box=lambda span: _box(_EXPONENT),
    grid=lambda span: _box((np.log(0.03), np.log(5.0))),
    at_zero=False, saturates=True, has_place=False,  # z = B x is 0 at C_ref, so that `low` is the reward there
)  # fmt: skip

FORMS: dict[FormName, Form] = {form.name: form for form in (HILL, LOGISTIC, EXPSAT, POWER)}


def parameter(form: Form, name: str) -> str:
    """The parameter's own name from its name or its symbol; KeyError when the form has no such parameter."""
    own = SYMBOLS.get(name, name)
    if form is POWER and name == "B":
        own = "exponent"
    if own not in form.params:
        raise KeyError(name)
    return own
