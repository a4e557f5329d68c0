"""What is to be fitted, and how: the options of a fit, and curves of any lengths as one padded problem."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.forms import FORMS, SYMBOLS, Form, parameter
from isocompute_jax.records.errors import InputError

Loss = Literal["squares", "huber"]


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """How curves are fitted.

    Attributes:
      form: `hill`, `logistic`, `expsat` or `power`, for all curves.
      loss: `squares`, or `huber`: residuals beyond `huber_delta` count linearly.
      huber_delta: in units of reward (of weighted residuals, when there are weights).
      fix: parameter -> value that it is held at, by name or symbol (`A`, `R0`, `C_mid`, `B`, `k`).
      bounds: parameter -> (least, most), by name or symbol.
      r0: the floor: `free`, `first` (each curve's first reward) or a value.
      reward_range: range of rewards; floor and asymptote stay in it.
      window: compute range of the evaluations that are fitted; None for all.
      tolerance: A counts as identified only when its 95% interval is no wider than +- this.
      intervals: whether to compute intervals and what rests on them; without, a fit is about ten times cheaper.
    """

    form: str = "hill"
    loss: Loss = "squares"
    huber_delta: float = 0.01
    fix: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    r0: float | Literal["free", "first"] = "free"
    reward_range: tuple[float, float] = (0.0, 1.0)
    window: tuple[float, float] | None = None
    tolerance: float = 0.02
    intervals: bool = True

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"--form={self.form} is not one of {', '.join(FORMS)}")
        if not (math.isfinite(self.huber_delta) and self.huber_delta > 0):
            raise InputError(f"--huber_delta={self.huber_delta} must be above 0, in units of reward")
        if not self.tolerance > 0:
            raise InputError(f"--tolerance={self.tolerance} must be above 0, in units of reward")
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise InputError(f"--window={self.window[0]:g},{self.window[1]:g} must be two computes, the smaller first")
        if not self.reward_range[0] < self.reward_range[1]:
            raise InputError(f"--reward_range={self.reward_range[0]:g},{self.reward_range[1]:g} must be two numbers")
        if self.r0 != "free" and not FORMS[self.form].at_zero:
            raise InputError(f"--r0={self.r0}: the power law has no floor; leave --r0=free")
        self.limits()

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
            symbols = [symbol for symbol in (*SYMBOLS, "exponent") if _has(form, symbol)]
            raise InputError(f"--{flag}: the {form.name} form has no {name}; it has {', '.join(symbols)}") from None
        if own == "scale":
            raise InputError(f"--{flag}: {name} follows from the fit; only A and B of the power law can be held")
        return own


def _has(form: Form, symbol: str) -> bool:
    try:
        return bool(parameter(form, symbol))
    except KeyError:
        return False
