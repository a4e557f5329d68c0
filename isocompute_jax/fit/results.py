"""What an analysis of a sweep finds: frozen records, of which summary.json, tables, sentences and pictures are made.

Compute is in the unit of the analysis, rewards in that of the metric; NaN is unknown. A number of an answer is a
statistic of the posterior draws (see `engine`), and no record holds a sentence but `notes`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.fit.plain_data import INLINE, INTERNAL

Interval = tuple[float, float]
Verdict = Literal["clear", "no matter", "open"]
Reason = Literal["", "not run this far", "too noisy to tell", "the data disagree", "one seed", "one configuration"]


@dataclasses.dataclass(frozen=True)
class Choice:
    """What one configuration gives for a budget, stopped where its expected reward is highest."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    stop: float  # compute at which to stop, at most the budget
    num_steps: int | None  # optimizer steps up to there; None where they are unknown
    reward: float  # expected
    interval95: Interval  # of the mean reward of many such runs
    run95: Interval  # of the reward of one such run
    cost: float  # expected loss against the advised configuration; 0 for that itself
    cost95: Interval  # its interval
    best_share: float  # share of the draws in which no other configuration is better
    near_share: float  # share of the draws in which it lies within 0.01 of the range of the best
    data_end: float  # largest compute of its evaluations

    @property
    def beyond(self) -> float:
        """Stop over the largest compute that was evaluated; above 1 the reward is an extrapolation."""
        return self.stop / self.data_end if self.data_end else math.nan


@dataclasses.dataclass(frozen=True)
class BudgetAnswer:
    """How to spend one budget."""

    budget: float
    choices: tuple[Choice, ...]  # every configuration that the budget pays a step of; the advised first, then by cost
    verdict: Verdict
    named: tuple[Configuration, ...]  # "no matter": the set that lies within 0.01; else the advised alone
    cheapest: Configuration | None  # of the named the one with the fewest steps; None unless "no matter"
    reason: Reason  # why it is open; empty otherwise
    learning_rate: float | None  # for the advised batch; None where no run says one
    scaled_rate: bool  # whether that rate follows from the rule sqrt(B) and was not that of the runs
    expected_regret: float  # expected loss of the advised against the best of each draw

    @property
    def advised(self) -> Choice:
        """The choice of least expected regret."""
        return self.choices[0]


@dataclasses.dataclass(frozen=True)
class AnswerRange:
    """Neighbouring budgets of a grid with one answer."""

    start: float
    end: float
    advised: Configuration = dataclasses.field(metadata=INLINE)
    verdict: Verdict
    named: tuple[Configuration, ...]
    reward: Interval  # expected at the first and at the last budget


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """What the data are."""

    runs: int
    configurations: int
    seeds: tuple[int, int]  # least and most runs of a configuration
    evaluations: int  # that are used
    evaluations_per_run: tuple[int, int]  # least and most
    span: Interval  # first compute after the base model's, and the last
    common_end: float  # compute that every configuration reaches
    held_out: bool | None  # whether the metric is of problems that are not trained on; None where nothing says
    equal: Literal["compute", "steps", "neither"]  # in which unit the runs end together
    varies: tuple[str, ...]  # what differs between configurations: "group_size", "learning_rate", ...
    trend: Literal["rise", "no rise"]  # whether any configuration rose
    gain: Interval  # 95% interval of the largest gain over the first level of any configuration
    fallen: tuple[Configuration, ...]  # whose reward ends clearly below its best
    curves: bool  # whether runs have enough evaluations (three or more) for curves
    left_out_rows: int
    left_out_runs: int
    notes: tuple[str, ...]  # sentences on what was left out, joined or numbered, with the count and the cause
    only_scheduled: bool = False  # whether no run has a fixed n: each schedule then counts as a configuration


@dataclasses.dataclass(frozen=True, eq=False)
class CurveBand:
    """One configuration's evaluations, and what the draws say of its reward over compute."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    seeds: tuple[int, ...]
    points: tuple[tuple[np.ndarray, np.ndarray], ...]  # per seed: compute [E], reward [E], compute 0 included
    data_end: float
    compute: np.ndarray  # [P] grid, beyond the data too
    mean: np.ndarray  # [P] of the draws
    low: np.ndarray  # [P] 95%, of the mean of many runs
    high: np.ndarray  # [P]
    run_low: np.ndarray  # [P] 95%, of one run
    run_high: np.ndarray  # [P]


@dataclasses.dataclass(frozen=True, eq=False)
class OptimalSizes:
    """n*(C), B*(C) and M*(C): of each draw the best configuration, over a grid of budgets inside the data."""

    budgets: np.ndarray  # [P]
    group_size: np.ndarray  # [P] of the advised
    interval95: np.ndarray  # [P, 2] n of 95% of the draws
    problems_per_batch: np.ndarray  # [P]
    num_steps: np.ndarray  # [P]; NaN where unknown
    # span, slope, midpoint, floor and saturation of log2 n* = span / (1 + exp(-slope (log10 C - midpoint))) + floor;
    # empty where n* does not change
    law: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class SwitchPoint:
    """Where the best n changes, over the draws."""

    before: Configuration
    after: Configuration
    compute: float  # median over the draws that have it
    interval95: Interval
    share: float  # of the draws that have the change
    epochs: float  # compute / (n D) of the configuration that is left; NaN where D is unknown
    epoch_interval95: Interval


@dataclasses.dataclass(frozen=True)
class NextRun:
    """A run to add, and what it is worth."""

    configuration: Configuration = dataclasses.field(metadata=INLINE)
    compute: float
    seeds: int
    cost: float
    regret_before: float
    regret_after: float


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduleResult:
    """Runs of one schedule beside the best fixed n at the compute where they end."""

    schedule: str
    seeds: tuple[int, ...]
    compute: float
    reward: float  # mean of the seeds there
    interval95: Interval
    best_fixed: Configuration
    difference: float  # to the best fixed n, both at this compute
    difference95: Interval
    points: tuple[tuple[np.ndarray, np.ndarray], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class SweepResult:
    """Everything that was found of a sweep, in the order of summary.json."""

    options: Any = dataclasses.field(metadata=INTERNAL)  # AnalysisOptions
    runs: tuple[Any, ...] = dataclasses.field(metadata=INTERNAL)  # RunCurve of fixed n
    metric: str
    data: DataFacts
    asked: tuple[BudgetAnswer, ...]  # for --budget; else one, at the end of the data
    grid: tuple[BudgetAnswer, ...]  # over a grid of budgets, up to eight times the data
    ranges: tuple[AnswerRange, ...]
    curves: tuple[CurveBand, ...]
    optimal: OptimalSizes | None  # None unless several n were run
    switches: tuple[SwitchPoint, ...]
    next_runs: tuple[NextRun, ...]
    targets: Mapping[str, SweepResult]  # best@k, worst@k: the same of another column, without targets and paper
    # fit_curves of record-breaking points and their envelope (`frontier.paper.PaperFrontier`); None without curves
    paper: Any
    questions: tuple[Any, ...]  # `questions.QuestionResult`
    scheduled: tuple[ScheduleResult, ...]
