"""The part of a sweep's results that is about the curves: fits, residuals, holdouts, forms, steepness."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.curves.diagnostics import CurveHoldout, GridFit, Profile
from isocompute_jax.fit.curves.forms import FormName
from isocompute_jax.fit.frontier_results import OfConfiguration
from isocompute_jax.fit.plain_data import INLINE, OPTIONAL
from isocompute_jax.fit.results import Configuration, CurveFit

CLEAR_AICC = 10.0
SOME_AICC = 2.0
"""A form is clearly better, or better at all, when its AICc is lower by so much (Burnham and Anderson 2002)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """A mean curve's evaluations.

    Attributes:
      compute: [E].
      reward: [E].
      used: [E] bool, those that were fitted.
      stderr: [E] their standard errors, if weighted.
      outlier: [E] bool, those left out because they stand alone.
    """

    compute: np.ndarray
    reward: np.ndarray
    used: np.ndarray
    stderr: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)
    outlier: np.ndarray | None = dataclasses.field(default=None, metadata=OPTIONAL)


@dataclasses.dataclass(frozen=True)
class FormCriteria:
    """How well one form fits one curve."""

    aicc: float
    bic: float
    sse: float
    r2: float


@dataclasses.dataclass(frozen=True)
class HoldoutScore:
    """How well one form predicts the rest of one curve."""

    mean_abs_error: float
    coverage: float


@dataclasses.dataclass(frozen=True, eq=False)
class HoldoutResult:
    """The fitted form's own holdout, and the scores of all forms."""

    own: CurveHoldout = dataclasses.field(metadata=INLINE)
    forms: Mapping[FormName, HoldoutScore]


@dataclasses.dataclass(frozen=True, eq=False)
class CurveResult(OfConfiguration):
    """One configuration's curve.

    Attributes:
      configuration: which one.
      seeds: those that were averaged.
      fit: the curve.
      held: parameters whose value was given.
      bootstrap95: parameter -> percentile interval over the replicates; None without.
      forms: form -> its fit to the same points.
      holdout: how the first part predicts the rest; None where that says nothing.
      grid: by ScaleRL's procedure; None without.
      profile: how the fit worsens as A is moved; None where that says nothing.
      points: the evaluations.
    """

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    seeds: tuple[int, ...]
    fit: CurveFit = dataclasses.field(metadata=INLINE)
    held: tuple[str, ...]
    bootstrap95: Mapping[str, tuple[float, float]] | None
    forms: Mapping[FormName, FormCriteria]
    holdout: HoldoutResult | None
    grid: GridFit | None
    profile: Profile | None
    points: Points

    def identified(self, name: str = "asymptote") -> bool:
        """Whether the data pin a parameter down."""
        return self.fit.identified.get(name, False)

    @property
    def has_noise(self) -> bool:
        """Whether there is an estimate of the noise."""
        return self.fit.status != "failed" and math.isfinite(self.fit.noise) and self.fit.noise > 0

    @functools.cached_property
    def residuals(self) -> Points:
        """The trained evaluations with (reward - curve) / noise in place of the reward."""
        trained = self.points.compute > 0
        compute, reward = self.points.compute[trained], self.points.reward[trained]
        return Points(compute, (reward - self.fit.reward(compute)) / self.fit.noise, self.points.used[trained])

    @property
    def relative_end(self) -> float | None:
        """How far the data reach in units of C_mid, where that is identified or held."""
        midpoint = self.fit.params.get("midpoint")
        sure = self.identified("midpoint") or "midpoint" in self.held
        return self.fit.window[1] / midpoint if sure and midpoint else None


@dataclasses.dataclass(frozen=True)
class FormScore:
    """Sums over curves of a form's AICc and BIC, and means of its holdout over the curves that have one."""

    aicc: float
    bic: float
    holdout_mean_abs_error: float | None
    holdout_coverage: float | None
    holdout_curves: int


@dataclasses.dataclass(frozen=True, eq=False)
class SteepnessRow:
    """One curve under the common asymptote: its B, and the points of its straight line ln F = B ln C."""

    run: str
    group_size: int
    steepness: float
    midpoint: float
    interval95: tuple[float, float]
    identified: bool
    asymptote_within: bool
    log_compute: np.ndarray
    log_f: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class SteepnessResult:
    """Curves under one asymptote.

    Attributes:
      asymptote: the common A.
      curves: those that could be fitted with it.
    """

    asymptote: float
    curves: tuple[SteepnessRow, ...]

    @property
    def known(self) -> list[SteepnessRow]:
        """Those whose B is identified, with an interval."""
        return [row for row in self.curves if row.identified and np.isfinite(row.interval95).all()]

    @property
    def outside(self) -> list[str]:
        """Configurations whose own interval of A excludes the common one: their B says nothing."""
        return [row.run for row in self.curves if not row.asymptote_within]

    @property
    def comparable(self) -> list[SteepnessRow]:
        """Those whose B may be compared, from the least steep to the steepest."""
        return sorted((row for row in self.known if row.asymptote_within), key=lambda row: row.steepness)

    @property
    def differ(self) -> bool:
        """Whether the intervals of the least steep and of the steepest are apart."""
        rows = self.comparable
        return rows[0].interval95[1] < rows[-1].interval95[0]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and range of a number over curves."""

    median: float
    least: float
    most: float
    count: int


@dataclasses.dataclass(frozen=True)
class FormChoice:
    """Which form fits best, by how much AICc it is ahead of the second, and which predicts best (None: unscored)."""

    best: FormName
    second: FormName
    ahead: float
    predicts_best: FormName | None
    prediction_error: float

    @property
    def strength(self) -> Literal["clear", "some", "hardly"]:
        """How much the difference says."""
        return "clear" if self.ahead > CLEAR_AICC else "some" if self.ahead > SOME_AICC else "hardly"


def choose_form(forms: Mapping[FormName, FormScore]) -> FormChoice | None:
    """Which form fits and which predicts best; None unless two can be scored."""
    scored: dict[FormName, FormScore] = {name: row for name, row in forms.items() if math.isfinite(row.aicc)}
    if len(scored) < 2:
        return None
    best, second = sorted(scored, key=lambda name: scored[name].aicc)[:2]
    errors: dict[FormName, float] = {
        name: row.holdout_mean_abs_error for name, row in scored.items() if row.holdout_mean_abs_error is not None
    }
    sure = min(errors, key=lambda name: errors[name]) if errors else None
    ahead = scored[second].aicc - scored[best].aicc
    return FormChoice(best, second, ahead, sure, errors[sure] if sure else math.nan)


@dataclasses.dataclass(frozen=True)
class HoldoutTotals:
    """Predictions of all curves together: evaluations held out, how many lie in their interval, and the misses."""

    num_points: int
    inside: float
    mean_abs_error: float
    bias: float


def spread(values: Sequence[float]) -> Spread | None:
    """Of the values that are finite; None without any."""
    known = [value for value in values if math.isfinite(value)]
    return Spread(statistics.median(known), min(known), max(known), len(known)) if known else None
