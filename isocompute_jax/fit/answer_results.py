"""The part of a sweep's results that answers: what to do at a budget, how sure that is, and what speaks against it.

Every number and verdict of the report's first screen stands here; `answering` makes these records.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from isocompute_jax.fit.frontier_results import BestN, OfConfiguration, SegmentResult
from isocompute_jax.fit.plain_data import INLINE
from isocompute_jax.fit.results import Configuration, Recommendation

LIKELY = 0.8
"""A leader is likely where at least this share of the draws has it (and, inside the data, sure from `SURE` on)."""

Confidence = Literal["sure", "likely", "open", "tied", "contradicted", "unknown"]
"""Of a leader: by the share of replicates that have it; before that come `tied`, `contradicted` (something in the data
names another leader) and `unknown` (no replicates)."""


ObjectionKind = Literal[
    "form", "evaluations", "seeds", "largest", "smallest", "one_seed", "seeds_differ", "outliers", "unseen", "left_out"
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Objection:
    """Something in the data that speaks against an answer, or that the data cannot say.

    Attributes:
      kind: `form`: another form of curve fits clearly better; `evaluations`: the evaluations alone have another leader,
        beyond noise (and clearly, where the curves tie with it); `seeds`: single seeds have another leader; `largest`
        or `smallest`: no larger, or smaller, n was run; `one_seed`: nothing tells the noise; `seeds_differ`: by more
        than the noise of their evaluations; `outliers`: evaluations of
        the recommended configuration were left out because they stand alone; `unseen`: others compete without
        evaluations near the budget; `left_out`: others cannot be compared. That another choice of
        evaluations has another leader is among the recommendation's own doubts.
      run: who leads instead; empty where nobody else does.
      by: the form.
      size: how far ahead (`evaluations`: reward; `form`: AICc), or how many seeds disagree, or how many outliers there
        are, or how many others (`unseen`, `left_out`); 0 without.
      of: how many seeds there are; 0 without.
    """

    kind: ObjectionKind
    run: str = ""
    by: str = ""
    size: float = 0.0
    of: int = 0


@dataclasses.dataclass(frozen=True)
class BudgetAnswer:
    """What to do with a budget.

    Attributes:
      recommendation: for it.
      share: of the replicates that lead with the recommended configuration there, or where the data end or begin; of
        the draws where a forecast answers; None without.
      rival: who leads in most of the other replicates, and in which share of all; None without.
      tied_group_sizes: n of those that no difference was seen from and the recommended one, in order; empty without.
      confidence: in the configuration.
      objections: what speaks against it.
    """

    recommendation: Recommendation = dataclasses.field(metadata=INLINE)
    share: float | None
    rival: tuple[str, float] | None
    tied_group_sizes: tuple[int, ...]
    confidence: Confidence
    objections: tuple[Objection, ...]

    @property
    def budget(self) -> float:
        """The budget."""
        return self.recommendation.budget

    @property
    def contradicted_by(self) -> list[str]:
        """The other leaders that something in the data names: most seeds, the evaluations, a form, other records."""
        told = (each for each in self.objections if each.kind != "seeds" or each.size > each.of / 2)
        return list(dict.fromkeys(run for run in (*(each.run for each in told), self.recommendation.by_records) if run))


@dataclasses.dataclass(frozen=True)
class BudgetRange:
    """Neighbouring budgets with the same answer.

    Attributes:
      start: where it begins: the first budget, or the switch to this configuration.
      end: where it ends, likewise.
      run: the recommended configuration; of several that tie with each other the one of most budgets.
      group_size: its n; 0 when unknown.
      rewards: expected at its ends.
      share: median over the budgets of the share of replicates, or draws, that it leads in; None without.
      confidence: what that comes to; `tied`, or `contradicted`, where all of the budgets are.
      tied_group_sizes: every n of those ties.
      beyond: whether the range lies beyond the data.
      stop: where to stop, at the peak of a configuration that collapses; None to spend all of a budget.
    """

    start: float
    end: float
    run: str
    group_size: int
    rewards: tuple[float, float]
    share: float | None
    confidence: Confidence
    tied_group_sizes: tuple[int, ...]
    beyond: bool
    stop: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnCurve(OfConfiguration):
    """A curve for a picture: evaluations, which were used, the fitted line (empty: failed), the peak of a collapse."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    compute: np.ndarray
    reward: np.ndarray
    used: np.ndarray
    line_compute: np.ndarray
    line_reward: np.ndarray
    peak: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Chart:
    """One metric's picture: its curves, who leads from where to where, and at each budget the leader and its reward."""

    metric: str
    curves: tuple[DrawnCurve, ...]
    segments: tuple[SegmentResult, ...]
    leaders: Mapping[float, tuple[str, float]]


@dataclasses.dataclass(frozen=True)
class TieRange:
    """Neighbouring budgets with the same best configuration by the evaluations, and the same ties."""

    first: float
    last: float
    best_run: str
    rivals: tuple[str, ...]
    rewards: tuple[float, float]


def tie_ranges(budgets: Sequence[BestN]) -> list[TieRange]:
    """The best by the evaluations, neighbouring budgets that agree in one row."""
    alike = itertools.groupby(budgets, key=lambda row: (row.best_run, tuple(row.rivals)))
    found = []
    for (best, rivals), group in alike:
        rows = list(group)
        found.append(TieRange(rows[0].compute, rows[-1].compute, best, rivals, (rows[0].reward, rows[-1].reward)))
    return found
