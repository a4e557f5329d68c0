"""What is found of one metric of a sweep: mean curves, fits, the frontier, and who leads where."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.screening import Screening
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier.ties import Budget
from isocompute_jax.fit.results import CurveFit, Frontier

Rollouts = Callable[[int, float], float]


class Trusted(NamedTuple):
    """K curves as they are fitted: which of their evaluations were `used` [K] of [E], and their `errors`."""

    curves: tuple[Curve, ...]
    used: tuple[np.ndarray, ...]
    errors: tuple[np.ndarray, ...] | None

    @property
    def compute(self) -> list[np.ndarray]:
        """[K] of [E]."""
        return [curve.compute for curve in self.curves]

    @property
    def reward(self) -> list[np.ndarray]:
        """[K] of [E]."""
        return [curve.reward for curve in self.curves]


@dataclasses.dataclass(frozen=True, eq=False)
class MetricAnalysis:
    """Everything about one metric: K mean curves, what was fitted, and who leads where.

    Attributes:
      metric: column name.
      curves: [K] mean curves.
      screened: [K] what they leave to be fitted: collapses and outliers.
      used: [K] of [E] bool, the evaluations that were fitted.
      errors: [K] of [E] standard errors of the rewards; None for equal weights.
      fits: [K] fitted curves.
      frontier: their upper envelope.
      budgets: comparison at every evaluated compute, with ties.
      rollouts: (number of a configuration, compute) -> rollouts; None when compute is in rollouts.
    """

    metric: str
    curves: tuple[Curve, ...]
    screened: tuple[Screening, ...]
    used: tuple[np.ndarray, ...]
    errors: tuple[np.ndarray, ...] | None
    fits: tuple[CurveFit, ...]
    frontier: Frontier
    budgets: tuple[Budget, ...]
    rollouts: Rollouts | None

    @functools.cached_property
    def sound(self) -> tuple[Curve, ...]:
        """The curves without their outliers, collapses and all: what configurations are compared by."""
        return tuple(
            curve.only(~screening.outlier) for curve, screening in zip(self.curves, self.screened, strict=True)
        )

    @functools.cached_property
    def trusted(self) -> Trusted:
        """What may be fitted of the curves, seed by seed: outliers and what comes after a collapse are gone."""
        orders = [curve.seed_by_seed for curve in self.curves]
        kept = [order[screening.kept[order]] for order, screening in zip(orders, self.screened, strict=True)]
        return Trusted(
            curves=tuple(curve.only(mask) for curve, mask in zip(self.curves, kept, strict=True)),
            used=tuple(used[mask] for used, mask in zip(self.used, kept, strict=True)),
            errors=None if self.errors is None else tuple(e[m] for e, m in zip(self.errors, kept, strict=True)),
        )


def uncontested(analysis: MetricAnalysis, envelope: Frontier, members: Sequence[int] = ()) -> list[tuple[Budget, int]]:
    """The budgets at which the envelope says who is best, with that configuration's number.

    Not those at which a configuration without data would lead by its own curve: the leader is then one by default.

    Args:
      analysis: of a metric.
      envelope: over all of its configurations or some.
      members: numbers of those; empty for all.
    """
    found = []
    fits = [fit if not members or i in members else None for i, fit in enumerate(analysis.fits)]
    for budget in analysis.budgets:
        held = [s.index for s in reversed(envelope.segments) if s.start <= budget.compute <= s.end]
        if not held:
            continue
        index = max(held, key=lambda i: float(analysis.fits[i].reward(budget.compute)))  # two where segments meet
        best = float(analysis.fits[index].reward(budget.compute))
        absent = [
            fit
            for i, fit in enumerate(fits)
            if fit and fit.status != "failed" and not fit.fall and np.isnan(budget.mean[i])
        ]
        if all(float(fit.reward(budget.compute)) <= best for fit in absent):
            found.append((budget, index))
    return found


def optimal_group_size(
    analysis: MetricAnalysis, envelope: Frontier, members: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """n*(C) at the uncontested budgets: compute [P] and the group size of the envelope's configuration [P]."""
    found = uncontested(analysis, envelope, members)
    led = [(budget.compute, analysis.curves[i].configuration.group_size) for budget, i in found]
    compute, group_size = np.array(led, dtype=np.float64).reshape(-1, 2).T
    return compute, group_size
