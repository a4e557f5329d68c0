"""What is found of one metric of a sweep: mean curves, fits, the frontier, and who leads where."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from isocompute_jax.fit.curves.screening import Screening
from isocompute_jax.fit.curves.seeds import Curve
from isocompute_jax.fit.frontier.bootstrap import FittedPoints
from isocompute_jax.fit.frontier.envelope import leader
from isocompute_jax.fit.frontier.ties import Budget
from isocompute_jax.fit.results import Configuration, CurveFit, Frontier, FrontierPoint

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
    """Everything about one metric: K mean curves, what was fitted, and who leads where."""

    metric: str  # column name
    curves: tuple[Curve, ...]  # [K] means over seeds
    screened: tuple[Screening, ...]  # [K] what they leave to be fitted: collapses and outliers
    used: tuple[np.ndarray, ...]  # [K] of [E] bool, the evaluations that were fitted
    errors: tuple[np.ndarray, ...] | None  # [K] of [E] standard errors of the rewards; None for equal weights
    fits: tuple[CurveFit, ...]  # [K]
    frontier: Frontier  # their upper envelope
    budgets: tuple[Budget, ...]  # comparison at every evaluated compute, with ties
    rollouts: Rollouts | None  # (number of a configuration, compute) -> rollouts; None when compute is in rollouts

    @functools.cached_property
    def configurations(self) -> list[Configuration]:
        """[K]."""
        return [curve.configuration for curve in self.curves]

    @functools.cached_property
    def sound(self) -> tuple[Curve, ...]:
        """The curves without their outliers, collapses and all: what configurations are compared by."""
        return sound(self.curves, self.screened)

    @functools.cached_property
    def trusted(self) -> Trusted:
        """What may be fitted of the curves, seed by seed: outliers and what comes after a collapse are gone."""
        return trusted(self.curves, self.screened, self.used, self.errors)

    @functools.cached_property
    def points(self) -> list[FittedPoints]:
        """[K] what was fitted, with its fit, which may have failed."""
        data = self.trusted
        errors = data.errors or [np.ones(len(used)) for used in data.used]
        return [FittedPoints(*each) for each in zip(data.curves, self.fits, data.used, errors, strict=True)]

    def leader(self, budget: float, fits: Sequence[CurveFit] | None = None) -> int | None:
        """Number of the curve that is the highest at a budget (see `envelope.leader`), or by other `fits`."""
        reached = [float(curve.compute.max(initial=0.0)) for curve in self.curves]
        return leader(fits or self.fits, self.configurations, budget, reached=reached)

    def uncontested(self, envelope: Frontier, members: Sequence[int] = ()) -> list[tuple[float, int]]:
        """The evaluated budgets at which an envelope says who is best, with that configuration's number.

        Not those at which a configuration without data would lead by its own curve: the leader is then one by default.

        Args:
          envelope: over all configurations or some.
          members: numbers of those; empty for all.
        """
        found = []
        among = [i for i, fit in enumerate(self.fits) if (not members or i in members) and fit.status != "failed"]
        for budget in self.budgets:
            compute = budget.compute
            leading = [s.configuration for s in envelope.segments[::-1] if s.start <= compute <= s.end]
            if not leading:
                continue
            places = [self.configurations.index(each) for each in leading]  # two where segments meet
            index = max(places, key=lambda i: float(self.fits[i].reward(compute)))
            best = float(self.fits[index].reward(compute))
            absent = [self.fits[i] for i in among if not self.fits[i].fall and np.isnan(budget.mean[i])]
            if all(float(fit.reward(compute)) <= best for fit in absent):
                found.append((compute, index))
        return found

    def frontier_points(self, envelope: Frontier, members: Sequence[int] = ()) -> tuple[FrontierPoint, ...]:
        """An envelope at the uncontested budgets: n*(C), B_problem*(C), M*(C) and the fitted reward."""
        rows = []
        for compute, index in self.uncontested(envelope, members):
            configuration = self.configurations[index]
            per_step, spent = configuration.rollouts_per_step, self.rollouts_spent(index, compute)
            steps = spent / per_step if per_step and math.isfinite(spent) else None
            rows.append(FrontierPoint(compute, configuration, steps, float(self.fits[index].reward(compute))))
        return tuple(rows)

    def rollouts_spent(self, index: int, compute: float) -> float:
        """Rollouts of a configuration at a compute."""
        return self.rollouts(index, compute) if self.rollouts else compute

    def optimal_group_size(self, envelope: Frontier, members: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """n*(C) at the uncontested budgets: compute [P] and the group size of the envelope's configuration [P]."""
        led = [(compute, self.configurations[i].group_size) for compute, i in self.uncontested(envelope, members)]
        compute, group_size = np.array(led, dtype=np.float64).reshape(-1, 2).T
        return compute, group_size


def sound(curves: Sequence[Curve], screened: Sequence[Screening]) -> tuple[Curve, ...]:
    """See `MetricAnalysis.sound`."""
    return tuple(curve.only(~screening.outlier) for curve, screening in zip(curves, screened, strict=True))


def trusted(
    curves: Sequence[Curve],
    screened: Sequence[Screening],
    used: Sequence[np.ndarray],
    errors: Sequence[np.ndarray] | None,
) -> Trusted:
    """See `MetricAnalysis.trusted`."""
    orders = [curve.seed_by_seed for curve in curves]
    kept = [order[screening.kept[order]] for order, screening in zip(orders, screened, strict=True)]
    return Trusted(
        curves=tuple(curve.only(rows) for curve, rows in zip(curves, kept, strict=True)),
        used=tuple(each[rows] for each, rows in zip(used, kept, strict=True)),
        errors=None if errors is None else tuple(each[rows] for each, rows in zip(errors, kept, strict=True)),
    )
